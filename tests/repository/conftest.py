"""The repository's own files are what these tests look at."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def project_files(repository: Path) -> list[Path]:
    """Every file that is part of the project: tracked, or new and not ignored; sorted."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = (repository / name for name in sorted(set(listed.split("\0"))) if name)
    return [path for path in paths if path.is_file()]
