"""What is measured while an encoder is trained: the scores that choose the best checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentence_transformers.base.evaluation import BaseEvaluator

from lamina_index.evaluation_inputs import inputs_from_files
from lamina_training.dev_retrieval import RetrievalTask, sample_task, score_retrieval, task_of
from lamina_training.embedding import encode_with
from lamina_training.sts import StsPairs, read_sts, score_sts
from lamina_training.train_config import Dev


@dataclass(frozen=True)
class DevTasks:
    """What a configuration's `[dev]` names, read."""

    sts: StsPairs | None
    retrieval: RetrievalTask | None


class DevScores(BaseEvaluator):  # type: ignore[misc]  # sentence-transformers is untyped to mypy
    """Gives `sts` (Spearman x 100) and `retrieval` (MRR@10), as far as there are tasks."""

    def __init__(self, tasks: DevTasks) -> None:
        super().__init__()
        self._tasks = tasks

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """Score a SentenceTransformer."""
        scores = {}
        if self._tasks.sts is not None:
            scores["sts"] = score_sts(encode_with(model), {"dev": self._tasks.sts})["dev"].all
        if self._tasks.retrieval is not None:
            found = score_retrieval(
                encode_with(model, role="document"),
                self._tasks.retrieval,
                encode_query=encode_with(model, role="query"),
            )
            scores["retrieval"] = found.mrr
        return scores


def dev_files(dev: Dev) -> list[Path]:
    """List the files that `[dev]` names, relative to the data's folder."""
    files = [dev.sts.file] if dev.sts else []
    if dev.retrieval:
        files += [dev.retrieval.queries, dev.retrieval.qrels, dev.retrieval.corpus]
    return files


def read_dev(dev: Dev, folder: Path, *, seed: int) -> DevTasks:
    """Read the files that `[dev]` names.

    Args:
        dev: Which.
        folder: That relative names are relative to.
        seed: Of the sample of queries and documents, if one is asked for.

    Raises:
        LaminaError: If one cannot be read or used.
    """
    sts = retrieval = None
    if dev.sts:
        sts = read_sts(folder / dev.sts.file, score=dev.sts.score, columns=dev.sts.columns)
    if dev.retrieval:
        retrieval = task_of(
            inputs_from_files(
                folder / dev.retrieval.queries,
                folder / dev.retrieval.qrels,
                folder / dev.retrieval.corpus,
                split=dev.retrieval.split,
            )
        )
        if dev.retrieval.query_limit or dev.retrieval.document_limit:
            retrieval = sample_task(
                retrieval,
                queries=dev.retrieval.query_limit or len(retrieval.queries),
                documents=dev.retrieval.document_limit or len(retrieval.documents),
                seed=seed,
            )
    return DevTasks(sts, retrieval)
