"""In CI nothing that matters is skipped for want of a package or a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_pytest(repository: Path, *, code: str = "", **environment: str) -> tuple[int, str]:
    """Run one quick test of this project in a process of its own."""
    start = f"{code}\nimport sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", start, "tests/repository/test_packaging.py", "-k", "anywhere"],
        cwd=repository,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


HIDE_TORCH = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else real(name, *rest)
"""


@pytest.mark.parametrize(
    ("code", "environment", "lacking"),
    [
        pytest.param(HIDE_TORCH, {}, "torch", id="no torch"),
        pytest.param("", {"PATH": "/nowhere"}, "a browser", id="no browser"),
    ],
)
def test_ci_refuses_to_skip(repository: Path, code: str, environment: dict[str, str], lacking: str):
    status, output = run_pytest(repository, code=code, CI="true", **environment)
    assert status == 1
    assert f"this machine lacks: {lacking}" in output


def test_elsewhere_the_tests_run_without_torch_and_browser(repository: Path):
    status, output = run_pytest(repository, code=HIDE_TORCH, CI="", PATH="/nowhere")
    assert status == 0, output
