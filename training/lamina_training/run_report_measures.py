"""What a report measures on a run's dev texts: the embedding space, and the layers drawn on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lamina_index.errors import LaminaError
from lamina_training.dev_scores import DevTasks
from lamina_training.embedding import encode_with
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.final_scores import FinalScores, FinalTasks, score_final
from lamina_training.geometry import ALIKE_ABOVE, Geometry, measure_geometry
from lamina_training.recorded_run import RecordedRun
from lamina_training.starting_encoder import starting_encoder
from lamina_training.sts import StsPairs
from lamina_training.train_config import ClassificationConfig, TrainConfig

PAIRS = 1000
"""Most pairs of dev texts that are measured: enough for a spectrum, and seconds on a CPU."""

LAYER_TEXTS = 500
"""Most texts whose layer weights are taken: percentiles need no more."""

_BLOCK = 64


@dataclass(frozen=True)
class LayerSpread:
    """How texts draw on layers: statistics over texts, each with an entry for each of N layers.

    Attributes:
        texts: How many.
        mean, deviation: Of a layer's weight; layer 0 is the embedding layer's output.
        low, high: 10th and 90th percentile.
    """

    texts: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """Of one encoder; None stands for what was not asked for."""

    geometry: Geometry | None
    final: FinalScores | None


@dataclass(frozen=True)
class Measures:
    """What could be measured; None stands for what the run does not have, or could not be had.

    Attributes:
        texts: Distinct ones that the geometry is of.
        before: The encoder as training started, its pooling untrained.
        after: The run's best weights.
        layers: Of the run's best weights.
        notes: Why something is missing that the run could have.
    """

    texts: int = 0
    before: Measured | None = None
    after: Measured | None = None
    layers: LayerSpread | None = None
    notes: tuple[str, ...] = ()


def measure_run(recorded: RecordedRun, *, cache: Path, data: Path | None) -> Measures:
    """Measure the run's encoder, and the one that it started from.

    On the test sets, and the embedding space on up to `PAIRS` of dev pairs. Nothing is raised for
    what cannot be had any more, such as moved data: a note tells it.

    Args:
        recorded: The run.
        cache: Folder that keeps fetched weights.
        data: The data's folder, if it is another one now.
    """
    config = recorded.config
    if isinstance(config, ClassificationConfig):
        return Measures()
    if config.dev.deciding is None and config.test.is_empty:
        return Measures()
    weights = recorded.best_weights()
    if weights is None:
        return Measures(notes=("embeddings not measured: there is no checkpoint yet",))
    notes: list[str] = []
    pairs = final = None
    if config.dev.deciding is not None:
        with _noted(notes, "embeddings not measured"):
            pairs = _pairs_to_measure(recorded.dev_tasks(config, data))
    if not config.test.is_empty:
        with _noted(notes, "test sets not measured"):
            final = recorded.final_tasks(config, data)
    texts = list(dict.fromkeys((*pairs.first, *pairs.second))) if pairs else []
    before = after = layers = None
    if pairs or final:
        with _noted(notes, "embeddings not measured"):
            model = _moved(load_encoder(find_encoder(str(weights), cache=cache)), config)
            after = _measure(model, pairs, final)
            if texts and config.pooling.mode == "layer_attention":
                some = [texts[place] for place in _spread(len(texts), LAYER_TEXTS)]
                layers = spread_of(layer_weights(model, some))
    if after:
        with _noted(notes, "embeddings before training not measured"):
            start = _moved(starting_encoder(config, cache=cache), config)
            before = _measure(start, pairs, final)
    return Measures(len(texts), before, after, layers, tuple(notes))


@contextmanager
def _noted(notes: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except LaminaError as error:
        notes.append(f"{what}: {error}")


def _measure(model: Any, pairs: StsPairs | None, final: FinalTasks | None) -> Measured:
    return Measured(
        measure_geometry(encode_with(model), pairs) if pairs else None,
        score_final(model, final) if final else None,
    )


def _pairs_to_measure(tasks: DevTasks) -> StsPairs:
    pairs = dev_pairs(tasks)
    if not (pairs.gold > ALIKE_ABOVE).any():
        raise LaminaError(
            f"no dev pair has a score above {ALIKE_ABOVE:g} of 5; where the scale ends elsewhere, "
            "say so with dev.sts.highest"
        )
    return pairs


def dev_pairs(tasks: DevTasks, *, most: int = PAIRS) -> StsPairs:
    """Choose pairs to measure: spread evenly over the scored ones, or queries and answers.

    Of a retrieval task each query stands with its first relevant document by id, all alike.

    Args:
        tasks: At least one of the two.
        most: How many at most.
    """
    if tasks.sts is not None:
        sts = tasks.sts
        kept = _spread(len(sts.gold), most)
        return StsPairs(
            tuple(sts.first[place] for place in kept),
            tuple(sts.second[place] for place in kept),
            sts.gold[kept],
            tuple(sts.subsets[place] for place in kept),
        )
    assert tasks.retrieval is not None
    task = tasks.retrieval
    answered = [
        (query, min(found))
        for query in task.queries
        if (found := task.relevant[query] & task.documents.keys())
    ]
    chosen = [answered[place] for place in _spread(len(answered), most)]
    return StsPairs(
        tuple(task.queries[query] for query, _ in chosen),
        tuple(task.documents[document] for _, document in chosen),
        np.full(len(chosen), 5.0),
        ("",) * len(chosen),
    )


def layer_weights(model: Any, texts: Sequence[str]) -> NDArray[np.float64]:
    """Give how much of each layer's value a text's embedding takes.

    Args:
        model: A SentenceTransformer with layer attention.
        texts: N texts, at least one.

    Returns:
        (N, layers + 1), each row a distribution; column 0 is the embedding layer.
    """
    rows = []
    for start in range(0, len(texts), _BLOCK):  # all hidden states of a block are held
        found = model.encode(
            list(texts[start : start + _BLOCK]), output_value=None, show_progress_bar=False
        )
        rows += [features["layer_weights"].double().cpu().numpy() for features in found]
    return np.stack(rows)


def spread_of(weights: NDArray[np.float64]) -> LayerSpread:
    """Sum up (N texts, layers) weights over texts."""
    low, high = np.percentile(weights, (10, 90), axis=0)
    rows = (weights.mean(axis=0), weights.std(axis=0), low, high)
    return LayerSpread(len(weights), *(tuple(row.tolist()) for row in rows))


def _spread(count: int, most: int) -> list[int]:
    """Places of at most `most` out of `count` things, evenly apart."""
    if count <= most:
        return list(range(count))
    return [place * count // most for place in range(most)]


def _moved(model: Any, config: TrainConfig) -> Any:
    """Move a model where training would run it, as far as this machine can."""
    cuda = config.run.device != "cpu" and torch.cuda.is_available()
    return model.to("cuda" if cuda else "cpu")
