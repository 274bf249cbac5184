from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lamina_index import doctor
from lamina_index.cli import main


def test_a_sound_installation_passes_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    checks = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert checks == ["lamina", "packages", "onnxruntime", "cpu", "sqlite", "encoder"]


def test_a_broken_encoder_is_found_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "encoder.json").write_text("{}")
    assert main(["doctor", "--encoder", str(tmp_path)]) == 1
    assert "wrong  encoder" in capsys.readouterr().out


def test_the_environment_names_the_encoder_as_it_does_for_the_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAMINA_ENCODER", "fast")
    assert main(["doctor"]) == 0
    assert "encoder      fast int8" in capsys.readouterr().out
    assert main(["doctor", "--encoder", "default"]) == 0
    assert "encoder      all-MiniLM-L6-v2 int8" in capsys.readouterr().out


def test_both_runtimes_installed_over_each_other_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda name: "1.32.0")
    finding = next(f for f in doctor.examine() if f.check == "onnxruntime")
    assert finding.state == "wrong"
    assert "pip uninstall both" in finding.detail


def test_an_sqlite_that_cannot_index_words_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse_modules(action: int, *_: object) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_CREATE_VTABLE else sqlite3.SQLITE_OK

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = plain_connect(*arguments, **options)
        connection.set_authorizer(refuse_modules)
        return connection

    plain_connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    assert main(["doctor"]) == 1
    [line] = [line for line in capsys.readouterr().out.splitlines() if "sqlite" in line]
    assert line.startswith("wrong  sqlite")
    assert "FTS5" in line
    assert "use a Python" in line
