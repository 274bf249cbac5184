"""Load a cross-encoder to be exported: any Hugging Face sequence classifier, or a run's."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from lamina_index.text import normalize_text
from lamina_training.encoder_folder import (
    EncoderFolderError,
    find_encoder,
    max_positions,
    read_json,
)
from lamina_training.source import (
    ExportError,
    Origin,
    describe_origin,
    plain_tokenizer,
    shortest_limit,
    tokenizer_config,
)

DEFAULT_MAX_TOKENS = 512
"""What each pair costs is bounded by it, and few cross-encoders read more."""


@dataclass(frozen=True)
class RerankerSource:
    """A cross-encoder in torch, ready to be traced.

    Attributes:
        folder: Where it lies.
        origin: Its name, terms and base.
        model: What `inputs` names, int64 (B, T) each -> scores (B,).
        inputs: Of the graph.
        relevant_label: Class whose log-odds are the score; None for a model with one output.
        tokenizer: Packs a pair, and cuts it at `max_tokens`; does not pad.
        tokenizer_json: The same without the cut.
        max_tokens: Longest pair, special tokens included.
        max_positions: Longest input that the model's positions allow; None where unbounded.
    """

    folder: Path
    origin: Origin
    model: nn.Module
    inputs: tuple[str, ...]
    relevant_label: str | None
    tokenizer: Tokenizer
    tokenizer_json: str
    tokenizer_config: dict[str, Any]
    max_tokens: int
    max_positions: int | None
    layers: int
    vocabulary: int

    def pack(self, query: str, document: str) -> dict[str, list[int]]:
        """Token ids, mask and segments of one pair, normalised and cut as in service."""
        pair = self.tokenizer.encode(normalize_text(query), normalize_text(document))
        columns = {
            "input_ids": pair.ids,
            "attention_mask": pair.attention_mask,
            "token_type_ids": pair.type_ids,
        }
        return {name: list(columns[name]) for name in self.inputs}


class PairScorer(nn.Module):
    """A sequence classifier that returns one score a pair.

    Of a model with one output the score is that output. Of one with classes it is the log-odds of
    the relevant class against all others: it orders pairs as the class's probability does, but does
    not round to 1 where the model is sure.
    """

    def __init__(self, classifier: nn.Module, relevant: int | None) -> None:
        super().__init__()
        self.classifier = classifier
        self.relevant = relevant

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: torch.Tensor = self.classifier(
            input_ids=input_ids, attention_mask=attention_mask, **segments
        ).logits.to(torch.float32)  # (B, C)
        if self.relevant is None:
            return logits[:, 0]
        others = [n for n in range(logits.shape[1]) if n != self.relevant]
        return logits[:, self.relevant] - torch.logsumexp(logits[:, others], dim=1)


def load_reranker_source(
    origin: str, *, cache: Path, relevant_label: str | None = None, max_tokens: int | None = None
) -> RerankerSource:
    """Load a folder, such as a run of task classification, or a model hub's id.

    Args:
        origin: Which cross-encoder.
        cache: Where pinned weights are kept.
        relevant_label: For a model with classes: the one that says that the text answers the query.
        max_tokens: Longest pair; by default 512, or what the model reads if that is less.

    Raises:
        EncoderFolderError: If it is not there, needs code of its own or lacks safetensors weights.
        ExportError: If it is no sequence classifier, or the label or length does not fit it.
    """
    found = find_encoder(origin, cache=cache)
    folder = found.transformer
    kinds = read_json(folder / "config.json").get("architectures") or ["none"]
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        raise ExportError(
            f"{folder}: architecture {', '.join(map(str, kinds))}; a reranker is a "
            "ForSequenceClassification model: a hub's cross-encoder, or a run of `lamina train` "
            "with task classification on pairs"
        )
    classifier, tokenizer = _load(folder)
    config = classifier.config
    takes_segments = "token_type_ids" in inspect.signature(classifier.forward).parameters
    has_segments = takes_segments and getattr(config, "type_vocab_size", 0) > 1
    relevant = _relevant(folder, config.id2label, relevant_label)
    positions = max_positions(config)
    longest = shortest_limit(folder, (tokenizer.model_max_length, positions))
    if max_tokens is not None and not 4 < max_tokens <= longest:
        raise ExportError(
            f"{folder}: --max-tokens {max_tokens}; expected more than 4 and at most {longest}, "
            "which is what the model reads"
        )
    length = max_tokens or min(longest, DEFAULT_MAX_TOKENS)
    tokenizer_json = plain_tokenizer(folder, tokenizer)
    packing = Tokenizer.from_str(tokenizer_json)
    packing.enable_truncation(length)
    return RerankerSource(
        folder=folder,
        origin=describe_origin(origin, found),
        model=PairScorer(classifier, relevant).eval(),
        inputs=("input_ids", "attention_mask", *(["token_type_ids"] if has_segments else [])),
        relevant_label=None if relevant is None else str(config.id2label[relevant]),
        tokenizer=packing,
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config(folder, length),
        max_tokens=length,
        max_positions=positions,
        layers=int(config.num_hidden_layers),
        vocabulary=int(config.vocab_size),
    )


def check_packing(source: RerankerSource, pairs: Sequence[tuple[str, str]]) -> None:
    """Compare how pairs are packed here with what the model's own tokenizer makes of them.

    Raises:
        ExportError: If any input differs.
    """
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(
        source.folder, local_files_only=True, trust_remote_code=False
    )
    for query, document in pairs:
        expected = own(
            normalize_text(query),
            normalize_text(document),
            truncation="longest_first",
            max_length=source.max_tokens,
            return_token_type_ids=True,
        )
        for name, values in source.pack(query, document).items():
            if values != list(expected[name]):
                raise ExportError(
                    f"{source.folder}: its tokenizer.json packs a pair into other {name} than its "
                    "own tokenizer does; save it anew with a recent transformers"
                )


def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        classifier, loading = AutoModelForSequenceClassification.from_pretrained(
            folder,
            attn_implementation="eager",
            dtype="float32",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise EncoderFolderError(f"{folder}: cannot be loaded ({error})") from error
    if missing := sorted(loading["missing_keys"]):
        raise ExportError(
            f"{folder}: its weights lack {missing[0]} and {len(missing) - 1} more, which would be "
            "random; export a cross-encoder that was trained"
        )
    return classifier.eval(), tokenizer


def _relevant(folder: Path, labels: dict[int, str], wanted: str | None) -> int | None:
    """Find the class that says that a text answers a query; None for a single output."""
    names = {str(label): number for number, label in labels.items()}
    listed = ", ".join(names)
    if len(labels) == 1:
        if wanted is not None:
            raise ExportError(f"{folder}: one output and no classes; leave --relevant-label out")
        return None
    if wanted is None:
        raise ExportError(
            f"{folder}: classes {listed}; say by --relevant-label which of them means that the "
            "text answers the query"
        )
    if wanted not in names:
        raise ExportError(f"{folder}: --relevant-label {wanted}: expected one of {listed}")
    return names[wanted]
