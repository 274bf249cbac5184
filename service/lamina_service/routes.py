"""Collections under /v1: handlers check, queue the work, and send the bytes that come back."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response

from lamina_service.catalog import Catalog
from lamina_service.direct_route import ReadRoute, json_response
from lamina_service.openapi import BEARER, problems
from lamina_service.schemas import CollectionReply, CollectionsReply
from lamina_service.search_schemas import (
    BatchReply,
    BatchRequest,
    SearchParameters,
    SearchReply,
    SearchRequest,
    SimilarRequest,
)
from lamina_service.searching import SearchJob, answers_of
from lamina_service.service import Service

_ANY_SIMILAR = SimilarRequest.model_validate({})

router = APIRouter(prefix="/v1", route_class=ReadRoute, dependencies=[BEARER])


@router.post(
    "/collections/{collection}/search",
    tags=["search"],
    response_model=SearchReply,
    responses=problems(404, 408, 409, 413, 415, 422, 429, 507),
)
async def search(request: Request, collection: str, body: SearchRequest) -> Response:
    """Find the documents nearest in meaning to a query text, or nearest to a vector."""
    service: Service = request.app.state.service
    job = SearchJob.checked(service, collection, body)
    return (await answers_of([job]))[0].response()


@router.get(
    "/collections/{collection}/search",
    tags=["search"],
    response_model=SearchReply,
    responses=problems(404, 409, 422, 429, 507),
)
async def search_by_link(
    request: Request, collection: str, parameters: Annotated[SearchParameters, Query()]
) -> Response:
    """Find documents by a query text in the address."""
    return await search(request, collection, parameters.as_request())


@router.post(
    "/collections/{collection}/search/batch",
    tags=["search"],
    response_model=BatchReply,
    responses=problems(404, 408, 409, 413, 415, 422, 429, 507),
)
async def search_batch(request: Request, collection: str, body: BatchRequest) -> Response:
    """Run several searches; they are spread over the worker's threads."""
    service: Service = request.app.state.service
    service.check_batch("searches", len(body.searches))
    jobs = [
        SearchJob.checked(service, collection, search, part=f"searches[{position}].")
        for position, search in enumerate(body.searches)
    ]
    answers = await answers_of(jobs)
    return json_response({"results": [orjson.Fragment(answer.body) for answer in answers]})


@router.post(
    "/collections/{collection}/similar/{document_id:path}",
    tags=["search"],
    response_model=SearchReply,
    responses=problems(404, 408, 409, 413, 415, 422, 429, 507),
)
async def search_similar(
    request: Request, collection: str, document_id: str, body: SimilarRequest = _ANY_SIMILAR
) -> Response:
    """Find the documents nearest to a stored one; its id may hold slashes, quoted or not."""
    service: Service = request.app.state.service
    job = SearchJob.checked(service, collection, body, document_id=document_id)
    answers = await answers_of([job])
    return answers[0].response()


@router.get(
    "/collections", tags=["collections"], response_model=CollectionsReply, responses=problems(429)
)
async def list_collections(request: Request) -> Response:
    """List all collections, also those that could not be opened."""
    service: Service = request.app.state.service
    found = await service.reads.run(Catalog.describe_all, service.catalog)
    return json_response({"collections": found})


@router.get(
    "/collections/{collection}",
    tags=["collections"],
    response_model=CollectionReply,
    responses=problems(404, 429),
)
async def get_collection(request: Request, collection: str) -> Response:
    """Tell a collection's size, fields, encoder and state."""
    service: Service = request.app.state.service
    return json_response(await service.reads.run(service.catalog.describe, collection))
