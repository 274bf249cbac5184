"""Storing and deleting documents: blocking, for the threads of `Service.writes`; and streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from fastapi import Request

from lamina_index.corpus.objects import parse_json, parse_object
from lamina_index.corpus.records import RowError, describe
from lamina_index.corpus.sources import not_utf8
from lamina_index.errors import BacklogFullError, WriteTooLargeError
from lamina_index.filters import parse_filter
from lamina_index.listing import Place
from lamina_index.manifest import MAX_ID_BYTES
from lamina_index.text import repair_text
from lamina_index.writer import CollectionWriter, CutText, Fault, Written
from lamina_service.document_schemas import MAX_TOLD, DeleteRequest, ListParameters
from lamina_service.document_stream import Line, read_blocks
from lamina_service.errors import DocumentsRefusedError, InvalidRequestError, QueueFullError

if TYPE_CHECKING:
    from lamina_index.searcher import Searcher
    from lamina_index.store import StoredDocument
    from lamina_service.service import Service

_PATIENCE_SECONDS = 30.0
"""How long a stream, once begun, waits for its turn before it is refused."""
_PAUSE_SECONDS = 0.1

T = TypeVar("T")


@dataclass(slots=True)
class Stored:
    """What a request's blocks have stored so far, added up.

    Attributes:
        collection: That was written to.
        queue_seconds: What they waited for a thread.
        write_seconds: What the threads spent on them.
    """

    collection: str = ""
    inserted: int = 0
    replaced: int = 0
    generation: int = 0
    error_count: int = 0
    errors: list[Fault] = field(default_factory=list)
    truncated_count: int = 0
    truncated: list[CutText] = field(default_factory=list)
    queue_seconds: float = 0.0
    write_seconds: float = 0.0

    def add(self, block: Stored) -> None:
        """Add what a later block has stored."""
        self.collection = block.collection
        self.inserted += block.inserted
        self.replaced += block.replaced
        self.generation = max(self.generation, block.generation)
        self.error_count += block.error_count
        self.errors += block.errors[: MAX_TOLD - len(self.errors)]
        self.truncated_count += block.truncated_count
        self.truncated += block.truncated[: MAX_TOLD - len(self.truncated)]
        self.queue_seconds += block.queue_seconds
        self.write_seconds += block.write_seconds

    def reply(self, total_seconds: float) -> dict[str, Any]:
        """Write the reply.

        Raises:
            DocumentsRefusedError: If documents were sent and none was stored.
        """
        if self.error_count and not self.inserted + self.replaced:
            raise DocumentsRefusedError(
                self.error_count, [(fault.position, fault.reason) for fault in self.errors]
            )
        return {
            "collection": self.collection,
            "inserted": self.inserted,
            "replaced": self.replaced,
            "error_count": self.error_count,
            "errors": [
                {"position": fault.position, "id": _shown(fault.id), "detail": fault.reason}
                for fault in self.errors
            ],
            "truncated_count": self.truncated_count,
            "truncated": [
                {
                    "id": cut.id,
                    "token_count": cut.kept_tokens,
                    "full_token_count": cut.tokens,
                }
                for cut in self.truncated
            ],
            "generation": self.generation,
            "took": {
                "queue": round(self.queue_seconds * 1000, 3),
                "write": round(self.write_seconds * 1000, 3),
                "total": round(total_seconds * 1000, 3),
            },
        }


def _shown(document_id: str | None) -> str | None:
    """Give an id as a reply can hold it: what was refused may be of any length and not Unicode."""
    return None if document_id is None else repair_text(document_id[:MAX_ID_BYTES])


async def store_stream(service: Service, collection: str, request: Request) -> Stored:
    """Store a body of newline-delimited JSON block by block, as it arrives.

    A problem that ends it half-way tells what was stored before: blocks are whole or not there.

    Raises:
        ClientDisconnect: If the client goes away; the blocks that had come stay.
        RequestTimeoutError: If nothing more comes for too long.
        QueueFullError, BacklogFullError: If there is no room for long.
        LaminaError: As `CollectionWriter.upsert`.
    """
    stored = Stored()
    limit = service.settings.max_line_bytes
    told = request.state.stored = {"inserted": 0, "replaced": 0, "lines": 0}
    async for block in read_blocks(request.stream(), max_line_bytes=limit):
        store = partial(_store_lines, service, stored.collection or collection)
        waiting = [block]
        while waiting:
            lines = waiting.pop()
            try:
                stored.add(await _in_turn(service, store, lines, patient=bool(stored.collection)))
            except WriteTooLargeError:  # of texts with very many parts
                if len(lines) == 1:
                    raise
                waiting += [lines[len(lines) // 2 :], lines[: len(lines) // 2]]
                continue
            told["inserted"], told["replaced"] = stored.inserted, stored.replaced
            told["lines"] = lines[-1].position + 1
    if not stored.collection:
        return await _in_turn(service, partial(_store_lines, service, collection), [])
    return stored


async def store_list(service: Service, collection: str, content: bytes) -> Stored:
    """Store a body of JSON in one step.

    Raises:
        InvalidRequestError: If it is no JSON, or no list of documents, or of too many.
        QueueFullError, BacklogFullError: If there is no room.
        WriteTooLargeError: If there never is for so many parts of documents.
        LaminaError: As `CollectionWriter.upsert`.
    """
    return await _in_turn(service, partial(_store_list, service, collection), content)


def find(
    service: Service, collection: str, document_id: str, *, with_vector: bool
) -> dict[str, Any] | None:
    """Give a document as a reply has it; None if there is none of that id."""

    def read(searcher: Searcher) -> dict[str, Any] | None:
        if with_vector:
            embedded = searcher.get_embedded(document_id)
            if embedded is None:
                return None
            return {**_written(embedded[0]), "vector": embedded[1].tolist()}
        found = searcher.get(document_id)
        return None if found is None else _written(found)

    return service.catalog.using(collection, read)


def list_page(service: Service, collection: str, asked: ListParameters) -> bytes:
    """Write a page of documents as the reply has it.

    Raises:
        CursorError: If the cursor is none of this collection's.
        FilterError: If the filter does not fit.
    """

    def read(searcher: Searcher) -> bytes:
        place = None if asked.cursor is None else Place.read(asked.cursor)
        wanted = None if asked.filter is None else parse_filter(asked.filter, searcher.fields)
        page = searcher.page(place, limit=asked.limit, filter=wanted)
        return orjson.dumps(
            {
                "collection": searcher.folder.name,
                "documents": [_written(document) for document in page.documents],
                "next_cursor": page.following.cursor if page.following else None,
            }
        )

    return service.catalog.using(collection, read)


def _written(document: StoredDocument) -> dict[str, Any]:
    return {"id": document.id, "text": document.text, "metadata": document.metadata}


def delete_id(service: Service, collection: str, document_id: str) -> tuple[str, int]:
    """Delete a document; the collection's name and how many there were."""
    return _deleting(service, collection, lambda writer: writer.delete([document_id]))


def delete_some(service: Service, collection: str, asked: DeleteRequest) -> tuple[str, int]:
    """Delete documents by id or by filter; the collection's name and how many there were.

    Raises:
        FilterError: If the filter does not fit, or is one that passes all without a condition.
    """

    def delete(writer: CollectionWriter) -> int:
        if asked.ids is not None:
            return writer.delete(asked.ids)
        wanted = parse_filter(asked.filter, service.catalog.get(collection).fields)
        return writer.delete_matching(wanted)

    return _deleting(service, collection, delete)


def _deleting(
    service: Service, collection: str, delete: Callable[[CollectionWriter], int]
) -> tuple[str, int]:
    name, count = _writing(service, collection, delete)
    service.metrics.wrote(deleted=count)
    return name, count


async def _in_turn(
    service: Service, store: Callable[[T], Stored], item: T, *, patient: bool = False
) -> Stored:
    """Store something on the threads for writes, and note how long that took."""
    queued_at = time.perf_counter()

    def timed(item: T) -> Stored:
        began = time.perf_counter()
        stored = store(item)
        stored.queue_seconds = began - queued_at
        stored.write_seconds = time.perf_counter() - began
        return stored

    while True:
        try:
            return await service.writes.run(timed, item)
        except (QueueFullError, BacklogFullError):
            waited = time.perf_counter() - queued_at
            if not patient or waited > _PATIENCE_SECONDS or service.closing.is_set():
                raise
            await asyncio.sleep(_PAUSE_SECONDS)


def _store_list(service: Service, collection: str, content: bytes) -> Stored:
    try:
        body = parse_json(content.decode())
    except RowError as error:
        raise InvalidRequestError("", str(error)) from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError("", not_utf8(content, error.start)) from error
    if isinstance(body, dict):
        if body.keys() != {"documents"}:
            raise InvalidRequestError("", "expected a list, or the one key `documents` with a list")
        body = body["documents"]
    if not isinstance(body, list):
        raise InvalidRequestError("documents", f"expected a list, found {describe(body)}")
    if len(body) > (limit := service.settings.max_documents):
        raise InvalidRequestError(
            "documents",
            f"{len(body)} documents, expected at most {limit}; as application/x-ndjson any number "
            "can be sent",
        )
    try:
        return _store(service, collection, list(enumerate(body)), [])
    except WriteTooLargeError as error:
        raise WriteTooLargeError(f"{error}, or send them as application/x-ndjson") from error


def _store_lines(service: Service, collection: str, lines: Sequence[Line]) -> Stored:
    records: list[tuple[int, object]] = []
    faults: list[Fault] = []
    for line in lines:
        try:
            records.append((line.position, _parse_line(line, service.settings.max_line_bytes)))
        except RowError as error:
            faults.append(Fault(line.position, None, str(error)))
    return _store(service, collection, records, faults)


def _parse_line(line: Line, max_line_bytes: int) -> dict[str, object]:
    if line.content is None:
        raise RowError(f"line is longer than {max_line_bytes} bytes")
    try:
        return parse_object(line.content.decode())
    except UnicodeDecodeError as error:
        raise RowError(not_utf8(line.content, error.start)) from error


def _store(
    service: Service,
    collection: str,
    records: Sequence[tuple[int, object]],
    unreadable: Sequence[Fault],
) -> Stored:
    """Store what could be read, each with its position, beside what could not."""

    def upsert(writer: CollectionWriter) -> Written:
        return writer.upsert([record for _, record in records])

    name, written = _writing(service, collection, upsert)
    positions = [position for position, _ in records]
    faults = [replace(fault, position=positions[fault.position]) for fault in written.faults]
    faults = sorted([*faults, *unreadable], key=lambda fault: fault.position)
    service.metrics.wrote(inserted=written.inserted, replaced=written.replaced, refused=len(faults))
    return Stored(
        collection=name,
        inserted=written.inserted,
        replaced=written.replaced,
        generation=written.generation,
        error_count=len(faults),
        errors=faults[:MAX_TOLD],
        truncated_count=len(written.truncated),
        truncated=list(written.truncated[:MAX_TOLD]),
    )


def _writing(
    service: Service, collection: str, work: Callable[[CollectionWriter], T]
) -> tuple[str, T]:
    """Write to a collection, or the one that takes its place meanwhile, and give its name too."""
    return service.catalog.writing(collection, lambda writer: (writer.folder.name, work(writer)))
