"""A collection back out as files: documents as `lamina index build` reads them, and vectors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from lamina_index.collection import MANIFEST_FILE, open_collection
from lamina_index.disk import disk_errors_told
from lamina_index.errors import CollectionExistsError
from lamina_index.manifest import CollectionManifest
from lamina_index.parquet_export import parquet_writer
from lamina_index.store import DocumentStore
from lamina_index.store_reading import StoredDocument

DocumentsFormat = Literal["jsonl", "parquet"]

DOCUMENTS_FILE = "documents"
EMBEDDINGS_FILE = "embeddings.npy"
_BATCH_ROWS = 8192
_BATCH_CHARACTERS = 16 * 2**20

_Write = Callable[[Sequence[StoredDocument]], object]


def export_documents(
    collection: Path, output: Path, documents_format: DocumentsFormat = "jsonl"
) -> int:
    """Write each document's id, text and metadata, in key order.

    Args:
        collection: The collection's folder; it may be served and written to meanwhile. What is
            written after the export began may be left out, and is from Parquet.
        output: A file, replaced when all is written, or `-` for standard output (not of Parquet).
        documents_format: JSON Lines, or Parquet with a column for each field.

    Returns:
        How many documents.

    Raises:
        MissingExtraError: If Parquet is wanted and pyarrow is not installed.
    """
    manifest, store = open_collection(collection)
    with (
        store,
        _sink(output) as stream,
        _document_writer(documents_format, stream, collection, manifest, store) as (
            write,
            last_key,
        ),
    ):
        count = 0
        for documents, _ in _batches(store, last_key):
            write(documents)
            count += len(documents)
        return count


def export_folder(
    collection: Path, folder: Path, documents_format: DocumentsFormat = "jsonl"
) -> int:
    """Write `documents.jsonl` or `.parquet`, and `embeddings.npy` (N, D) float32, to a new folder.

    Row i of the one belongs to row i of the other. Otherwise as `export_documents`.

    Raises:
        CollectionExistsError: If there is something in the folder.
        MissingExtraError: If Parquet is wanted and pyarrow is not installed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise CollectionExistsError(f"{folder}: is not empty; name a new folder")
    manifest, store = open_collection(collection)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        store,
        _sink(folder / f"{DOCUMENTS_FILE}.{documents_format}") as documents_stream,
        _document_writer(documents_format, documents_stream, collection, manifest, store) as (
            write,
            last_key,
        ),
        _sink(folder / EMBEDDINGS_FILE) as embeddings_stream,
    ):
        count = 0
        _write_header(embeddings_stream, count, store.dimension)
        for documents, embeddings in _batches(store, last_key, vectors=True):
            write(documents)
            embeddings_stream.write(embeddings.tobytes())
            count += len(documents)
        embeddings_stream.seek(0)
        _write_header(embeddings_stream, count, store.dimension)
        return count


def _batches(
    store: DocumentStore, last_key: int | None, *, vectors: bool = False
) -> Iterator[tuple[list[StoredDocument], NDArray[np.float32]]]:
    """Documents, up to a key, and their vectors if wanted, each batch as of one commit."""
    after = 0
    while True:
        with store.reading() as reading:
            documents, _ = reading.page_after(
                after, limit=_BATCH_ROWS, characters=_BATCH_CHARACTERS
            )
            if last_key is not None:
                documents = [document for document in documents if document.key <= last_key]
            keys = [document.key for document in documents] if vectors else []
            _, embeddings = reading.vectors(keys)
        if not documents:
            return
        yield documents, embeddings
        after = documents[-1].key


@contextmanager
def _document_writer(
    documents_format: DocumentsFormat,
    stream: BinaryIO,
    collection: Path,
    manifest: CollectionManifest,
    store: DocumentStore,
) -> Iterator[tuple[_Write, int | None]]:
    """Give what writes documents, and the highest key that it can take where there is one.

    Parquet's columns are fixed before the first row, but others may write rows of new fields.
    """
    if documents_format == "jsonl":
        yield (lambda documents: stream.writelines(map(_line, documents))), None
        return
    with store.reading() as reading:
        last_key = reading.last_key()
    # a row's fields are told before it is stored; by now another collection may lie there, though
    fields = {**CollectionManifest.read(collection / MANIFEST_FILE).fields, **manifest.fields}
    numbers = {name for name, kind in fields.items() if kind == "number"}
    fractional: set[str] = set()
    for documents, _ in _batches(store, last_key) if numbers else ():
        for document in documents:
            fractional |= {
                name for name in numbers if isinstance(document.metadata.get(name), float)
            }
    with parquet_writer(stream, fields, fractional) as write:
        yield write, last_key


def _line(document: StoredDocument) -> bytes:
    return orjson.dumps(
        {"id": document.id, "text": document.text, **document.metadata},
        option=orjson.OPT_APPEND_NEWLINE,
    )


def _write_header(stream: BinaryIO, count: int, dimension: int) -> None:
    """Write the header of a .npy file; NumPy pads it so that any count has the same length."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, dimension)}
    np.lib.format.write_array_header_1_0(stream, header)


@contextmanager
def _sink(path: Path) -> Iterator[BinaryIO]:
    """Open an output that appears under its name only when it is whole."""
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = path.with_name(f".{path.name}.partial")
    with disk_errors_told(path, when_full="nothing is exported; name a folder on another one"):
        try:
            with partial.open("wb") as stream:
                yield stream
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
