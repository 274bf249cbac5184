"""The files of a snapshot: written so that a crash leaves none or all, checked before use.

    snapshots/<n>/vectors.faiss   the index, positions 0..N-1
    snapshots/<n>/keys.npy        int64 (N,), the row key at each position, ascending
    snapshots/<n>/columns.safetensors  the rows' metadata as columns; format 1 has none
    snapshots/<n>/deleted.npy     int64 (D,), positions of deleted rows, ascending; if there are any
    snapshots/<n>/snapshot.json   SnapshotManifest, with a sha256 for each 4 MiB of the others

A snapshot is never changed once it has its number, so it may be mapped into memory and removed
while mapped. What FAISS would do with a damaged file ranges from an exception to wrong answers,
so sizes, header, and the first and last piece are compared before FAISS reads it, and all pieces
by `check_all`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from lamina_index.columns_file import read_columns
from lamina_index.errors import DamagedError, FormatError, IndexDamagedError
from lamina_index.field_columns import FieldColumns
from lamina_index.manifest import SnapshotFile, SnapshotManifest
from lamina_index.vectors import VectorIndex

SNAPSHOTS = "snapshots"
VECTORS_FILE = "vectors.faiss"
KEYS_FILE = "keys.npy"
COLUMNS_FILE = "columns.safetensors"
DELETED_FILE = "deleted.npy"
MANIFEST_FILE = "snapshot.json"

_CHUNK_BYTES = 4 << 20
_HEADER = struct.Struct("<4siqqqBi")  # fourcc, d, ntotal, two unused, is_trained, metric
_NUMBERS_HEADER_BYTES = 128


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An opened snapshot; one of format 1 has no columns.

    Attributes:
        keys: (N,) the row key at each position, ascending.
        deleted: (D,) positions of rows that were deleted before it was made, ascending.
    """

    number: int
    folder: Path
    manifest: SnapshotManifest
    index: VectorIndex
    keys: NDArray[np.int64]
    deleted: NDArray[np.int64]
    columns: FieldColumns | None

    @property
    def count(self) -> int:
        """Number of rows in it that were not deleted when it was made."""
        return self.manifest.count - self.manifest.deleted

    def positions(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) ascending, where those of some keys are that it has."""
        places = np.searchsorted(self.keys, keys)
        places = np.unique(places[places < len(self.keys)])
        held: NDArray[np.int64] = places[np.isin(self.keys[places], keys)]
        return held

    def summary(self) -> dict[str, Any]:
        """Describe the index and how it was measured, as JSON values."""
        made = self.manifest
        parameters = dict(made.build)
        if made.effort_name != "none":
            parameters[made.effort_name] = made.effort
        return {
            "snapshot": self.number,
            "created": made.created,
            "rows": self.count,
            "deleted": made.deleted,
            "appended": made.appended,
            "factory": made.factory,
            "reason": made.reason,
            "parameters": parameters,
            "recall@10": made.recall.at_10,
            "recall_queries": made.recall.queries,
            "recall_method": made.recall.method,
            "size_bytes": sum(file.size_bytes for file in made.files.values()),
        }


def snapshot_numbers(collection: Path) -> list[int]:
    """Numbers of the snapshots of a collection, newest first."""
    try:
        names = os.listdir(collection / SNAPSHOTS)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DamagedError(
            f"{collection / SNAPSHOTS}: cannot be read ({error.strerror}); mend that, or remove it "
            f"and `lamina index compact {collection}` makes it again from documents.sqlite"
        ) from error
    return sorted((int(name) for name in names if name.isascii() and name.isdigit()), reverse=True)


def snapshot_folder(collection: Path, number: int) -> Path:
    """Where a snapshot lies."""
    return collection / SNAPSHOTS / str(number)


def remove_leftovers(collection: Path) -> None:
    """Remove what a killed writer left; only a writer that holds the collection's lock may."""
    for path in (collection / SNAPSHOTS).glob(".writing-*"):
        shutil.rmtree(path)


def remove_snapshot(collection: Path, number: int) -> None:
    """Remove a snapshot, so that a kill leaves it whole or not there; see `remove_leftovers`."""
    leaving = collection / SNAPSHOTS / f".writing-{number}-removed"
    with suppress(OSError):  # what cannot be removed costs space and is tried again
        snapshot_folder(collection, number).rename(leaving)
        shutil.rmtree(leaving)


def open_newest(collection: Path) -> tuple[Snapshot | None, list[DamagedError]]:
    """Open the newest sound snapshot.

    Returns:
        The snapshot, None if there is none at all, and what was wrong with newer ones.

    Raises:
        IndexDamagedError: If there are snapshots but none is sound.
    """
    damage: list[DamagedError] = []
    numbers = snapshot_numbers(collection)
    for number in numbers:
        try:
            return open_snapshot(snapshot_folder(collection, number)), damage
        except DamagedError as error:
            if snapshot_numbers(collection)[:1] != numbers[:1]:  # a writer is replacing them
                return open_newest(collection)
            damage.append(error)
    if damage:
        raise damage[0]
    return None, []


def open_snapshot(folder: Path, number: int | None = None) -> Snapshot:
    """Open one snapshot after its quick checks.

    Args:
        folder: Its folder.
        number: Its number, while the folder does not have its name yet.

    Raises:
        IndexDamagedError: If a file is missing, cut or altered where the quick checks look.
    """
    manifest = read_manifest(folder)
    for name, file in manifest.files.items():
        _check_file(folder / name, file, only_ends=True)
    keys = _numbers(folder / KEYS_FILE, manifest, manifest.count)
    deleted = np.empty(0, np.int64)
    if manifest.deleted:
        deleted = _numbers(folder / DELETED_FILE, manifest, manifest.deleted)
        if deleted[0] < 0 or deleted[-1] >= manifest.count or (np.diff(deleted) < 1).any():
            raise damaged(folder / DELETED_FILE, "does not hold ascending positions")
    _check_header(folder / VECTORS_FILE, manifest)
    try:
        index = VectorIndex.load(folder / VECTORS_FILE)
    except DamagedError as error:
        raise damaged(folder / VECTORS_FILE, str(error.__cause__)) from error
    if (index.count, index.dimension) != (manifest.count, manifest.dimension):
        raise damaged(folder / VECTORS_FILE, f"holds {index.count} x {index.dimension}")
    number = int(folder.name) if number is None else number
    columns = _columns(folder, manifest)
    return Snapshot(number, folder, manifest, index, keys, deleted, columns)


def check_all(folder: Path) -> list[str]:
    """Compare every byte of a snapshot with its digests; a line for each damaged file."""
    try:
        manifest = read_manifest(folder)
    except DamagedError as error:
        return [str(error)]
    found = []
    for name, file in manifest.files.items():
        try:
            _check_file(folder / name, file, only_ends=False)
        except DamagedError as error:
            found.append(str(error))
    return found


def read_manifest(folder: Path) -> SnapshotManifest:
    """Read `snapshot.json` and compare it with its own checksum."""
    path = folder / MANIFEST_FILE
    try:
        manifest = SnapshotManifest.read(path)
    except FormatError as error:
        raise damaged(path, str(error)) from error
    expected = {VECTORS_FILE, KEYS_FILE}
    if manifest.format_version > 1:
        expected.add(COLUMNS_FILE)
    if manifest.deleted:
        expected.add(DELETED_FILE)
    if manifest.digest() != manifest.checksum or set(manifest.files) != expected:
        raise damaged(path, "its checksum does not match its content")
    return manifest


def write_numbers(path: Path, numbers: NDArray[np.int64]) -> None:
    """Write an array as `numpy.save` does, but with a plain error when the disk is full."""
    with path.open("wb") as stream:
        header = np.lib.format.header_data_from_array_1_0(numbers)
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(numbers.data)


def read_fourcc(path: Path) -> str:
    """The four letters by which FAISS tells the kind of index in a file."""
    with path.open("rb") as stream:
        return stream.read(4).decode("latin-1")


def describe_file(path: Path) -> SnapshotFile:
    """Digest a file and make it durable."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    digests = [hashlib.sha256(chunk).hexdigest() for chunk in _chunks(path)]
    return SnapshotFile(size_bytes=path.stat().st_size, chunk_bytes=_CHUNK_BYTES, sha256=digests)


def damaged(path: Path, found: str) -> IndexDamagedError:
    """The error for a damaged file of a snapshot; its remedy needs no encoder."""
    collection = path.parent.parent.parent
    return IndexDamagedError(
        f"{path}: {found}; `lamina index compact {collection}` makes the snapshot again from "
        "documents.sqlite, without encoding anything"
    )


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def _check_file(path: Path, file: SnapshotFile, *, only_ends: bool) -> None:
    try:
        size = path.stat().st_size
        if size != file.size_bytes:
            raise damaged(path, f"has {size} bytes, expected {file.size_bytes}")
        count = -(-size // file.chunk_bytes)
        if len(file.sha256) != count:
            raise damaged(path, f"has {count} pieces, expected {len(file.sha256)}")
        with path.open("rb") as stream:
            for piece in sorted({0, count - 1}) if only_ends else range(count):
                stream.seek(piece * file.chunk_bytes)
                digest = hashlib.sha256(stream.read(file.chunk_bytes)).hexdigest()
                if digest != file.sha256[piece]:
                    offset = piece * file.chunk_bytes
                    raise damaged(path, f"altered between byte {offset} and the next 4 MiB")
    except FileNotFoundError as error:
        raise damaged(path, "the file is missing") from error
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})") from error


def _columns(folder: Path, manifest: SnapshotManifest) -> FieldColumns | None:
    if COLUMNS_FILE not in manifest.files:
        return None
    try:
        columns = read_columns(folder / COLUMNS_FILE)
    except (OSError, ValueError) as error:
        raise damaged(folder / COLUMNS_FILE, str(error)) from error
    if columns.count != manifest.count:
        raise damaged(folder / COLUMNS_FILE, f"holds {columns.count} rows")
    return columns


def _numbers(path: Path, manifest: SnapshotManifest, count: int) -> NDArray[np.int64]:
    """Map what `write_numbers` wrote."""
    if manifest.files[path.name].size_bytes != _NUMBERS_HEADER_BYTES + 8 * count:
        raise damaged(path, f"does not hold {count} numbers")
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error
    if mapped.dtype != np.int64 or mapped.shape != (count,):
        raise damaged(path, f"holds {mapped.dtype} {mapped.shape}")
    return np.asarray(mapped.view(np.ndarray))


def _check_header(path: Path, manifest: SnapshotManifest) -> None:
    """Compare what FAISS is about to believe with what was written."""
    with path.open("rb") as stream:
        header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise damaged(path, f"has {len(header)} bytes, too few for a header")
    fourcc, dimension, count, _, _, trained, metric = _HEADER.unpack(header)
    found = (fourcc.decode("latin-1"), dimension, count, trained, metric)
    expected = (
        manifest.fourcc,
        manifest.dimension,
        manifest.count,
        1,
        faiss.METRIC_INNER_PRODUCT,
    )
    if found != expected:
        raise damaged(path, f"its header says {found}, expected {expected}")
