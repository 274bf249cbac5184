"""Find an encoder's folder and load it, running none of the code it may ask for.

Only configuration, safetensors weights and tokenizer data are read; a folder that needs its own
code, or weights in pickle form, is refused before anything of it is loaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina_index.errors import LaminaError
from lamina_training.weights import PINNED_MODELS, fetch_weights

READABLE_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md"]
LAYER_POOLING = "lamina_training.layer_pooling.LayerPooling"
"""How `modules.json` names the one module class that is not of sentence-transformers."""
AFTER_POOLING = ("Dense", "LayerNorm", "Dropout", "Normalize")
SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class EncoderFolderError(LaminaError):
    """A name or folder is no encoder that can be loaded, or not without running its code."""


@dataclass(frozen=True)
class EncoderFolder:
    """An encoder on disk, checked, not loaded.

    Attributes:
        root: The sentence-transformers directory, or the model's own folder.
        transformer: Where weights, configuration and tokenizer lie: mostly `root`, or as older
            versions saved it a folder inside, such as `0_Transformer`.
        modules: Class name and sub-folder of each module; none for a plain Hugging Face folder.
    """

    root: Path
    transformer: Path
    modules: tuple[tuple[str, str], ...]

    @property
    def has_layer_pooling(self) -> bool:
        """Whether our own pooling follows the transformer."""
        return len(self.modules) > 1 and self.modules[1][0] == "LayerPooling"


def find_encoder(origin: str, *, cache: Path) -> EncoderFolder:
    """Find a folder, a pinned model by name, or a model hub's id, and check its files.

    Args:
        origin: Which encoder.
        cache: Where pinned weights are kept.

    Raises:
        EncoderFolderError: If it is not there, needs code of its own, lacks safetensors weights, or
            is built from modules that an encoder here cannot have.
    """
    root = _locate(origin, cache)
    listed = root / "modules.json"
    modules = _read_modules(listed) if listed.is_file() else []
    parts = [(root / path).resolve() for _, path in modules] or [root]
    for (_, path), part in zip(modules, parts, strict=False):
        if not part.is_relative_to(root.resolve()):
            raise EncoderFolderError(f"{listed}: path {path!r} leaves the folder")
    transformer = parts[0]
    config = read_json(transformer / "config.json")
    if "auto_map" in config:
        raise EncoderFolderError(
            f"{transformer}: config.json asks for code of its own (auto_map); not run"
        )
    for part in parts:
        safe = any((part / name).is_file() for name in SAFE_WEIGHTS)
        if not safe and (part == transformer or any(part.glob("*.bin"))):
            raise EncoderFolderError(
                f"{part}: no model.safetensors; pickled weights are not read, convert them first"
            )
    return EncoderFolder(root, transformer, tuple(modules))


def load_encoder(folder: EncoderFolder, *, model_kwargs: dict[str, Any] | None = None) -> Any:
    """Load a checked folder as a `SentenceTransformer` on the CPU, in evaluation mode.

    Args:
        folder: What `find_encoder` found.
        model_kwargs: Passed to the transformer, such as `attn_implementation` and `dtype`.

    Raises:
        EncoderFolderError: If what lies in it does not fit together.
    """
    from sentence_transformers import SentenceTransformer

    model_kwargs = {"use_safetensors": True, **(model_kwargs or {})}
    try:
        if folder.has_layer_pooling:
            loaded = _load_layer_pooled(folder, model_kwargs)
        else:
            loaded = SentenceTransformer(
                str(folder.root),
                device="cpu",
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs=model_kwargs,
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise EncoderFolderError(f"{folder.root}: cannot be loaded ({error})") from error
    return loaded.eval()


def _load_layer_pooled(folder: EncoderFolder, model_kwargs: dict[str, Any]) -> Any:
    """Load module by module: for the library, our class is code that only a flag may import."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Transformer

    from lamina_training.layer_pooling import LayerPooling

    classes = {"Transformer": Transformer, "LayerPooling": LayerPooling, "Normalize": Normalize}
    modules = [
        classes[kind].load(
            str(folder.root),
            subfolder=path,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs=dict(model_kwargs),
        )
        for kind, path in folder.modules
    ]
    path = folder.root / "config_sentence_transformers.json"
    settings = read_json(path) if path.is_file() else {}
    known = ("prompts", "default_prompt_name", "similarity_fn_name")
    return SentenceTransformer(
        modules=modules,
        device="cpu",
        **{name: settings[name] for name in known if name in settings},
    )


def _locate(origin: str, cache: Path) -> Path:
    folder = Path(origin)
    if folder.is_dir():
        return folder
    if pinned := PINNED_MODELS.get(origin):
        return fetch_weights(pinned, cache)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(origin, allow_patterns=READABLE_FILES))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        known = ", ".join(sorted(PINNED_MODELS))
        first = str(error).strip().splitlines()[0]
        raise EncoderFolderError(
            f"{origin}: neither a folder, nor a pinned model ({known}), nor to be had from the "
            f"model hub ({first})"
        ) from error


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """Read the kind and sub-folder of each module; their order and kinds are ones we know."""
    try:
        listed = json.loads(path.read_bytes())
        modules = [(str(entry["type"]), str(entry["path"])) for entry in listed]
    except (ValueError, TypeError, KeyError) as error:
        raise EncoderFolderError(
            f"{path}: expected a list of objects with type and path"
        ) from error
    for kind, _ in modules:
        if not kind.startswith("sentence_transformers.") and kind != LAYER_POOLING:
            raise EncoderFolderError(
                f"{path}: module type {kind!r}; expected one of sentence_transformers or "
                f"{LAYER_POOLING}, other code is not run"
            )
    names = [kind.rpartition(".")[2] for kind, _ in modules]
    after = ("Normalize",) if "LayerPooling" in names else AFTER_POOLING
    pooled = names[:2] in (["Transformer", "Pooling"], ["Transformer", "LayerPooling"])
    if not pooled or any(name not in after for name in names[2:]):
        raise EncoderFolderError(
            f"{path}: modules {', '.join(names)}; expected Transformer, Pooling and then any of "
            f"{', '.join(AFTER_POOLING)}, or Transformer, LayerPooling and then Normalize or none"
        )
    return [(name, path) for name, (_, path) in zip(names, modules, strict=True)]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of an encoder's folder.

    Raises:
        EncoderFolderError: If the file is missing or holds something else.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise EncoderFolderError(f"{path}: no such file; not a transformer's folder") from error
    except ValueError as error:
        raise EncoderFolderError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise EncoderFolderError(f"{path}: expected a JSON object")
    return content


def check_max_tokens(folder: EncoderFolder, config: Any, max_tokens: int) -> None:
    """Make sure that a transformer can read so many tokens.

    Args:
        folder: Where it lies, for the message of an error.
        config: Of the transformer.
        max_tokens: Longest text, special tokens included.

    Raises:
        EncoderFolderError: If it has fewer positions.
    """
    limit = max_positions(config)
    if limit is not None and max_tokens > limit:
        raise EncoderFolderError(
            f"{folder.root}: reads {limit} tokens at most, asked for {max_tokens}; lower max_tokens"
        )


def max_positions(config: Any) -> int | None:
    """Longest input of a transformer; RoBERTa-like ones start to count after the padding id."""
    size = getattr(config, "max_position_embeddings", None)
    if not size or size < 0:
        return None
    if config.model_type in {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}:
        return int(size) - int(config.pad_token_id) - 1
    return int(size)
