"""What a study measures of each trained encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lamina_training.dev_retrieval import RetrievalTask, read_quora, sample_task, score_retrieval
from lamina_training.geometry import measure_geometry
from lamina_training.sts import (
    TASKS,
    YEARS,
    StsPairs,
    average,
    read_sts_tasks,
    read_stsb,
    score_sts,
)
from lamina_training.study.definition import Exit, Measures, QuoraSample, StudyError
from lamina_training.study.embedded import ExitEmbeddings

STSB_DEV = "stsb_dev"
_SAMPLE_SEED = 0
"""Of the sampled corpus: the same for all seeds of a study, so that they are compared on it."""
_SPECTRUM = 64
"""Leading singular values that are kept."""


@dataclass(frozen=True)
class StudyTasks:
    """The data of a study's measures, read once for all its runs."""

    sts: Mapping[str, StsPairs]
    geometry: StsPairs | None
    quora: RetrievalTask | None
    layers: tuple[str, ...]

    def texts(self) -> list[str]:
        """All texts that are to be embedded."""
        pairs = [*self.sts.values(), *([self.geometry] if self.geometry else [])]
        texts = [text for each in pairs for text in (*each.first, *each.second)]
        if self.quora:
            texts += [*self.quora.queries.values(), *self.quora.documents.values()]
        return [*texts, *self.layers]


def read_tasks(measures: Measures, data: Path) -> StudyTasks:
    """Read what is measured from a data folder.

    Raises:
        StudyError: If there is no such STS task.
        LaminaError: If a file is missing or cannot be read.
    """
    known = (STSB_DEV, *TASKS)
    if unknown := [name for name in measures.sts if name not in known]:
        raise StudyError(f"measure.sts {unknown[0]!r}: expected one of {', '.join(known)}")
    sts = read_sts_tasks(data, [name for name in measures.sts if name != STSB_DEV])
    if STSB_DEV in measures.sts:
        sts[STSB_DEV] = read_stsb(data, "dev")
    test = read_stsb(data, "test") if measures.geometry or measures.layers else None
    return StudyTasks(
        sts=sts,
        geometry=test if measures.geometry else None,
        quora=_read_sample(measures.quora, data) if measures.quora else None,
        layers=tuple(dict.fromkeys((*test.first, *test.second)))
        if test and measures.layers
        else (),
    )


def _read_sample(sample: QuoraSample, data: Path) -> RetrievalTask:
    task = read_quora(data, sample.split)
    questions = sample_task(task, queries=None, documents=sample.questions, seed=_SAMPLE_SEED)
    if not sample.distractors:
        return questions
    mixed = read_quora(data, sample.split, distractors=sample.distractors)
    added = {name: t for name, t in mixed.documents.items() if name not in task.documents}
    return replace(questions, documents={**questions.documents, **added})


def measure_encoder(
    model: Any, tasks: StudyTasks, exits: Sequence[Exit], measures: Measures
) -> dict[Exit, dict[str, Any]]:
    """Measure each exit of a trained encoder.

    Returns:
        For each exit its numbers by name: STS tasks (Spearman x 100 over all pairs), `sts_average`
        and `sts_average_wmean` where all seven are measured, `quora_mrr`, and the fields of
        `Geometry`; of the kept exit with attention `layer_mean` and `layer_deviation`.

    Raises:
        EncoderOutputError: If an embedding is not finite.
    """
    embedded = ExitEmbeddings(model, tasks.texts(), exits, precision=measures.precision)
    return {name: _numbers(embedded, tasks, name) for name in exits}


def _numbers(embedded: ExitEmbeddings, tasks: StudyTasks, name: Exit) -> dict[str, Any]:
    encode = embedded.encode(name)
    numbers: dict[str, Any] = {}
    scores = score_sts(encode, tasks.sts)
    for task, score in scores.items():
        numbers[task] = score.all
        if task in YEARS:
            numbers[f"{task}_wmean"] = score.wmean
    if set(TASKS) <= set(scores):
        seven = {task: scores[task] for task in TASKS}
        numbers["sts_average"] = average(seven, "all")
        numbers["sts_average_wmean"] = average(seven, "wmean")
    if tasks.quora:
        numbers["quora_mrr"] = score_retrieval(encode, tasks.quora).mrr
    if tasks.geometry:
        shape = measure_geometry(encode, tasks.geometry)
        numbers |= {
            "alignment": shape.alignment,
            "uniformity": shape.uniformity,
            "anisotropy": shape.anisotropy,
            "effective_rank": shape.effective_rank,
            "singular_values": [round(v, 6) for v in shape.singular_values[:_SPECTRUM]],
        }
    if tasks.layers and name == "kept" and embedded.layer_weights is not None:
        weights = embedded.layer_weights[embedded.rows(tasks.layers)].astype(np.float64)
        numbers["layer_mean"] = [round(v, 6) for v in weights.mean(axis=0).tolist()]
        numbers["layer_deviation"] = [round(v, 6) for v in weights.std(axis=0).tolist()]
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in numbers.items()}
