"""What cannot be exported is refused by name, before any of its code or pickles is touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_training.encoder_folder import EncoderFolderError
from lamina_training.source import ExportError, front_matter, load_source


@pytest.fixture
def folder(tmp_path: Path, make_tiny_bert: Callable[..., Path]) -> Path:
    return make_tiny_bert(tmp_path / "bert", pooling_mode="mean")


def test_code_of_its_own_is_not_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "auto_map": {"AutoModel": "evil.Model"}})
    with pytest.raises(EncoderFolderError, match="auto_map"):
        load_source(str(folder), cache=folder)


def test_foreign_module_types_are_not_imported(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "os.system"
    write_json(folder / "modules.json", modules)
    with pytest.raises(EncoderFolderError, match=r"os\.system"):
        load_source(str(folder), cache=folder)


def test_module_paths_stay_inside(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    write_json(folder / "modules.json", modules)
    with pytest.raises(EncoderFolderError, match="leaves the folder"):
        load_source(str(folder), cache=folder)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(EncoderFolderError, match="pickled weights"):
        load_source(str(folder), cache=folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "other.safetensors"])
def test_safetensors_elsewhere_do_not_excuse_pickles(
    folder: Path, name: str, move_transformer: Callable[[Path], Path]
) -> None:
    """Not in the root for a transformer in a folder of its own, nor under a name not read."""
    inner = move_transformer(folder)
    weights = (inner / "model.safetensors").rename(folder / "model.safetensors")
    shutil.copy(weights, inner / name)
    with pytest.raises(EncoderFolderError, match=r"0_Transformer: no model\.safetensors"):
        load_source(str(folder), cache=folder)


def test_pickled_weights_after_the_transformer_are_not_read(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    write_json(folder / "modules.json", [*modules, dense])
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(EncoderFolderError, match=r"2_Dense: no model\.safetensors"):
        load_source(str(folder), cache=folder)


def test_modules_that_have_no_place_in_the_graph_are_refused(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "sentence_transformers.models.Router"  # would load what it lists itself
    write_json(folder / "modules.json", modules)
    with pytest.raises(EncoderFolderError, match="modules Router, Pooling; expected Transformer"):
        load_source(str(folder), cache=folder)


@pytest.mark.parametrize("content", ["{", '{"0": "Transformer"}', '[{"type": "x"}]'])
def test_an_unreadable_list_of_modules_is_named(folder: Path, content: str) -> None:
    (folder / "modules.json").write_text(content)
    with pytest.raises(EncoderFolderError, match=r"modules\.json: expected a list"):
        load_source(str(folder), cache=folder)


def test_a_transformer_in_a_folder_of_its_own_is_the_same_model(
    folder: Path, move_transformer: Callable[[Path], Path]
) -> None:
    expected = load_source(str(folder), cache=folder)
    inner = move_transformer(folder)
    found = load_source(str(folder), cache=folder)
    assert found.transformer_folder == inner
    assert found.provenance == expected.provenance
    assert found.tokenizer_json == expected.tokenizer_json
    assert (found.max_tokens, found.tokenizer_config) == (512, expected.tokenizer_config)
    ids, mask = torch.tensor([[2, 7, 9, 3]]), torch.ones(1, 4, dtype=torch.int64)
    assert torch.equal(found.model(ids, mask)[1], expected.model(ids, mask)[1])


def test_a_folder_that_is_no_encoder_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(EncoderFolderError, match=r"config\.json: no such file"):
        load_source(str(tmp_path), cache=tmp_path)


def test_a_pooling_that_leaves_the_prompt_out_is_refused(folder: Path) -> None:
    pooling = {"word_embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": False}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    prompts = {"prompts": {"query": "how : "}}
    write_json(folder / "config_sentence_transformers.json", prompts)
    with pytest.raises(ExportError, match="prompt"):
        load_source(str(folder), cache=folder)


def test_prompts_of_unknown_roles_are_refused(folder: Path) -> None:
    prompts = {"prompts": {"classification": "sort : "}}
    write_json(folder / "config_sentence_transformers.json", prompts)
    with pytest.raises(ExportError, match="classification"):
        load_source(str(folder), cache=folder)


def test_length_is_the_base_cards_and_positions_are_the_models(folder: Path) -> None:
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 100})
    source = load_source(str(folder), cache=folder)
    assert (source.max_tokens, source.max_positions) == (100, 512)


def test_unknown_name_tells_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderFolderError, match="all-MiniLM-L6-v2"):
        load_source("nobody/no-such-model", cache=tmp_path)


def test_front_matter_is_read_as_plain_lines() -> None:
    card = "---\nlicense: mit\ntags:\n- a: b\nlanguage: en\n---\nlicense: gpl\n"
    assert front_matter(card) == {"license": "mit", "language": "en"}
    assert front_matter("no header") == {}


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
