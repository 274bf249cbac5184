"""Contrastive losses: InfoNCE on cosine, its three schemes, and the same with gradient caching.

The functions take embeddings and know no model. The two modules embed a batch and hand over; they
fit sentence-transformers' trainer, whose own `MultipleNegativesRankingLoss` they differ from in:

- duplicates: texts that say the same are never each other's negatives, by text and by given
  cluster ids. The library leaves that to a batch sampler, which compares exact texts only;
- hard negatives: a constant is added to the logit of an anchor's own hard negative. The library's
  `hardness_mode` adds a multiple of the cosine instead;
- schemes: self-supervised and hybrid training encode a text twice within the loss;
- precision: scores are float32 also under autocast, where a cosine in bfloat16 divided by 0.05 is
  off by up to 0.08.

Gradient caching itself is the library's (`CachedLossMixin`); only its loss step is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from sentence_transformers.base.losses import CachedLossMixin
from sentence_transformers.util import all_gather, get_rank
from torch import Tensor, nn
from torch.nn import functional

from lamina_training.by_length import embed_by_length
from lamina_training.duplicates import NO_KEY
from lamina_training.gathering import gather_rows

Scheme = Literal["supervised", "self_supervised", "hybrid"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    *,
    temperature: float,
    hard_negative_weight: float = 0.0,
    targets: Tensor | None = None,
    excluded: Tensor | None = None,
) -> Tensor:
    """Tell each anchor's positive from all other candidates of the batch, by cosine.

    Candidate [0, j] is the positive of batch row j, [1, j], [2, j], ... are its hard negatives.
    With s = cosine / temperature, and n over all rows and all candidates c of row j:

        loss_i = -log exp s(i, 0, i) / sum over c, j of exp(s(i, c, j) + w * [c > 0 and j = i])

    Args:
        anchors: (R, D), of any length.
        candidates: (C, N, D), of any length, C >= 1.
        temperature: Positive divisor of the cosines.
        hard_negative_weight: w, added to the logit of an anchor's own hard negatives, which thus
            count e^w times.
        targets: (R,) batch row of each anchor; None for row i of N = R rows.
        excluded: (R, C, N), true where a candidate is left out of the sum; an anchor's own positive
            stays whatever this says.

    Returns:
        Mean over the R anchors, in nats; a scalar, float32 or float64.

    Raises:
        ValueError: If shapes do not fit or the temperature is not positive.

    Source: van den Oord et al. 2018, arXiv 1807.03748; cosine and temperature as in SimCSE (Gao et
    al. 2021). The weight and its place are read in the released code of layer-wise attention
    pooling (w = 1; SimCSE has 0); whether the paper means it is unknown. With a target for each
    row and w = 0 it equals `MultipleNegativesRankingLoss` with scale 1 / temperature.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if candidates.ndim != 3 or anchors.ndim != 2 or anchors.shape[1] != candidates.shape[2]:
        raise ValueError(
            f"anchors {tuple(anchors.shape)} and candidates {tuple(candidates.shape)} must be "
            "(R, D) and (C, N, D)"
        )
    R, (C, N, _) = len(anchors), candidates.shape
    if targets is None:
        if R != N:
            raise ValueError(f"{R} anchors for {N} rows of candidates; name their targets")
        targets = torch.arange(R, device=anchors.device)
    with torch.autocast(anchors.device.type, enabled=False):
        dtype = torch.promote_types(anchors.dtype, torch.float32)
        units = functional.normalize(candidates.to(dtype).flatten(0, 1), dim=-1)
        logits = functional.normalize(anchors.to(dtype), dim=-1) @ units.T / temperature
        added = logits.new_zeros(R, C, N)
        if excluded is not None:
            added = added.masked_fill(excluded, -torch.inf)
        rows = torch.arange(R, device=anchors.device)
        added[rows, 0, targets] = 0.0
        added[rows, 1:, targets] += hard_negative_weight  # of a negative that is left out: -inf
        logits = logits + added.flatten(1)  # (R, C * N)
        return functional.cross_entropy(logits, targets)


def duplicate_mask(keys: Tensor, targets: Tensor) -> Tensor:
    """Find the candidates that must not be negatives of an anchor.

    Left out are duplicates of the anchor or of its positive, in any column, and the positives of
    other rows whose anchor is a duplicate of this one.

    Args:
        keys: (N, 1 + C, K) int64, for each batch row the keys of anchor, positive and hard
            negatives, from `duplicates.duplicate_keys`.
        targets: (R,) batch rows of the anchors in question.

    Returns:
        (R, C, N), true where a candidate is no negative; an anchor's own positive is none either.
    """
    anchors, positives = keys[targets, 0], keys[targets, 1]  # (R, K)
    columns = [
        _share_key(anchors, candidates) | _share_key(positives, candidates)
        for candidates in keys[:, 1:].unbind(1)
    ]
    columns[0] |= _share_key(anchors, keys[:, 0])
    return torch.stack(columns, dim=1)


def _share_key(left: Tensor, right: Tensor) -> Tensor:
    """Tell which of (R, K) and (N, K) share a key of one kind: (R, N)."""
    equal = (left[:, None] == right[None]) & (left[:, None] != NO_KEY)
    return equal.any(dim=-1)


class ContrastiveLoss(nn.Module):
    """InfoNCE over a batch of texts, by one of three schemes.

    - `supervised`: columns anchor, positive and any number of hard negatives.
    - `self_supervised`: one column; each text is encoded twice, and independent dropout makes the
      difference between anchor and positive. The form is SimCSE's; the paper only names it.
    - `hybrid`: the supervised loss plus `self_supervised_weight` times the self-supervised loss of
      the anchors. No source defines hybrid: this sum is our reading.

    The trainer passes the dataset's `label` column as `labels`: (B, columns, K) duplicate keys, as
    `training_data.to_dataset` writes them.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        scheme: Scheme = "supervised",
        temperature: float = 0.05,
        hard_negative_weight: float = 1.0,
        self_supervised_weight: float = 1.0,
        mask_duplicates: bool = True,
        gather_across_devices: bool = False,
    ) -> None:
        """Prepare the loss.

        Args:
            model: A SentenceTransformer.
            temperature: Divisor of the cosines; 0.05 in the released code.
            hard_negative_weight: See `info_nce`; 1.0 in the released code.
            self_supervised_weight: Of the second term of `hybrid`.
            mask_duplicates: Whether `labels` are needed, and used as `duplicate_mask` says.
            gather_across_devices: Whether the candidates of all processes count. Each needs the
                same number of rows: let the data loader drop the last, short batch. Unlike in the
                released code remote candidates carry their gradient too, so that it equals that of
                one process with the whole batch.

        Raises:
            ValueError: If the scheme is unknown or the temperature is not positive.
        """
        super().__init__()
        if scheme not in SCHEMES:
            raise ValueError(f"scheme {scheme!r} is not one of {', '.join(SCHEMES)}")
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.model = model
        self.scheme = scheme
        self.temperature = temperature
        self.hard_negative_weight = hard_negative_weight
        self.self_supervised_weight = self_supervised_weight
        self.mask_duplicates = mask_duplicates
        self.gather_across_devices = gather_across_devices

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Embed a batch and give its loss.

        Args:
            sentence_features: Tokenised texts, one mapping a column.
            labels: (B, columns, K) int64 duplicate keys.

        Raises:
            ValueError: If the columns do not fit the scheme, or the keys do not fit the columns.
        """
        columns = self._encoded_columns(list(sentence_features))
        return self._loss(embed_by_length(self.model, columns), labels)

    def get_config_dict(self) -> dict[str, Any]:
        """Tell the settings, for the model card that the trainer writes."""
        return {
            "scheme": self.scheme,
            "temperature": self.temperature,
            "hard_negative_weight": self.hard_negative_weight,
            "self_supervised_weight": self.self_supervised_weight,
            "mask_duplicates": self.mask_duplicates,
            "gather_across_devices": self.gather_across_devices,
        }

    def _encoded_columns(self, columns: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Add the column that is encoded a second time; a model writes into what it is given."""
        if self.scheme == "self_supervised":
            if len(columns) != 1:
                raise ValueError(
                    f"self_supervised takes one column of texts, got {len(columns)}; it encodes "
                    "each text twice by itself"
                )
            return [columns[0], dict(columns[0])]
        if len(columns) < 2:
            raise ValueError(
                f"{self.scheme} takes the columns anchor, positive and perhaps hard negatives, "
                f"got {len(columns)}"
            )
        return [*columns, dict(columns[0])] if self.scheme == "hybrid" else columns

    def _loss(
        self, embeddings: Sequence[Tensor], labels: Tensor | None, *, rows: int | None = None
    ) -> Tensor:
        """Combine the terms of the scheme.

        Args:
            embeddings: (B, D) for each of `_encoded_columns`.
            labels: As in `forward`.
            rows: If given, back-propagate the loss of that many anchors at a time, which bounds
                the memory of the scores, and give a value without a graph.
        """
        anchors = embeddings[0]
        candidates = self._gather(torch.stack(list(embeddings[1:]), dim=1))  # (N, C, D)
        B = len(anchors)
        targets = torch.arange(B, device=anchors.device)
        if self.gather_across_devices:
            targets = targets + get_rank() * B
        keys = self._keys(labels, len(embeddings))
        if rows is None:
            return self._terms(anchors, candidates, targets, keys)
        # The leaves collect the gradients of all parts, so that gathering runs backward only once.
        leaves = [tensor.detach().requires_grad_() for tensor in (anchors, candidates)]
        total = anchors.new_zeros(())
        for start in range(0, B, rows):
            part = slice(start, start + rows)
            loss = self._terms(leaves[0][part], leaves[1], targets[part], keys)
            loss = loss * (len(targets[part]) / B)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own signature lacks types
            total = total + loss.detach()
        torch.autograd.backward([anchors, candidates], [leaf.grad for leaf in leaves])
        return total

    def _terms(
        self, anchors: Tensor, candidates: Tensor, targets: Tensor, keys: Tensor | None
    ) -> Tensor:
        """Add the scheme's terms for (R, D) anchors and (N, C, D) candidates."""
        excluded = None if keys is None else duplicate_mask(keys, targets)

        def term(these: slice) -> Tensor:
            return info_nce(
                anchors,
                candidates[:, these].transpose(0, 1),
                temperature=self.temperature,
                hard_negative_weight=self.hard_negative_weight,
                targets=targets,
                excluded=None if excluded is None else excluded[:, these],
            )

        if self.scheme != "hybrid":
            return term(slice(None))
        again = slice(-1, None)  # the anchors' second encodings
        return term(slice(-1)) + self.self_supervised_weight * term(again)

    def _keys(self, labels: Tensor | None, columns: int) -> Tensor | None:
        """Check the keys, and repeat those of the texts that are encoded twice."""
        if not self.mask_duplicates:
            return None
        given = columns if self.scheme == "supervised" else columns - 1
        if labels is None or labels.ndim != 3 or labels.shape[1] != given:
            found = None if labels is None else tuple(labels.shape)
            raise ValueError(
                f"labels {found} are not the duplicate keys (B, {given}, K) of {given} columns; "
                "make the dataset with training_data.to_dataset, or set mask_duplicates=False"
            )
        if self.scheme != "supervised":
            labels = torch.cat([labels, labels[:, :1]], dim=1)
        return all_gather(labels.contiguous()) if self.gather_across_devices else labels

    def _gather(self, candidates: Tensor) -> Tensor:
        return gather_rows(candidates) if self.gather_across_devices else candidates


class CachedContrastiveLoss(
    CachedLossMixin,  # type: ignore[misc]  # sentence-transformers is untyped to mypy
    ContrastiveLoss,
):
    """The same loss and the same gradients with the activations of only a few texts in memory.

    Texts are embedded without gradients, the loss gives the gradients of the embeddings, and each
    part of the batch is embedded once more to carry them on; the second pass repeats the random
    numbers of the first. So a batch can be as large as its scores allow, for about a third more
    time. Anything that a training step reads off the forward passes sees each text twice.

    Source: Gao et al. 2021, arXiv 2101.06983 (GradCache), as sentence-transformers has it.
    """

    def __init__(self, model: nn.Module, *, mini_batch_size: int = 32, **settings: Any) -> None:
        """Prepare the loss.

        Args:
            model: A SentenceTransformer.
            mini_batch_size: Texts of one column, and rows of scores, in memory at a time.
            settings: Those of `ContrastiveLoss`.

        Raises:
            ValueError: As `ContrastiveLoss`, and if `mini_batch_size` is below 1.
        """
        super().__init__(model, **settings)
        if mini_batch_size < 1:
            raise ValueError(f"mini_batch_size must be at least 1, got {mini_batch_size}")
        self.mini_batch_size = mini_batch_size

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Embed a batch in parts and give its loss; see `ContrastiveLoss.forward`."""
        columns = self._encoded_columns(list(sentence_features))
        return CachedLossMixin.forward_cached(self, columns, labels)  # type: ignore[no-any-return]  # as above

    def calculate_loss(
        self,
        reps: list[list[Tensor]],
        labels: Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> Tensor:
        """Give the loss of embeddings that come in parts; called by the mixin."""
        embeddings = [torch.cat(parts) for parts in reps]
        return self._loss(embeddings, labels, rows=self.mini_batch_size if with_backward else None)

    def get_config_dict(self) -> dict[str, Any]:
        """Tell the settings, for the model card that the trainer writes."""
        return {**super().get_config_dict(), "mini_batch_size": self.mini_batch_size}
