"""The commands that documents show exist, with the options shown; the first ones are run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lamina_index.cli import app

SHELL_BLOCK = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown_commands(document: Path) -> Iterator[list[str]]:
    """Give the words of every `lamina ...` line in the shell examples of a document."""
    for block in SHELL_BLOCK.findall(document.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and Path(words[0]).name == "lamina":
                yield words[1:]


def unknown_words(words: list[str]) -> list[str]:
    """Give the sub-command or options that `lamina` does not know."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("lamina", [], resilient_parsing=True)
    while hasattr(command, "get_command"):
        if not words:
            return []
        if words[0].startswith("-"):
            break
        inner = command.get_command(context, words[0])
        if inner is None:
            return [words[0]]
        command, words = inner, words[1:]
    known = {"--help"}.union(*(p.opts + p.secondary_opts for p in command.params))
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]


def test_shown_commands_and_options_exist(repository: Path, project_files: list[Path]):
    documents = [path for path in project_files if path.suffix == ".md"]
    shown = [(path, words) for path in documents for words in shown_commands(path)]
    assert len(shown) > 10
    wrong = [
        f"{path.relative_to(repository)}: lamina {' '.join(words)}: {unknown}"
        for path, words in shown
        if (unknown := unknown_words(words))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("index build --input a --colection b", ["--colection"]),
        ("indx build", ["indx"]),
        ("index biuld", ["biuld"]),
        ("search data/x text --json", []),
    ],
)
def test_the_guard_sees_wrong_words(line: str, unknown: list[str]):
    assert unknown_words(line.split()) == unknown


def test_the_first_example_of_the_readme_finds_the_bread(repository: Path, tmp_path: Path):
    block = next(
        block
        for block in SHELL_BLOCK.findall((repository / "README.md").read_text())
        if "lamina index build" in block
    )
    serving = ("lamina serve", "curl")
    script = "\n".join(line for line in block.splitlines() if not line.startswith(serving))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    places = [done.stdout.index(word) for word in ("bread", "visa", "Python")]
    assert places[0] == min(places)
