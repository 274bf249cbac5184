"""OpenAPI that tells the whole truth: problem documents, keys, and the limits in force."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Security
from fastapi.openapi.utils import get_openapi
from fastapi.security import HTTPBearer
from pydantic import BaseModel

from lamina_service.document_schemas import NewDocument
from lamina_service.errors import PROBLEM_MEDIA_TYPE
from lamina_service.schemas import ProblemReply

BEARER = Security(
    HTTPBearer(
        scheme_name="key",
        description="A key from `lamina keys create`; needed once one was made.",
        auto_error=False,
    )
)
"""Documents that a route needs a key; `DirectRoute` checks it."""

_REFERENCE = "#/components/schemas/{model}"
_PROBLEM = {"$ref": _REFERENCE.format(model="Problem")}
NEW_DOCUMENT = {"$ref": _REFERENCE.format(model="NewDocument")}
_UNFOUND: dict[str, type[BaseModel]] = {"Problem": ProblemReply, "NewDocument": NewDocument}
"""Schemas that FastAPI finds in no signature."""

_PATH_EXAMPLES = {"collection": "questions", "document_id": "faq-17", "alias": "live"}
"""The names that docs/api.md uses too."""

_ALWAYS = (400, 401, 403, 431, 500, 503)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document the problem statuses of a route that needs a key."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM_MEDIA_TYPE: {"schema": _PROBLEM}},
        }
        for status in sorted({*statuses, *_ALWAYS})
    }


class DocumentedApi(FastAPI):
    """FastAPI whose OpenAPI knows problem documents instead of FastAPI's own errors."""

    def openapi(self) -> dict[str, Any]:
        """Write the document once."""
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=self.routes,
                tags=self.openapi_tags,
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            for name, model in _UNFOUND.items():
                unfound = model.model_json_schema(ref_template=_REFERENCE)
                schemas |= {**unfound.pop("$defs", {}), name: unfound}
            for operations in schema["paths"].values():
                for operation in operations.values():
                    _correct(operation)
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            self.openapi_schema = schema
        return self.openapi_schema


def _correct(operation: dict[str, Any]) -> None:
    """Say that a key may be left out (until one was made), and drop FastAPI's own 422."""
    if "security" in operation:
        operation["security"].insert(0, {})
    if "application/json" in operation["responses"].get("422", {}).get("content", {}):
        del operation["responses"]["422"]
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "query":
            _correct_query(parameter)
        else:
            parameter["example"] = _PATH_EXAMPLES[parameter["name"]]


def _correct_query(parameter: dict[str, Any]) -> None:
    """Drop `null`, which no address can hold, and say of JSON in a parameter what it may be."""
    schema = parameter["schema"]
    if "anyOf" in schema:
        [given] = [option for option in schema.pop("anyOf") if option != {"type": "null"}]
        schema = parameter["schema"] = given | schema
    if "contentMediaType" in schema:
        content = {"schema": schema["contentSchema"]}
        parameter["content"] = {schema["contentMediaType"]: content}
        del parameter["schema"]
