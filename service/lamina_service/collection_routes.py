"""Making, deleting, archiving and compacting collections, and aliases, under /v1."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from lamina_index.errors import CollectionNotFoundError
from lamina_service import collection_work
from lamina_service.aliases import NAME_PATTERN, Aliases, check_name
from lamina_service.canary import try_canary
from lamina_service.collection_schemas import (
    AliasesReply,
    AliasReply,
    AliasRequest,
    AliasSwitchReply,
    CollectionDeletedReply,
    CollectionRequest,
    CompactReply,
    CompactRequest,
    SnapshotReply,
    SnapshotRequest,
)
from lamina_service.direct_route import AdminRoute, ReadRoute, WriteRoute, json_response
from lamina_service.openapi import BEARER, problems
from lamina_service.schemas import CollectionReply
from lamina_service.service import Service

read_router = APIRouter(prefix="/v1", route_class=ReadRoute, dependencies=[BEARER])
write_router = APIRouter(prefix="/v1", route_class=WriteRoute, dependencies=[BEARER])
admin_router = APIRouter(prefix="/v1", route_class=AdminRoute, dependencies=[BEARER])
routers = (read_router, write_router, admin_router)

_PLAIN = CollectionRequest(fields={}, chunking=None)
_AS_BEFORE = CompactRequest(factory=None)
_ALL = SnapshotRequest()
_MADE: dict[int | str, dict[str, Any]] = {201: {"model": CollectionReply, "description": "Made"}}

NewName = Annotated[str, Path(pattern=NAME_PATTERN)]


@write_router.put(
    "/collections/{collection}",
    tags=["collections"],
    response_model=CollectionReply,
    responses={**_MADE, **problems(408, 409, 413, 415, 422, 429, 507)},
)
async def create_collection(
    request: Request, collection: NewName, body: CollectionRequest = _PLAIN
) -> Response:
    """Make an empty collection; 200 if there is one already that is as asked for."""
    service: Service = request.app.state.service
    create = partial(collection_work.create, service, collection)
    found, made = await service.changes.run(create, body)
    return json_response(found, 201 if made else 200)


@admin_router.delete(
    "/collections/{collection}",
    tags=["collections"],
    response_model=CollectionDeletedReply,
    responses=problems(404, 409, 429, 507),
)
async def delete_collection(request: Request, collection: str) -> Response:
    """Delete a collection, for all workers at once; refused while an alias leads to it."""
    service: Service = request.app.state.service
    await service.changes.run(partial(collection_work.delete, service), collection)
    return json_response({"deleted": collection})


@admin_router.post(
    "/collections/{collection}/snapshot",
    tags=["collections"],
    response_model=SnapshotReply,
    responses=problems(404, 408, 409, 413, 415, 422, 429, 507),
)
async def archive_collection(
    request: Request, collection: str, body: SnapshotRequest = _ALL
) -> Response:
    """Write a collection to one verified file in the folder LAMINA_SNAPSHOTS; may take minutes."""
    service: Service = request.app.state.service
    archive = partial(collection_work.archive, service)
    return json_response(await service.changes.run(archive, collection))


@admin_router.post(
    "/collections/{collection}/compact",
    tags=["collections"],
    response_model=CompactReply,
    responses=problems(404, 408, 409, 413, 415, 422, 429, 507),
)
async def compact_collection(
    request: Request, collection: str, body: CompactRequest = _AS_BEFORE
) -> Response:
    """Bring a collection's search index up to date; the service does so by itself, too."""
    service: Service = request.app.state.service
    compact = partial(collection_work.compact, service, collection)
    return json_response(await service.changes.run(compact, body))


@read_router.get("/aliases", tags=["aliases"], response_model=AliasesReply, responses=problems())
async def list_aliases(request: Request) -> Response:
    """List all aliases."""
    aliases: Aliases = request.app.state.service.aliases
    aliases.refresh()
    found = [asdict(alias) for _, alias in sorted(aliases.known.items())]
    return json_response({"aliases": found})


@read_router.get(
    "/aliases/{alias}", tags=["aliases"], response_model=AliasReply, responses=problems(404)
)
async def get_alias(request: Request, alias: str) -> Response:
    """Tell where an alias leads."""
    return json_response(asdict(request.app.state.service.aliases.get(alias)))


@admin_router.put(
    "/aliases/{alias}",
    tags=["aliases"],
    response_model=AliasSwitchReply,
    responses=problems(404, 408, 409, 413, 415, 422, 429, 507),
)
async def put_alias(request: Request, alias: NewName, body: AliasRequest) -> Response:
    """Lead an alias to a collection, in one step for all workers, if the canary goes well."""
    service: Service = request.app.state.service
    check_name(alias)
    service.aliases.refresh()
    present = service.aliases.known.get(alias)
    previous = present.collection if present else None
    await _check_served(service, body.collection)
    canary = None
    if body.canary is not None:
        canary = await try_canary(service, body.canary, body.collection, previous)
    put = partial(service.aliases.put, alias, instead_of=previous)
    switched = await service.changes.run(put, body.collection)
    reply: dict[str, Any] = asdict(switched)
    return json_response(
        {**reply, "previous": previous, "canary": asdict(canary) if canary else None}
    )


@admin_router.delete(
    "/aliases/{alias}",
    tags=["aliases"],
    response_model=AliasReply,
    responses=problems(404, 409, 429, 507),
)
async def delete_alias(request: Request, alias: str) -> Response:
    """End an alias; the collection stays."""
    service: Service = request.app.state.service
    return json_response(asdict(await service.changes.run(service.aliases.delete, alias)))


async def _check_served(service: Service, collection: str) -> None:
    """Refuse as an alias's goal what is no collection, or one that cannot be searched.

    Raises:
        CollectionNotFoundError: If there is none; an alias is none.
        LaminaError: Why it is not served.
    """
    await service.reads.run(service.catalog.follow, collection)
    if collection in service.aliases.known:
        raise CollectionNotFoundError(f"{collection!r} is an alias; name a collection")
    service.catalog.get(collection)
