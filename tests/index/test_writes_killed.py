from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("killed_writes.py")
MEMORY_DISK = Path("/dev/shm")
"""SIGKILL needs no real disk, and waiting for one is most of the time there."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if MEMORY_DISK.is_dir():
        with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as name:
            yield Path(name)
    else:
        yield tmp_path


def killed(*arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parent)},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == [], done.stderr
    return report["changes"]


@pytest.mark.parametrize("work", ["upsert", "replace", "delete", "filter", "chunked"])
def test_a_write_killed_before_any_step_is_there_whole_or_not_at_all(
    work: str, folder: Path
) -> None:
    steps = " | ".join(killed(folder, work))
    needed = {
        "upsert": ["INSERT INTO documents", "INSERT INTO vectors", "UPDATE meta"],
        "delete": ["DELETE FROM documents", "DELETE FROM vectors", "INSERT INTO tombstones"],
    }
    needed["filter"] = needed["delete"]
    needed["replace"] = [*needed["upsert"], *needed["delete"], "os.rename"]
    needed["chunked"] = needed["replace"]
    for step in (".write-lock", *needed[work], "COMMIT"):
        assert step in steps, f"no kill point at {step}"


def test_writers_killed_at_any_moment_lose_nothing_that_they_had_acknowledged(folder: Path) -> None:
    assert int(killed(folder, "random", 10)[0]) >= 10


@pytest.mark.slow
def test_writers_and_compactions_killed_at_any_moment_for_200_rounds(folder: Path) -> None:
    assert int(killed(folder, "random", 200)[0]) >= 200
