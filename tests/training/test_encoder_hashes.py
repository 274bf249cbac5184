"""An encoder's hashes change with what decides a vector, and with nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.manifest import sha256_file
from lamina_training.encoder_folder import EncoderFolderError, find_encoder
from lamina_training.encoder_hashes import hash_encoder

DECIDING = [
    "model.safetensors",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "vocab.txt",
    "sentencepiece.model",
]


def hashes(folder: Path) -> dict[str, str]:
    return hash_encoder(find_encoder(str(folder), cache=folder))


@pytest.fixture
def folder(tmp_path: Path, make_tiny_bert: Callable[..., Path]) -> Path:
    made = make_tiny_bert(tmp_path / "bert", pooling_mode="mean")
    (made / "config_sentence_transformers.json").write_text("{}")
    (made / "vocab.txt").write_text("cat")
    (made / "sentencepiece.model").write_bytes(b"cat")
    return made


def test_every_file_that_decides_is_hashed_under_its_name(folder: Path) -> None:
    assert hashes(folder) == {name: sha256_file(folder / name) for name in DECIDING}
    assert list(hashes(folder)) == sorted(DECIDING)


@pytest.mark.parametrize("name", DECIDING)
def test_a_change_of_any_of_them_changes_its_hash_alone(folder: Path, name: str) -> None:
    before = hashes(folder)
    (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
    after = hashes(folder)
    assert {key for key in before if before[key] != after[key]} == {name}


def test_checkpoints_and_records_of_a_run_or_an_export_do_not_count(folder: Path) -> None:
    before = hashes(folder)
    for name in ("run.json", "result.json", "encoder.json", "metrics.jsonl", "README.md"):
        (folder / name).write_text("{}")
    checkpoint = folder / "checkpoints" / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    shutil.copyfile(folder / "model.safetensors", checkpoint / "model.safetensors")
    assert hashes(folder) == before


def test_where_the_folder_lies_does_not_count(folder: Path, tmp_path: Path) -> None:
    before = hashes(folder)
    folder.rename(tmp_path / "moved")
    assert hashes(tmp_path / "moved") == before


def test_a_transformer_in_a_folder_of_its_own_is_hashed_too(
    folder: Path, move_transformer: Callable[[Path], Path]
) -> None:
    move_transformer(folder)
    found = hashes(folder)
    assert {"0_Transformer/model.safetensors", "modules.json"} <= found.keys()


def test_a_file_that_cannot_be_read_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("lamina_training.encoder_hashes.sha256_file", refuse)
    with pytest.raises(EncoderFolderError, match=r"config\.json: cannot be read \(Permission"):
        hashes(folder)
