"""The result file of a study: one line for each run, appended as runs end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina_training.study.definition import Cell, Study, StudyError, cells_of

FORMAT_VERSION = 1


def results_file(study: Path, *, folder: Path | None = None) -> Path:
    """Give the result file that belongs to a study's file; its folder is `results` beside it."""
    return (folder or study.parent / "results") / f"{study.stem}.jsonl"


def append_result(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line in one write, so that several runners may share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format_version": FORMAT_VERSION, **line}, ensure_ascii=False) + "\n"
    with path.open("ab") as file:
        file.write(text.encode("utf-8"))


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Read all lines by the fingerprint of their run; there are none before the first has ended.

    Raises:
        StudyError: If a line is not one of ours.
    """
    if not path.is_file():
        return {}
    lines: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
            version, fingerprint = line["format_version"], str(line["fingerprint"])
        except (ValueError, KeyError, TypeError) as error:
            raise StudyError(
                f"{path}:{number}: not a line of study results; remove it, and the runner does "
                "that run again"
            ) from error
        if version != FORMAT_VERSION:
            raise StudyError(
                f"{path}:{number}: format {version}, this version reads {FORMAT_VERSION}; use the "
                "version of Lamina that wrote it"
            )
        lines[fingerprint] = line
    return lines


def is_of(cell: Cell, line: Mapping[str, Any] | None) -> bool:
    """Tell whether a line is the result of a run as it would be made now.

    A setting that the file leaves out has the default of the day. Settings that there were not
    when the line was written decided nothing then.
    """
    return line is not None and _agree(line.get("config", {}), cell.settings)


def _agree(then: Any, now: Any) -> bool:
    if isinstance(then, dict) and isinstance(now, dict):
        return all(_agree(value, now[key]) for key, value in then.items() if key in now)
    return bool(then == now)


@dataclass(frozen=True)
class StudyResults:
    """A study and the lines of those of its runs that have ended.

    Attributes:
        study: As its file has it now.
        cells: All its runs.
        lines: By fingerprint; those of another definition, or of other settings, are left out.
    """

    study: Study
    cells: tuple[Cell, ...]
    lines: Mapping[str, Mapping[str, Any]]

    @property
    def missing(self) -> list[Cell]:
        """Runs without a result."""
        return [cell for cell in self.cells if cell.fingerprint not in self.lines]

    @property
    def reference(self) -> tuple[str, str]:
        """The arm and exit that others are compared with."""
        arm, _, exit_name = self.study.reference.partition("/")
        return arm, exit_name or "kept"

    def rows(self) -> list[tuple[str, str]]:
        """Arms with their exits, in the order of the study's file."""
        return [(name, each) for name, arm in self.study.arms.items() for each in arm.exits]

    def of_arm(self, arm: str) -> dict[int, Mapping[str, Any]]:
        """Lines of an arm by seed."""
        return {
            cell.seed: self.lines[cell.fingerprint]
            for cell in self.cells
            if cell.arm == arm and cell.fingerprint in self.lines
        }

    def values(self, arm: str, exit_name: str, measure: str) -> dict[int, Any]:
        """One measure of an arm's exit by seed."""
        found = {seed: line["exits"].get(exit_name, {}) for seed, line in self.of_arm(arm).items()}
        return {seed: each[measure] for seed, each in found.items() if measure in each}

    def title(self, arm: str, exit_name: str) -> str:
        """Name of a row."""
        title = self.study.arms[arm].title
        if exit_name == "kept":
            several = len(self.study.arms[arm].exits) > 1
            return f"{title}, kept" if several else title
        return f"{title}, stripped to {exit_name}"


def load_results(study: Study, path: Path, *, results: Path | None = None) -> StudyResults:
    """Match a study's runs with the lines of its result file.

    Args:
        study: Which.
        path: Its file.
        results: Folder of the results; beside the file by default.

    Raises:
        LaminaError: If the results cannot be read, or an arm is none.
    """
    cells = tuple(cells_of(study, origin=str(path)))
    lines = read_results(results_file(path, folder=results))
    kept = [c.fingerprint for c in cells if is_of(c, lines.get(c.fingerprint))]
    return StudyResults(study, cells, {fingerprint: lines[fingerprint] for fingerprint in kept})
