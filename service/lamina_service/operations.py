"""What operators ask: is it alive, is it ready, what runs here, how much does it do."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from lamina_service.access import check_access
from lamina_service.direct_route import DirectRoute, ReadRoute, json_response
from lamina_service.metrics import CONTENT_TYPE, Metrics
from lamina_service.openapi import BEARER, problems
from lamina_service.schemas import InfoReply, LiveReply, ReadyReply
from lamina_service.service import Service

open_router = APIRouter(route_class=DirectRoute, tags=["operations"])
router = APIRouter(route_class=ReadRoute, tags=["operations"], dependencies=[BEARER])


@open_router.get("/livez", response_model=LiveReply)
async def livez(request: Request) -> Response:
    """Answer while the process's event loop turns; needs no key."""
    return json_response({"status": "alive"})


@open_router.get("/readyz", response_model=ReadyReply)
async def readyz(request: Request) -> Response:
    """Tell that the encoder is loaded, where it runs, and how many collections opened; no key.

    A collection that failed makes the status `degraded`, still 200: the others are served.
    """
    service: Service = request.app.state.service
    failed = service.catalog.failed()
    return json_response(
        {
            "status": "degraded" if failed else "ready",
            "provider": service.encoder.provider,
            "collections": {"open": len(service.catalog.names()) - failed, "failed": failed},
        }
    )


@router.get("/info", response_model=InfoReply, responses=problems(429))
async def info(request: Request) -> Response:
    """Tell encoder, precision, real execution provider, threads, versions and collections."""
    service: Service = request.app.state.service
    return json_response(await service.reads.run(Service.describe, service))


@open_router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(404, 429),
    },
)
async def prometheus(request: Request) -> Response:
    """Give metrics for Prometheus; LAMINA_METRICS tells whether a key is needed."""
    service: Service = request.app.state.service
    if service.settings.metrics == "off":
        raise HTTPException(404)
    if service.settings.metrics == "key":
        check_access(request.scope, service.keys, "read")
    text = await service.reads.run(Metrics.render, service.metrics)
    return Response(text, media_type=CONTENT_TYPE)
