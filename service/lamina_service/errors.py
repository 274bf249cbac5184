"""What each error becomes over HTTP: one table, answered as RFC 9457 problem details."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from lamina_index import errors as index
from lamina_index.errors import LaminaError
from lamina_service.validation import field_of, message_of

if TYPE_CHECKING:
    from lamina_service.settings import Settings

PROBLEM_MEDIA_TYPE = "application/problem+json"
PROBLEM_URI = "urn:lamina:problem:"
MAX_FAULTS = 100
"""Most parts of a request that a problem names with what is wrong with them."""
INTERNAL_DETAIL = "unexpected error; the server's log tells it under this reply's X-Request-ID"

_logger = logging.getLogger(__name__)


class SettingsError(LaminaError):
    """A setting is unknown, malformed or unsafe."""


class PortTakenError(SettingsError):
    """Another process listens on the port."""


class InvalidRequestError(LaminaError):
    """A request is well-formed HTTP but asks for something that cannot be done.

    Attributes:
        field: Which part of the request, such as `input[3]`; empty for the whole.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


class MediaTypeError(LaminaError):
    """A body that is not declared as JSON."""


class BodyTooLargeError(LaminaError):
    """A body longer than the limit."""


class HeadTooLargeError(LaminaError):
    """A request line and headers, or what follows a body, longer than the limit."""


class MalformedRequestError(LaminaError):
    """Bytes that are no HTTP."""


class RequestTimeoutError(LaminaError):
    """A client that began a request and then was silent, or slow, for too long."""


class ConnectionsFullError(LaminaError):
    """As many connections are open as a worker may have, and all are in use."""


class KeyRequiredError(LaminaError):
    """No key, or one that is not valid."""


class ScopeError(LaminaError):
    """A valid key that does not allow this."""


class LocalOnlyError(LaminaError):
    """Without keys the service answers on the machine's own address only."""


class ModelNotFoundError(LaminaError):
    """The embeddings of another encoder than the loaded one were asked for."""


class NoLayersError(LaminaError):
    """The weights of layers were asked for, and the encoder keeps no attention over them."""


class AliasNotFoundError(LaminaError):
    """No alias has the name."""


class AliasChangedError(LaminaError):
    """An alias was led elsewhere while a request to switch it was under way."""


class NameTakenError(LaminaError):
    """A name is to be an alias and a collection at once."""


class CollectionInUseError(LaminaError):
    """A collection that an alias leads to was to be deleted."""


class CanaryFailedError(LaminaError):
    """An alias was not switched, since the new collection does not answer as was demanded.

    Attributes:
        failures: The part of the request, such as `canary.queries[3]`, and what is wrong with it.
    """

    def __init__(self, message: str, failures: list[tuple[str, str]]) -> None:
        super().__init__(message)
        self.failures = failures


class SnapshotsOffError(LaminaError):
    """No folder is configured that archives could be written to."""


class DocumentsRefusedError(LaminaError):
    """Documents were sent and none of them could be stored.

    Attributes:
        failures: The first of them: position, and what is wrong.
    """

    def __init__(self, count: int, failures: list[tuple[int, str]]) -> None:
        position, told = failures[0]
        super().__init__(
            f"none of {count} documents could be stored; documents[{position}]: {told}"
        )
        self.failures = failures


class QueueFullError(LaminaError):
    """As much work is waiting as the service admits."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What an error class is over HTTP; `slug` ends the problem's type URI and never changes."""

    status: int
    slug: str
    title: str


REQUEST_PROBLEMS: dict[type[LaminaError], Problem] = {
    LaminaError: Problem(500, "internal", "Internal error"),
    index.FormatError: Problem(503, "unreadable-format", "Unreadable format"),
    index.EncoderOutputError: Problem(500, "encoder-output", "Encoder returned no usable vector"),
    index.EncoderMismatchError: Problem(409, "encoder-mismatch", "Built by another encoder"),
    index.BlankTextError: Problem(422, "blank-text", "Nothing to search for"),
    index.CollectionNotFoundError: Problem(404, "collection-not-found", "No such collection"),
    index.CollectionBusyError: Problem(409, "collection-busy", "Collection is being written"),
    index.CollectionExistsError: Problem(409, "collection-exists", "Collection exists"),
    index.CompactionError: Problem(500, "compaction-failed", "New index was not right"),
    index.IndexFactoryError: Problem(422, "index-factory", "Index type cannot be built"),
    index.DamagedError: Problem(503, "collection-damaged", "Damaged collection"),
    index.IndexDamagedError: Problem(503, "index-damaged", "Damaged search index"),
    index.FilterError: Problem(422, "invalid-filter", "Filter does not fit"),
    index.GroupFieldError: Problem(422, "invalid-group-by", "Field cannot be grouped by"),
    index.CursorError: Problem(422, "invalid-cursor", "Cursor leads nowhere"),
    index.NoWordIndexError: Problem(409, "no-word-index", "Words cannot be searched yet"),
    index.DocumentNotFoundError: Problem(404, "document-not-found", "No such document"),
    index.BacklogFullError: Problem(429, "backlog-full", "Index has to catch up with writes"),
    index.WriteTooLargeError: Problem(413, "write-too-large", "Too much for one write"),
    index.ReadOnlyError: Problem(409, "read-only", "Cannot be written to"),
    index.StorageFullError: Problem(507, "storage-full", "No space left"),
    InvalidRequestError: Problem(422, "invalid-request", "Invalid request"),
    MediaTypeError: Problem(415, "unsupported-media-type", "Body must be JSON"),
    BodyTooLargeError: Problem(413, "body-too-large", "Body too large"),
    HeadTooLargeError: Problem(431, "head-too-large", "Head too large"),
    MalformedRequestError: Problem(400, "malformed-request", "Not HTTP"),
    RequestTimeoutError: Problem(408, "request-timeout", "The client was silent too long"),
    ConnectionsFullError: Problem(503, "connections-full", "Too many connections"),
    KeyRequiredError: Problem(401, "key-required", "A valid key is required"),
    ScopeError: Problem(403, "scope-insufficient", "The key does not allow this"),
    LocalOnlyError: Problem(403, "local-only", "Without keys, local requests only"),
    NoLayersError: Problem(409, "no-layers", "Encoder keeps no attention over layers"),
    ModelNotFoundError: Problem(404, "model-not-found", "No such model"),
    AliasNotFoundError: Problem(404, "alias-not-found", "No such alias"),
    AliasChangedError: Problem(409, "alias-changed", "Alias was switched meanwhile"),
    NameTakenError: Problem(409, "name-taken", "Name is in use"),
    CollectionInUseError: Problem(409, "collection-in-use", "An alias leads to it"),
    CanaryFailedError: Problem(409, "canary-failed", "New collection failed its canary"),
    SnapshotsOffError: Problem(409, "snapshots-off", "No folder for archives is configured"),
    DocumentsRefusedError: Problem(422, "documents-refused", "No document was stored"),
    QueueFullError: Problem(429, "queue-full", "Too much work is waiting"),
}
"""What a request can be answered."""

_OTHER_PROBLEMS: dict[type[LaminaError], Problem] = {
    index.MissingExtraError: Problem(501, "missing-extra", "Optional package not installed"),
    index.EncoderLoadError: Problem(503, "encoder-unavailable", "Encoder cannot be loaded"),
    index.EncoderProbeError: Problem(503, "encoder-unproven", "Encoder fails its probes here"),
    index.DeviceError: Problem(503, "device-unavailable", "Device cannot run the encoder"),
    index.CorpusError: Problem(422, "unreadable-corpus", "Unreadable corpus"),
    index.RejectedRowsError: Problem(422, "rejected-rows", "Rows were rejected"),
    index.ResumeError: Problem(409, "build-differs", "Unfinished build of something else"),
    index.EvaluationError: Problem(422, "evaluation", "Queries and judgements do not fit"),
    SettingsError: Problem(500, "settings", "Wrong settings"),
    PortTakenError: Problem(500, "port-taken", "Port in use"),
}
"""What only a command or the start of a service can meet; so that every error has its line."""

PROBLEMS = REQUEST_PROBLEMS | _OTHER_PROBLEMS

INTERNAL = PROBLEMS[LaminaError]
"""What an error that nobody foresaw is answered as."""

_HEADERS: dict[type[LaminaError], dict[str, str]] = {
    BodyTooLargeError: {"Connection": "close"},  # the rest of the body is never read
    HeadTooLargeError: {"Connection": "close"},
    MalformedRequestError: {"Connection": "close"},
    RequestTimeoutError: {"Connection": "close"},
    ConnectionsFullError: {"Connection": "close", "Retry-After": "1"},
    KeyRequiredError: {"WWW-Authenticate": "Bearer"},
    QueueFullError: {"Retry-After": "1"},
    index.BacklogFullError: {"Retry-After": "5"},
    index.IndexDamagedError: {"Retry-After": "5"},
}


def problem_of(error: LaminaError) -> Problem:
    """Find the table's line for an error; a class of its own or that of its nearest parent."""
    return next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)


def headers_of(error: LaminaError) -> dict[str, str]:
    """Give the headers that go with an error's problem document."""
    return dict(_HEADERS.get(type(error), {}))


def for_clients(message: str, data: Path, archives: Path | None = None) -> str:
    """Give a message as a client may read it: paths begin in the folder, not where that lies.

    Args:
        message: Of an error; the log has it as it is.
        data: The folder of the collections, as configured.
        archives: That of archives, if there is one.
    """
    for folder, name in ((data, "the data folder"), (archives, "the folder of archives")):
        if folder is None:
            continue
        written = {str(folder), str(folder.absolute()), str(folder.resolve())} - {".", "/"}
        for place in sorted(written, key=len, reverse=True):
            message = re.sub(rf"(?<![\w./-]){re.escape(place)}/", "", message)
            alone = rf"(?<![\w./-]){re.escape(place)}(?![\w./-])"
            if "/" not in place:  # such as data, which may also be a word of the message
                alone = rf"^{re.escape(place)}(?=:)"
            message = re.sub(alone, name, message)
    return message


def problem_response(
    problem: Problem, detail: str, headers: dict[str, str] | None = None, **members: Any
) -> Response:
    """Write a problem document; its `type` is also what the metrics count."""
    body = {
        "type": PROBLEM_URI + problem.slug,
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        **members,
    }
    return Response(orjson.dumps(body), problem.status, headers, media_type=PROBLEM_MEDIA_TYPE)


def internal_response() -> Response:
    """Answer an error nobody foresaw, without telling what it says."""
    return problem_response(INTERNAL, INTERNAL_DETAIL)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every foreseen error as a problem document."""
    app.add_exception_handler(LaminaError, _answer_lamina_error)
    app.add_exception_handler(ValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)


async def _answer_lamina_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LaminaError)  # registered for this class
    problem = problem_of(error)
    members: dict[str, Any] = {}
    if isinstance(error, InvalidRequestError):
        members["errors"] = [{"field": error.field, "message": error.message}]
    if isinstance(error, index.FilterError):
        members["errors"] = [{"field": error.path, "message": error.found}]
    if isinstance(error, index.CursorError):
        members["errors"] = [{"field": "cursor", "message": error.found}]
    if isinstance(error, CanaryFailedError):
        members["errors"] = [{"field": field, "message": told} for field, told in error.failures]
    if isinstance(error, DocumentsRefusedError):
        members["errors"] = [
            {"field": f"documents[{position}]", "message": told}
            for position, told in error.failures
        ]
    if isinstance(error, index.EncoderOutputError) and error.items:
        members["items"] = list(error.items)
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _logger.error("%s %r: %s", request.method, request.url.path, error)
    _count(request, problem.slug)
    settings: Settings = request.app.state.settings
    detail = for_clients(str(error), settings.data, settings.snapshots)
    headers = headers_of(error)
    if stored := getattr(request.state, "stored", None):
        members["stored"] = stored
        headers["Connection"] = "close"  # the rest of the stream is not read
    return problem_response(problem, detail, headers, **members)


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)  # registered for this class
    problem = PROBLEMS[InvalidRequestError]
    errors = [
        {"field": field_of(found), "message": message_of(found)}
        for found in error.errors(include_url=False)[:MAX_FAULTS]
    ]
    first = errors[0]
    detail = f"{first['field']}: {first['message']}" if first["field"] else first["message"]
    _count(request, problem.slug)
    return problem_response(problem, detail, errors=errors)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # registered for this class
    status = HTTPStatus(error.status_code)
    problem = Problem(status, status.phrase.lower().replace(" ", "-"), status.phrase)
    detail = f"{request.method} {request.url.path}: {status.description or status.phrase}"
    _count(request, problem.slug)
    return problem_response(problem, detail, dict(error.headers or {}))


def _count(request: Request, slug: str) -> None:
    request.app.state.metrics.rejected(slug)
