"""What all tests share: the rules for skipping, and where the larger things lie."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lamina_index.encoder import OnnxEncoder

REPOSITORY = Path(__file__).parents[1]
TRAINING_MODULES = ("torch", "transformers", "sentence_transformers")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _find_browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def _missing_for_ci() -> list[str]:
    missing = [name for name in TRAINING_MODULES if importlib.util.find_spec(name) is None]
    return missing if _find_browser() else [*missing, "a browser"]


def pytest_sessionstart() -> None:
    """In CI a test that is skipped because torch or a browser is missing proves nothing: fail."""
    if os.environ.get("CI") == "true" and (missing := _missing_for_ci()):
        pytest.exit(f"CI runs every test, but this machine lacks: {', '.join(missing)}", 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs minutes or a GPU, unless minutes are given (SLOW=1) or a GPU is there."""
    without_slow = pytest.mark.skip(reason="takes minutes; set SLOW=1")
    without_gpu = pytest.mark.skip(reason="no NVIDIA driver on this machine")
    for item in items:
        if "slow" in item.keywords and os.environ.get("SLOW") != "1":
            item.add_marker(without_slow)
        if "gpu" in item.keywords and not Path("/proc/driver/nvidia/version").exists():
            item.add_marker(without_gpu)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the larger data sets (`quora/`, `stsb/`, ...), which are not in the repository."""
    folder = Path(os.environ.get("SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder}; set SHARED_DATA")  # large, third-party
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium-like browser, for `playwright`'s `executable_path`."""
    browser = _find_browser()
    if browser is None:
        pytest.skip("no chromium on PATH")  # never in CI: see pytest_sessionstart
    return browser


@pytest.fixture(scope="session")
def overlap_reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reranker folder whose score can be counted: see tests/data/overlap_reranker.py.

    With the bundled encoder's tokenizer; it reads 32 tokens.
    """
    from lamina_index.encoder_files import encoder_folder
    from lamina_index.manifest import (
        QueryAndDocument,
        RerankerFile,
        RerankerManifest,
        sha256_file,
    )
    from lamina_index.text import TEXT_VERSION

    folder = tmp_path_factory.mktemp("reranker")
    (folder / "onnx").mkdir()
    graph = folder / "onnx" / "model.onnx"
    shutil.copyfile(REPOSITORY / "tests" / "data" / "overlap_reranker.onnx", graph)
    shutil.copyfile(encoder_folder("default") / "tokenizer.json", folder / "tokenizer.json")
    file = RerankerFile(
        file="onnx/model.onnx",
        sha256=sha256_file(graph),
        size_bytes=graph.stat().st_size,
        fingerprint="",
        probe_scores=[3 - 0.13, -0.08],  # [CLS] the hot sun [SEP] the sun is ... [SEP]: 13 tokens
        probe_tolerance=1e-3,
    )
    manifest = RerankerManifest(
        name="overlap",
        max_tokens=32,
        inputs=["input_ids", "attention_mask", "token_type_ids"],
        layers=0,
        text_version=TEXT_VERSION,
        license="apache-2.0",
        tokenizer_sha256=sha256_file(folder / "tokenizer.json"),
        precisions={"fp32": file},
        probes=[
            QueryAndDocument(query="the hot sun", document="the sun is a hot star."),
            QueryAndDocument(query="the hot sun", document="birds fly"),
        ],
        parity={},
        provenance={"base": "counting"},
    )
    marked = file.model_copy(update={"fingerprint": manifest.fingerprint_of(file.sha256)})
    manifest.model_copy(update={"precisions": {"fp32": marked}}).write(folder / "reranker.json")
    return folder


@pytest.fixture(scope="session")
def default_encoder() -> OnnxEncoder:
    """The bundled encoder, loaded once."""
    from lamina_index.encoder import OnnxEncoder

    return OnnxEncoder.load("default")


def _mount(*arguments: str, folder: Path) -> None:
    """Mount something on a new folder, or skip the test: there is no other way to such a disk."""
    folder.mkdir()
    try:
        done = subprocess.run(["mount", *arguments, folder], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs mount (util-linux)")
    if done.returncode != 0:
        pytest.skip("mounting needs root")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, to be filled."""
    folder = tmp_path / "disk"
    _mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", folder=folder)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """`read_only(folder)` gives another path of the folder, under which nothing can be written."""
    view = tmp_path / "read-only"
    mounted = []

    def mount(folder: Path) -> Path:
        _mount("--bind", str(folder), folder=view)
        mounted.append(view)
        subprocess.run(["mount", "-o", "remount,ro,bind", view], check=True, capture_output=True)
        return view

    yield mount
    if mounted:  # `is_mount` does not see a folder of the same disk
        subprocess.run(["umount", "-l", view], check=True)
