"""Sorted distinct values of a metadata field: a value's place is its code.

Kept in flat arrays, so that they can be mapped from a file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[np.generic]]
"""Named flat arrays."""


class Texts:
    """Distinct texts in the order of their code points."""

    dtypes: ClassVar[Mapping[str, str]] = {"starts": "<i8", "utf8": "|u1"}
    """What `arrays` holds: `starts` (V+1,) into `utf8`."""

    def __init__(self, starts: NDArray[np.int64], utf8: NDArray[np.uint8]) -> None:
        self._starts = starts
        self._utf8 = utf8

    @classmethod
    def of(cls, values: Iterable[str]) -> Self:
        """Keep distinct texts that come in order."""
        encoded = [value.encode() for value in values]
        starts = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(value) for value in encoded], out=starts[1:])
        return cls(starts, np.frombuffer(b"".join(encoded), np.uint8))

    @property
    def arrays(self) -> Arrays:
        return {"starts": self._starts, "utf8": self._utf8}

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, code: int) -> bytes:
        """The UTF-8 of a value; bytes are in the order of code points too."""
        return self._utf8[self._starts[code] : self._starts[code + 1]].tobytes()

    def value(self, code: int) -> str:
        """The text of a code."""
        return self[code].decode()

    def code(self, value: str) -> int | None:
        """The code of a text, None if no row has it."""
        encoded = value.encode()
        code = bisect_left(self, encoded)
        return code if code < len(self) and self[code] == encoded else None

    def first(self, value: str) -> int:
        """The lowest code of a text that is not before this one."""
        return bisect_left(self, value.encode())

    def _with(self, places: NDArray[np.int64], other: Self, codes: NDArray[np.int64]) -> Self:
        """Put values of another, by code, before the values that are at the places."""
        lengths = np.diff(other._starts)[codes]
        taken = b"".join([other[code] for code in codes.tolist()])
        starts = np.zeros(len(self) + len(codes) + 1, np.int64)
        np.cumsum(np.insert(np.diff(self._starts), places, lengths), out=starts[1:])
        where = np.repeat(self._starts[places], lengths)
        return type(self)(starts, np.insert(self._utf8, where, np.frombuffer(taken, np.uint8)))

    def beginning_with(self, prefix: str) -> tuple[int, int]:
        """Codes from the first up to before the second begin with the prefix."""
        first = prefix.encode()
        return bisect_left(self, first), bisect_left(self, first + b"\xff")  # no UTF-8 has ff


class Numbers:
    """Distinct numbers in order, exactly: integers of 64 bits and floats compare as in Python.

    A number is the sum of its nearest float and what that leaves, which is 0 for a float and at
    most 512 for an integer.
    """

    dtypes: ClassVar[Mapping[str, str]] = {"nearest": "<f8", "rest": "<i2"}

    def __init__(self, nearest: NDArray[np.float64], rest: NDArray[np.int16]) -> None:
        self._nearest = nearest
        self._rest = rest

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Keep distinct numbers that come in order."""
        split = [_split(value) for value in values]
        return cls(
            np.array([nearest for nearest, _ in split], np.float64),
            np.array([rest for _, rest in split], np.int16),
        )

    @property
    def arrays(self) -> Arrays:
        return {"nearest": self._nearest, "rest": self._rest}

    def __len__(self) -> int:
        return len(self._nearest)

    def value(self, code: int) -> int | float:
        """The number of a code, as an integer where it is a whole one of 64 bits."""
        nearest = float(self._nearest[code])
        if nearest.is_integer() and abs(nearest) <= 2.0**63:
            return int(nearest) + int(self._rest[code])
        return nearest

    def code(self, value: float) -> int | None:
        """The code of a number, None if no row has it."""
        code = self.first(value, "left")
        return code if self.first(value, "right") > code else None

    def first(self, value: float, side: Literal["left", "right"] = "left") -> int:
        """The lowest code of a number that is at least (left) or above (right) this one."""
        nearest, rest = _split(value)
        low = int(np.searchsorted(self._nearest, nearest, "left"))
        high = int(np.searchsorted(self._nearest, nearest, "right"))
        return low + int(np.searchsorted(self._rest[low:high], rest, side))

    def _with(self, places: NDArray[np.int64], other: Self, codes: NDArray[np.int64]) -> Self:
        """Put values of another, by code, before the values that are at the places."""
        return type(self)(
            np.insert(self._nearest, places, other._nearest[codes]),
            np.insert(self._rest, places, other._rest[codes]),
        )


Values: TypeAlias = Texts | Numbers
_Kind = TypeVar("_Kind", Texts, Numbers)


def joined(first: _Kind, second: _Kind) -> tuple[_Kind, NDArray[np.int32], NDArray[np.int32]]:
    """Join distinct values, the second of which may be few, in time that goes by their number.

    Returns:
        The values of both, and the codes there of the first's values (V,) and the second's (W,).
    """
    values: list[Any] = [second.value(code) for code in range(len(second))]
    known = [first.code(value) for value in values]
    new = np.array([code for code, found in enumerate(known) if found is None], np.int64)
    places = np.array([first.first(values[code]) for code in new.tolist()], np.int64)
    shift = np.arange(len(first) + 1)  # of each of the first's values, and of its end
    moved = shift + np.searchsorted(places, shift, "right")
    codes = np.array([-1 if found is None else found for found in known], np.int64)
    codes = moved[codes] if len(codes) else codes
    codes[new] = places + np.arange(len(new))
    return first._with(places, second, new), moved[:-1].astype(np.int32), codes.astype(np.int32)


def _split(value: float) -> tuple[float, int]:
    nearest = float(value)
    return nearest, value - int(nearest) if isinstance(value, int) else 0
