"""API keys: kept in `service.sqlite`, and what a request must carry.

A key is 256 random bits, so a plain sha256 keeps it: there is no dictionary to try.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self, get_args

from lamina_index.collection import is_collection
from lamina_service.database import DATABASE, open_database
from lamina_service.errors import SettingsError

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""In order: each allows what those before it allow."""

TOKEN_PREFIX = "lamina_"  # noqa: S105 - marks keys for secret scanners, is none itself


@dataclass(frozen=True, slots=True)
class Key:
    """A key as listed; the key itself is not kept. Times are UTC, ISO 8601."""

    id: int
    name: str
    scope: Scope
    created: str
    revoked: str | None


class KeyStore:
    """The keys of a data folder.

    One thread at a time; other processes see a change with their next `find`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Use `KeyStore.open`."""
        self._connection = connection
        self._version = -1
        self._active: dict[bytes, Scope] = {}
        self._ever_made = False

    @classmethod
    def open(cls, data: Path) -> Self:
        """Open, or make, the data folder's `service.sqlite`.

        Raises:
            SettingsError, FormatError, DamagedError: As `open_database`.
        """
        return cls(open_database(data))

    def create(self, scope: Scope, name: str = "") -> tuple[int, str]:
        """Make a key; its id and the key, which cannot be shown again."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        cursor = self._connection.execute(
            "INSERT INTO keys (name, scope, sha256, created) VALUES (?, ?, ?, ?)",
            (name, scope, _digest(token), _now()),
        )
        assert cursor.lastrowid is not None  # an INSERT has one
        return cursor.lastrowid, token

    def list(self) -> list[Key]:
        """All keys ever made, the oldest first."""
        rows = self._connection.execute(
            "SELECT id, name, scope, created, revoked FROM keys ORDER BY id"
        )
        return [Key(*row) for row in rows.fetchall()]

    def revoke(self, key_id: int) -> bool:
        """End a key; false if there is no such key in force."""
        cursor = self._connection.execute(
            "UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (_now(), key_id)
        )
        return cursor.rowcount == 1

    @property
    def required(self) -> bool:
        """Whether a key was ever made: revoking the last one must not open the service."""
        self._refresh()
        return self._ever_made

    @property
    def usable(self) -> bool:
        """Whether any key is in force."""
        self._refresh()
        return bool(self._active)

    def find(self, token: str) -> Scope | None:
        """Give the scope of a key in force, in a time that does not depend on the token."""
        self._refresh()
        digest = _digest(token)
        found: Scope | None = None
        for known, scope in self._active.items():
            if hmac.compare_digest(known, digest):
                found = scope
        return found

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _refresh(self) -> None:
        """Read the keys again if another connection has changed them."""
        version = self._connection.execute("PRAGMA data_version").fetchall()[0][0]
        if version != self._version or self._connection.total_changes:
            rows = self._connection.execute("SELECT sha256, scope, revoked FROM keys").fetchall()
            self._active = {digest: scope for digest, scope, revoked in rows if revoked is None}
            self._ever_made = bool(rows)
            self._version = version


@contextmanager
def opened(data: Path, *, make: bool = True) -> Iterator[KeyStore]:
    """Open the keys for one command.

    Args:
        data: The data folder.
        make: Begin `service.sqlite` where there is none. Commands that only look leave nothing
            behind in a folder that was named by mistake.

    Raises:
        SettingsError: As `open_database`, and if there is no `service.sqlite` and none is to be
            made.
        FormatError, DamagedError: As `open_database`.
    """
    if not make and data.is_dir() and not is_collection(data) and not (data / DATABASE).exists():
        raise SettingsError(
            f"{data}: no {DATABASE}, so no key was ever made here; give the service's data folder "
            "with --data, or make a key with `lamina keys create`"
        )
    with closing(KeyStore.open(data)) as store:
        yield store


def allows(held: Scope, needed: Scope) -> bool:
    """Tell whether a scope includes another."""
    return SCOPES.index(held) >= SCOPES.index(needed)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
