"""RUN/report/: what a run was, how it went and what came of it, as Markdown, JSON and pictures.

Written when `lamina train` ends, and again by `lamina report` at any time, also of a run that was
broken off or still goes on. Everything comes from the run's folder, but for what is measured on
the dev texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lamina_index.disk import disk_errors_told
from lamina_index.manifest import write_atomically
from lamina_training.metrics_log import read_metrics
from lamina_training.recorded_run import RecordedRun, read_run
from lamina_training.run_folder import write_json
from lamina_training.run_report_history import History, Series, read_history
from lamina_training.run_report_measures import Measures, measure_run
from lamina_training.run_report_pictures import draw_pictures
from lamina_training.run_report_text import report_text
from lamina_training.run_report_words import config_in_words

FORMAT_VERSION = 1
REPORT = "report"
REPORT_FILE = "report.md"
VALUES_FILE = "report.json"


def write_run_report(folder: Path, *, cache: Path, data: Path | None = None) -> Path:
    """Write a run's report folder; what an earlier one left there is replaced.

    Args:
        folder: Of the run.
        cache: Folder that keeps fetched weights.
        data: The data's folder, if it is another one now.

    Returns:
        The Markdown file.

    Raises:
        FormatError: If the folder is no run, or its files cannot be read.
        StorageFullError: If the disk is full.
    """
    recorded = read_run(folder)
    history = read_history(read_metrics(recorded.run.metrics))
    measures = measure_run(recorded, cache=cache, data=data)
    values = report_values(recorded, history, measures)
    pictures = draw_pictures(history, measures, score_name=recorded.score_name)
    target = folder / REPORT
    with disk_errors_told(target, when_full="make room and write it again with `lamina report`"):
        target.mkdir(exist_ok=True)
        for name, picture in pictures.items():
            write_atomically(target / name, picture.encode())
        for old in target.glob("*.svg"):
            if old.name not in pictures:
                old.unlink()
        write_json(target / VALUES_FILE, values)
        text = report_text(values, pictures=list(pictures))
        write_atomically(target / REPORT_FILE, text.encode())
    return target / REPORT_FILE


def report_values(recorded: RecordedRun, history: History, measures: Measures) -> dict[str, Any]:
    """Gather all numbers of a report; JSON-ready."""
    facts = recorded.facts
    return {
        "format_version": FORMAT_VERSION,
        "run": recorded.run.folder.resolve().name,
        "finished": recorded.result is not None,
        "last_step": history.last_step,
        "seconds": history.seconds,
        "steps_per_second": history.steps_per_second,
        "score_name": recorded.score_name,
        "dev": _dev(recorded, history),
        "loss": _first_and_last(history.loss),
        "attention_dropout": {name: _first_and_last(s) for name, s in history.by_layer.items()},
        "layer_weights": asdict(measures.layers) if measures.layers else None,
        "geometry": _geometry(measures),
        "test": _test(measures),
        "notes": list(measures.notes),
        "words": config_in_words(recorded.config),
        "config": facts["config"],
        "data_sha256": facts["data"],
        "processes": facts["processes"],
        "versions": facts["versions"],
    }


def _dev(recorded: RecordedRun, history: History) -> dict[str, Any] | None:
    """Give all dev measures before training, at the best step, and at the last evaluation."""
    deciding = history.scores.get(recorded.score_name or "")
    if deciding is None:
        return None
    trained = deciding.steps > 0
    moments: dict[str, float | None] = {
        "before": None if trained.all() else 0.0,
        "best": None,
        "last": None,
    }
    if trained.any():
        steps, values = deciding.steps[trained], deciding.values[trained]
        moments |= {"best": float(steps[np.argmax(values)]), "last": float(steps[-1])}
    return {
        moment: {"step": int(step), **_at(history.scores, step)}
        for moment, step in moments.items()
        if step is not None
    }


def _at(scores: Mapping[str, Series], step: float) -> dict[str, float]:
    return {
        name: float(series.values[series.steps == step][0])
        for name, series in scores.items()
        if (series.steps == step).any()
    }


def _first_and_last(series: Series | None) -> dict[str, Any] | None:
    if series is None:
        return None
    return {
        moment: {"step": int(series.steps[place]), "value": series.values[place].tolist()}
        for moment, place in {"first": 0, "last": -1}.items()
    }


def _geometry(measures: Measures) -> dict[str, Any] | None:
    found = {"before": measures.before, "after": measures.after}
    kept = {name: asdict(of.geometry) for name, of in found.items() if of and of.geometry}
    return {"texts": measures.texts, **kept} if kept else None


def _test(measures: Measures) -> dict[str, dict[str, float]] | None:
    """Give the scores on the test sets by what they are, before training and after."""
    found = {"before": measures.before, "after": measures.after}
    return {name: of.final.rows() for name, of in found.items() if of and of.final} or None
