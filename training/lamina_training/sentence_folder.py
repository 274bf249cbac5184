"""Make an encoder folder a sentence-transformers directory: weights, settings, list of modules."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from lamina_training.encoder_folder import read_json
from lamina_training.source import Source


def add_weights(folder: Path, source: Source) -> None:
    """Copy weights and settings, so that sentence-transformers loads the folder as it is.

    A stripped encoder becomes a transformer with the library's own pooling; one that keeps a layer
    pooling needs this package installed, and the library's flag to use it.
    """
    for path in [
        *source.transformer_folder.glob("*.safetensors*"),
        source.transformer_folder / "special_tokens_map.json",
        source.transformer_folder / "vocab.txt",
        source.folder / "config_sentence_transformers.json",
    ]:
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    config = read_json(source.transformer_folder / "config.json")
    if source.ending.stripped_to:
        config.pop("output_hidden_states", None)
    write_json(folder / "config.json", config)
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": source.max_tokens, "do_lower_case": False},
    )
    listed = source.folder / "modules.json"
    if source.ending.stripped_to is None and listed.is_file():
        modules = json.loads(listed.read_bytes())
        modules[0]["path"] = ""
        for module in modules[1:]:
            inner = source.folder / module["path"]
            if inner.is_dir():
                shutil.copytree(inner, folder / module["path"])
    else:
        modules = [_module(0, "", "Transformer"), _module(1, "1_Pooling", "Pooling")]
        _plain_pooling(source).save(str(_made(folder / "1_Pooling")))
    if not any(module["type"].endswith(".Normalize") for module in modules):
        modules.append(_module(len(modules), f"{len(modules)}_Normalize", "Normalize"))
    for module in modules:
        _made(folder / module["path"])
    write_json(folder / "modules.json", modules)


def _plain_pooling(source: Source) -> Any:
    if source.ending.stripped_to is None:
        return source.sentence_transformer[1]
    from sentence_transformers.sentence_transformer.modules import Pooling

    return Pooling(source.dimension, source.ending.stripped_to)


def write_json(path: Path, content: Any) -> None:
    """Write JSON as people read it."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _module(number: int, path: str, kind: str) -> dict[str, Any]:
    kind = f"sentence_transformers.models.{kind}"
    return {"idx": number, "name": str(number), "path": path, "type": kind}
