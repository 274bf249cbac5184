"""A collection back out as files: documents as `lamina index build` reads them, and vectors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from lamina_index.collection import open_collection
from lamina_index.disk import disk_errors_told
from lamina_index.errors import CollectionExistsError
from lamina_index.store import DocumentStore
from lamina_index.store_reading import StoredDocument

DOCUMENTS_FILE = "documents.jsonl"
EMBEDDINGS_FILE = "embeddings.npy"
_BATCH = 1024


def export_documents(collection: Path, output: Path) -> int:
    """Write one JSON object a document: id, text and its metadata, in key order.

    Args:
        collection: The collection's folder; it may be served meanwhile.
        output: A file, replaced when all is written, or `-` for standard output.

    Returns:
        How many documents.
    """
    _, store = open_collection(collection)
    with store, _sink(output) as stream:
        count = 0
        for documents, _ in _batches(store):
            stream.writelines(_line(document) for document in documents)
            count += len(documents)
        return count


def export_folder(collection: Path, folder: Path) -> int:
    """Write `documents.jsonl` and `embeddings.npy` (N, D) float32 into a new folder.

    Row i of the one belongs to row i of the other.

    Raises:
        CollectionExistsError: If there is something in the folder.
    """
    if folder.exists() and any(folder.iterdir()):
        raise CollectionExistsError(f"{folder}: is not empty; name a new folder")
    _, store = open_collection(collection)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        store,
        _sink(folder / DOCUMENTS_FILE) as documents_stream,
        _sink(folder / EMBEDDINGS_FILE) as embeddings_stream,
    ):
        count = 0
        _write_header(embeddings_stream, count, store.dimension)
        for documents, embeddings in _batches(store):
            documents_stream.writelines(_line(document) for document in documents)
            embeddings_stream.write(embeddings.tobytes())
            count += len(documents)
        embeddings_stream.seek(0)
        _write_header(embeddings_stream, count, store.dimension)
        return count


def _batches(
    store: DocumentStore,
) -> Iterator[tuple[list[StoredDocument], NDArray[np.float32]]]:
    """Documents and their vectors, each batch as of one commit."""
    after = 0
    while True:
        with store.reading() as reading:
            documents = reading.documents_after(after, limit=_BATCH)
            _, embeddings = reading.vectors([document.key for document in documents])
        if not documents:
            return
        yield documents, embeddings
        after = documents[-1].key


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
