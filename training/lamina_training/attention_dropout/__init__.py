"""Dropout on attention while an encoder is trained: AttendOut-style, scheduled, and baselines."""

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
from lamina_training.attention_dropout.errors import AttentionDropoutError
from lamina_training.attention_dropout.handle import AttentionDropout
from lamina_training.attention_dropout.install import attention_dropout
from lamina_training.attention_dropout.policy import PolicyGradient, PolicyStep
from lamina_training.attention_dropout.schedule import read_rate_table, write_rate_table

__all__ = [
    "AttendOut",
    "AttentionDropout",
    "AttentionDropoutConfig",
    "AttentionDropoutError",
    "AttentionLayerDrop",
    "DropHead",
    "LayerDrop",
    "NoChange",
    "PlainDropout",
    "PolicyGradient",
    "PolicyStep",
    "ScheduledBernoulli",
    "attention_dropout",
    "read_rate_table",
    "write_rate_table",
]
