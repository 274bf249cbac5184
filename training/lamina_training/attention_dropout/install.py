"""Put attention dropout on an encoder: through transformers' attention interface, and hooks.

No model code is changed. While a pass is one of training, the encoder calls `attend` for its
attention, and a hook before each self-attention gives it the mask. In evaluation mode the encoder
runs the attention it had, so its outputs are the plain encoder's to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakSet

from torch import Tensor, distributed, nn

from lamina_training.attention_dropout.baselines import (
    drop_heads,
    skip_layers,
    skip_self_attention,
)
from lamina_training.attention_dropout.config import (
    AttendOut,
    AttentionDropoutConfig,
    AttentionLayerDrop,
    DropHead,
    LayerDrop,
    NoChange,
    PlainDropout,
    ScheduledBernoulli,
)
from lamina_training.attention_dropout.encoder_parts import EncoderParts, find_parts
from lamina_training.attention_dropout.errors import AttentionDropoutError
from lamina_training.attention_dropout.handle import AttentionDropout
from lamina_training.attention_dropout.mask_sources import (
    GeneratedMasks,
    MaskSource,
    ScheduledMasks,
)
from lamina_training.attention_dropout.masks import (
    draw_hard,
    guard_rows,
    masked_attention,
    real_pairs,
)
from lamina_training.attention_dropout.meter import RateMeter
from lamina_training.attention_dropout.schedule import make_schedule

ATTENTION_NAME = "lamina_attention_dropout"
MASK_KEYWORD = "dropped_links"

_INSTALLED: WeakSet[nn.Module] = WeakSet()

_Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def attention_dropout(model: nn.Module, config: AttentionDropoutConfig) -> AttentionDropout:
    """Switch attention dropout on for the encoder inside a model.

    Args:
        model: The encoder, or anything around it: a classifier, a SentenceTransformer.
        config: The kind and its numbers.

    Returns:
        What to call from the training loop, and to remove it with.

    Raises:
        AttentionDropoutError: If the model's attention cannot be reached, there is attention
            dropout on it already, or the configuration does not fit its depth.
    """
    if isinstance(config, NoChange):
        return AttentionDropout(config, RateMeter(0))
    parts = find_parts(model)
    if parts.encoder in _INSTALLED:
        raise AttentionDropoutError(
            f"{type(parts.encoder).__name__} has attention dropout already; remove() that first"
        )
    meter = RateMeter(len(parts.layers))
    if isinstance(config, ScheduledBernoulli | AttendOut):
        handle = _drop_links(parts, config, meter)
    else:
        handle = _drop_units(parts, config, meter)
    _INSTALLED.add(parts.encoder)
    handle.undo.callback(_INSTALLED.discard, parts.encoder)
    return handle


def _drop_units(
    parts: EncoderParts,
    config: PlainDropout | LayerDrop | AttentionLayerDrop | DropHead,
    meter: RateMeter,
) -> AttentionDropout:
    handle = AttentionDropout(config, meter)

    def begin_pass(module: nn.Module, args: tuple[Any, ...]) -> None:
        if handle.begin_pass(training=parts.encoder.training) and isinstance(config, PlainDropout):
            for number in range(len(parts.layers)):
                meter.add("drop_probability", number, config.rate, 1.0)

    hooks = [parts.embeddings.register_forward_pre_hook(begin_pass)]
    if isinstance(config, PlainDropout):
        _set_own_dropout(parts, config.rate, handle)
    elif isinstance(config, LayerDrop):
        hooks += skip_layers(parts, config.rate, handle.switch, meter)
    elif isinstance(config, DropHead):
        hooks += drop_heads(parts, config.rate, handle.switch, meter)
    else:
        hooks += skip_self_attention(parts, config.rate, handle.switch, meter)
    for hook in hooks:
        handle.undo.callback(hook.remove)
    return handle


def _drop_links(
    parts: EncoderParts, config: ScheduledBernoulli | AttendOut, meter: RateMeter
) -> AttentionDropout:
    found = parts.encoder.config._attn_implementation
    if found not in ("sdpa", "eager"):
        raise AttentionDropoutError(
            f"{type(parts.encoder).__name__} runs attention {found!r}, which may be fed several "
            'texts as one; load it with attn_implementation="sdpa"'
        )
    masks: MaskSource
    if isinstance(config, AttendOut):
        masks = GeneratedMasks(config, parts, meter)
        _share_first_weights(masks.generators)
    else:
        masks = ScheduledMasks(make_schedule(config, len(parts.layers)), parts.heads, meter)
    handle = AttentionDropout(config, meter, masks)
    _register()

    def begin_pass(module: nn.Module, args: tuple[Any, ...]) -> None:
        training = handle.begin_pass(training=parts.encoder.training)
        wanted = ATTENTION_NAME if training else found
        if parts.encoder.config._attn_implementation != wanted:
            parts.encoder.set_attn_implementation(wanted)

    def hook_of(number: int) -> Callable[..., _Arguments | None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> _Arguments | None:
            if not handle.switch.on:
                return None
            hidden_states = args[0] if args else kwargs["hidden_states"]
            attention_mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
            real = real_pairs(attention_mask, hidden_states)
            if handle.is_suspended:  # what takes as many random numbers as a mask does
                nothing, _ = draw_hard(0.0, real, parts.heads)
                return args, {**kwargs, MASK_KEYWORD: nothing}
            dropped, rank = masks.draw(number, hidden_states, real)
            links = real.sum() * parts.heads
            meter.add("dropped", number, dropped.detach().sum(), links)
            dropped, emptied = guard_rows(dropped, real, rank)
            meter.add("guarded", number, emptied.sum(), real.any(dim=-1).sum() * parts.heads)
            return args, {**kwargs, MASK_KEYWORD: dropped}

        return hook

    hooks = [parts.embeddings.register_forward_pre_hook(begin_pass)]
    hooks += [
        attention.register_forward_pre_hook(hook_of(number), with_kwargs=True)
        for number, attention in enumerate(parts.attentions)
    ]
    handle.undo.callback(parts.encoder.set_attn_implementation, found)
    for hook in hooks:
        handle.undo.callback(hook.remove)
    _set_own_dropout(parts, 0.0, handle)
    return handle


def _set_own_dropout(parts: EncoderParts, rate: float, handle: AttentionDropout) -> None:
    for dropout in parts.own_dropouts:
        handle.undo.callback(setattr, dropout, "p", dropout.p)
        dropout.p = rate


def _share_first_weights(generators: nn.ModuleList) -> None:
    """Start all processes from those of the first."""
    if distributed.is_available() and distributed.is_initialized():
        for parameter in generators.parameters():
            distributed.broadcast(parameter.data, 0)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION_NAME, attend)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention without the dropped links, as transformers calls it.

    A module that was given no mask belongs to another encoder that shares the configuration; it
    gets plain attention.
    """
    dropped: Tensor | None = options.pop(MASK_KEYWORD, None)
    if dropped is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return plain
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return masked_attention(query, key, value, attention_mask, dropped, scaling=scaling)
