"""Load what is to be exported: any sentence-transformers directory or Hugging Face encoder.

Only configuration, safetensors weights and tokenizer data are read; a folder that needs its own
code, or weights in pickle form, is refused before anything of it is loaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lamina_index.errors import LaminaError
from lamina_index.manifest import Prompts, sha256_file
from lamina_training.weights import PINNED_MODELS, fetch_weights

READABLE_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md"]
AFTER_POOLING = ("Dense", "LayerNorm", "Dropout", "Normalize")
SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class ExportError(LaminaError):
    """An encoder cannot be exported, or the export does not agree with it."""


@dataclass(frozen=True)
class Source:
    """An encoder in torch, ready to be traced.

    Attributes:
        folder: The sentence-transformers directory, or the model's own folder.
        transformer_folder: Where weights, configuration and tokenizer lie: mostly `folder`, or as
            older versions saved it a folder inside, such as `0_Transformer`.
        model: input_ids, attention_mask (B, T) -> token embeddings (B, T, H), unit rows (B, D).
        tokenizer_json: A `tokenizers` file without truncation and padding.
        max_tokens: Longest text, special tokens included.
        max_positions: Longest input that the model's positions allow; None where unbounded.
    """

    name: str
    folder: Path
    transformer_folder: Path
    model: nn.Module
    sentence_transformer: Any
    tokenizer_json: str
    tokenizer_config: dict[str, Any]
    dimension: int
    max_tokens: int
    max_positions: int | None
    pooling: str
    layers: int
    vocabulary: int
    prompts: Prompts
    license: str
    language: str
    provenance: dict[str, Any]


class PooledEncoder(nn.Module):
    """Transformer, pooling and normalisation in one graph.

    The row norm has an epsilon far above the smallest float, so that a zero row stays finite. Mean
    and norm are matrix products because ONNX Runtime's sums take another order when a batch has
    one row, which would change the last bits of a vector with its batch mates.
    """

    def __init__(self, transformer: nn.Module, after: list[nn.Module], *, additive_mask: bool):
        super().__init__()
        self.transformer = transformer
        self.after = nn.ModuleList(after)
        self.additive_mask = additive_mask

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mask = attention_mask
        if self.additive_mask:
            hidden = (1 - attention_mask[:, None, None, :]).to(torch.float32)  # (B, 1, 1, T)
            mask = hidden * torch.finfo(torch.float32).min
        tokens = self.transformer(
            input_ids=input_ids, attention_mask=mask, return_dict=True
        ).last_hidden_state  # (B, T, H)
        features = {"token_embeddings": tokens, "attention_mask": attention_mask}
        for module in self.after:
            features = module(features)
        embedding = features["sentence_embedding"].to(torch.float32)  # (B, D)
        square = embedding[:, None, :] @ embedding[:, :, None]  # (B, 1, 1)
        return tokens, embedding / square[:, 0].sqrt().clamp(min=1e-12)


class MeanPooling(nn.Module):
    """Mean of the tokens that are not padding, as sentence-transformers' `Pooling` takes it."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tokens = features["token_embeddings"]  # (B, T, H)
        mask = features["attention_mask"].to(tokens.dtype)  # (B, T)
        total = (mask[:, None, :] @ tokens)[:, 0]  # (B, H)
        mean = total / mask.sum(dim=1, keepdim=True).clamp(min=1e-9)
        return {**features, "sentence_embedding": mean}


def load_source(origin: str, *, cache: Path) -> Source:
    """Load a folder, a pinned model by name, or a model hub's id.

    Raises:
        ExportError: If it is not there, needs code of its own, lacks safetensors weights, or is
            built from modules that have no place in the graph.
    """
    folder = _locate(origin, cache)
    transformer_folder = _check_modules(folder)
    import sentence_transformers

    try:
        loaded = sentence_transformers.SentenceTransformer(
            str(folder),
            device="cpu",
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={
                "attn_implementation": "eager",
                "dtype": "float32",
                "use_safetensors": True,
            },
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ExportError(f"{folder}: cannot be loaded ({error})") from error
    loaded.eval()
    return _describe(origin, folder, transformer_folder, loaded)


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
        raise ExportError(
            f"{origin}: neither a folder, nor a pinned model ({known}), nor to be had from the "
            f"model hub ({first})"
        ) from error


def _check_modules(folder: Path) -> Path:
    """Check a folder's files before any library acts on them; give the transformer's own folder."""
    listed = folder / "modules.json"
    parts = [folder]
    if listed.is_file():
        entries = _read_modules(listed)
        parts = [(folder / path).resolve() for _, path in entries]
        for (_, path), part in zip(entries, parts, strict=True):
            if not part.is_relative_to(folder.resolve()):
                raise ExportError(f"{listed}: path {path!r} leaves the folder")
    transformer = parts[0]
    config = _read_json(transformer / "config.json")
    if "auto_map" in config:
        raise ExportError(
            f"{transformer}: config.json asks for code of its own (auto_map); not run"
        )
    for part in parts:
        safe = any((part / name).is_file() for name in SAFE_WEIGHTS)
        if not safe and (part == transformer or any(part.glob("*.bin"))):
            raise ExportError(
                f"{part}: no model.safetensors; pickled weights are not read, convert them first"
            )
    return transformer


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """Read the kind and sub-folder of each module; their order and kinds are ones we can export."""
    try:
        listed = json.loads(path.read_bytes())
        modules = [(str(entry["type"]), str(entry["path"])) for entry in listed]
    except (ValueError, TypeError, KeyError) as error:
        raise ExportError(f"{path}: expected a list of objects with type and path") from error
    for kind, _ in modules:
        if not kind.startswith("sentence_transformers."):
            raise ExportError(
                f"{path}: module type {kind!r}; expected one of sentence_transformers, other code "
                "is not run"
            )
    names = [kind.rpartition(".")[2] for kind, _ in modules]
    if names[:2] != ["Transformer", "Pooling"] or any(n not in AFTER_POOLING for n in names[2:]):
        raise ExportError(
            f"{path}: modules {', '.join(names)}; expected Transformer, Pooling and then any of "
            f"{', '.join(AFTER_POOLING)}"
        )
    return modules


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ExportError(f"{path}: no such file; not a transformer's folder") from error
    except ValueError as error:
        raise ExportError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ExportError(f"{path}: expected a JSON object")
    return content


def _describe(origin: str, folder: Path, transformer_folder: Path, loaded: Any) -> Source:
    after = [module for module in list(loaded)[1:] if type(module).__name__ != "Normalize"]
    prompts = _prompts(folder, loaded)
    pooling = loaded[1]
    if not pooling.include_prompt and (prompts.query or prompts.document):
        raise ExportError(
            f"{folder}: its pooling leaves the prompt's tokens out, which a graph of input_ids and "
            "attention_mask cannot know; set include_prompt or export without prompts"
        )
    transformer = loaded[0].auto_model
    config = transformer.config
    if getattr(config, "is_encoder_decoder", False):
        raise ExportError(f"{folder}: an encoder-decoder; expected an encoder")
    backend = getattr(loaded.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ExportError(f"{folder}: no fast tokenizer (tokenizer.json); convert it first")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    positions = _max_positions(config)
    limits = [loaded.max_seq_length, loaded.tokenizer.model_max_length, positions]
    max_tokens = min(int(limit) for limit in limits if limit)
    if max_tokens > 1_000_000:
        raise ExportError(f"{folder}: no bound on a text's length; set max_seq_length")
    modes = pooling.pooling_mode
    if modes == "mean" or list(modes) == ["mean"]:
        after[0] = MeanPooling()
    labels = [modes] if isinstance(modes, str) else list(modes)
    labels += [type(module).__name__.lower() for module in after[1:]]
    weights = sorted(transformer_folder.glob("*.safetensors"))
    hashes = {path.name: sha256_file(path) for path in weights}
    pinned = next(
        (model for model in PINNED_MODELS.values() if model.weights_sha256 in hashes.values()), None
    )
    base = pinned.hub_id if pinned else Path(origin).name if Path(origin).is_dir() else origin
    card = front_matter(_read_text(folder / "README.md"))
    return Source(
        name=pinned.name if pinned else Path(origin).name,
        folder=folder,
        transformer_folder=transformer_folder,
        model=_pooled(transformer, after, config).eval(),
        sentence_transformer=loaded,
        tokenizer_json=tokenizer.to_str(pretty=True),
        tokenizer_config=_tokenizer_config(transformer_folder, max_tokens),
        dimension=int(loaded.get_embedding_dimension()),
        max_tokens=max_tokens,
        max_positions=positions,
        pooling="+".join(labels),
        layers=int(config.num_hidden_layers),
        vocabulary=int(config.vocab_size),
        prompts=prompts,
        license=pinned.license if pinned else card.get("license", "unknown"),
        language="en" if pinned else card.get("language", "unknown"),
        provenance={"base": base, "weights_sha256": hashes},
    )


def _prompts(folder: Path, loaded: Any) -> Prompts:
    found = {name: text for name, text in loaded.prompts.items() if text}
    default = found.get(loaded.default_prompt_name or "", "")
    known = {"query", "document", "passage", loaded.default_prompt_name}
    if strange := sorted(set(found) - known):
        raise ExportError(
            f"{folder}: prompts {', '.join(strange)}; expected query and document (or passage): "
            "rename them in config_sentence_transformers.json"
        )
    return Prompts(
        query=found.get("query", default),
        document=found.get("document", found.get("passage", default)),
    )


def _max_positions(config: Any) -> int | None:
    """Longest input; RoBERTa-like models start to count after the padding id."""
    size = getattr(config, "max_position_embeddings", None)
    if not size or size < 0:
        return None
    if config.model_type in {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}:
        return int(size) - int(config.pad_token_id) - 1
    return int(size)


def _tokenizer_config(folder: Path, max_tokens: int) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    content = _read_json(path) if path.is_file() else {}
    content.pop("name_or_path", None)  # a path of whoever trained it
    return {**content, "model_max_length": max_tokens}


def _pooled(transformer: nn.Module, after: list[nn.Module], config: Any) -> PooledEncoder:
    """Prefer a mask that the graph adds once, where the model gives the same with it."""
    plain = PooledEncoder(transformer, after, additive_mask=False).eval()
    simple = PooledEncoder(transformer, after, additive_mask=True).eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, min(config.vocab_size, 100), (2, 6), generator=generator)
    mask = torch.tensor([[1] * 6, [1] * 3 + [0] * 3])
    with torch.inference_mode():
        expected = plain(ids, mask)[1]
        try:
            found = simple(ids, mask)[1]
        except (ValueError, RuntimeError, IndexError, TypeError):
            return plain
    return simple if torch.allclose(found, expected, atol=1e-5) else plain


def front_matter(card: str) -> dict[str, str]:
    """Plain `key: value` lines between the first two `---` lines of a model card."""
    lines = card.splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    found = {}
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, colon, value = line.partition(":")
        if colon and value.strip() and not key.startswith((" ", "-")):
            found[key.strip()] = value.strip()
    return found
