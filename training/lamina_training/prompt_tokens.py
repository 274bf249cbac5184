"""An encoder's default prompt, as tokens that are put into texts which are tokens already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class PromptTokens:
    """What a prompt of P tokens adds to each text.

    Attributes:
        ids: Of the prompt's tokens.
        place: So many special tokens of a text come before it.
    """

    ids: tuple[int, ...]
    place: int

    @classmethod
    def of(cls, model: Any) -> Self | None:
        """Read the default prompt of a SentenceTransformer; give None where it has none."""
        prompt = default_prompt(model)
        if not prompt:
            return None
        read = model.tokenizer(prompt, return_special_tokens_mask=True)
        special = read["special_tokens_mask"]
        ids = [token for token, added in zip(read["input_ids"], special, strict=True) if not added]
        return cls(tuple(ids), special.index(0))

    def put_into(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Give a batch of (B, T) tokens with the prompt in each text: (B, P + T).

        `prompt_length` goes with it, for a pooling that leaves the prompt out.
        """
        more: dict[str, Any] = {"prompt_length": self.place + len(self.ids)}
        for name, value in features.items():
            if not isinstance(value, Tensor) or value.shape != features["input_ids"].shape:
                more[name] = value
                continue
            put = value.new_zeros(len(value), len(self.ids))
            if name == "input_ids":
                put = put + torch.tensor(self.ids, dtype=value.dtype, device=value.device)
            elif name == "attention_mask":
                put = put + 1
            more[name] = torch.cat([value[:, : self.place], put, value[:, self.place :]], dim=1)
        return more

    def cut_from(self, states: Tensor) -> Tensor:
        """Give the states (B, T, H) of the text's own tokens out of those (B, P + T, H) of all."""
        after = self.place + len(self.ids)
        return torch.cat([states[:, : self.place], states[:, after:]], dim=1)


def default_prompt(model: Any) -> str:
    """Give the text that a SentenceTransformer puts before each other, perhaps an empty one."""
    return model.prompts.get(model.default_prompt_name) or ""


def is_read_apart(model: Any, texts: Sequence[str]) -> bool:
    """Tell whether a model's default prompt and these texts are the same tokens apart and joined.

    They are not where a space between two words is part of the second one's token, and the prompt
    ends in it.
    """
    prompt = PromptTokens.of(model)
    if prompt is None or not texts:
        return True
    alone, joined = (
        model.tokenizer(each)["input_ids"]
        for each in (list(texts), [default_prompt(model) + text for text in texts])
    )
    ids, place = list(prompt.ids), prompt.place
    return [text[:place] + ids + text[place:] for text in alone] == list(joined)
