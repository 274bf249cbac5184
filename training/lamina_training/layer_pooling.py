"""Pool hidden states to a text's embedding: by attention over all layers, or by a fixed rule.

Layer attention follows Oh et al. 2022, arXiv 2209.05972, as far as that can be known: the authors'
released code, not the paper's text, is what these equations were taken from (it divides scores by
the number of layers and activates the projections by RReLU; neither could be checked in print).
Equation numbers are the paper's as secondary sources give them. What the released code does not run
(other queries, keys and scales, no concatenation, heads of the fixed poolings) are variants; see
`LayerPoolingConfig`.

A saved `LayerPooling` is a JSON file and safetensors weights. sentence-transformers 6 imports
classes of other packages only under `trust_remote_code=True`, from a local folder too, so

    SentenceTransformer(folder, trust_remote_code=True)

loads a saved encoder where this package is installed; no code lies in the folder.
`lamina_training.encoder_folder.load_encoder` loads it without that flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from sentence_transformers.sentence_transformer.modules import Module
from torch import Tensor, nn
from torch.nn import functional

from lamina_training.layer_pooling_config import LayerPoolingConfig

LOWEST_SLOPE, HIGHEST_SLOPE = 1 / 8, 1 / 3
"""Slopes of RReLU below zero in training: drawn anew for each number."""
FIXED_SLOPE = (LOWEST_SLOPE + HIGHEST_SLOPE) / 2
"""In evaluation: 11/48, so an exported graph has a LeakyReLU."""
INITIAL_DEVIATION = 0.02
"""Of all weights: the rule of BERT and RoBERTa, which the released code applies here too."""


def first_tokens(states: Tensor) -> Tensor:
    """First token of each text, (B, H), from hidden states (B, T, H): [CLS] in BERT."""
    return states[:, 0]


def token_means(states: Tensor, mask: Tensor) -> Tensor:
    """Mean of the tokens that are not padding, special ones included.

    A product of matrices, because ONNX Runtime's sums take another order when a batch has one row.

    Args:
        states: (B, T, H).
        mask: (B, T), 1 for tokens, 0 for padding; a text without any token gets zeros.

    Returns:
        (B, H).
    """
    weights = mask.to(states.dtype)
    totals = (weights[:, None, :] @ states)[:, 0]  # (B, H)
    return totals / weights.sum(dim=1, keepdim=True).clamp(min=1e-9)


class LayerAttention(nn.Module):
    """Eq. 1-3: every layer asks all layers; the answers' mean is one vector a text.

    One head, no bias, projections shared by all layers. Values do not depend on who asks, so the
    mean over queries is taken of the weights, before the values are summed: exactly the same result
    for a fraction of the work. In training the released code draws RReLU's slopes for keys and
    values anew for each query; here all queries share one draw.

    Args:
        hidden_size: H.
        divisor: What the scores are divided by.
    """

    def __init__(self, hidden_size: int, *, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Weights of N layers (B, Q, N), each row a distribution, for Q askers (B, Q, H)."""
        projected = self._activate(self.query(queries))  # (B, Q, H)
        scores = projected @ self._activate(self.key(keys)).transpose(1, 2)  # (B, Q, N)
        return torch.softmax(scores / self.divisor, dim=-1)

    def forward(self, queries: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Pool N layers (B, N, H), asked by Q layers (B, Q, H).

        Returns:
            (B, H), and the effective distribution over layers (B, N).
        """
        effective = self.weights(queries, states).mean(dim=1)  # (B, N)
        values = self._activate(self.value(states))  # (B, N, H)
        return (effective[:, None, :] @ values)[:, 0], effective

    def _activate(self, projected: Tensor) -> Tensor:
        """RReLU; written out because evaluation's form of it has no ONNX operator."""
        if self.training:
            return functional.rrelu(projected, LOWEST_SLOPE, HIGHEST_SLOPE, training=True)
        return functional.leaky_relu(projected, FIXED_SLOPE)


class LayerPooling(Module):  # type: ignore[misc]  # sentence-transformers is not type-checked here
    """Hidden states -> `sentence_embedding` (B, H), as a sentence-transformers module.

    Layer attention also writes `layer_weights` (B, N): how much of each layer's value the text's
    vector takes; each row sums to 1, entry 0 is the embedding layer's output.

    Args:
        hidden_size: H.
        layers: N, hidden states that the transformer gives: its layers and the embedding output.
        options: Fields of `LayerPoolingConfig`.

    Raises:
        ValueError: If the options do not fit together.
    """

    def __init__(self, hidden_size: int, layers: int, **options: Any) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.layers = layers
        self.config = LayerPoolingConfig(**options)
        self.attention: LayerAttention | None = None
        if self.config.mode == "layer_attention":
            by_layers = self.config.scale == "layers"
            divisor = layers if by_layers else hidden_size**0.5
            self.attention = LayerAttention(hidden_size, divisor=divisor)
        self.head = _make_head(self.config, hidden_size)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add `sentence_embedding`, and `layer_weights` where there is attention.

        Args:
            features: `token_embeddings` (B, T, H), `attention_mask` (B, T) and, where the mode
                reads other layers, `all_layer_embeddings`: N tensors of (B, T, H).
        """
        last, mask = features["token_embeddings"], features["attention_mask"]
        mode = self.config.mode
        if self.attention is not None:
            states = self._all_layers(features)
            pooled, features["layer_weights"] = self._attend(self.attention, states, mask)
            if self.config.concat_cls:
                pooled = torch.cat([first_tokens(last), pooled], dim=1)  # (B, 2H)
        elif mode == "cls":
            pooled = first_tokens(last)
        elif mode == "mean":
            pooled = token_means(last, mask)
        elif mode == "max":
            pooled = last.masked_fill(mask[:, :, None] == 0, float("-inf")).amax(dim=1)
        elif mode == "cls_mean_concat":
            pooled = torch.cat([first_tokens(last), token_means(last, mask)], dim=1)
        else:
            states = self._all_layers(features)
            first = states[0] if mode == "first_last_mean" else states[-2]
            pooled = token_means((first + states[-1]) / 2, mask)
        features["sentence_embedding"] = self.head(pooled)
        return features

    def _all_layers(self, features: dict[str, Any]) -> Sequence[Tensor]:
        states: Sequence[Tensor] = features.get("all_layer_embeddings", ())
        if len(states) != self.layers:
            raise ValueError(
                f"pooling {self.config.label} reads {self.layers} hidden states, the transformer "
                f"gave {len(states)}; build the model with this module in it, or set "
                "output_hidden_states in the transformer's config"
            )
        return states

    def _attend(
        self, attention: LayerAttention, states: Sequence[Tensor], mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        sources = {self.config.key_value, self.config.query}
        vectors: dict[str, Tensor] = {}  # (B, N, H)
        if "cls" in sources:
            vectors["cls"] = torch.stack([first_tokens(layer) for layer in states], dim=1)
        if "mean" in sources:
            vectors["mean"] = torch.stack([token_means(layer, mask) for layer in states], dim=1)
        queries = vectors[self.config.query]
        if self.config.single_query:
            queries = queries[:, -1:]  # (B, 1, H)
        pooled, weights = attention(queries, vectors[self.config.key_value])
        return pooled, weights

    def on_model_ready(self, model: Any) -> None:
        """Make the transformer give its hidden states; called when a model is built or loaded."""
        if self.config.reads_all_layers and model.transformers_model is not None:
            model.transformers_model.config.output_hidden_states = True

    def get_embedding_dimension(self) -> int:
        """H, whatever the mode."""
        return self.hidden_size

    def get_config_dict(self) -> dict[str, Any]:
        """All that `__init__` takes."""
        return {
            "hidden_size": self.hidden_size,
            "layers": self.layers,
            **self.config.model_dump(),
        }

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write `config.json` and, where there are weights, `model.safetensors`."""
        self.save_config(output_path)
        if self.state_dict():
            self.save_torch_weights(output_path, safe_serialization=True)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:
        """Read what `save` wrote, from a folder or the model hub.

        Raises:
            ValueError: If the options do not fit together or the weights are missing.
        """
        known = ("token", "cache_folder", "revision", "local_files_only")
        place = {name: kwargs[name] for name in known if name in kwargs}
        module = cls(**cls.load_config(model_name_or_path, subfolder=subfolder, **place))
        if module.state_dict():
            path = cls.load_file_path(
                model_name_or_path, "model.safetensors", subfolder=subfolder, **place
            )
            if path is None:
                raise ValueError(
                    f"{model_name_or_path}: no model.safetensors for its pooling "
                    f"{module.config.label}; pickled weights are not read, save it again"
                )
            cls.load_torch_weights(model_name_or_path, subfolder=subfolder, model=module, **place)
        return module


def _make_head(config: LayerPoolingConfig, hidden_size: int) -> nn.Module:
    width = 2 * hidden_size if config.concatenates else hidden_size
    if config.head == "mlp":
        return nn.Sequential(nn.Linear(width, hidden_size), nn.Tanh())
    if config.head == "wide_mlp":
        wanted = count_full_attention(hidden_size)
        middle = round((wanted - hidden_size) / (width + 1 + hidden_size))
        return nn.Sequential(
            nn.Linear(width, middle), nn.Tanh(), nn.Linear(middle, hidden_size), nn.Tanh()
        )
    return nn.Identity()


def count_full_attention(hidden_size: int) -> int:
    """Parameters of eq. 1-5: three projections of H to H, one of 2H to H with bias."""
    return 3 * hidden_size**2 + 2 * hidden_size**2 + hidden_size
