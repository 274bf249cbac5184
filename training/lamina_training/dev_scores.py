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
from lamina_training.train_config import Dev, RetrievalFiles, StsFile


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
            scores["retrieval"] = score_search(model, self._tasks.retrieval)
        return scores


def dev_files(dev: Dev) -> list[Path]:
    """List the files that `[dev]` names, relative to the data's folder."""
    return [*([dev.sts.file] if dev.sts else []), *retrieval_files(dev.retrieval)]


def retrieval_files(named: RetrievalFiles | None) -> list[Path]:
    """List the files of a retrieval task; none if there is no task."""
    return [named.queries, named.qrels, named.corpus] if named else []


def read_dev(dev: Dev, folder: Path, *, seed: int) -> DevTasks:
    """Read the files that `[dev]` names.

    Args:
        dev: Which.
        folder: That relative names are relative to.
        seed: Of the sample of queries and documents, if one is asked for.

    Raises:
        LaminaError: If one cannot be read or used.
    """
    return DevTasks(
        sts=read_sts_file(dev.sts, folder) if dev.sts else None,
        retrieval=read_retrieval(dev.retrieval, folder, seed=seed) if dev.retrieval else None,
    )


def read_sts_file(named: StsFile, folder: Path, *, subset: str | None = None) -> StsPairs:
    """Read scored pairs as a configuration describes them; raises as `read_dev`."""
    return read_sts(
        folder / named.file,
        score=named.score,
        subset=subset,
        columns=named.columns,
        highest=named.highest,
    )


def read_retrieval(named: RetrievalFiles, folder: Path, *, seed: int) -> RetrievalTask:
    """Read a retrieval task as a configuration describes it, or a sample of it; as `read_dev`."""
    files = [folder / file for file in retrieval_files(named)]
    task = task_of(inputs_from_files(*files, split=named.split))
    if not (named.query_limit or named.document_limit):
        return task
    return sample_task(
        task,
        queries=named.query_limit or len(task.queries),
        documents=named.document_limit or len(task.documents),
        seed=seed,
    )


def score_search(model: Any, task: RetrievalTask) -> float:
    """MRR@10 of a SentenceTransformer, with its prompts for queries and documents."""
    documents, queries = (encode_with(model, role=role) for role in ("document", "query"))
    return score_retrieval(documents, task, encode_query=queries).mrr
