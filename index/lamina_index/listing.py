"""All documents of a collection, a page at a time, while it changes.

Pages go by key. A key is never used twice and a later row has a higher one, so whoever goes on
after the last key of a page meets no row again, and misses none that was there all the time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lamina_index.errors import CursorError
from lamina_index.store_reading import StoredDocument, StoreReading

MAX_PAGE = 1000
"""Most documents of a page."""
PAGE_CHARACTERS = 4 << 20
"""A page ends, however few its documents are, once their texts and metadata are so long."""

_FORM = struct.Struct(">8sQ")
_CHECKSUM = struct.Struct(">I")
_VERSION = b"lamina cursor 1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a listing goes on: after a key, in one store.

    Attributes:
        store: Digest of the store's identity, 8 bytes.
        key: The last one that was given.
    """

    store: bytes
    key: int

    @classmethod
    def read(cls, cursor: str) -> Self:
        """Read what `cursor` wrote.

        Raises:
            CursorError: If it is anything else.
        """
        try:
            content = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
            form, checksum = content[: _FORM.size], content[_FORM.size :]
            place = cls(*_FORM.unpack(form))
        except (binascii.Error, ValueError, struct.error) as error:
            raise _unreadable(cursor) from error
        if checksum != _checksum(form) or place.cursor != cursor:
            raise _unreadable(cursor)
        return place

    @property
    def cursor(self) -> str:
        """The place in characters that an address can hold; opaque to whoever gets it."""
        form = _FORM.pack(self.store, self.key)
        return base64.urlsafe_b64encode(form + _checksum(form)).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Page:
    """Some documents in the order of their keys, and where to go on; None after the last one."""

    documents: list[StoredDocument]
    following: Place | None


def page_after(
    reading: StoreReading,
    place: Place | None,
    *,
    limit: int,
    among: NDArray[np.int64] | None = None,
) -> Page:
    """Give the documents that come after a place.

    Args:
        reading: The transaction.
        place: From the page before; None begins.
        limit: Most documents to give; long ones are fewer (`PAGE_CHARACTERS`).
        among: Ascending keys of the only documents that are wanted; None for all.

    Raises:
        CursorError: If the place is one in another store, or in a newer state of this one.
    """
    identity = str(reading.get_meta("identity")).encode()
    store = hashlib.blake2b(identity, digest_size=8).digest()
    if place is not None and (place.store != store or place.key > reading.last_key()):
        raise CursorError(
            "is a place in another collection, or in what lay here before; leave the cursor out "
            "to begin anew"
        )
    after = place.key if place else 0
    documents, more = reading.page_after(after, among, limit=limit, characters=PAGE_CHARACTERS)
    return Page(documents, Place(store, documents[-1].key) if more else None)


def _checksum(form: bytes) -> bytes:
    return _CHECKSUM.pack(binascii.crc32(_VERSION + form))


def _unreadable(cursor: str) -> CursorError:
    shown = cursor if len(cursor) <= 40 else f"{cursor[:37]}..."
    return CursorError(
        f"{shown!r} is no cursor; expected that of the page before, whole and unchanged, or none "
        "to begin anew"
    )
