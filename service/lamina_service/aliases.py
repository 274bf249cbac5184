"""Aliases: names that lead to collections and can be led elsewhere in one step.

An alias is kept in `service.sqlite`. Every worker compares SQLite's change counter at each request,
which costs microseconds, so a switch that was answered holds for the next request on any of them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lamina_index.collection import is_collection, recover_swap
from lamina_index.errors import CollectionNotFoundError
from lamina_service.database import exclusive, open_database
from lamina_service.errors import (
    AliasChangedError,
    AliasNotFoundError,
    InvalidRequestError,
    NameTakenError,
)

NAME_PATTERN = "^[a-z0-9][a-z0-9_-]{0,62}$"
"""Of collections and aliases made over HTTP; older folders may be named otherwise."""

_MAX_NAME_BYTES = 200
"""Leaves room for what is put around a name while a collection is made or replaced."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A name and the collection that it leads to since `changed` (UTC, ISO 8601)."""

    name: str
    collection: str
    changed: str


class Aliases:
    """The aliases of a data folder, as of the last `refresh`.

    Attributes:
        known: Each alias by its name; replaced, never changed.
    """

    def __init__(self, data: Path) -> None:
        """Open, or make, the data folder's `service.sqlite`.

        Raises:
            SettingsError, FormatError, DamagedError: As `open_database`.
        """
        self.known: Mapping[str, Alias] = {}
        self._data = data
        self._connection = open_database(data)
        self._reading = threading.Lock()
        self._version = -1
        self.refresh()

    def close(self) -> None:
        """Close the database."""
        with self._reading:
            self._connection.close()

    def refresh(self) -> None:
        """Read the aliases again if any connection has written to the database."""
        with self._reading:
            version = self._connection.execute("PRAGMA data_version").fetchall()[0][0]
            if version != self._version:
                rows = self._connection.execute("SELECT name, collection, changed FROM aliases")
                self.known = {row[0]: Alias(*row) for row in rows.fetchall()}
                self._version = version

    def resolve(self, name: str) -> str:
        """Give the collection that an alias leads to; any other name leads to itself."""
        found = self.known.get(name)
        return found.collection if found else name

    def get(self, name: str) -> Alias:
        """Find an alias.

        Raises:
            AliasNotFoundError: If there is none of that name.
        """
        self.refresh()
        found = self.known.get(name)
        if found is None:
            raise _unknown(name, self.known)
        return found

    def leading_to(self, collection: str) -> list[str]:
        """Names of the aliases of a collection, in order."""
        return sorted(name for name, found in self.known.items() if found.collection == collection)

    def put(self, name: str, collection: str, *, instead_of: str | None) -> Alias:
        """Lead a name to a collection, in one step for all workers.

        Args:
            name: The alias; `check_name` tells whether it can be one.
            collection: An existing collection of the data folder, no alias.
            instead_of: Where the alias is expected to lead now; None where it should not exist.

        Raises:
            NameTakenError: If a collection has the name.
            CollectionNotFoundError: If there is no such collection.
            AliasChangedError: If the alias leads elsewhere than expected.
        """
        with exclusive(self._data) as connection:
            if exists(self._data, name):
                raise NameTakenError(f"{name!r} is a collection, so it cannot be an alias too")
            if not exists(self._data, collection):
                raise CollectionNotFoundError(
                    f"no collection {collection!r} that an alias could lead to"
                )
            rows = connection.execute(
                "SELECT collection FROM aliases WHERE name = ?", (name,)
            ).fetchall()
            found = rows[0][0] if rows else None
            if found != instead_of:
                raise AliasChangedError(
                    f"alias {name!r} led to {instead_of!r} when this began and leads to {found!r} "
                    "now; look again and repeat the request"
                )
            alias = Alias(name, collection, datetime.now(UTC).isoformat(timespec="seconds"))
            connection.execute(
                "INSERT INTO aliases VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                " collection = excluded.collection, changed = excluded.changed",
                (alias.name, alias.collection, alias.changed),
            )
        return alias

    def delete(self, name: str) -> Alias:
        """End an alias; gives what it was.

        Raises:
            AliasNotFoundError: If there is none of that name.
        """
        with exclusive(self._data) as connection:
            rows = connection.execute(
                "DELETE FROM aliases WHERE name = ? RETURNING name, collection, changed", (name,)
            ).fetchall()
            if not rows:
                raise _unknown(name, self.known)
        return Alias(*rows[0])


def check_name(name: str) -> None:
    """Refuse a name that a new collection or alias cannot have.

    Raises:
        InvalidRequestError: If so.
    """
    if not re.fullmatch(NAME_PATTERN.strip("^$"), name):
        raise InvalidRequestError(
            "name",
            f"{name[:100]!r}, expected 1 to 63 of a-z, 0-9, _ and -, the first one of a-z or 0-9",
        )


def exists(data: Path, collection: str) -> bool:
    """Whether a data folder has a collection of a name, be the name sane or not."""
    if not is_plain(collection):
        return False
    recover_swap(data / collection)
    return is_collection(data / collection)


def is_plain(name: str) -> bool:
    """Whether a name, whoever sent it, can only mean a visible entry of the data folder itself."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return False
    plain = not name.startswith(".") and not {"/", "\0"} & set(name)
    return plain and 0 < size_bytes <= _MAX_NAME_BYTES


def _unknown(name: str, known: Mapping[str, Alias]) -> AliasNotFoundError:
    there = ", ".join(sorted(known)) or "none"
    return AliasNotFoundError(f"no alias {name[:100]!r}; there is: {there}")
