"""The layout of an archive: one plain tar file that `tar tf` lists, its manifest first.

    archive.json            ArchiveManifest: every other member with its size and sha256, in order
    collection.json, documents.sqlite, ...      as in the collection's folder

Every byte of the file follows from the manifest: headers, padding and length are compared with
what would be written, members with their digests, and the manifest with its own. So a name is
never looked up on the disk before it was found to be one of the few that a collection has, and
what is unpacked is never larger than the file itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lamina_index.collection import MANIFEST_FILE as COLLECTION_FILE
from lamina_index.errors import DamagedError, FormatError, LaminaError
from lamina_index.manifest import ArchiveManifest, ArchiveMember
from lamina_index.store_file import STORE_FILE

ARCHIVE_FILE = "archive.json"

BLOCK_BYTES = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK_BYTES)
PIECE_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 1 << 20

_MEMBER_NAME = re.compile(
    r"collection\.json|documents\.sqlite|build\.json|rejects\.jsonl|truncated\.jsonl"
    r"|snapshots/(?P<snapshot>[1-9][0-9]{0,9})/[a-z0-9][a-z0-9._-]{0,59}"
)


def header(name: str, size_bytes: int) -> bytes:
    """The one block that stands before a member: nothing in it is left to chance."""
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")


def padding(size_bytes: int) -> bytes:
    """What fills a member's last block."""
    return bytes(-size_bytes % BLOCK_BYTES)


def archive_bytes(manifest_bytes: int, members: Iterable[ArchiveMember]) -> int:
    """Length of the whole file."""
    sizes = [manifest_bytes, *(member.size_bytes for member in members)]
    return sum(BLOCK_BYTES + size + len(padding(size)) for size in sizes) + len(END)


@contextmanager
def opened_archive(path: Path) -> Iterator[tuple[ArchiveManifest, BinaryIO]]:
    """Open an archive, with its manifest checked and the stream at the first member after it.

    Raises:
        FormatError: If it is no archive, or one of another format version.
        DamagedError: If its manifest was altered or its length does not fit.
    """
    try:
        stream = path.open("rb")
    except OSError as error:
        raise LaminaError(f"{path}: cannot be read ({error.strerror})") from error
    with stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise FormatError(f"{path}: no regular file, so no archive")
        size_bytes = _manifest_size(path, stream.read(BLOCK_BYTES))
        content = stream.read(size_bytes)
        if len(content) < size_bytes or stream.read(len(padding(size_bytes))).strip(b"\0"):
            raise damaged(path, f"{ARCHIVE_FILE} is cut or altered")
        manifest = ArchiveManifest.parse(content, f"{path}, {ARCHIVE_FILE}")
        _check_manifest(path, manifest)
        expected = archive_bytes(size_bytes, manifest.members)
        if (found := os.fstat(stream.fileno()).st_size) != expected:
            raise damaged(path, f"has {found} bytes, expected {expected}")
        yield manifest, stream


def read_member(path: Path, stream: BinaryIO, member: ArchiveMember) -> Iterator[bytes]:
    """Read the next member piece by piece and, at its end, compare it with its digest.

    Args:
        path: The archive, for messages.
        stream: At the member's header; afterwards behind its padding.
        member: What must come next.

    Raises:
        DamagedError: If a byte differs from what was written.
    """
    if stream.read(BLOCK_BYTES) != header(member.name, member.size_bytes):
        raise damaged(path, f"the header of {member.name} was altered")
    digest = hashlib.sha256()
    left = member.size_bytes
    while left and (piece := stream.read(min(left, PIECE_BYTES))):
        digest.update(piece)
        yield piece
        left -= len(piece)
    filling = padding(member.size_bytes)
    if digest.hexdigest() != member.sha256 or stream.read(len(filling)) != filling:
        raise damaged(path, f"{member.name} in it was altered")


def check_archive(path: Path, still_wanted: Callable[[], object]) -> ArchiveManifest:
    """Read a whole archive and compare every byte with what was written.

    Args:
        path: The archive.
        still_wanted: Called for each megabyte; what it raises ends the reading.

    Raises:
        FormatError, DamagedError: As `opened_archive` and `read_member`.
    """
    with opened_archive(path) as (manifest, stream):
        for member in manifest.members:
            for _ in read_member(path, stream, member):
                still_wanted()
        check_end(path, stream)
    return manifest


def check_end(path: Path, stream: BinaryIO) -> None:
    """Compare what stands behind the last member.

    Raises:
        DamagedError: If it is not as it was written.
    """
    if stream.read() != END:
        raise damaged(path, "its end was altered")


def damaged(path: Path, found: str) -> DamagedError:
    """The error for an archive that is not as it was written."""
    return DamagedError(f"{path}: {found}; nothing of it was taken over, use another copy")


def _manifest_size(path: Path, first: bytes) -> int:
    """Read the size of the first member, which must be the manifest."""
    try:
        info = tarfile.TarInfo.frombuf(first, "ascii", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise FormatError(f"{path}: no archive that `lamina index snapshot` wrote") from error
    if info.size > _MAX_MANIFEST_BYTES or first != header(ARCHIVE_FILE, info.size):
        raise FormatError(f"{path}: no archive that `lamina index snapshot` wrote")
    return info.size


def _check_manifest(path: Path, manifest: ArchiveManifest) -> None:
    """Compare a manifest with its checksum, and the names with those that a collection has."""
    if manifest.digest() != manifest.checksum:
        raise damaged(path, f"{ARCHIVE_FILE} was altered")
    names = [member.name for member in manifest.members]
    for name in names:
        found = _MEMBER_NAME.fullmatch(name)
        if found is None or found["snapshot"] not in (None, str(manifest.snapshot)):
            raise damaged(path, f"{name[:100]!r} is no file of a collection")
    if len(set(names)) < len(names) or not {COLLECTION_FILE, STORE_FILE} <= set(names):
        raise damaged(path, f"its members are {', '.join(names)[:200]}")
