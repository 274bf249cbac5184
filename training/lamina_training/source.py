"""Load what is to be exported: any sentence-transformers directory or Hugging Face encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from lamina_index.errors import LaminaError
from lamina_index.manifest import Prompts, sha256_file
from lamina_training.encoder_folder import (
    EncoderFolder,
    find_encoder,
    load_encoder,
    max_positions,
    read_json,
)
from lamina_training.layer_pooling import LayerPooling
from lamina_training.run_folder import RUN_FILE
from lamina_training.weights import PINNED_MODELS

Strip = Literal["cls", "mean"]


OUTPUTS = ("token_embeddings", "sentence_embedding")
"""What every graph gives; one with attention over layers also gives `layer_weights`."""


class ExportError(LaminaError):
    """An encoder cannot be exported, or the export does not agree with it."""


@dataclass(frozen=True)
class Ending:
    """What follows the transformer, up to the division by the norm.

    Attributes:
        modules: In the order they run; each reads and writes features.
        label: Name of the pooling for the manifest.
        attention: Whether there was attention over layers in training, and still is.
        stripped_to: The plain pooling that took the place of what was trained.
        trained: The settings of a layer pooling that the encoder was trained with.
    """

    modules: list[nn.Module]
    label: str
    attention: Literal["none", "kept", "stripped"] = "none"
    stripped_to: Strip | None = None
    trained: dict[str, Any] | None = None


@dataclass(frozen=True)
class Source:
    """An encoder in torch, ready to be traced.

    Attributes:
        folder: The sentence-transformers directory, or the model's own folder.
        transformer_folder: Where weights, configuration and tokenizer lie: mostly `folder`, or as
            older versions saved it a folder inside, such as `0_Transformer`.
        model: input_ids, attention_mask (B, T) -> token embeddings (B, T, H), unit rows (B, D) and,
            where attention over layers is kept, its layer weights (B, N).
        outputs: Names of what the model returns.
        ending: What follows the transformer in it.
        tokenizer_json: A `tokenizers` file without truncation and padding.
        max_tokens: Longest text, special tokens included.
        max_positions: Longest input that the model's positions allow; None where unbounded.
    """

    name: str
    folder: Path
    transformer_folder: Path
    model: nn.Module
    outputs: tuple[str, ...]
    ending: Ending
    sentence_transformer: Any
    tokenizer_json: str
    tokenizer_config: dict[str, Any]
    dimension: int
    max_tokens: int
    max_positions: int | None
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

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[Any, ...]:
        mask = attention_mask
        if self.additive_mask:
            hidden = (1 - attention_mask[:, None, None, :]).to(torch.float32)  # (B, 1, 1, T)
            mask = hidden * torch.finfo(torch.float32).min
        found = self.transformer(input_ids=input_ids, attention_mask=mask, return_dict=True)
        features = {
            "token_embeddings": found.last_hidden_state,  # (B, T, H)
            "all_layer_embeddings": found.get("hidden_states", ()),
            "attention_mask": attention_mask,
        }
        for module in self.after:
            features = module(features)
        embedding = features["sentence_embedding"].to(torch.float32)  # (B, D)
        square = embedding[:, None, :] @ embedding[:, :, None]  # (B, 1, 1)
        unit = embedding / square[:, 0].sqrt().clamp(min=1e-12)
        weights = [features["layer_weights"]] if "layer_weights" in features else []  # (B, N)
        return (found.last_hidden_state, unit, *weights)


def load_source(
    origin: str, *, cache: Path, keep_attention: bool = False, strip: Strip | None = None
) -> Source:
    """Load a folder, a pinned model by name, or a model hub's id.

    Args:
        origin: Which encoder.
        cache: Where pinned weights are kept.
        keep_attention: Keep attention over layers in the graph.
        strip: Put the last layer's first token or token mean in place of a layer pooling.

    Raises:
        EncoderFolderError: If it is not there, needs code of its own, lacks safetensors weights, or
            is built from modules that have no place in the graph.
        ExportError: If it is no encoder, or has no such pooling to keep or strip.
    """
    folder = find_encoder(origin, cache=cache)
    options = {"attn_implementation": "eager", "dtype": "float32"}
    loaded = load_encoder(folder, model_kwargs=options)
    return _describe(origin, folder, loaded, _end(folder, loaded, keep_attention, strip))


def _end(folder: EncoderFolder, loaded: Any, keep_attention: bool, strip: Strip | None) -> Ending:
    """Choose what follows the transformer in the graph."""
    pooling, root = loaded[1], folder.root
    if isinstance(pooling, LayerPooling):
        return _end_layer_pooling(root, pooling, keep_attention, strip)
    if keep_attention or strip:
        flag = "--keep-attention" if keep_attention else "--strip"
        raise ExportError(
            f"{root}: its pooling is sentence-transformers' own, without attention over layers; "
            f"leave {flag} out"
        )
    modules = [module for module in list(loaded)[1:] if type(module).__name__ != "Normalize"]
    modes = pooling.pooling_mode
    if modes == "mean" or list(modes) == ["mean"]:  # in the form that batch mates do not change
        modules[0] = LayerPooling(pooling.embedding_dimension, 1, mode="mean")
    labels = [modes] if isinstance(modes, str) else list(modes)
    labels += [type(module).__name__.lower() for module in modules[1:]]
    return Ending(modules, "+".join(labels))


def _end_layer_pooling(
    root: Path, pooling: LayerPooling, keep_attention: bool, strip: Strip | None
) -> Ending:
    attends = pooling.attention is not None
    label, towards = pooling.config.label, pooling.config.strip_to
    trained = pooling.config.model_dump()
    if keep_attention and strip:
        raise ExportError("--keep-attention and --strip exclude each other; choose one")
    if strip:
        plain = LayerPooling(pooling.hidden_size, pooling.layers, mode=strip)
        return Ending([plain], strip, "stripped" if attends else "none", strip, trained)
    if keep_attention and not attends:
        raise ExportError(f"{root}: its pooling {label} has no attention; drop --keep-attention")
    if attends and not keep_attention:
        raise ExportError(
            f"{root}: its pooling is attention over layers; choose --keep-attention for the "
            "vectors it was trained with, or --strip cls|mean for a plain, faster encoder (this "
            f"one was trained towards --strip {towards})"
        )
    return Ending([pooling], label, "kept" if attends else "none", None, trained)


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _describe(origin: str, found: EncoderFolder, loaded: Any, ending: Ending) -> Source:
    folder, transformer_folder = found.root, found.transformer
    prompts = _prompts(folder, loaded)
    without_prompt = not getattr(loaded[1], "include_prompt", True)
    if without_prompt and (prompts.query or prompts.document):
        raise ExportError(
            f"{folder}: its pooling leaves the prompt's tokens out, which a graph of input_ids and "
            "attention_mask cannot know; set include_prompt or export without prompts"
        )
    transformer = loaded[0].auto_model
    config = transformer.config
    if getattr(config, "is_encoder_decoder", False):
        raise ExportError(f"{folder}: an encoder-decoder; expected an encoder")
    tokenizer_json = plain_tokenizer(folder, loaded.tokenizer)
    positions = max_positions(config)
    limits = (loaded.max_seq_length, loaded.tokenizer.model_max_length, positions)
    max_tokens = shortest_limit(folder, limits)
    described = describe_origin(origin, found)
    return Source(
        name=described.name,
        folder=folder,
        transformer_folder=transformer_folder,
        model=_pooled(transformer, ending.modules, config).eval(),
        outputs=(*OUTPUTS, *(["layer_weights"] if ending.attention == "kept" else [])),
        ending=ending,
        sentence_transformer=loaded,
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config(transformer_folder, max_tokens),
        dimension=int(loaded.get_embedding_dimension()),
        max_tokens=max_tokens,
        max_positions=positions,
        layers=int(config.num_hidden_layers),
        vocabulary=int(config.vocab_size),
        prompts=prompts,
        license=described.license,
        language=described.language,
        provenance={
            **described.provenance,
            **({"layer_pooling": ending.trained} if ending.trained else {}),
        },
    )


def plain_tokenizer(folder: Path, tokenizer: Any) -> str:
    """Write a fast tokenizer of transformers as a `tokenizers` file that neither cuts nor pads.

    Raises:
        ExportError: If it has no such form.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ExportError(f"{folder}: no fast tokenizer (tokenizer.json); convert it first")
    from tokenizers import Tokenizer

    plain = Tokenizer.from_str(backend.to_str())
    plain.no_truncation()
    plain.no_padding()
    return str(plain.to_str(pretty=True))


def shortest_limit(folder: Path, limits: Sequence[int | None]) -> int:
    """Choose the longest input that all limits allow, in tokens.

    Raises:
        ExportError: If there is none: a tokenizer without a limit says a huge number.
    """
    max_tokens = min(int(limit) for limit in limits if limit)
    if max_tokens > 1_000_000:
        raise ExportError(f"{folder}: no bound on a text's length; set max_seq_length")
    return max_tokens


@dataclass(frozen=True)
class Origin:
    """Where a model comes from, for its manifest."""

    name: str
    license: str
    language: str
    provenance: dict[str, Any]


def describe_origin(origin: str, found: EncoderFolder) -> Origin:
    """Tell a model's name, terms and base from its files and what `lamina train` left there."""
    folder = found.root
    weights = sorted(found.transformer.glob("*.safetensors"))
    hashes = {path.name: sha256_file(path) for path in weights}
    pinned = next(
        (model for model in PINNED_MODELS.values() if model.weights_sha256 in hashes.values()), None
    )
    training = _training(folder)
    trained_from = training.get("base", "")
    pinned = pinned or PINNED_MODELS.get(trained_from)
    base = trained_from or (Path(origin).name if Path(origin).is_dir() else origin)
    card = front_matter(_read_text(folder / "README.md"))
    return Origin(
        name=pinned.name if pinned and not training else Path(origin).name,
        license=pinned.license if pinned else card.get("license", "unknown"),
        language="en" if pinned else card.get("language", "unknown"),
        provenance={
            "base": pinned.hub_id if pinned else base,
            "weights_sha256": hashes,
            **({"training": training} if training else {}),
        },
    )


def _training(folder: Path) -> dict[str, Any]:
    """What `lamina train` left about a run: what it was trained from, on what, and how."""
    path = folder / RUN_FILE
    if not path.is_file():
        return {}
    run = read_json(path)
    try:
        config = run["config"]
        encoder, distil = config["encoder"], config.get("distil")
        return {
            "base": _without_place(encoder["base"]),
            **({"base_sha256": _weights(run["inputs"]["base"])} if "inputs" in run else {}),
            **({"layers": encoder["layers"]} if encoder.get("layers") else {}),
            "task": config["task"],
            **({"teacher": _without_place(distil["teacher"])} if distil else {}),
            "seed": config["seed"],
            "data_sha256": run["data"],
            "versions": run["versions"],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"{path}: not what `lamina train` writes (no {error})") from error


def _weights(hashes: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in hashes.items() if name.endswith(".safetensors")}


def _without_place(model: str) -> str:
    """A model's name; of a folder its last part, since its place is nobody else's business."""
    path = Path(model)
    return path.name if path.is_dir() or path.is_absolute() else model


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


def tokenizer_config(folder: Path, max_tokens: int) -> dict[str, Any]:
    """Take over a tokenizer's settings, without the path of whoever trained it."""
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
    content.pop("name_or_path", None)
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
