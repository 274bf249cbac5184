"""What a run's report measures on test sets: once, of weights that other data have chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina_training.dev_retrieval import RetrievalTask
from lamina_training.dev_scores import (
    read_retrieval,
    read_sts_file,
    retrieval_files,
    score_search,
)
from lamina_training.embedding import encode_with
from lamina_training.sts import StsPairs, StsScore, average, score_sts
from lamina_training.train_config import FinalSets


@dataclass(frozen=True)
class FinalTasks:
    """What a configuration's `[test]` names, read."""

    sts: Mapping[str, StsPairs]
    retrieval: RetrievalTask | None


@dataclass(frozen=True)
class FinalScores:
    """Of one encoder.

    Attributes:
        sts: Spearman x 100 of each set, over all pairs and by its subsets.
        retrieval: MRR@10.
    """

    sts: Mapping[str, StsScore]
    retrieval: float | None

    def rows(self) -> dict[str, float]:
        """Give all numbers by what they are, in the order of a table.

        A set with subsets has `wmean` too, the mean of theirs weighted by their pairs; so have
        the averages over sets, in which a set without subsets counts with its one number.
        """
        rows: dict[str, float] = {}
        for name, score in self.sts.items():
            rows[name] = score.all
            if len(score.subsets) > 1:
                rows[f"{name}, wmean"] = score.wmean
        if len(self.sts) > 1:
            rows[f"mean of {len(self.sts)}"] = average(self.sts, "all")
            if any(len(score.subsets) > 1 for score in self.sts.values()):
                rows[f"mean of {len(self.sts)}, wmean"] = average(self.sts, "wmean")
        if self.retrieval is not None:
            rows["MRR@10"] = self.retrieval
        return rows


def final_files(test: FinalSets) -> list[Path]:
    """List the files that `[test]` names, relative to the data's folder."""
    return [*(each.file for each in test.sts.values()), *retrieval_files(test.retrieval)]


def read_final(test: FinalSets, folder: Path, *, seed: int) -> FinalTasks:
    """Read the files that `[test]` names.

    Args:
        test: Which.
        folder: That relative names are relative to.
        seed: Of the sample of queries and documents, if one is asked for.

    Raises:
        LaminaError: If one cannot be read or used.
    """
    return FinalTasks(
        sts={
            name: read_sts_file(each, folder, subset=each.subset) for name, each in test.sts.items()
        },
        retrieval=read_retrieval(test.retrieval, folder, seed=seed) if test.retrieval else None,
    )


def score_final(model: Any, tasks: FinalTasks) -> FinalScores:
    """Score a SentenceTransformer.

    Raises:
        EncoderOutputError: If an embedding is not finite.
    """
    return FinalScores(
        sts=score_sts(encode_with(model), tasks.sts) if tasks.sts else {},
        retrieval=score_search(model, tasks.retrieval) if tasks.retrieval else None,
    )
