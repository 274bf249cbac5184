"""How good a classifier is: accuracy, Matthews correlation, F1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def score_predictions(prediction: Any) -> dict[str, float]:
    """Score what transformers' trainer predicted: logits (N, C) and labels (N,)."""
    return classification_scores(
        np.asarray(prediction.predictions).argmax(axis=-1), np.asarray(prediction.label_ids)
    )


def classification_scores(
    predicted: NDArray[np.integer], labels: NDArray[np.integer]
) -> dict[str, float]:
    """Score (N,) predicted labels against the true ones.

    Returns:
        `accuracy`; `matthews`, the correlation coefficient for any number of classes, 0 where one
        side is constant; `f1`, of class 1 where there are two classes and else the mean over the
        classes that occur, a class without a hit counting 0.

    Source: Gorodkin 2004 for the coefficient R_K. Values equal scikit-learn's `accuracy_score`,
    `matthews_corrcoef` and `f1_score` (binary, or macro with zero_division=0).
    """
    classes = int(max(predicted.max(), labels.max(), 1)) + 1
    counts = np.zeros((classes, classes))
    np.add.at(counts, (labels, predicted), 1)
    total, hits = counts.sum(), np.diag(counts)
    true, said = counts.sum(axis=1), counts.sum(axis=0)
    covariance = hits.sum() * total - true @ said
    scale = np.sqrt((total**2 - said @ said) * (total**2 - true @ true))
    occurs = (true + said) > 0
    f1 = 2 * hits / np.where(occurs, true + said, 1.0)
    return {
        "accuracy": float(hits.sum() / total),
        "matthews": float(covariance / scale) if scale else 0.0,
        "f1": float(f1[1] if classes == 2 else f1[occurs].mean()),
    }
