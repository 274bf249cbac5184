from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from lamina_index import __version__, cli
from lamina_index.errors import CorpusError, LaminaError, RejectedRowsError


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"lamina {__version__}\n"


def test_help_lists_every_command_with_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split(maxsplit=1) for line in lines[lines.index("Commands:") + 1 :]]
    assert {"doctor", "evaluate", "export", "index", "search", "serve"} <= {c[0] for c in listed}
    assert all(len(command) == 2 for command in listed)


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serach"]) == 2
    assert "No such command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(CorpusError("a.tsv: gone"), 1), (RejectedRowsError("2 rows"), 3)]
)
def test_an_error_is_one_line_and_an_exit_code(
    error: LaminaError,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert cli.main([]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"lamina: {error}\n")


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from lamina_index.cli import main; main(['--help'])\n"
        "print([m for m in ('numpy', 'faiss', 'onnxruntime', 'torch', 'fastapi', 'pydantic')"
        " if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"


def test_no_command_offers_shell_completion_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    context = typer.Context(typer.main.get_command(cli.app))
    group = cli._EntryPointGroup(name="lamina")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert "install_completion" not in [parameter.name for parameter in command.params], name


@pytest.mark.parametrize("variable", ["LAMINA_DEVICE", "LAMINA_PRECISION"])
@pytest.mark.parametrize(
    "command",
    [
        "index build --input {0}/c.jsonl --collection {0}/new",
        "index add {0}/c --input {0}/c.jsonl",
        "search {0}/c cats",
        "evaluate --collection {0}/c --queries {0}/q.tsv --qrels {0}/r.tsv",
        "layers default cats",
        "doctor",
    ],
)
def test_every_command_that_embeds_reads_where_and_how_from_the_environment(
    command: str,
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": "cats sleep"}\n')
    (tmp_path / "q.tsv").write_text("id\ttext\nq\tcats\n")
    (tmp_path / "r.tsv").write_text("query\tdocument\nq\ta\n")
    build = ["index", "build", "--input", f"{tmp_path}/c.jsonl", "--collection", f"{tmp_path}/c"]
    assert cli.main(build) == 0
    monkeypatch.setenv(variable, "cuda" if variable == "LAMINA_DEVICE" else "fp32")
    assert cli.main(command.format(tmp_path).split()) == 1
    assert "graph for device" in "".join(capfd.readouterr())  # the bundled one is int8, for CPUs


@pytest.mark.parametrize(
    ("option", "commands"),
    [
        *((name, "search evaluate") for name in ("mode", "fusion", "lexical_weight", "rerank")),
        *((name, "search evaluate layers doctor") for name in ("precision", "device")),
        *((name, "train study report export") for name in ("data", "cache")),
    ],
)
def test_an_option_that_commands_share_is_the_same_in_each(option: str, commands: str) -> None:
    context = typer.Context(typer.main.get_command(cli.app))
    group = cli._EntryPointGroup(name="lamina")
    found: list[tuple[Any, ...]] = [
        (parameter.opts, parameter.help, parameter.default, parameter.envvar)
        for name in commands.split()
        for parameter in group.get_command(context, name).params
        if parameter.name == option
    ]
    assert len(found) == len(commands.split())
    assert all(one == found[0] for one in found)
