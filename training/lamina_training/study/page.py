"""A study's page: question, answer, tables, pictures, and which runs are still to be done."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lamina_training.markdown import markdown_table
from lamina_training.study.pictures import draw_study
from lamina_training.study.results import StudyResults
from lamina_training.study.statistics import FEWEST, Estimate, estimate, paired_difference

_QUALITY = {
    "stsb_dev": ("STS-B dev", 2),
    "stsb": ("STS-B test", 2),
    "sts_average": ("seven STS, all", 2),
    "sts_average_wmean": ("seven STS, wmean", 2),
    "quora_mrr": ("Quora MRR@10", 4),
    "dev_last": ("dev, last step", 2),
    "dev_best": ("dev, best step", 2),
    "dev_loss": ("dev loss", 3),
    "training_loss": ("training loss", 3),
    "loss_gap": ("dev loss - training loss", 3),
}
_GEOMETRY = {
    "alignment": ("alignment", 3),
    "uniformity": ("uniformity", 3),
    "anisotropy": ("anisotropy", 3),
    "effective_rank": ("effective rank", 1),
}
_DROPS = {
    "drop_rates": "share dropped",
    "drop_spread": "spread of the probability over a row's links",
}
_INDEX_BEGIN, _INDEX_END = "<!-- studies -->", "<!-- /studies -->"
_SHARES = ("dev_last", "dev_best")
"""Measures in shares of 1, shown in hundredths."""


def write_page(found: StudyResults, path: Path, folder: Path) -> None:
    """Write a study's page and pictures, which are a function of its file and results alone.

    Args:
        found: The study.
        path: Its file, as the page is to name it.
        folder: Of the pages.
    """
    name = path.stem
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw_study(found)
    for old in folder.glob(f"{name}-*.svg"):
        old.unlink()
    for picture, svg in pictures.items():
        (folder / f"{name}-{picture}.svg").write_text(svg, encoding="utf-8")
    page = "\n\n".join(_parts(found, path, list(pictures))) + "\n"
    (folder / f"{name}.md").write_text(page, encoding="utf-8")


def write_index(studies: Mapping[Path, StudyResults], folder: Path) -> None:
    """Write how far each study is and what it answers into the folder's README.md, if it asks.

    Args:
        studies: By file.
        folder: Of the pages. The table takes the place of what stands between the two marks in its
            README.md; without marks nothing is written.
    """
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, begin, rest = text.partition(_INDEX_BEGIN)
    _, end, after = rest.partition(_INDEX_END)
    if not end:
        return
    rows = []
    for file, found in studies.items():
        answer = " ".join(found.study.answer.split())
        done = f"{len(found.cells) - len(found.missing)} of {len(found.cells)}"
        first = answer.partition(". ")[0].removesuffix(".")
        rows.append([f"[{found.study.title}]({file.stem}.md)", first or "none yet", done])
    table = "\n".join(markdown_table(["study", "answer, in short", "runs done"], rows, numbers=2))
    path.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")


def _parts(found: StudyResults, path: Path, pictures: Sequence[str]) -> Iterable[str]:
    study = found.study
    yield f"# {study.title}"
    yield study.question.strip()
    yield f"**{study.answer.strip() or 'No answer yet.'}**"
    done, total = len(found.cells) - len(found.missing), len(found.cells)
    interim = ", so the numbers are interim" if 0 < done < total else ""
    yield f"{done} of {total} runs have a result{interim}."
    if done:
        yield _table(found, _QUALITY)
        yield (
            "Means over seeds ± half of the 95% interval of the mean; in brackets the difference "
            f"from *{found.title(*found.reference)}*, seed by seed, in bold where its interval "
            f"leaves out 0 and {FEWEST} or more seeds have both. Intervals tell of other seeds, "
            "not of other test sets." + _selection(found)
        )
        if geometry := _table(found, _GEOMETRY):
            yield "## Geometry\n\n" + geometry
            yield "Of STS-B test; lower is better, but for the effective rank."
        if drops := _drops(found):
            yield "## What was dropped\n\n" + drops
        yield from (f"![{picture}]({path.stem}-{picture}.svg)" for picture in pictures)
        if costs := _costs(found):
            yield "## Cost\n\n" + costs
    yield f"## Again\n\n    lamina study {path.as_posix()}\n\n{_again(found, path)}"


def _selection(found: StudyResults) -> str:
    """Say which column is no clean measurement, if one is."""
    chose = any(line["exits"].get("kept", {}).get("stsb_dev") for line in found.lines.values())
    words = " STS-B dev also chose the step that is measured, in runs that have it as dev set."
    return words if chose else ""


def _table(found: StudyResults, measures: Mapping[str, tuple[str, int]]) -> str:
    present = [m for m in measures if any(found.values(*row, m) for row in found.rows())]
    rows = [
        [
            found.title(*row),
            str(len(found.of_arm(row[0]))),
            *(_cell(found, row, measure, measures[measure][1]) for measure in present),
        ]
        for row in found.rows()
        if found.of_arm(row[0])
    ]
    head = ["", "seeds", *(measures[measure][0] for measure in present)]
    return "\n".join(markdown_table(head, rows, numbers=1)) if present else ""


def _cell(found: StudyResults, row: tuple[str, str], measure: str, digits: int) -> str:
    values = _scaled(found.values(*row, measure), measure)
    if not values:
        return ""
    text = _shown(estimate(list(values.values())), digits)
    if row == found.reference or found.study.arms[row[0]].untrained:
        return text
    difference = paired_difference(
        values, _scaled(found.values(*found.reference, measure), measure)
    )
    if difference is None:
        return text
    shown = _shown(difference, digits, sign="+")
    if difference.n < len(values):
        shown += f", {difference.n} of the seeds"
    return f"{text} ({f'**{shown}**' if difference.differs else shown})"


def _scaled(values: Mapping[int, float], measure: str) -> dict[int, float]:
    times = 100 if measure in _SHARES else 1
    return {seed: times * value for seed, value in values.items()}


def _shown(value: Estimate, digits: int, *, sign: str = "") -> str:
    text = f"{value.mean:{sign}.{digits}f}"
    return text if value.half_width is None else f"{text} ± {value.half_width:.{digits}f}"


def _drops(found: StudyResults) -> str:
    """Tabulate, by layer, how much each arm dropped at the end of its runs, and how evenly."""
    rows = []
    for name, arm in found.study.arms.items():
        for key, what in _DROPS.items():
            ends = [line[key][-1][1] for line in found.of_arm(name).values() if line.get(key)]
            if ends:
                means = [statistics.fmean(layer) for layer in zip(*ends, strict=True)]
                rows.append([f"{arm.title}: {what}", str(len(ends)), *(f"{m:.3f}" for m in means)])
    if not rows:
        return ""
    layers = [str(number) for number in range(1, max(map(len, rows)) - 1)]
    table = markdown_table(["layer", "seeds", *layers], rows, numbers=1)
    return "\n".join(table) + "\n\nAt the last line of each run's log, means over seeds."


def _costs(found: StudyResults) -> str:
    reference = _seconds_per_step(found, found.reference[0])
    rows = []
    for name, arm in found.study.arms.items():
        if seconds := _seconds_per_step(found, name):
            ratios = [each / reference[seed] for seed, each in seconds.items() if seed in reference]
            ratio = f"{statistics.median(ratios):.2f}x" if ratios else ""
            rows.append([arm.title, f"{statistics.median(seconds.values()):.2f}", ratio])
    if not rows:
        return ""
    lines = list(found.lines.values())
    hours = sum(line["cpu_seconds"] for line in lines) / 3600
    machine = lines[0]["machine"]
    return (
        "\n".join(markdown_table(["", "CPU seconds a step", "of the reference's"], rows, numbers=1))
        + "\n\nMedians over seeds, of ratios taken seed by seed; dev scores included. These runs "
        f"together took {hours:.1f} CPU hours; torch {machine['torch']}, {machine['system']}."
    )


def _seconds_per_step(found: StudyResults, arm: str) -> dict[int, float]:
    """What a step took by seed; left out are runs broken off, in whose time a part is missing."""
    return {
        seed: line["train_cpu_seconds"] / line["steps"]
        for seed, line in found.of_arm(arm).items()
        if "steps" in line and not line["resumed"]
    }


def _again(found: StudyResults, path: Path) -> str:
    missing: dict[str, list[str]] = {}
    for cell in found.missing:
        missing.setdefault(cell.arm, []).append(str(cell.seed))
    listed = "; ".join(f"{arm} {', '.join(seeds)}" for arm, seeds in missing.items())
    return (
        "does the runs that have no result; with `--pages docs/studies` it writes this page from "
        f"the results. {f'Not done (arm and seeds): {listed}.' if missing else 'None is missing.'}"
    )
