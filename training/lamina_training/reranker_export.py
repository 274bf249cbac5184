"""Cross-encoder in torch -> reranker folder: graph, tokenizer, manifest, and proof of agreement.

As for an encoder, the folder is made beside its place and renamed when all checks have passed.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from lamina_index.manifest import QueryAndDocument, RerankerFile, RerankerManifest, sha256_file
from lamina_index.reranker import OnnxReranker
from lamina_index.text import TEXT_VERSION
from lamina_training.agreement import MAX_ABSOLUTE_DIFFERENCE, check_cells
from lamina_training.encoder_graphs import GRAPH_FILES
from lamina_training.export import PROBES, add_licence, versions
from lamina_training.graph import export_graph, open_session
from lamina_training.reranker_source import RerankerSource, check_packing, load_reranker_source
from lamina_training.sentence_folder import write_json
from lamina_training.source import ExportError

PROBE_PAIRS = (
    *(("how do I learn to cook?", document) for document in PROBES),
    ("the " * 300, PROBES[4]),
)
PROBE_TOLERANCE = 1e-3
"""Ten times what torch and ONNX may differ by: kernels of other processors sum in other orders."""


def export_reranker(
    origin: str,
    target: Path,
    *,
    cache: Path,
    relevant_label: str | None = None,
    max_tokens: int | None = None,
    name: str | None = None,
    command: str,
) -> RerankerManifest:
    """Export a cross-encoder in fp32, and load it once as it will be served.

    Args:
        origin: A folder, such as a run of task classification, or a model hub's id.
        target: Folder to make; must not exist.
        cache: Where pinned weights are kept.
        relevant_label: For a model with classes: the one that says that the text answers the query.
        max_tokens: Longest pair; by default 512, or what the model reads if that is less.
        name: The reranker's name; by default the origin's.
        command: What the user typed, for the record.

    Raises:
        ExportError: If it cannot be exported, or the graph does not agree with it.
    """
    if target.exists():
        raise ExportError(f"{target}: exists; export to a new folder or remove that one")
    source = load_reranker_source(
        origin, cache=cache, relevant_label=relevant_label, max_tokens=max_tokens
    )
    check_packing(source, PROBE_PAIRS)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        folder = Path(scratch, "reranker")
        (folder / "onnx").mkdir(parents=True)
        manifest = _fill(folder, source, name, command)
        OnnxReranker.load(folder, device="cpu", threads=1)
        (folder / "README.md").write_text(_card(manifest), encoding="utf-8")
        add_licence(folder, origin=source.folder, license=source.origin.license)
        folder.chmod(0o755)
        folder.rename(target)
    return manifest


def _fill(folder: Path, source: RerankerSource, name: str | None, command: str) -> RerankerManifest:
    (folder / "tokenizer.json").write_text(source.tokenizer_json, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", source.tokenizer_config)
    graph = folder / GRAPH_FILES["fp32"]
    export_graph(
        source.model,
        graph,
        inputs=source.inputs,
        outputs=["score"],
        vocabulary=source.vocabulary,
        max_positions=source.max_positions,
    )
    session = open_session(graph)
    parity = check_cells(
        partial(_difference, source, session),
        origin=source.folder,
        vocabulary=source.vocabulary,
        max_positions=source.max_positions,
    )
    scores = [_score(source, *pair) for pair in PROBE_PAIRS]
    _check_probes(source, session, scores)
    file = RerankerFile(
        file=GRAPH_FILES["fp32"],
        sha256=sha256_file(graph),
        size_bytes=graph.stat().st_size,
        fingerprint="",
        probe_scores=scores,
        probe_tolerance=PROBE_TOLERANCE,
    )
    draft = RerankerManifest(
        name=name or source.origin.name,
        max_tokens=source.max_tokens,
        inputs=list(source.inputs),  # type: ignore[arg-type]  # the names that it allows
        relevant_label=source.relevant_label,
        layers=source.layers,
        text_version=TEXT_VERSION,
        language=source.origin.language,
        license=source.origin.license,
        tokenizer_sha256=sha256_file(folder / "tokenizer.json"),
        precisions={"fp32": file},
        probes=[QueryAndDocument(query=query, document=text) for query, text in PROBE_PAIRS],
        parity={"fp32": parity},
        provenance={**source.origin.provenance, "command": command, "versions": versions()},
    )
    marked = file.model_copy(update={"fingerprint": draft.fingerprint_of(file.sha256)})
    manifest = draft.model_copy(update={"precisions": {"fp32": marked}})
    manifest.write(folder / "reranker.json")
    return manifest


def _difference(
    source: RerankerSource,
    session: onnxruntime.InferenceSession,
    ids: NDArray[np.int64],
    mask: NDArray[np.int64],
) -> float:
    """Compare the scores of a padded batch, half of each row in the second segment."""
    segments = np.zeros_like(ids)
    segments[:, ids.shape[1] // 2 :] = 1
    columns = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments * mask}
    feeds = {name: columns[name] for name in source.inputs}
    with torch.inference_mode():
        expected = source.model(*(torch.from_numpy(each) for each in feeds.values())).numpy()
    return float(np.abs(expected - session.run(["score"], feeds)[0]).max())  # keeps NaN


def _score(source: RerankerSource, query: str, document: str) -> float:
    """Score one pair in torch."""
    packed = [torch.tensor([values]) for values in source.pack(query, document).values()]
    with torch.inference_mode():
        return float(source.model(*packed)[0])


def _check_probes(
    source: RerankerSource, session: onnxruntime.InferenceSession, expected: list[float]
) -> None:
    """Refuse a graph that scores real pairs otherwise than torch does."""
    for (query, document), score in zip(PROBE_PAIRS, expected, strict=True):
        packed = source.pack(query, document)
        feeds = {name: np.array([values], dtype=np.int64) for name, values in packed.items()}
        found = float(session.run(["score"], feeds)[0][0])
        if not abs(found - score) <= MAX_ABSOLUTE_DIFFERENCE:
            raise ExportError(
                f"{source.folder}: torch scores {document[:40]!r} {score:.6f}, ONNX {found:.6f}; "
                f"expected at most {MAX_ABSOLUTE_DIFFERENCE:.0e} between them, not exported"
            )


def _card(manifest: RerankerManifest) -> str:
    """Say what the folder holds, from what, under which terms."""
    label = manifest.relevant_label
    meaning = "the model's output" if label is None else f"the log-odds of its class `{label}`"
    parity = manifest.parity["fp32"]
    text = f"""\
---
license: {manifest.license}
language: {manifest.language}
---

# {manifest.name}

A reranker for Lamina: a cross-encoder that reads a query and a text together and gives one score,
{meaning}; higher is better. From `{manifest.provenance["base"]}`, licence {manifest.license} as the
base model's card states it; keep that card and its licence text with any copy.

Graph: `{manifest.precisions["fp32"].file}`; inputs {", ".join(f"`{n}`" for n in manifest.inputs)}
(int64, batch by length), output `score` (batch). A pair is cut at {manifest.max_tokens} tokens, the
longer text first. fp32 against torch: at most {parity["max_absolute_difference"]:.2g} off, over
{parity["cells"]} shapes up to batch {parity["largest"][0]}, length {parity["largest"][1]}.

```
lamina serve --reranker FOLDER
lamina evaluate --reranker FOLDER --collection DIR --queries FILE --qrels FILE
```
"""
    training: dict[str, Any] = manifest.provenance.get("training", {})
    if training:
        files = ", ".join(
            f"`{name}` (sha256 {digest[:12]})" for name, digest in training["data_sha256"].items()
        )
        text += (
            f"\nTrained with `lamina train`, task {training['task']}, seed {training['seed']}, on "
            f"{files}; whoever publishes it adds these data's terms.\n"
        )
    return text
