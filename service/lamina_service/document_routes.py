"""Storing, giving and deleting documents under /v1."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from lamina_service.direct_route import (
    ReadRoute,
    WriteRoute,
    check_json,
    json_body,
    json_response,
    media_type,
)
from lamina_service.document_schemas import (
    DeletedReply,
    DeleteRequest,
    Document,
    DocumentsReply,
    GetParameters,
    ListParameters,
    UpsertReply,
)
from lamina_service.document_work import (
    delete_id,
    delete_some,
    find,
    list_page,
    store_list,
    store_stream,
)
from lamina_service.edge import lift_body_limit
from lamina_service.openapi import BEARER, NEW_DOCUMENT, problems
from lamina_service.searching import document_not_found
from lamina_service.service import Service

read_router = APIRouter(
    prefix="/v1", route_class=ReadRoute, dependencies=[BEARER], tags=["documents"]
)
write_router = APIRouter(
    prefix="/v1", route_class=WriteRoute, dependencies=[BEARER], tags=["documents"]
)
routers = (read_router, write_router)

NDJSON = "application/x-ndjson"


def _upsert_body() -> dict[str, Any]:
    """Document both kinds of body; documents that do not fit are told in a reply, not refused."""
    documents = {
        "type": "array",
        "items": {"anyOf": [NEW_DOCUMENT, {}]},
        "description": "at most LAMINA_MAX_DOCUMENTS; what is no such document is told in `errors`",
    }
    listed = {
        "type": "object",
        "properties": {"documents": documents},
        "required": ["documents"],
        "additionalProperties": False,
    }
    example = {"id": "faq-17", "text": "How do I reset my password?", "metadata": {"year": 2026}}
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": [listed, documents]},
                "example": {"documents": [example]},
            },
            NDJSON: {
                "schema": {
                    "type": "string",
                    "description": "a document a line, any number; each line at most "
                    "LAMINA_MAX_LINE_BYTES long",
                },
                "example": '{"id": "faq-17", "text": "How do I reset my password?"}\n'
                '{"id": "faq-18", "text": "How do I get my money back?"}',
            },
        },
    }


@write_router.post(
    "/collections/{collection}/documents",
    response_model=UpsertReply,
    responses=problems(404, 408, 409, 413, 415, 422, 429, 507),
    openapi_extra={"requestBody": _upsert_body()},
)
async def upsert_documents(request: Request, collection: str) -> Response:
    """Store documents, durably; a known id is replaced.

    A list is stored in one step, a stream of lines in blocks of up to 128 as they arrive. What does
    not fit is told in `errors` and does not keep the others out.
    """
    service: Service = request.app.state.service
    began = time.perf_counter()
    service.catalog.get(collection)  # refused here, nothing need be sent
    kind = media_type(request)
    if kind == NDJSON:
        lift_body_limit(request.scope)
        stored = await store_stream(service, collection, request)
    else:
        check_json(kind, alternative=f"lines of it with {NDJSON}")
        stored = await store_list(service, collection, await json_body(request))
    return json_response(stored.reply(time.perf_counter() - began))


@read_router.get(
    "/collections/{collection}/documents",
    response_model=DocumentsReply,
    response_model_exclude_unset=True,
    responses=problems(404, 409, 422, 429, 507),
)
async def list_documents(
    request: Request, collection: str, parameters: Annotated[ListParameters, Query()]
) -> Response:
    """List all documents, or those that pass a filter, page by page, whatever is written meanwhile.

    A document that is there all the time is listed once; one that is replaced moves to the end.
    """
    service: Service = request.app.state.service
    service.catalog.get(collection)  # refused here, it need not wait for its turn
    page = await service.reads.run(partial(list_page, service, collection), parameters)
    return Response(page, media_type="application/json")


@read_router.get(
    "/collections/{collection}/documents/{document_id:path}",
    response_model=Document,
    response_model_exclude_unset=True,
    responses=problems(404, 409, 422, 429, 507),
)
async def get_document(
    request: Request,
    collection: str,
    document_id: str,
    parameters: Annotated[GetParameters, Query()],
) -> Response:
    """Give one document; its id may hold slashes, quoted or not."""
    service: Service = request.app.state.service
    searcher = service.catalog.get(collection)  # refused here, it need not wait for its turn
    read = partial(find, service, collection, with_vector=parameters.vector)
    found = await service.reads.run(read, document_id)
    if found is None:
        raise document_not_found(searcher, collection, document_id)
    return json_response(found)


@write_router.delete(
    "/collections/{collection}/documents/{document_id:path}",
    response_model=DeletedReply,
    responses=problems(404, 409, 429, 507),
)
async def delete_document(request: Request, collection: str, document_id: str) -> Response:
    """Delete one document, or all parts of one that was split."""
    service: Service = request.app.state.service
    searcher = service.catalog.get(collection)
    name, count = await service.writes.run(partial(delete_id, service, collection), document_id)
    if not count:
        raise document_not_found(searcher, collection, document_id)
    return json_response({"collection": name, "deleted": count})


@write_router.post(
    "/collections/{collection}/documents/delete",
    response_model=DeletedReply,
    responses=problems(404, 408, 409, 413, 415, 422, 429, 507),
)
async def delete_documents(request: Request, collection: str, body: DeleteRequest) -> Response:
    """Delete documents by their ids, in one step, or all that pass a filter."""
    service: Service = request.app.state.service
    service.catalog.get(collection)
    name, count = await service.writes.run(partial(delete_some, service, collection), body)
    return json_response({"collection": name, "deleted": count})
