"""Kept or stripped: what an encoder's vectors owe to attention over layers, and what that costs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina_index.errors import LaminaError
from lamina_index.manifest import Precision, Prompts
from lamina_index.runtime import cpu_model
from lamina_training.dev_retrieval import RetrievalTask, sample_task, score_retrieval
from lamina_training.dev_scores import DevTasks
from lamina_training.embedding import Encode
from lamina_training.encoder_graphs import GRAPH_FILES, make_int8, open_graph
from lamina_training.graph import GraphRunner, export_fp32
from lamina_training.int8 import Int8Recipe
from lamina_training.recorded_run import read_run
from lamina_training.run_folder import RUN_FILE
from lamina_training.source import Ending, Source
from lamina_training.sts import score_sts
from lamina_training.train_config import ClassificationConfig

ON_CPU: tuple[Precision, ...] = ("fp32", "int8")
MOST_QUERIES, MOST_DOCUMENTS = 1000, 4000
"""Of a retrieval task; a larger one is sampled, since every text is embedded by every graph."""


@dataclass(frozen=True)
class FormGraph:
    """A graph of one form of an encoder in one precision.

    Attributes:
        form: Such as `kept` or `stripped to mean`.
        runner: Runs it on one thread.
    """

    form: str
    precision: Precision
    size_bytes: int
    runner: GraphRunner


def other_forms(ending: Ending) -> list[dict[str, Any]]:
    """List how else an encoder could be exported: kept, and stripped as training aimed at.

    Returns:
        Options of `load_source`; none for an encoder without attention over layers.
    """
    if ending.attention == "none" or ending.trained is None:
        return []
    towards = ending.trained["strip_to"]
    kept = [] if ending.attention == "kept" else [{"keep_attention": True}]
    return kept + ([] if ending.stripped_to == towards else [{"strip": towards}])


def dev_to_compare(origin: str, data: Path | None) -> DevTasks | None:
    """Read the dev data on which the forms of a run can be compared.

    Args:
        origin: What is exported.
        data: The data's folder, if it is another one now than in training.

    Returns:
        None if it is no run with attention over layers.

    Raises:
        LaminaError: If the run has no dev data, or they are not there any more.
    """
    if not Path(origin, RUN_FILE).is_file():
        return None
    recorded = read_run(Path(origin))
    config = recorded.config
    if isinstance(config, ClassificationConfig) or config.pooling.mode != "layer_attention":
        return None
    if config.dev.deciding is None:
        raise LaminaError("the run's configuration names no dev data")
    return recorded.dev_tasks(config, data)


def compare_forms(
    folder: Path,
    forms: Sequence[Source],
    precisions: Collection[Precision],
    dev: DevTasks,
    *,
    recipe: Int8Recipe,
) -> dict[str, Any]:
    """Make what is missing of each form's graphs, and score and time them side by side.

    The other forms are not shipped, so they do not go through the checks of an export.

    Args:
        folder: Has the graphs of the first form.
        forms: The exported form and others.
        precisions: Those that are shipped; without one that is for CPUs fp32 is compared.
        dev: At least one task.
        recipe: How int8 is made.

    Returns:
        As `measure_forms`.
    """
    compared = [precision for precision in ON_CPU if precision in precisions] or ["fp32"]
    graphs = []
    with tempfile.TemporaryDirectory(prefix=".forms.", dir=folder.parent) as scratch:
        for number, form in enumerate(forms):
            place = folder
            if number:
                place = Path(scratch, str(number))
                (place / "onnx").mkdir(parents=True)
                export_fp32(form, place / GRAPH_FILES["fp32"])
                if "int8" in compared:
                    make_int8(place, form, recipe)
            graphs += [_form_graph(place, form, precision) for precision in compared]
        return measure_forms(graphs, dev, prompts=forms[0].prompts)


def measure_forms(
    graphs: Sequence[FormGraph], dev: DevTasks, *, prompts: Prompts
) -> dict[str, Any]:
    """Score and time graphs side by side on dev data; JSON-ready.

    Every text goes through all graphs, one after the other, before the next text does, and each
    text begins with another graph, so that a disturbance of the machine meets all alike.

    Args:
        graphs: At least one.
        dev: At least one task; a retrieval task that is too large is sampled.
        prompts: Put before queries and documents; STS sentences are embedded as documents.

    Returns:
        `rows`, one a graph: its scores, the median milliseconds a text (batches of one, one thread,
        without tokenising) and size; and what was scored and timed.
    """
    sts, retrieval = dev.sts, dev.retrieval and _sampled(dev.retrieval)
    texts: dict[str, None] = {}
    scored: dict[str, int] = {}
    if sts is not None:
        texts |= dict.fromkeys(prompts.document + text for text in (*sts.first, *sts.second))
        scored["sts_pairs"] = len(sts.gold)
    if retrieval is not None:
        texts |= dict.fromkeys(prompts.query + text for text in retrieval.queries.values())
        texts |= dict.fromkeys(prompts.document + text for text in retrieval.documents.values())
        scored |= {"queries": len(retrieval.queries), "documents": len(retrieval.documents)}
    vectors, milliseconds = _run_in_turn(list(texts), graphs)
    places = {text: place for place, text in enumerate(texts)}
    rows = []
    for graph, found, times in zip(graphs, vectors, milliseconds, strict=True):
        row: dict[str, Any] = {"form": graph.form, "precision": graph.precision}
        encode = _look_up(places, found, prompts.document)
        if sts is not None:
            row["sts"] = round(score_sts(encode, {"dev": sts})["dev"].all, 4)
        if retrieval is not None:
            encode_query = _look_up(places, found, prompts.query)
            ranked = score_retrieval(encode, retrieval, encode_query=encode_query)
            row["retrieval"] = round(ranked.mrr, 5)
        row["milliseconds"] = round(float(np.median(times)), 4)
        row["size_bytes"] = graph.size_bytes
        rows.append(row)
    timed = {"texts": len(texts), "batch": 1, "threads": 1, "cpu": cpu_model()}
    return {"scored": scored, "timed": timed, "rows": rows}


def _form_graph(folder: Path, source: Source, precision: Precision) -> FormGraph:
    stripped_to = source.ending.stripped_to
    return FormGraph(
        form="kept" if stripped_to is None else f"stripped to {stripped_to}",
        precision=precision,
        size_bytes=(folder / GRAPH_FILES[precision]).stat().st_size,
        runner=open_graph(folder, source, precision),
    )


def _sampled(task: RetrievalTask) -> RetrievalTask:
    if len(task.queries) <= MOST_QUERIES and len(task.documents) <= MOST_DOCUMENTS:
        return task
    return sample_task(task, queries=MOST_QUERIES, documents=MOST_DOCUMENTS, seed=0)


def _run_in_turn(
    texts: Sequence[str], graphs: Sequence[FormGraph]
) -> tuple[list[NDArray[np.float32]], NDArray[np.float64]]:
    """Embed N texts with G graphs: G times (N, D) vectors, and (G, N) milliseconds."""
    milliseconds = np.empty((len(graphs), len(texts)))
    rows: list[list[NDArray[np.float32]]] = [[] for _ in graphs]
    for place, text in enumerate(texts):
        ids = np.array([graphs[0].runner.token_ids(text)], dtype=np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        for turn in range(len(graphs)):
            number = (place + turn) % len(graphs)
            start = time.perf_counter()
            (found,) = graphs[number].runner.session.run(["sentence_embedding"], feed)
            milliseconds[number, place] = 1000 * (time.perf_counter() - start)
            rows[number].append(found[0])
    return [np.stack(of_graph) for of_graph in rows], milliseconds


def _look_up(places: Mapping[str, int], vectors: NDArray[np.float32], prompt: str) -> Encode:
    return lambda texts: vectors[[places[prompt + text] for text in texts]]
