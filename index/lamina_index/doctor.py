"""Checks of an installation: one line each, with a remedy where something is wrong."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

from lamina_index import __version__
from lamina_index.errors import LaminaError
from lamina_index.runtime import available_threads, cpu_features

if TYPE_CHECKING:
    from lamina_index.manifest import Precision
    from lamina_index.onnx_session import Device

State = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; `note` is worth knowing, `wrong` needs the user's hand."""

    check: str
    state: State
    detail: str


def examine(
    encoder: str = "default", precision: Precision | None = None, device: Device = "auto"
) -> Iterator[Finding]:
    """Run every check, the quick ones first.

    Args:
        encoder: Name or folder of the encoder to load and prove on its probes.
        precision: Which of its graphs, as for `OnnxEncoder.load`.
        device: Where it is to run, likewise.
    """
    yield Finding(
        "lamina", "ok", f"{__version__}, Python {platform.python_version()} at {sys.prefix}"
    )
    yield _packages()
    yield _runtimes()
    yield _cpu()
    yield _sqlite()
    yield from _guarded("encoder", lambda: _encoder(encoder, precision, device))


def _guarded(check: str, run: Callable[[], Finding]) -> Iterator[Finding]:
    try:
        yield run()
    except LaminaError as error:
        yield Finding(check, "wrong", str(error))


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _packages() -> Finding:
    names = ("numpy", "faiss-cpu", "tokenizers", "pydantic", "fastapi", "pyarrow", "torch")
    listed = [f"{name} {_installed(name) or '-'}" for name in names]
    return Finding("packages", "ok", ", ".join(listed))


def _runtimes() -> Finding:
    found = {
        name: release
        for name in ("onnxruntime", "onnxruntime-gpu")
        if (release := _installed(name)) is not None
    }
    if not found:
        return Finding(
            "onnxruntime", "wrong", "not installed; pip install 'lamina-search[cpu]' (or [gpu])"
        )
    listed = ", ".join(f"{name} {release}" for name, release in found.items())
    if len(found) > 1:
        return Finding(
            "onnxruntime",
            "wrong",
            f"{listed} lie over each other in one folder; pip uninstall both, then install one",
        )
    import onnxruntime

    providers = ", ".join(onnxruntime.get_available_providers())
    return Finding("onnxruntime", "ok", f"{listed}; providers: {providers}")


def _cpu() -> Finding:
    features = cpu_features()
    named = ", ".join(name if there else f"no {name}" for name, there in features.items())
    detail = f"{available_threads()} of {os.cpu_count()} CPUs available; {named}"
    if not features["vnni"]:
        return Finding("cpu", "note", f"{detail}: int8 runs slower here")
    return Finding("cpu", "ok", detail)


def _sqlite() -> Finding:
    from lamina_index.store_words import TOKENIZER

    release = sqlite3.sqlite_version
    try:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute(
                f"CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = '{TOKENIZER}')"
            )
    except sqlite3.Error as error:
        return Finding(
            "sqlite",
            "wrong",
            f"{release} has no FTS5 ({error}), so no collection can be made; use a Python whose "
            "SQLite has it, such as that of python.org, Debian or conda-forge",
        )
    return Finding("sqlite", "ok", f"{release} with FTS5")


def _encoder(name: str, precision: Precision | None, device: Device) -> Finding:
    from lamina_index.encoder import OnnxEncoder

    encoder = OnnxEncoder.load(name, precision=precision, device=device, threads=1)
    encoder.close()
    return Finding(
        "encoder",
        "ok",
        f"{encoder.name} {encoder.precision} on {encoder.provider}, "
        f"{encoder.dimension} dimensions, {len(encoder.manifest.probes)} probes right, "
        f"fingerprint {encoder.fingerprint[:12]}",
    )
