from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_builds.py")
MEMORY_DISK = Path("/dev/shm")
"""SIGKILL needs no real disk, and waiting for one is most of the time there."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if MEMORY_DISK.is_dir():
        with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as name:
            yield Path(name)
    else:
        yield tmp_path


@pytest.mark.parametrize("mode", ["new", "append", "replace"])
def test_a_build_killed_before_any_change_on_disk_resumes_to_the_same_collection(
    mode: str, folder: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), mode],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parent)},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    changes = " ".join(report["changes"])
    assert len(report["changes"]) >= 25
    for needed in ("COMMIT", "os.rename", "collection.json", "rejects.jsonl", "snapshots"):
        assert needed in changes, f"no kill point at {needed}"
