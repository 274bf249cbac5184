"""The application: `uvicorn --factory lamina_service.app:create_app`, or `lamina serve`."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from lamina_index import __version__
from lamina_index.errors import LaminaError
from lamina_service import (
    collection_routes,
    document_routes,
    embeddings,
    layers,
    operations,
    page,
    routes,
)
from lamina_service.connection import STATE, Connections
from lamina_service.edge import Edge
from lamina_service.errors import add_error_handlers
from lamina_service.metrics import Metrics
from lamina_service.openapi import DocumentedApi
from lamina_service.service import Service
from lamina_service.settings import Settings

_logger = logging.getLogger(__name__)

_DESCRIPTION = """
Semantic search over collections of texts. Errors are RFC 9457 problem details; their type is
stable. Every reply carries an X-Request-ID.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the application; encoder and collections are opened when it starts.

    Args:
        settings: By default those of the `LAMINA_*` environment.

    Raises:
        SettingsError: If the environment does not fit.
    """
    settings = settings or Settings.load()
    app = DocumentedApi(
        title="Lamina",
        version=__version__,
        description=_DESCRIPTION.strip(),
        lifespan=_lifespan,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.settings = settings
    app.state.metrics = Metrics()
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["X-Request-ID", "Retry-After"],
        )
    app.add_middleware(  # the last is the outermost
        Edge,
        metrics=app.state.metrics,
        max_body_bytes=settings.max_body_bytes,
        client_seconds=settings.client_seconds,
        access_log=settings.access_log,
    )
    add_error_handlers(app)
    routers = [
        routes.router,
        *document_routes.routers,
        *collection_routes.routers,
        embeddings.router,
        layers.router,
        operations.open_router,
        operations.router,
    ]
    for router in [*routers, page.router, *([page.docs_router] if settings.docs else [])]:
        app.router.routes.extend(router.routes)  # without the indirection of include_router
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
    try:
        service = await asyncio.to_thread(Service.open, app.state.settings, app.state.metrics)
    except LaminaError as error:
        app.state.startup_error = error
        raise
    app.state.service = service
    gc.collect()
    gc.freeze()  # what was loaded stays: full collections need not walk it while requests wait
    _logger.info(
        "ready: %d collections, encoder %s %s on %s, %d threads",
        len(service.catalog.names()),
        service.encoder.name,
        service.encoder.precision,
        service.encoder.provider,
        service.searches.threads,
    )
    try:
        yield {STATE: Connections.within(app.state.settings, app.state.metrics)}
    finally:
        await asyncio.to_thread(service.close)
