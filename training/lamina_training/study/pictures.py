"""The pictures of a study's page, each only where its runs have what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lamina_training.pictures import Bars, Curve, draw_bars, draw_curves
from lamina_training.study.results import StudyResults
from lamina_training.study.statistics import estimate

_ROUNDING = 1e-6
"""Singular values below are no numbers for a logarithmic axis."""


def draw_study(found: StudyResults) -> dict[str, str]:
    """Draw what the arms with most seeds have.

    Returns:
        SVG by name, in the order of the page.
    """
    most = max((len(found.of_arm(name)) for name in found.study.arms), default=0)
    trained = [name for name, arm in found.study.arms.items() if not arm.untrained]
    main = [name for name in trained if most and len(found.of_arm(name)) == most]
    drawn = {"curve": _curves(found, main), "spectrum": _spectra(found, main)}
    for name in trained:
        drawn[f"layers-{name}"] = _layers(found, name)
        drawn[f"drops-{name}"] = _drops(found, name)
    return {name: svg for name, svg in drawn.items() if svg}


def _curves(found: StudyResults, arms: Sequence[str]) -> str | None:
    curves = []
    for name in arms:
        runs = [dict(line["dev"]) for line in found.of_arm(name).values()]
        steps = _shared_steps(runs)
        if not steps:
            continue
        points = [estimate([run[step] for run in runs]) for step in steps]
        curves.append(
            Curve(
                steps,
                [point.mean for point in points],
                found.study.arms[name].title,
                low=[point.mean - (point.half_width or 0) for point in points],
                high=[point.mean + (point.half_width or 0) for point in points],
                marked=True,
            )
        )
    if not curves:
        return None
    return draw_curves(
        curves,
        title="Dev score while training",
        x_label="step (0 is before training); band: 95% interval of the mean over seeds",
        y_label="score",
        whole=True,
    )


def _spectra(found: StudyResults, arms: Sequence[str]) -> str | None:
    curves = []
    for name in arms:
        for exit_name in found.study.arms[name].exits:
            values = list(found.values(name, exit_name, "singular_values").values())
            if values:
                means = [v for v in np.mean(values, axis=0).tolist() if v > _ROUNDING]
                label = found.title(name, exit_name)
                curves.append(Curve(range(1, len(means) + 1), means, label))
    if not curves:
        return None
    return draw_curves(
        curves,
        title="Singular values of STS-B test",
        x_label="rank",
        y_label="value, squares sum to 1",
        log=True,
        whole=True,
    )


def _layers(found: StudyResults, arm: str) -> str | None:
    means = list(found.values(arm, "kept", "layer_mean").values())
    if not means:
        return None
    spread = np.mean(list(found.values(arm, "kept", "layer_deviation").values()), axis=0)
    mean = np.mean(means, axis=0)
    return draw_bars(
        Bars(
            [str(number) for number in range(len(mean))],
            mean.tolist(),
            (mean - spread).tolist(),
            (mean + spread).tolist(),
        ),
        title=f"Layers drawn on: {found.study.arms[arm].title}",
        x_label="layer (0 is the embedding layer); mark: one deviation over texts",
        y_label="mean weight",
        level=(1 / len(mean), "equal share"),
    )


def _drops(found: StudyResults, arm: str) -> str | None:
    runs: list[Mapping[int, Any]] = [
        dict(line["drop_rates"]) for line in found.of_arm(arm).values()
    ]
    steps = _shared_steps(runs)
    if len(steps) < 2:
        return None
    rates = np.mean([[run[step] for step in steps] for run in runs], axis=0)  # (steps, layers)
    return draw_curves(
        [
            Curve(steps, column.tolist(), f"layer {number}")
            for number, column in enumerate(rates.T, start=1)
        ],
        title=f"Share of links dropped: {found.study.arms[arm].title}",
        x_label="step",
        y_label="share, mean over seeds",
        ordered=True,
        whole=True,
    )


def _shared_steps(runs: Sequence[Mapping[int, Any]]) -> list[int]:
    return sorted(set(runs[0]).intersection(*runs)) if runs else []
