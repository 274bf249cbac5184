"""`make run` in a fresh copy of the project, as somebody would who has just fetched it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

START_SECONDS = 540
STOP_SECONDS = 30


@pytest.fixture(scope="module")
def fresh_copy(
    repository: Path, project_files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    copy = tmp_path_factory.mktemp("fresh") / "lamina"
    for path in project_files:
        target = copy / path.relative_to(repository)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return copy


@pytest.fixture
def environment() -> dict[str, str]:
    """The caller's variables but those that lead to the environment that runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAMINA_")}
    kept.pop("VIRTUAL_ENV", None)
    kept.pop("MAKEFLAGS", None)
    kept.pop("MAKELEVEL", None)
    return kept


def free_port() -> int:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        port: int = any_socket.getsockname()[1]
        return port


def get(url: str) -> Any:
    with urlopen(url, timeout=10) as response:
        return json.load(response)


@pytest.fixture
def running(fresh_copy: Path, environment: dict[str, str]) -> Iterator[tuple[Any, str]]:
    """`make run` in a process group of its own, once it is ready; and its address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    log = (fresh_copy.parent / "log").open("w+")
    process = subprocess.Popen(
        ["make", "run", f"PORT={port}"],
        cwd=fresh_copy,
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    deadline = time.monotonic() + START_SECONDS
    try:
        while True:
            try:
                get(f"{url}/readyz")
                break
            except OSError:
                log.seek(0)
                assert process.poll() is None, log.read()
                assert time.monotonic() < deadline, log.read()
                time.sleep(0.5)
        yield process, url
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


@pytest.mark.slow
def test_make_run_answers_over_the_standard_library(
    running: tuple[Any, str], fresh_copy: Path, environment: dict[str, str]
):
    process, url = running
    (collection,) = get(f"{url}/v1/collections")["collections"]
    assert collection["count"] > 3000
    query = urlencode({"q": "how do I read a file line by line", "top_k": 10})
    hits = get(f"{url}/v1/collections/{collection['name']}/search?{query}")["hits"]
    assert len(hits) == 10
    assert any("line" in hit["text"] and "file" in hit["text"] for hit in hits)

    os.killpg(process.pid, signal.SIGINT)
    process.wait(STOP_SECONDS)
    log = (fresh_copy.parent / "log").read_text()
    assert f"{url}" in log
    assert "Traceback" not in log

    again = subprocess.run(
        ["make", ".venv/.ready-to-run"],
        cwd=fresh_copy,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "up to date" in again.stdout
    packages = fresh_copy / ".venv" / "lib"
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < 350e6
    assert not list(packages.glob("python*/site-packages/torch"))


def test_an_old_python_is_refused_in_words(fresh_copy: Path, environment: dict[str, str]):
    old = fresh_copy.parent / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\n[ "$1" = --version ]\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "run", f"PYTHON={old}", "VENV=.other"],
        cwd=fresh_copy,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Lamina needs Python 3.11, 3.12 or 3.13, not Python 3.9.2" in done.stderr
    assert not (fresh_copy / ".other").exists()
