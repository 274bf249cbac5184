"""`lamina train` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from typer.testing import CliRunner

from lamina_training.commands.train import app
from lamina_training.train_config import TrainConfigError


def as_toml(table: dict[str, Any], name: str = "") -> str:
    """Write nested tables and lists of tables; JSON's values are TOML's here."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items() if key != "train"]
    for source in plain.get("train", []):
        lines.append(f"[[{name}.train]]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in source.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            inner = f"{name}.{key}" if name else key
            lines += [f"[{inner}]", as_toml(value, inner)]
    return "\n".join(lines)


def test_a_file_is_trained_and_the_end_and_the_report_are_told(
    settings: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = settings(run={"steps": 2})
    folder = given["data"].pop("folder")
    Path("tiny.toml").write_text(as_toml(given))
    done = CliRunner().invoke(app, ["--config", "tiny.toml", "--data", folder])
    assert done.exit_code == 0, done.output
    told, report = done.stdout.splitlines()
    assert told.startswith("runs/tiny: 2 steps in ")
    assert "best sts" in told
    assert report == "report: runs/tiny/report/report.md"
    assert "# Run `tiny`" in Path("runs/tiny/report/report.md").read_text()
    assert "## Embedding space" in Path("runs/tiny/report/report.md").read_text()  # by --data
    assert (tmp_path / "runs" / "tiny" / "result.json").is_file()


def test_a_wrong_file_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text('task = "none"')
    done = CliRunner().invoke(app, ["--config", str(tmp_path / "train.toml")])
    assert isinstance(done.exception, TrainConfigError)
