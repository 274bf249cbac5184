"""What pydantic finds wrong with a configuration, in the words of the file it was written in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError


def explain(kind: type[BaseModel], given: Mapping[str, Any], error: ValidationError) -> str:
    """Name for each problem the key as the file has it, what was found and what is expected.

    Args:
        kind: What was to be read.
        given: What was given.
        error: What came of it.
    """
    return "; ".join(_problem(kind, given, dict(problem)) for problem in error.errors())


def _problem(kind: type[BaseModel], given: Mapping[str, Any], problem: dict[str, Any]) -> str:
    place = _place(given, problem["loc"], missing=problem["type"] == "missing")
    name = ".".join(map(str, place))
    if problem["type"] == "extra_forbidden":
        known = ", ".join(_known_keys(kind, given, place[:-1]))
        return f"{name}: unknown key" + (f"; expected one of {known}" if known else "")
    if problem["type"] == "missing":
        return f"{name}: missing; give it"
    message = str(problem["msg"])
    if problem["type"] == "value_error":  # our own checks, which say what was found
        told = message.removeprefix("Value error, ")
        return f"{name}: {told}" if name else told
    message = message[0].lower() + message[1:]
    return f"{name}: {message}, found {problem['input']!r}"


def _place(given: Any, loc: Sequence[int | str], *, missing: bool) -> tuple[int | str, ...]:
    """Take out of an error's place what is no key of the file: the tags of pydantic's unions.

    Args:
        given: What was given.
        loc: The place as pydantic has it.
        missing: Whether its last part is a key that the file lacks, and so no tag.
    """
    place: list[int | str] = []
    for number, part in enumerate(loc):
        last = number == len(loc) - 1
        if isinstance(given, Mapping) and (part in given or (last and missing)):
            place.append(part)
            given = given.get(str(part))
        elif isinstance(given, Sequence) and not isinstance(given, str) and isinstance(part, int):
            place.append(part)
            given = given[part] if part < len(given) else None
    return tuple(place)


def _known_keys(
    kind: type[BaseModel], given: Mapping[str, Any], place: Sequence[int | str]
) -> list[str]:
    """List what a table may hold, if its type is the same whatever stands in it."""
    table: Any = kind
    for part in place:
        if isinstance(part, int):
            continue
        annotation = table.model_fields[part].annotation
        table = _only_model(annotation)
        if table is None:
            return []
    return list(table.model_fields)


def _only_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [_only_model(part) for part in getattr(annotation, "__args__", ())]
    models = [model for model in found if model is not None]
    return models[0] if len(models) == 1 else None
