"""Find in a model what attention dropout acts on: encoder, layers, self-attention, projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from lamina_training.attention_dropout.errors import AttentionDropoutError

OUTPUT_PROJECTIONS = ("attention.output.dense", "attention.out_lin")
"""Where, inside a layer, the heads are mixed: BERT and its kin; DistilBERT."""


@dataclass(frozen=True)
class EncoderParts:
    """One encoder, taken apart.

    Attributes:
        encoder: The transformers model without task head.
        embeddings: What each pass through the encoder calls first, before it makes its attention
            mask. (sentence-transformers calls the encoder's `forward`, past any hook on itself.)
        layers: Lowest first.
        attentions: The self-attention module of each layer; its first argument is the layer's
            input, and further keywords reach the attention function.
        own_dropouts: The dropout of attention weights that each of them has.
        projections: The linear map after the heads of each layer, (B, T, A * d) -> (B, T, H).
    """

    encoder: Any
    embeddings: nn.Module
    layers: tuple[nn.Module, ...]
    attentions: tuple[nn.Module, ...]
    own_dropouts: tuple[nn.Dropout, ...]
    projections: tuple[nn.Module, ...]
    heads: int
    hidden_size: int


def find_parts(model: nn.Module) -> EncoderParts:
    """Take the one encoder inside a model apart, whatever head or pooling is around it.

    Raises:
        AttentionDropoutError: If there is none or more than one, if it does not call its attention
            through transformers' attention interface, or has no layers that can be hooked.
    """
    import transformers

    found = {
        id(module.base_model): module.base_model
        for module in model.modules()
        if isinstance(module, transformers.PreTrainedModel)
    }
    if len(found) != 1:
        names = ", ".join(type(encoder).__name__ for encoder in found.values()) or "none"
        raise AttentionDropoutError(
            f"{type(model).__name__}: attention dropout needs one transformers encoder, found "
            f"{names}; give it the encoder itself"
        )
    (encoder,) = found.values()
    name = type(encoder).__name__
    if not encoder.is_backend_compatible():
        raise AttentionDropoutError(
            f"{name} does not call its attention through transformers' AttentionInterface, so its "
            "attention weights cannot be masked without changing its code; use BERT, RoBERTa, "
            "DistilBERT or another encoder that does"
        )
    if getattr(encoder.config, "is_decoder", False) or encoder.config.is_encoder_decoder:
        raise AttentionDropoutError(
            f"{name} is configured as a decoder; attention dropout is for encoders"
        )
    recorded = encoder.can_record_outputs
    layer_class, attention_class = recorded.get("hidden_states"), recorded.get("attentions")
    if not isinstance(layer_class, type) or not isinstance(attention_class, type):
        raise AttentionDropoutError(
            f"{name} does not say which of its modules are layers and self-attention, so there is "
            "nothing to hook; use BERT, RoBERTa, DistilBERT or another encoder that does"
        )
    layers = tuple(
        module
        for module in encoder.modules()
        if isinstance(module, layer_class) and isinstance(module, nn.Module)
    )
    parts = [_parts_of_layer(layer, attention_class, name) for layer in layers]
    embeddings = getattr(encoder, "embeddings", None)
    if not parts or not isinstance(embeddings, nn.Module):
        raise AttentionDropoutError(
            f"{name} has {len(parts)} layers and {'an' if embeddings else 'no'} embedding module, "
            "expected some and one; use BERT, RoBERTa or DistilBERT"
        )
    return EncoderParts(
        encoder=encoder,
        embeddings=embeddings,
        layers=layers,
        attentions=tuple(attention for attention, _, _ in parts),
        own_dropouts=tuple(dropout for _, dropout, _ in parts),
        projections=tuple(projection for _, _, projection in parts),
        heads=encoder.config.num_attention_heads,
        hidden_size=encoder.config.hidden_size,
    )


def _parts_of_layer(
    layer: nn.Module, attention_class: type, name: str
) -> tuple[nn.Module, nn.Dropout, nn.Module]:
    attentions = [module for module in layer.modules() if isinstance(module, attention_class)]
    modules = dict(layer.named_modules())
    projections = [modules[path] for path in OUTPUT_PROJECTIONS if path in modules]
    if len(attentions) != 1 or len(projections) != 1:
        raise AttentionDropoutError(
            f"{name}: expected one self-attention and one projection after it in each "
            f"{type(layer).__name__}, found {len(attentions)} and {len(projections)}; use BERT, "
            "RoBERTa or DistilBERT"
        )
    dropout = getattr(attentions[0], "dropout", None)
    if not isinstance(dropout, nn.Dropout):
        raise AttentionDropoutError(
            f"{name}: {type(attentions[0]).__name__} has no dropout that could be switched off; "
            "use BERT, RoBERTa or DistilBERT"
        )
    return attentions[0], dropout, projections[0]
