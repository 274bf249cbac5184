"""Encoder in torch -> encoder folder: graphs, tokenizer, manifest, card, and proof that they agree.

The folder is made beside its place and renamed when all checks have passed, so a failed export
leaves nothing behind.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import itertools
import platform
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina_index.manifest import (
    Compatible,
    EncoderManifest,
    Precision,
    PrecisionFile,
    encode_vector,
    sha256_file,
)
from lamina_index.text import TEXT_VERSION
from lamina_training.agreement import check_parity, compare, encode_items
from lamina_training.dev_scores import DevTasks
from lamina_training.encoder_card import card_text
from lamina_training.encoder_graphs import GRAPH_FILES, PRECISIONS, make_int8, open_graph
from lamina_training.export_forms import compare_forms, other_forms
from lamina_training.fp16 import convert_fp16
from lamina_training.graph import GraphRunner, export_fp32
from lamina_training.int8 import Int8Recipe
from lamina_training.known_items import KnownItems, read_known_items
from lamina_training.sentence_folder import add_weights, write_json
from lamina_training.source import ExportError, Source, Strip, load_source

PROBES = (
    "?",
    "How do I learn to cook?",
    "What is the best way to lose weight without going to the gym or giving up sugar?",
    "def add(a, b):\n    return a + b  # TypeError: unsupported operand type(s)",
    "Où est la gare ? Straße, naïve café, Ångström 東京 🙂 привет",
    "0123456789 3.14159 2024-03-18T09:41:07Z 0x80070bcb",
    "the " * 60,
    "When the first ships reached the harbour, nobody on board knew how long the winter would "
    "last, which of the stores had been spoilt by salt water, or who would speak for them. " * 9,
)
PROBE_MIN_COSINE: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.995}
"""Measured: docs/int8.md, section "Other processors"."""

MAX_BATCH_DIFFERENCE = 1e-5


def export_encoder(
    origin: str,
    target: Path,
    *,
    precisions: Sequence[Precision],
    with_weights: bool,
    cache: Path,
    keep_attention: bool = False,
    strip: Strip | None = None,
    name: str | None = None,
    command: str,
    items: KnownItems | None = None,
    recipe: Int8Recipe | None = None,
    dev: DevTasks | None = None,
) -> EncoderManifest:
    """Export an encoder; fp32 is always made and checked, and shipped if asked for.

    Args:
        origin: A folder, a pinned model's name, or a model hub's id.
        target: Folder to make; must not exist.
        precisions: Which graphs to ship.
        with_weights: Whether to add what makes the folder a sentence-transformers directory.
        cache: Where pinned weights are kept.
        keep_attention: Keep attention over layers, and its weights as an output.
        strip: Put the last layer's first token or token mean in place of a layer pooling.
        name: The encoder's name; by default the origin's.
        command: What the user typed, for the record.
        items: Texts on which precisions are compared; by default the standard library's.
        recipe: How int8 is made.
        dev: What an encoder that was trained with attention over layers is scored on, kept and
            stripped; None leaves that out.

    Raises:
        ExportError: If the encoder cannot be exported, or a graph does not agree with it.
    """
    if target.exists():
        raise ExportError(f"{target}: exists; export to a new folder or remove that one")
    if not precisions or not set(precisions) <= set(PRECISIONS):
        raise ExportError(
            f"precision {','.join(precisions)!r}; expected some of {', '.join(PRECISIONS)}"
        )
    load = partial(load_source, origin, cache=cache)
    source = load(keep_attention=keep_attention, strip=strip)
    recipe = recipe or Int8Recipe()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        folder = Path(scratch, "encoder")
        (folder / "onnx").mkdir(parents=True)
        manifest = _fill(folder, source, precisions, name, command, items, recipe)
        others = [load(**options) for options in other_forms(source.ending)] if dev else []
        if dev and others:
            found = compare_forms(folder, [source, *others], precisions, dev, recipe=recipe)
            manifest = manifest.model_copy(update={"parity": {**manifest.parity, "forms": found}})
            manifest.write(folder / "encoder.json")
        if with_weights:
            add_weights(folder, source)
        card = card_text(manifest, with_weights=with_weights)
        (folder / "README.md").write_text(card, encoding="utf-8")
        add_licence(folder, origin=source.folder, license=source.license)
        for precision in set(PRECISIONS) - set(precisions):
            (folder / GRAPH_FILES[precision]).unlink(missing_ok=True)
        folder.chmod(0o755)
        folder.rename(target)
    return manifest


def _fill(
    folder: Path,
    source: Source,
    precisions: Sequence[Precision],
    name: str | None,
    command: str,
    items: KnownItems | None,
    recipe: Int8Recipe,
) -> EncoderManifest:
    """Make tokenizer, graphs and manifest; the graphs not asked for are still there."""
    (folder / "tokenizer.json").write_text(source.tokenizer_json, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", source.tokenizer_config)
    runner = partial(open_graph, folder, source)
    graph = folder / GRAPH_FILES["fp32"]
    export_fp32(source, graph)
    parity: dict[str, Any] = {"fp32": check_parity(source, runner("fp32"))}
    made: list[Precision] = ["fp32"]
    if "fp16" in precisions:
        convert_fp16(graph, folder / GRAPH_FILES["fp16"])
        made.append("fp16")
    if "int8" in precisions:
        make_int8(folder, source, recipe)
        made.append("int8")
    cosines: dict[Precision, list[tuple[float, float]]] = {precision: [] for precision in made}
    if len(made) > 1:
        items = items or read_known_items()
        parity["corpus"] = _describe_items(items)
        vectors = {precision: encode_items(runner(precision), items, source) for precision in made}
        for first, second in itertools.combinations(made, 2):
            found = compare(vectors[first], vectors[second])
            for precision in (first, second):
                cosines[precision].append((found.cosine_mean, found.cosine_min))
            if first == "fp32":
                parity[second] = found.as_dict()
            if not np.isfinite(found.cosine_min):
                raise ExportError(f"{source.folder}: {second} gives vectors that are not finite")
    return _write_manifest(
        folder,
        source,
        precisions,
        name=name,
        command=command,
        parity=parity,
        cosines=cosines,
        probes={precision: runner(precision) for precision in made},
        recipe=recipe,
    )


def _describe_items(items: KnownItems) -> dict[str, Any]:
    return {
        "name": f"documentation strings of Python {platform.python_version()}: first line -> rest",
        "queries": len(items.queries),
        "documents": len(items.documents),
        "sha256": items.sha256,
    }


def _write_manifest(
    folder: Path,
    source: Source,
    precisions: Sequence[Precision],
    *,
    name: str | None,
    command: str,
    parity: dict[str, Any],
    cosines: dict[Precision, list[tuple[float, float]]],
    probes: dict[Precision, GraphRunner],
    recipe: Int8Recipe,
) -> EncoderManifest:
    """Write `encoder.json`; fingerprints need the manifest's fields, so it is made in two steps."""
    files: dict[Precision, PrecisionFile] = {}
    for precision, runner in probes.items():
        path = folder / GRAPH_FILES[precision]
        vectors = runner.encode([source.prompts.document + text for text in PROBES])
        if not np.isfinite(vectors).all():
            raise ExportError(f"{source.folder}: {precision} gives vectors that are not finite")
        exact = precision == "int8" and recipe.batch_invariant
        if exact:
            _check_batch(source, runner, vectors)
        files[precision] = PrecisionFile(
            file=GRAPH_FILES[precision],
            sha256=sha256_file(path),
            size_bytes=path.stat().st_size,
            fingerprint="",
            probe_vectors=[encode_vector(vector) for vector in vectors],
            probe_min_cosine=PROBE_MIN_COSINE[precision],
            batch_invariant=exact,
        )
    draft = EncoderManifest(
        name=name or source.name,
        dimension=source.dimension,
        max_tokens=source.max_tokens,
        pooling=source.ending.label,
        attention=source.ending.attention,
        stripped_to=source.ending.stripped_to,
        layers=source.layers,
        text_version=TEXT_VERSION,
        language=source.language,
        license=source.license,
        prompts=source.prompts,
        tokenizer_sha256=sha256_file(folder / "tokenizer.json"),
        precisions=files,
        probes=list(PROBES),
        parity=parity,
        provenance={**source.provenance, "command": command, "versions": versions()},
    )
    marked = {
        precision: file.model_copy(update={"fingerprint": draft.fingerprint_of(file.sha256)})
        for precision, file in files.items()
    }
    compatible = [
        Compatible(
            fingerprint=marked[precision].fingerprint,
            precision=precision,
            cosine_mean=round(min(mean for mean, _ in measured), 5),
            cosine_min=round(min(low for _, low in measured), 5),
        )
        for precision, measured in cosines.items()
        if measured
    ]
    manifest = draft.model_copy(
        update={
            "precisions": {precision: marked[precision] for precision in precisions},
            "compatible_with": compatible,
        }
    )
    manifest.write(folder / "encoder.json")
    return manifest


def _check_batch(source: Source, runner: GraphRunner, alone: NDArray[np.float32]) -> None:
    """Refuse a graph that says otherwise of the probes in one padded batch than of each alone."""
    texts = [runner.token_ids(source.prompts.document + text) for text in PROBES]
    width = max(map(len, texts))
    ids = np.array([text + [0] * (width - len(text)) for text in texts])
    mask = np.array([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    difference = float(np.abs(runner.run(ids, mask)[1] - alone).max())
    if not difference <= MAX_BATCH_DIFFERENCE:
        raise ExportError(
            f"{source.folder}: int8 vectors differ by {difference:.2g} between a batch and each "
            f"text alone; expected at most {MAX_BATCH_DIFFERENCE:.0e}, not exported"
        )


def versions() -> dict[str, str]:
    """Tell the versions of what made a folder, for its manifest."""
    names = ("torch", "transformers", "sentence-transformers", "onnx", "onnxruntime", "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **found}


def add_licence(folder: Path, *, origin: Path, license: str) -> None:
    """Put the licence text beside the weights: the base's own, or Apache's where that is it."""
    own = origin / "LICENSE"
    if own.is_file():
        shutil.copyfile(own, folder / "LICENSE")
    elif license == "apache-2.0":
        text = importlib.resources.files("lamina_training").joinpath("apache-2.0.txt")
        (folder / "LICENSE").write_bytes(text.read_bytes())
