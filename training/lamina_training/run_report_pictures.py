"""The pictures of a run's report, each only where the run has what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lamina_training.geometry import Geometry
from lamina_training.pictures import Bars, Curve, draw_bars, draw_curves
from lamina_training.run_report_history import History, Series
from lamina_training.run_report_measures import Measures
from lamina_training.run_report_words import SCORE_NAMES

_SMOOTHED = 40
"""With so many losses a running mean is drawn too, of a tenth of them."""
_RATES = {"drop_probability": "drop probability", "dropped": "share dropped"}
"""What is drawn of attention dropout: the first that is logged."""
_ROUNDING = 1e-6
"""Singular values below are those of rounding in float32, and no number on a logarithmic axis."""


def draw_pictures(
    history: History, measures: Measures, *, score_name: str | None
) -> dict[str, str]:
    """Draw what a run has.

    Args:
        history: Its log.
        measures: What was measured on its dev texts.
        score_name: The dev score that chooses the best checkpoint.

    Returns:
        SVG by file name, in the order of the report.
    """
    found: dict[str, str] = {}
    if history.loss:
        found["loss.svg"] = _draw_loss(history.loss)
    for name, series in history.scores.items():
        if name in (score_name, "sts", "retrieval"):
            found[f"dev_{name}.svg"] = _draw_dev(name, series)
    rates = next((name for name in _RATES if name in history.by_layer), None)
    if rates:
        found["drop_rates.svg"] = _draw_rates(history.by_layer[rates], _RATES[rates])
    if measures.layers:
        layers = measures.layers
        found["layer_weights.svg"] = draw_bars(
            Bars([str(n) for n in range(len(layers.mean))], layers.mean, layers.low, layers.high),
            title=f"Layers that {layers.texts:,} dev texts draw on",
            x_label="layer (0 is the embedding layer); mark: 10% to 90% of the texts",
            y_label="mean weight",
            level=(1 / len(layers.mean), "equal share"),
        )
    found_in = {"before training": measures.before, "best weights": measures.after}
    if spectra := {name: of.geometry for name, of in found_in.items() if of and of.geometry}:
        found["spectrum.svg"] = _draw_spectra(spectra, measures.texts)
    return found


def _draw_loss(loss: Series) -> str:
    curves = [_curve(loss)]
    count = len(loss.steps)
    if count >= _SMOOTHED:
        width = count // 10
        kernel = np.full(width, 1 / width)
        means = Series(
            np.convolve(loss.steps, kernel, "valid"), np.convolve(loss.values, kernel, "valid")
        )
        raw = _curve(loss, "logged", faint=True)
        curves = [raw, _curve(means, f"mean of {width} logs")]
    return draw_curves(curves, title="Training loss", x_label="step", y_label="loss", whole=True)


def _draw_dev(name: str, series: Series) -> str:
    best = int(np.argmax(series.values))
    step, score = float(series.steps[best]), float(series.values[best])
    return draw_curves(
        [Curve(series.steps.tolist(), series.values.tolist(), marked=True)],
        title=f"Dev score: {name}",
        x_label="step (0 is before training)",
        y_label=SCORE_NAMES[name],
        whole=True,
        point=(step, score, "highest"),
    )


def _draw_rates(series: Series, y_label: str) -> str:
    thinned = series.thinned()
    return draw_curves(
        [
            _curve(Series(thinned.steps, column), f"layer {number}")
            for number, column in enumerate(thinned.values.T, start=1)
        ],
        title="Attention dropout by layer",
        x_label="step",
        y_label=y_label,
        ordered=True,
        whole=True,
    )


def _draw_spectra(spectra: Mapping[str, Geometry], texts: int) -> str:
    return draw_curves(
        [_spectrum(found.singular_values, name) for name, found in spectra.items()],
        title=f"Singular values of {texts:,} dev embeddings",
        x_label="rank",
        y_label="value, squares sum to 1",
        log=True,
        whole=True,
    )


def _spectrum(values: Sequence[float], label: str) -> Curve:
    above = [value for value in values if value > _ROUNDING]
    return Curve(range(1, len(above) + 1), above, label)


def _curve(series: Series, label: str | None = None, *, faint: bool = False) -> Curve:
    thinned = series.thinned()
    return Curve(thinned.steps.tolist(), thinned.values.tolist(), label, faint=faint)
