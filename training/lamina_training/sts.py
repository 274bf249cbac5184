"""Semantic textual similarity: how well cosines order sentence pairs as people do.

Spearman's rank correlation x 100 between the cosine of two embeddings and the gold score, without
a task-specific regressor. A year of STS12-16 has several subsets, and two averages are in use that
cannot be compared with each other; both are given:

- `all`: one correlation over all pairs of a year (SimCSE's tables);
- `wmean`: the mean of the subsets' correlations, weighted by their pairs (SentEval, and the code
  released for layer-wise attention pooling).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lamina_training.data_rows import TrainingDataError, read_rows
from lamina_training.embedding import EmbeddedTexts, Encode

Aggregation = Literal["all", "wmean"]
Split = Literal["train", "dev", "test"]
YEARS = ("sts12", "sts13", "sts14", "sts15", "sts16")
TASKS = (*YEARS, "stsb", "sickr")
"""The seven of the usual tables."""


@dataclass(frozen=True)
class StsPairs:
    """Sentence pairs with gold scores.

    Attributes:
        first: P sentences.
        second: P sentences.
        gold: (P,) scores from 0 to 5, higher for more alike.
        subsets: Which subset each of the P pairs is of.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: NDArray[np.float64]
    subsets: tuple[str, ...]


@dataclass(frozen=True)
class StsScore:
    """Spearman x 100 of one task, by both aggregations, and of each subset."""

    all: float
    wmean: float
    subsets: Mapping[str, float]


def read_sts(
    path: Path | str,
    *,
    score: str = "score",
    subset: str | None = None,
    columns: tuple[str, str] = ("sentence1", "sentence2"),
    highest: float = 5.0,
) -> StsPairs:
    """Read scored pairs from a TSV, CSV or JSONL file.

    Args:
        score: Column of the gold score, from 0 to `highest`.
        subset: Column of the subset; None if the pairs are one set.
        columns: Of the two sentences.
        highest: Where the scale of the file ends; scores are stretched to 0 to 5.

    Raises:
        TrainingDataError: If a column is missing, a row is bad, or there are fewer than two.
        CorpusError: If the file cannot be read at all.
    """
    read = [
        (
            row.text(columns[0]),
            row.text(columns[1]),
            row.number(score, low=0.0, high=highest),
            "" if subset is None else row.name(subset),
        )
        for row in read_rows(path, [*columns, score, *([subset] if subset else [])])
    ]
    if len(read) < 2:
        raise TrainingDataError(f"{path}: has one pair; a rank correlation needs two or more")
    first, second, gold, subsets = zip(*read, strict=True)
    return StsPairs(first, second, np.array(gold, dtype=np.float64) * (5.0 / highest), subsets)


def read_stsb(data: Path, split: Split) -> StsPairs:
    """Read the STS benchmark from a data folder that holds `stsb/`; raises as `read_sts`."""
    return read_sts(data / "stsb" / f"{split}.tsv")


def read_sickr(data: Path, split: Split) -> StsPairs:
    """Read SICK's relatedness from a data folder that holds `sick/`; raises as `read_sts`."""
    return read_sts(data / "sick" / f"{split}.tsv", score="relatedness")


def read_sts_tasks(data: Path, names: Iterable[str] = TASKS) -> dict[str, StsPairs]:
    """Read test sets of `TASKS` from a data folder, all seven by default; raises as `read_sts`."""
    return {name: _read_task(data, name) for name in names}


def _read_task(data: Path, name: str) -> StsPairs:
    if name == "stsb":
        return read_stsb(data, "test")
    if name == "sickr":
        return read_sickr(data, "test")
    return read_sts(data / "sts12-16" / f"{name}.tsv", subset="subset")


def score_sts(encode: Encode, tasks: Mapping[str, StsPairs]) -> dict[str, StsScore]:
    """Score an encoder on each task; a sentence that several tasks share is encoded once.

    Raises:
        EncoderOutputError: If an embedding is not finite.
    """
    embedded = EmbeddedTexts(
        encode, (text for pairs in tasks.values() for text in (*pairs.first, *pairs.second))
    )
    scores = {}
    for name, pairs in tasks.items():
        first, second = embedded(pairs.first), embedded(pairs.second)
        cosines = np.vecdot(first.astype(np.float64), second.astype(np.float64))
        scores[name] = aggregate(cosines, pairs)
    return scores


def aggregate(cosines: NDArray[np.float64], pairs: StsPairs) -> StsScore:
    """Correlate (P,) cosines with the gold scores, over all pairs and by subset."""
    names = np.array(pairs.subsets)
    subsets, weights = {}, []
    for name in dict.fromkeys(pairs.subsets):
        of_subset = names == name
        subsets[name] = 100 * spearman(cosines[of_subset], pairs.gold[of_subset])
        weights.append(int(of_subset.sum()))
    return StsScore(
        all=100 * spearman(cosines, pairs.gold),
        wmean=float(np.average(list(subsets.values()), weights=weights)),
        subsets=subsets,
    )


def average(scores: Mapping[str, StsScore], aggregation: Aggregation) -> float:
    """Average tasks, each weighing the same, as tables of the seven do.

    Raises:
        ValueError: If there is no task.
    """
    if not scores:
        raise ValueError("no task to average")
    values: Iterable[float] = (getattr(score, aggregation) for score in scores.values())
    return sum(values) / len(scores)


def spearman(left: ArrayLike, right: ArrayLike) -> float:
    """Correlate the ranks of (P,) values; equal values share the mean of their ranks.

    Returns:
        From -1 to 1; 0 where one side is constant, as by an encoder that collapsed: it orders
        nothing. (The correlation is undefined there, and NaN in other tools.)

    Raises:
        ValueError: If the sides differ in length or have fewer than two values.

    Source: Spearman 1904; Pearson's correlation of mean ranks, as scipy.stats.spearmanr.
    """
    first, second = _ranks(np.asarray(left)), _ranks(np.asarray(right))
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"{len(first)} and {len(second)} values; need two or more pairs")
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale else 0.0


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Rank (P,) values from 1, ties by their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse]
    return ranks
