"""Routes that FastAPI documents and that run without its dependency solver.

A handler's signature is plain FastAPI, so OpenAPI comes from it; but the request's parts are read
here, by one pydantic call on the raw bytes, which spares each request the solver's steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Receive, Send
from starlette.types import Scope as RequestScope

from lamina_service.access import check_access
from lamina_service.document_stream import UTF8_BOM
from lamina_service.errors import MediaTypeError
from lamina_service.keys import Scope

if TYPE_CHECKING:
    from lamina_service.service import Service


class DirectRoute(APIRoute):
    """Calls `handler(request, **path_parameters)`, with what the handler's signature names.

    A parameter `body` is the JSON body and a parameter `parameters` the query string, each read
    into the pydantic model of its annotation; a body that has a default may be left out. Handlers
    return a `Response`. When they are called, the catalog knows the present state of what a path
    parameter `collection` names.
    """

    access: ClassVar[Scope | None] = None
    """The scope that a key must have; None leaves the route open."""

    async def handle(self, scope: RequestScope, receive: Receive, send: Send) -> None:
        """Answer; or, if no route of this path takes the method, tell those that they take."""
        if self.methods and scope["method"] not in self.methods:
            raise HTTPException(405, headers={"Allow": ", ".join(_methods_of_path(scope))})
        await super().handle(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override] # a coroutine is one
        handler: Callable[..., Awaitable[Response]] = self.endpoint
        access = self.access
        models = get_type_hints(handler)
        body_model: type[BaseModel] | None = models.get("body")
        query_model: type[BaseModel] | None = models.get("parameters")
        may_be_left_out = _has_default(handler, "body")

        async def handle(request: Request) -> Response:
            if access is not None:
                check_access(request.scope, request.app.state.service.keys, access)
            arguments: dict[str, Any] = dict(request.path_params)
            if "collection" in arguments:
                await _follow(request.app.state.service, arguments["collection"])
            if body_model is not None:
                content = await json_body(request)
                has_body = bool(content) or not may_be_left_out
                # A page elsewhere can have a browser POST without a body, but not with this type.
                if has_body or "origin" in request.headers:
                    check_json(media_type(request))
                if has_body:
                    arguments["body"] = body_model.model_validate_json(content)
            if query_model is not None:
                arguments["parameters"] = query_model.model_validate(_query(request))
            return await handler(request, **arguments)

        return handle


class ReadRoute(DirectRoute):
    """For whoever may read."""

    access = "read"


class WriteRoute(DirectRoute):
    """For whoever may change what collections hold."""

    access = "write"


class AdminRoute(DirectRoute):
    """For whoever may change which collections there are."""

    access = "admin"


def json_response(content: object, status: int = 200) -> Response:
    """Send JSON as it is: it was made to fit the documented model, which a test checks."""
    return Response(orjson.dumps(content), status, media_type="application/json")


async def json_body(request: Request) -> bytes:
    """Take in a whole body of JSON, without the mark that some editors put before UTF-8."""
    return (await request.body()).removeprefix(UTF8_BOM)


def media_type(request: Request) -> str:
    """Give what the body is declared as, without parameters; empty if it is not."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_json(kind: str, *, alternative: str = "") -> None:
    """Refuse what a browser sends elsewhere without asking; curl says this unless told otherwise.

    Args:
        kind: The body's media type.
        alternative: What is taken beside JSON, for the message.

    Raises:
        MediaTypeError: If the body is not declared as JSON.
    """
    if kind != "application/json" and not kind.endswith("+json"):
        raise MediaTypeError(
            f"Content-Type is {kind or 'missing'}; send JSON with Content-Type: application/json"
            + (f" or {alternative}" if alternative else "")
        )


def _methods_of_path(scope: RequestScope) -> list[str]:
    """Collect the methods of all routes of a request's path; the router names one route's only."""
    found = {
        method
        for route in scope["app"].routes
        if route.matches(scope)[0] is not Match.NONE
        for method in route.methods
    }
    return sorted(found | {"HEAD"} if "GET" in found else found)  # `Edge` makes a GET of HEAD


def _has_default(handler: Callable[..., object], name: str) -> bool:
    found = signature(handler).parameters.get(name)
    return found is not None and found.default is not Parameter.empty


async def _follow(service: Service, collection: str) -> None:
    """Take up, off the event loop, what other workers did to a collection or an alias."""
    if not service.catalog.is_current(collection):
        await service.reads.run(service.catalog.follow, collection)


def _query(request: Request) -> Mapping[str, Any]:
    """Give each parameter's value, or the list of them where it is repeated."""
    query = request.query_params
    return {
        name: values[0] if len(values := query.getlist(name)) == 1 else values for name in query
    }
