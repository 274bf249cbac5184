"""What pydantic finds wrong with a request or a setting, in the words of our own errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import ErrorDetails

from lamina_index.corpus.records import describe

_EXPECTED = {
    "string_type": "a string",
    "string_unicode": "valid Unicode",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer within 64 bits",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "json_type": "one JSON text",
    "path_type": "a path",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
"""By pydantic's kind of error; what stands in braces is in the error's context."""

_BOUNDS = {
    "too_short": ("item", "at least", "min_length"),
    "too_long": ("item", "at most", "max_length"),
    "string_too_short": ("character", "at least", "min_length"),
    "string_too_long": ("character", "at most", "max_length"),
}


def field_of(problem: ErrorDetails) -> str:
    """Name the part of the request as `searches[3].query`; empty for the whole."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]]
    return "".join(parts).removeprefix(".")


def message_of(problem: ErrorDetails) -> str:
    """Say what was expected and what was found; the checks of our own models say so themselves."""
    kind, found = problem["type"], problem["input"]
    context: Mapping[str, Any] = problem.get("ctx", {})
    if kind == "missing":
        return "missing; it has to be given"
    if kind == "extra_forbidden":
        return "unknown; leave it out, or mind its spelling"
    if kind == "json_invalid":
        return f"not JSON: {context['error']}" if found else "empty; expected JSON"
    if kind in _BOUNDS:
        thing, which, bound = _BOUNDS[kind]
        things = thing if len(found) == 1 else f"{thing}s"
        return f"{len(found)} {things}, expected {which} {context[bound]}"
    if kind in _EXPECTED:
        known = {
            name: f"{value:.10g}" if isinstance(value, float) else value
            for name, value in context.items()
        }
        return f"expected {_EXPECTED[kind].format(**known)}, found {describe(found)}"
    return problem["msg"]
