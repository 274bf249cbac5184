"""The result file of a study: one line for each run, appended as runs end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lamina_training.study.definition import StudyError

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
