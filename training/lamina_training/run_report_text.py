"""A run's report for people: Markdown from the values of `report.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lamina_training.markdown import markdown_table
from lamina_training.run_report_words import SCORE_NAMES

_ALT = {
    "loss.svg": "Training loss over the steps",
    "drop_rates.svg": "Drop rate of each layer over the steps",
    "layer_weights.svg": "Mean weight of each layer, with its spread over texts",
    "spectrum.svg": "Singular values of dev embeddings",
}
_MOMENTS = {"before": "before training", "best": "best", "last": "last evaluation"}
_WEIGHTS = {"before": "before training", "after": "best weights"}
_GEOMETRY = {
    "alignment": "alignment (0 to 4, lower: alike texts are nearer)",
    "uniformity": "uniformity (-8 to 0, lower: spread more evenly)",
    "anisotropy": "anisotropy (mean cosine of two texts, 0 is even)",
    "effective_rank": "effective rank (directions in use)",
}
_DROPOUT = {
    "drop_probability": "drop probability",
    "drop_spread": "spread of the probability over a row's links (standard deviation)",
    "dropped": "share dropped",
    "guarded": "share of rows that the row guard saved",
}


def report_text(values: Mapping[str, Any], *, pictures: Sequence[str]) -> str:
    """Write the report.

    Args:
        values: Of `report.json`.
        pictures: Names of the files beside it.
    """
    lines = [f"# Run `{values['run']}`", "", headline(values), ""]
    lines += [line for note in _remarks(values) for line in (f"**{note}**", "")]
    lines += [line for words in values["words"] for line in (words, "")]
    lines += _scores(values)
    shown = [name for name in pictures if name == "loss.svg" or name.startswith("dev_")]
    lines += _show(shown)
    if values["test"]:
        lines += ["## Test sets", "", *_test(values["test"])]
    if values["attention_dropout"]:
        lines += ["## Attention dropout", "", *_show(["drop_rates.svg"], pictures)]
        lines += _by_layer(values["attention_dropout"])
    if values["layer_weights"]:
        lines += ["## Layers", "", *_show(["layer_weights.svg"], pictures)]
        lines += _layers(values["layer_weights"])
    if values["geometry"]:
        lines += ["## Embedding space", "", *_show(["spectrum.svg"], pictures)]
        lines += _geometry(values["geometry"])
    lines += ["## Data and versions", ""]
    lines += _table(["file", "sha256"], [(f"`{n}`", d) for n, d in values["data_sha256"].items()])
    lines += [", ".join(f"{name} {value}" for name, value in values["versions"].items()) + ".", ""]
    settings = json.dumps(values["config"], indent=2, ensure_ascii=False)
    lines += ["## All settings", "", "```json", settings, "```", ""]
    return "\n".join(lines)


def headline(values: Mapping[str, Any]) -> str:
    """Say in a sentence how far the run came, how fast, and how good its best weights are."""
    end = "" if values["finished"] else ", not finished"
    text = f"{values['last_step']:,} steps in {values['seconds']:,.0f} s{end}"
    if values["steps_per_second"]:
        text += f" ({values['steps_per_second']:.3g} steps/s without evaluations)"
    if values["processes"] > 1:
        text += f" on {values['processes']} processes"
    name, dev = values["score_name"], values["dev"]
    if dev and "best" in dev:
        best = dev["best"]
        text += f"; best {SCORE_NAMES[name]} {best[name]:.4g} at step {best['step']:,}"
        if "before" in dev:
            text += f", {dev['before'][name]:.4g} before training"
    return f"{text}."


def _remarks(values: Mapping[str, Any]) -> list[str]:
    """Say what a reader must not overlook."""
    found = [f"{note[:1].upper()}{note[1:]}." for note in values["notes"]]
    name, dev = values["score_name"], values["dev"] or {}
    if "best" in dev and "before" in dev and dev["best"][name] <= dev["before"][name]:
        found.insert(0, "No evaluation beat the score before training.")
    return found


def _scores(values: Mapping[str, Any]) -> list[str]:
    if not values["dev"]:
        return []
    names = list(next(iter(values["dev"].values())))[1:]
    rows = [
        (_MOMENTS[moment], f"{row['step']:,}", *(f"{row[name]:.4f}" for name in names))
        for moment, row in values["dev"].items()
    ]
    return ["## Dev scores", "", *_table(["", "step", *names], rows, numbers=1)]


def _test(test: Mapping[str, Any]) -> list[str]:
    names = list(next(iter(test.values())))
    rows = [(name, *(f"{test[moment][name]:.4f}" for moment in test)) for name in names]
    kept = [label for moment, label in _WEIGHTS.items() if moment in test]
    words = (
        "Spearman x 100 over all pairs of a set, and `wmean`, the mean over its subsets weighted "
        "by their pairs, where it has some. They chose nothing. Before training, a pooling with "
        "weights and what was re-initialised are random."
    )
    return [words, "", *_table(["", *kept], rows, numbers=1)]


def _by_layer(rates: Mapping[str, Any]) -> list[str]:
    count = len(next(iter(rates.values()))["last"]["value"])
    rows = [
        (f"{_DROPOUT.get(name, name)}, step {moment['step']:,}", *map(_share, moment["value"]))
        for name, moments in rates.items()
        for moment in moments.values()
    ]
    return _table(["layer", *map(str, range(1, count + 1))], rows, numbers=1)


def _layers(layers: Mapping[str, Any]) -> list[str]:
    names = {"mean": "mean weight", "deviation": "standard deviation over texts"}
    names |= {"low": "10% of texts below", "high": "10% of texts above"}
    rows = [(label, *map(_share, layers[name])) for name, label in names.items()]
    header = ["layer", *map(str, range(len(layers["mean"])))]
    return [
        (
            f"Of {layers['texts']:,} dev texts, by the best weights; layer 0 is the embedding "
            f"layer's output, and an equal share would be {1 / len(layers['mean']):.3f}. "
            "`lamina export` tells how the encoder does without the attention."
        ),
        "",
        *_table(header, rows, numbers=1),
    ]


def _geometry(geometry: Mapping[str, Any]) -> list[str]:
    kept = {name: label for name, label in _WEIGHTS.items() if name in geometry}
    rows = [
        (label, *(f"{geometry[moment][name]:.4g}" for moment in kept))
        for name, label in _GEOMETRY.items()
    ]
    return [
        (
            f"Of {geometry['texts']:,} dev texts. Before training, a pooling with weights and what "
            "was re-initialised are random."
        ),
        "",
        *_table(["", *kept.values()], rows, numbers=1),
    ]


def _show(names: Iterable[str], among: Sequence[str] | None = None) -> list[str]:
    found = [name for name in names if among is None or name in among]
    dev = "Dev score over the steps"
    return [line for name in found for line in (f"![{_ALT.get(name, dev)}]({name})", "")]


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int | None = None
) -> list[str]:
    return [*markdown_table(header, rows, numbers=numbers), ""]


def _share(value: float) -> str:
    return f"{value:.3f}"
