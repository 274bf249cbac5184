"""`lamina layers` on an encoder that keeps no attention; with one: tests/training."""

from __future__ import annotations

import pytest

from lamina_index.cli import main


def test_an_encoder_without_layer_weights_says_how_to_make_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["layers", "default", "why ?"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no layer_weights (attention over layers: none)" in captured.err
    assert "lamina export --keep-attention" in captured.err


def test_a_text_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", "default"]) == 2
    assert "TEXT" in capsys.readouterr().err
