"""JSONL: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from lamina_index.corpus.records import RowError, Values, describe
from lamina_index.corpus.sources import decode, read_lines


def read_objects(path: Path | str) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the line and the object of each non-blank line, or why it is none.

    Integers keep all their digits. Refused: NaN and Infinity, and a key that stands twice.

    Raises:
        CorpusError: If the file cannot be read.
    """
    for line in read_lines(path):
        try:
            text = decode(line)
            if text.strip():
                yield line.number, parse_object(text)
        except RowError as error:
            yield line.number, error


def parse_object(text: str) -> Values:
    """Read one JSON object.

    Raises:
        RowError: If it is no object, or `parse_json` refuses it.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise RowError(f"line is {describe(value)}; expected a JSON object")
    return value


def parse_json(text: str) -> object:
    """Read JSON that documents come in: integers whole, lone surrogates as they are.

    Raises:
        RowError: If it is no JSON, NaN or Infinity, or a key stands twice in an object.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise RowError("not usable JSON: nested too deeply") from error
    except RowError:
        raise
    except ValueError as error:  # an integer with more digits than Python converts
        raise RowError("not usable JSON: a number with thousands of digits") from error


def _refuse_constant(name: str) -> object:
    raise RowError(f"{name} is no JSON number")


def _refuse_repeated_key(pairs: list[tuple[str, object]]) -> Values:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise RowError("a key stands twice in one object")
    return values


# The standard library's parser rather than orjson, which rounds integers past 64 bits and
# refuses the lone surrogates that repair_text() is there for.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated_key)
