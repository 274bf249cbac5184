"""A tiny BERT with random weights, as a sentence-transformers directory, and one export of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

if TYPE_CHECKING:
    from lamina_training.known_items import KnownItems

WORDS = [
    *("the", "a", "cat", "dog", "sits", "runs", "fast", "slow", "on", "in", "red", "blue"),
    *("house", "tree", "how", "why", "what", "learn", "cook", "?", ".", ":"),
]


def save_tiny_bert(folder: Path, **pooling: Any) -> Path:
    """Write config, safetensors weights, tokenizer and modules of a 2-layer, 32-wide BERT."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vocabulary += [chr(c) for c in range(97, 123) if chr(c) not in WORDS]
    vocabulary += ["##" + chr(c) for c in range(97, 123)]
    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)  # as published models have it baked in
    tokenizer.enable_padding(length=8)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    specials = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    specials |= {"sep_token": "[SEP]", "mask_token": "[MASK]", "tokenizer_class": "BertTokenizer"}
    write_json(folder / "tokenizer_config.json", {**specials, "model_max_length": 512})
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    if pooling:
        modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
        write_json(
            folder / "modules.json",
            [
                {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{k}"}
                for i, (p, k) in enumerate(modules)
            ],
        )
        (folder / "1_Pooling").mkdir()
        write_json(
            folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **pooling}
        )
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": 512})
    return folder


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny matrices gain nothing from threads, and lose much on a busy machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_tiny_bert() -> Callable[..., Path]:
    """`save_tiny_bert(folder, **pooling_config)`; without pooling a plain Hugging Face folder."""
    return save_tiny_bert


@pytest.fixture(scope="session")
def move_transformer() -> Callable[[Path], Path]:
    """Lay a folder out as sentence-transformers did before version 2; gives the inner folder."""

    def move(folder: Path) -> Path:
        inner = folder / "0_Transformer"
        inner.mkdir()
        listed = folder / "modules.json"
        for path in folder.iterdir():
            if path.is_file() and path != listed:
                path.rename(inner / path.name)
        modules = json.loads(listed.read_text())
        modules[0]["path"] = inner.name
        write_json(listed, modules)
        return inner

    return move


@pytest.fixture(scope="session")
def items() -> KnownItems:
    from lamina_training.known_items import KnownItems

    documents = tuple(f"{a} {b} {c}" for a in WORDS[:5] for b in WORDS[5:9] for c in WORDS[9:12])
    return KnownItems(queries=tuple(reversed(documents[:20])), documents=documents)


@pytest.fixture(scope="module")
def small_grid() -> Iterator[None]:
    """Compare torch and ONNX on few shapes: the gate with all of them is test_export's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lamina_training.agreement.LENGTHS", (1, 2, 33))
        patch.setattr("lamina_training.agreement.BATCHES", (1, 2, 16))
        yield


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mean pooling, with prompts."""
    folder = save_tiny_bert(tmp_path_factory.mktemp("tiny") / "bert", pooling_mode_mean_tokens=True)
    prompts = {"query": "how : ", "document": "the : "}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts})
    return folder


@pytest.fixture(scope="session")
def tiny_export(
    tiny_source: Path, items: KnownItems, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """All precisions, with weights."""
    from lamina_training.export import export_encoder

    target = tmp_path_factory.mktemp("export") / "encoder"
    export_encoder(
        str(tiny_source),
        target,
        precisions=["fp32", "int8", "fp16"],
        with_weights=True,
        cache=target.parent,
        command="lamina export bert OUT",
        items=items,
    )
    return target


@pytest.fixture(scope="session")
def tiny_encoder() -> Callable[..., Any]:
    """`tiny_encoder("BERT" | "RoBERTa" | "DistilBERT", head="ForSequenceClassification")`.

    Random weights, 3 layers, 4 heads, 32 wide, no hidden dropout; attention dropout 0.1.
    """

    def make(kind: str, *, head: str = "Model", layers: int = 3, **settings: Any) -> Any:
        import torch
        import transformers

        name = {"BERT": "Bert", "RoBERTa": "Roberta", "DistilBERT": "DistilBert"}[kind]
        shape: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4}
        shape |= {"num_hidden_layers": layers, "vocab_size": 50, "pad_token_id": 0}
        if kind == "DistilBERT":
            shape |= {"hidden_dim": 64, "dropout": 0.0, "attention_dropout": 0.1}
        else:
            shape |= {"intermediate_size": 64, "hidden_dropout_prob": 0.0}
        config = getattr(transformers, f"{name}Config")(**(shape | settings))
        torch.manual_seed(0)
        return getattr(transformers, f"{name}{head}")(config)

    return make


@pytest.fixture(params=["BERT", "RoBERTa", "DistilBERT"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def encoder(kind: str, tiny_encoder: Callable[..., Any]) -> Any:
    return tiny_encoder(kind)


@pytest.fixture
def bert(tiny_encoder: Callable[..., Any]) -> Any:
    return tiny_encoder("BERT").train()
