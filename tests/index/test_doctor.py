from __future__ import annotations

from pathlib import Path

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


def test_both_runtimes_installed_over_each_other_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda name: "1.32.0")
    finding = next(f for f in doctor.examine() if f.check == "onnxruntime")
    assert finding.state == "wrong"
    assert "pip uninstall both" in finding.detail
