"""The search page and the API's documentation: static files that load nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from lamina_service.direct_route import DirectRoute, json_response

_FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = {path.name: path.read_bytes() for path in _FOLDER.iterdir()}

router = APIRouter(route_class=DirectRoute, include_in_schema=False)
docs_router = APIRouter(route_class=DirectRoute, include_in_schema=False)


@router.get("/")
async def search_page(request: Request) -> Response:
    """The search page."""
    return _file("search.html")


@router.get("/page/{name}")
async def page_file(request: Request, name: str) -> Response:
    """A script or style of the pages."""
    return _file(name)


@docs_router.get("/docs")
async def docs_page(request: Request) -> Response:
    """The API's documentation, drawn from its OpenAPI."""
    return _file("docs.html")


@docs_router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The API's OpenAPI document."""
    return json_response(request.app.openapi())


def _file(name: str) -> Response:
    content = _FILES.get(name)
    if content is None:
        raise HTTPException(404)
    return Response(content, headers=_HEADERS, media_type=_MEDIA_TYPES[Path(name).suffix])
