"""How much noise each kind of attention dropout makes at a rate, before anything is trained.

python benchmarks/dropout_noise.py

For sentences of CoLA's dev set and all-MiniLM-L6-v2, every other dropout off: the length of what
dropout changes in the last layer's [CLS], divided by the length of that [CLS], in the mean over
sentences and draws; also the share of links, heads or layers that was dropped. Kinds are to be
compared at equal noise as well as at equal rates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from corpora import SHARED_DATA, base_weights
from harness import RESULTS, parser, rounded, write_result
from pydantic import TypeAdapter
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from lamina_training.attention_dropout import attention_dropout
from lamina_training.attention_dropout.config import AttentionDropoutConfig
from lamina_training.data_rows import read_rows

SENTENCES, DRAWS = 64, 8
KINDS: list[dict[str, Any]] = [
    *({"kind": "plain", "rate": rate} for rate in (0.1, 0.2, 0.3)),
    *(
        {"kind": "scheduled_bernoulli", "start": rate, "low_layer": rate, "high_layer": rate}
        for rate in (0.05, 0.1, 0.2)
    ),
    {"kind": "attendout"},
    {"kind": "drop_head", "rate": 0.1},
    {"kind": "attention_layer_drop", "rate": 0.1},
    {"kind": "layer_drop", "rate": 0.1},
]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    sentences, draws = (8, 2) if arguments.small else (SENTENCES, DRAWS)
    path = SHARED_DATA / "classification" / "cola" / "dev.tsv"
    texts = [row.text("sentence") for row in read_rows(path, ["sentence"])][:sentences]
    folder = base_weights()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    rows = [measure(folder, batch, settings, draws) for settings in KINDS]
    write_result(
        arguments.output or RESULTS / "dropout_noise.json",
        {"base": folder.name, "sentences": len(texts), "draws": draws},
        {"kinds": rows},
    )
    print(json.dumps(rows, indent=1))


def measure(folder: Path, batch: Any, settings: dict[str, Any], draws: int) -> dict[str, Any]:
    """Noise of one kind, on an encoder of its own."""
    torch.manual_seed(0)
    model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    clean = last_cls(model, batch)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    config: AttentionDropoutConfig = TypeAdapter(AttentionDropoutConfig).validate_python(settings)
    with attention_dropout(model, config) as dropout:
        model.train()
        noise = []
        for _ in range(draws):
            dropout.step(0.0)
            changed = last_cls(model, batch)
            noise.append((changed - clean).norm(dim=1) / clean.norm(dim=1))
        dropped = dropout.statistics().get("dropped", [])
    return {
        "kind": settings["kind"],
        "rate": settings.get("rate", settings.get("start", 0.1)),
        "dropped": rounded(sum(dropped) / len(dropped)) if dropped else None,
        "noise": rounded(float(torch.cat(noise).mean())),
    }


def last_cls(model: nn.Module, batch: Any) -> Tensor:
    """The last layer's [CLS], (B, H)."""
    with torch.no_grad():
        states: Tensor = model(**batch).last_hidden_state
    return states[:, 0]


if __name__ == "__main__":
    main()
