"""Learning from a teacher: its embeddings, which texts they hold alike, its tokens' states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers.util import all_gather, get_rank
from torch import Tensor, nn
from torch.nn import functional

from lamina_training.by_length import ByLength
from lamina_training.gathering import gather_rows


def similarity_divergence(
    student: Tensor, teacher: Tensor, *, temperature: float, rows: slice | None = None
) -> Tensor:
    """Compare how student and teacher spread each text's attention over the others of the batch.

    For each text, both turn its cosines to the other N - 1 texts into a distribution by a softmax;
    the divergence is KL(teacher || student), in nats.

    Args:
        student: (N, D), of any length.
        teacher: (N, D'), of any length; its width may differ.
        temperature: Positive divisor of the cosines.
        rows: The texts to compare, all by default.

    Returns:
        Mean over the rows; a scalar.

    Raises:
        ValueError: If there are fewer than three texts: one other text gives no distribution.

    Source: after SEED (Fang et al. 2021, arXiv 2101.04731), which compares softmaxed similarities
    to a queue of samples; here the batch takes the queue's place.
    """
    N = len(student)
    if N < 3 or len(teacher) != N:
        raise ValueError(f"{N} and {len(teacher)} texts; need three or more, as many on both sides")
    own = torch.eye(N, dtype=torch.bool, device=student.device)[rows or slice(None)]
    logs = []
    for embeddings in (student, teacher):
        units = functional.normalize(embeddings.float(), dim=-1)
        scores = units[rows or slice(None)] @ units.T / temperature  # (R, N)
        others = scores.masked_select(~own).view(len(scores), N - 1)
        logs.append(functional.log_softmax(others, dim=-1))
    return functional.kl_div(logs[0], logs[1], log_target=True, reduction="batchmean")


def token_distance(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Sum 1 - cosine over the tokens of texts.

    Args:
        student: (B, T, H) states.
        teacher: (B, T, H) states.
        mask: (B, T), 1 where there is a token.

    Returns:
        A scalar.
    """
    cosines = functional.cosine_similarity(student.float(), teacher.float(), dim=-1)
    return ((1 - cosines) * mask).sum()


class DistilLoss(nn.Module):
    """The weighted sum of what a student's embeddings and tokens lack to be its teacher's.

    vector_weight * (1 - cosine of embeddings) + similarity_weight * similarity divergence +
    token_weight * mean over all tokens of (1 - cosine of the last layers' states).

    The trainer passes the dataset's `label` column as `labels`: (B,) places of the texts in the
    teacher's embeddings. A student of another width is mapped to the teacher's for the first and
    the last term.
    """

    def __init__(
        self,
        model: Any,
        teacher: Tensor,
        *,
        vector_weight: float,
        similarity_weight: float,
        temperature: float,
        token_weight: float = 0.0,
        token_teacher: Any = None,
        gather_across_devices: bool = False,
    ) -> None:
        """Prepare the loss.

        Args:
            model: A SentenceTransformer, the student.
            teacher: (N, D) embeddings of all texts that are trained on.
            vector_weight: Of the first term.
            similarity_weight: Of the second.
            temperature: Of the second.
            token_weight: Of the third.
            token_teacher: The teacher's transformer, in evaluation mode, where that is above 0.
            gather_across_devices: Whether the texts of all processes are compared. Each needs the
                same number of texts.
        """
        super().__init__()
        self.model = model
        self.vector_weight = vector_weight
        self.similarity_weight = similarity_weight
        self.temperature = temperature
        self.token_weight = token_weight
        self._token_teacher = (token_teacher,)  # no module of ours, or its weights would be trained
        self.gather_across_devices = gather_across_devices
        self.teacher: Tensor
        self.register_buffer("teacher", teacher, persistent=False)
        width = int(model.get_embedding_dimension())
        self.projection: nn.Module = nn.Identity()
        if width != teacher.shape[1] and vector_weight:
            self.projection = nn.Linear(width, teacher.shape[1], bias=False)
        self.token_projection: nn.Module = nn.Identity()
        if token_weight:
            own, its = (m.get_embedding_dimension() for m in (model[0], token_teacher))
            if own != its:
                self.token_projection = nn.Linear(own, its, bias=False)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Embed a batch of one column and give its loss."""
        (features,) = sentence_features
        passes = ByLength.of(features)
        embedded, tokens = [], []
        for part in [features] if passes is None else passes:
            found = self.model(dict(part))
            embedded.append(found["sentence_embedding"])
            if self.token_weight:
                tokens.append(self._token_distance(found["token_embeddings"], part))
        embeddings = embedded[0] if passes is None else passes.joined(embedded)  # (B, D)
        with torch.autocast(embeddings.device.type, enabled=False):
            student = embeddings.float()
            loss = student.new_zeros(())
            if self.token_weight:
                count = features["attention_mask"].sum()
                loss = loss + self.token_weight * torch.stack(tokens).sum() / count
            if self.vector_weight:
                cosines = functional.cosine_similarity(
                    self.projection(student), self.teacher[labels], dim=-1
                )
                loss = loss + self.vector_weight * (1 - cosines).mean()
            if self.similarity_weight:
                rows = None
                if self.gather_across_devices:
                    rows = slice(get_rank() * len(labels), (get_rank() + 1) * len(labels))
                    student, labels = gather_rows(student), all_gather(labels)
                divergence = similarity_divergence(
                    student, self.teacher[labels], temperature=self.temperature, rows=rows
                )
                loss = loss + self.similarity_weight * divergence
        return loss

    def _token_distance(self, states: Tensor, features: dict[str, Any]) -> Tensor:
        (teacher,) = self._token_teacher
        with torch.no_grad():
            target = teacher(dict(features))["token_embeddings"]
        return token_distance(self.token_projection(states), target, features["attention_mask"])

    def get_config_dict(self) -> dict[str, Any]:
        """Tell the settings, as sentence-transformers' losses do."""
        return {
            "vector_weight": self.vector_weight,
            "similarity_weight": self.similarity_weight,
            "token_weight": self.token_weight,
            "temperature": self.temperature,
        }
