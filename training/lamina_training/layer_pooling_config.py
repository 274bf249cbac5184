"""How to pool: the settings of `LayerPooling`, readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from lamina_training.idle_settings import refuse_idle

Mode = Literal[
    "cls", "mean", "max", "first_last_mean", "last2_mean", "cls_mean_concat", "layer_attention"
]
Head = Literal["none", "mlp", "wide_mlp"]
Source = Literal["cls", "mean"]

_LAST_LAYER_ONLY = ("cls", "mean", "max", "cls_mean_concat")


class LayerPoolingConfig(BaseModel):
    """How to pool; the mode alone gives the form that its source describes.

    Attributes:
        mode: `cls`, `mean` and `max` of the last layer; the token mean of the first (the embedding
            layer's output, as in the released code) and last layer, or of the last two;
            `cls_mean_concat`, both vectors of the last layer; or `layer_attention`.
        head: `mlp` is eq. 5's tanh(W x + b) to H numbers: from 2H for concatenations, else from H.
            `wide_mlp` has a hidden layer of tanh so wide that the module has as many parameters as
            the full layer attention, within 0.2% (our control for "more parameters, no
            attention"). By default `mlp` for layer attention and concatenation, else `none`.
        query: Layer attention's queries: each layer's first token, or its token mean.
        key_value: Its keys and values, likewise.
        concat_cls: Whether the head reads [last layer's first token; attention's result] (eq. 4).
        scale: What scores are divided by: the number of layers, as in the released code, or the
            square root of H.
        single_query: Query with the last layer alone, not with each layer and then the mean.
        strip_to: What the encoder shall return once the pooling is taken off at export; a choice
            made on dev data, recorded here. The released code has no such path: ours.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode
    head: Head = "none"
    query: Source = "cls"
    key_value: Source = "mean"
    concat_cls: bool = True
    scale: Literal["layers", "sqrt_hidden"] = "layers"
    single_query: bool = False
    strip_to: Source = "cls"

    @model_validator(mode="before")
    @classmethod
    def _default_head(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "head" in given:
            return given
        wide = given.get("mode") in ("cls_mean_concat", "layer_attention")
        return {**given, "head": "mlp" if wide else "none"}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.mode != "layer_attention":
            of_attention = ("query", "key_value", "concat_cls", "scale", "single_query")
            refuse_idle(self, of_attention, f"only layer_attention has that, mode is {self.mode}")
        elif self.head == "wide_mlp":
            raise ValueError("head wide_mlp: a control without attention; use mlp or none")
        if self.concatenates and self.head == "none":
            raise ValueError(
                f"head none: {self.label} is 2H wide and needs the head to be H wide; use mlp"
            )
        return self

    @property
    def concatenates(self) -> bool:
        """Whether the head reads two vectors."""
        return self.mode == "cls_mean_concat" or (
            self.mode == "layer_attention" and self.concat_cls
        )

    @property
    def reads_all_layers(self) -> bool:
        """Whether hidden states below the last layer are needed."""
        return self.mode not in _LAST_LAYER_ONLY

    @property
    def label(self) -> str:
        """Name for manifests and tables, one for each form, such as `layer_attention+cls+mlp`."""
        parts: list[str] = [self.mode]
        if self.mode == "layer_attention":
            sources = f"{self.query}-{self.key_value}"
            parts += [] if sources == "cls-mean" else [sources]
            parts += [] if self.scale == "layers" else [self.scale]
            parts += ["single_query"] if self.single_query else []
            parts += ["cls"] if self.concat_cls else []
        parts += [] if self.head == "none" else [self.head]
        return "+".join(parts)
