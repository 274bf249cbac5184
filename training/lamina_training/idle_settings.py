"""Refuse a setting that would do nothing: whoever wrote it expects that it does something."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel


def refuse_idle(table: BaseModel, names: Iterable[str], reason: str, *, under: str = "") -> None:
    """Refuse settings that nothing reads, as the other settings are.

    One that is at its default is let pass, even if it was given: a run's folder keeps a
    configuration with all its settings, and has to be read again.

    Args:
        table: Where they are.
        names: Of settings that have a default.
        reason: Why nothing reads them, and perhaps what to do.
        under: What stands before each name in the message, such as `data.`.

    Raises:
        ValueError: If one is not at its default; the message names it, then the reason.
    """
    fields = type(table).model_fields
    if idle := [under + n for n in names if getattr(table, n) != fields[n].default]:
        raise ValueError(f"{', '.join(idle)}: {reason}")
