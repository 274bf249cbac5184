"""Learning from a teacher: its embeddings, which texts they hold alike, its tokens' states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from sentence_transformers.base.losses.merged_forward import merge_feature_batches
from sentence_transformers.util import all_gather, get_rank
from torch import Tensor, nn
from torch.nn import functional

from lamina_training.build_encoder import layers_of
from lamina_training.by_length import ByLength
from lamina_training.duplicates import token_key
from lamina_training.gathering import gather_rows
from lamina_training.prompt_tokens import PromptTokens


def similarity_divergence(
    student: Tensor,
    teacher: Tensor,
    *,
    temperature: float,
    rows: slice | None = None,
    keys: Tensor | None = None,
) -> Tensor:
    """Compare how student and teacher spread each text's attention over the others of the batch.

    For each text, both turn its cosines to the other N - 1 texts into a distribution by a softmax;
    the divergence is KL(teacher || student), in nats. Copies of the text are left out on both
    sides: at cosine 1 and a low temperature they would take most of it, and teach nothing.

    Args:
        student: (N, D), of any length.
        teacher: (N, D'), of any length; its width may differ.
        temperature: Positive divisor of the cosines.
        rows: The texts to compare, all by default.
        keys: (N,) integers, the same for copies of a text alone; None where there are no copies.

    Returns:
        Mean over the rows; a scalar. A text with fewer than two others, copies aside, counts 0.

    Raises:
        ValueError: If there are fewer than three texts: one other text gives no distribution.

    Source: after SEED (Fang et al. 2021, arXiv 2101.04731), which compares softmaxed similarities
    to a queue of samples; here the batch takes the queue's place.
    """
    N = len(student)
    if N < 3 or len(teacher) != N:
        raise ValueError(f"{N} and {len(teacher)} texts; need three or more, as many on both sides")
    own = torch.eye(N, dtype=torch.bool, device=student.device)[rows or slice(None)]
    same = own if keys is None else keys[rows or slice(None), None] == keys
    copies = same.masked_select(~own).view(len(own), N - 1)
    logs = []
    for embeddings in (student, teacher):
        units = functional.normalize(embeddings.float(), dim=-1)
        scores = units[rows or slice(None)] @ units.T / temperature  # (R, N)
        others = scores.masked_select(~own).view(len(scores), N - 1)
        others = others.masked_fill(copies, torch.finfo(others.dtype).min)
        logs.append(functional.log_softmax(others, dim=-1))
    return functional.kl_div(logs[0], logs[1], log_target=True, reduction="batchmean")


def unexplained_variance(passes: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Tell which share of the variance of a teacher's states the student's miss.

    sum |student - teacher|^2 / sum |teacher - its mean|^2, over all tokens: 0 for equal states, 1
    for the best that is the same for all tokens. It minds the lengths of states, which are the
    weights of tokens in their mean, and counts layers of large and of small states alike.

    Args:
        passes: The student's states (B, T, H), the teacher's, and a mask (B, T) that is 1 where
            there is a token, of each pass over a part of the batch.

    Returns:
        A scalar.
    """
    parts = [(own[mask.bool()], its[mask.bool()]) for own, its, mask in passes]
    student, teacher = (torch.cat(states).float() for states in zip(*parts, strict=True))
    return (student - teacher).square().sum() / (teacher - teacher.mean(dim=0)).square().sum()


class LayerStates:
    """What some layers of a transformer put out, each time that it runs."""

    def __init__(self, transformer: Any, layers: Sequence[int]) -> None:
        """Listen to layers, counted from 0."""
        stack = layers_of(transformer)
        self._found: dict[int, Tensor] = {}
        for place, number in enumerate(layers):
            stack[number].register_forward_hook(self._keeper(place))

    def take(self) -> list[Tensor]:
        """Give the states (B, T, H) of the last run, layer by layer, and forget them."""
        found, self._found = self._found, {}
        return [found[place] for place in sorted(found)]

    def _keeper(self, place: int) -> Any:
        def keep(module: nn.Module, given: Any, output: Any) -> None:
            self._found[place] = output[0] if isinstance(output, tuple) else output

        return keep


class Teacher:
    """A teacher that reads each batch beside the student, behind its own default prompt."""

    def __init__(self, model: Any, layers: Sequence[int], *, precision: str = "fp32") -> None:
        """Freeze a teacher.

        Args:
            model: A SentenceTransformer.
            layers: Whose states to give.
            precision: `bf16` computes under autocast; the trainer's own ends at the student.
        """
        self.model = model.requires_grad_(False).eval()
        self.layers = tuple(layers)
        self._states = LayerStates(model[0].auto_model, layers)
        self._prompt = PromptTokens.of(model)
        self._bf16 = precision == "bf16"

    @property
    def widths(self) -> tuple[int, int]:
        """Of its embeddings and of its tokens' states."""
        return self.model.get_embedding_dimension(), self.model[0].get_embedding_dimension()

    def read(self, features: Mapping[str, Any]) -> tuple[Tensor, list[Tensor]]:
        """Give the embeddings (B, D) of a batch and the states (B, T, H) of each layer."""
        device = features["input_ids"].device.type
        given = dict(features) if self._prompt is None else self._prompt.put_into(features)
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=self._bf16):
            embeddings: Tensor = self.model(given)["sentence_embedding"]
        states = self._states.take()
        if self._prompt is not None:
            states = [self._prompt.cut_from(layer) for layer in states]
        return embeddings.float(), states


class DistilLoss(nn.Module):
    """The weighted sum of what a student's embeddings and tokens lack to be its teacher's.

    vector_weight * (1 - cosine of embeddings) + similarity_weight * similarity divergence +
    token_weight * unexplained variance of the tokens' states, averaged over the layers compared.

    A teacher that reads each batch beside the student gives all of it. Without tokens its
    embeddings suffice, computed once: the trainer passes the dataset's `label` column as `labels`,
    (B, columns) places of the texts in them. A student of another width is mapped to the teacher's
    for the first and the last term.
    """

    def __init__(
        self,
        model: Any,
        teacher: Tensor | Teacher,
        *,
        vector_weight: float,
        similarity_weight: float,
        temperature: float,
        token_weight: float = 0.0,
        gather_across_devices: bool = False,
    ) -> None:
        """Prepare the loss.

        Args:
            model: A SentenceTransformer, the student.
            teacher: (N, D) embeddings of all texts that are trained on, or who makes them.
            vector_weight: Of the first term.
            similarity_weight: Of the second.
            temperature: Of the second.
            token_weight: Of the third, which takes a `Teacher` with as many layers as the student
                has, or with one, which the student's last is compared with.
            gather_across_devices: Whether the texts of all processes are compared. Each needs the
                same number of texts.

        Raises:
            ValueError: If tokens are to be compared and the teacher's layers do not fit.
        """
        super().__init__()
        self.model = model
        self.vector_weight = vector_weight
        self.similarity_weight = similarity_weight
        self.temperature = temperature
        self.token_weight = token_weight
        self.gather_across_devices = gather_across_devices
        self.reader = teacher if isinstance(teacher, Teacher) else None
        self.teacher: Tensor | None
        self.register_buffer(
            "teacher", None if isinstance(teacher, Teacher) else teacher, persistent=False
        )
        width = int(model.get_embedding_dimension())
        its = teacher.widths[0] if isinstance(teacher, Teacher) else teacher.shape[1]
        self.projection: nn.Module = nn.Identity()
        if width != its and vector_weight:
            self.projection = nn.Linear(width, its, bias=False)
        self.token_projections: nn.ModuleList = nn.ModuleList()
        if not token_weight:
            return
        if self.reader is None:
            raise ValueError("token_weight: takes a Teacher, since embeddings have no tokens")
        transformer, compared = model[0].auto_model, len(self.reader.layers)
        total = len(layers_of(transformer))
        if compared not in (1, total):
            raise ValueError(f"{compared} of the teacher's layers; the student has {total}, or 1")
        self._states = LayerStates(transformer, range(total - compared, total))
        own, its = model[0].get_embedding_dimension(), self.reader.widths[1]
        self.token_projections = nn.ModuleList(
            nn.Identity() if own == its else nn.Linear(own, its, bias=False)
            for _ in range(compared)
        )

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Embed a batch of one or more columns and give the loss of all their texts together.

        Raises:
            ValueError: If embeddings are to be found by `labels`, and those are not (B, columns).
        """
        columns = list(sentence_features)
        if self.teacher is not None and (labels.ndim != 2 or labels.shape[1] != len(columns)):
            raise ValueError(
                f"labels {tuple(labels.shape)} are not the places (B, {len(columns)}) of the texts "
                "among the teacher's embeddings"
            )
        merged = merge_feature_batches(columns) if len(columns) > 1 else columns[0]
        passes = None if merged is None else ByLength.of(merged)
        parts = list(passes) if passes is not None else columns if merged is None else [merged]
        embedded, targets = [], []
        states: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in self.token_projections]
        for part in parts:
            embedded.append(self.model(dict(part))["sentence_embedding"])
            if self.reader is None:
                continue
            target, its = self.reader.read(part)
            targets.append(target)
            for layer, own in enumerate(self._states.take() if states else ()):
                projected = self.token_projections[layer](own)
                states[layer].append((projected, its[layer], part["attention_mask"]))
        joined = torch.cat if passes is None else passes.joined
        embeddings = joined(embedded)  # (B, D)
        # texts stand column after column, and so must their places
        teacher = joined(targets) if self.teacher is None else self.teacher[labels.T.reshape(-1)]
        with torch.autocast(embeddings.device.type, enabled=False):
            student = embeddings.float()
            loss = student.new_zeros(())
            if self.token_weight:
                missed = torch.stack([unexplained_variance(layer) for layer in states])
                loss = loss + self.token_weight * missed.mean()
            if self.vector_weight:
                cosines = functional.cosine_similarity(self.projection(student), teacher, dim=-1)
                loss = loss + self.vector_weight * (1 - cosines).mean()
            if self.similarity_weight:
                rows = None
                keys = _token_keys(columns)
                if self.gather_across_devices:
                    B = len(student)
                    rows = slice(get_rank() * B, (get_rank() + 1) * B)
                    student, teacher = gather_rows(student), all_gather(teacher)
                    keys = all_gather(keys)
                divergence = similarity_divergence(
                    student, teacher, temperature=self.temperature, rows=rows, keys=keys
                )
                loss = loss + self.similarity_weight * divergence
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """Tell the settings, as sentence-transformers' losses do."""
        return {
            "vector_weight": self.vector_weight,
            "similarity_weight": self.similarity_weight,
            "token_weight": self.token_weight,
            "temperature": self.temperature,
        }


def _token_keys(columns: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Give the key (N,) of each text of one column after the other, which only copies share.

    By its tokens, since those are all that the student sees of it.
    """
    keys = [
        token_key(token for token, real in zip(*row, strict=True) if real)
        for column in columns
        for row in zip(column["input_ids"].tolist(), column["attention_mask"].tolist(), strict=True)
    ]
    return torch.tensor(keys, device=columns[0]["input_ids"].device)
