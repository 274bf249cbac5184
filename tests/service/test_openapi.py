"""The OpenAPI document against the running service: what it says is what is answered."""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from lamina_service.app import create_app
from lamina_service.errors import REQUEST_PROBLEMS
from lamina_service.settings import Settings

CHECKS = (
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
)


def _asked() -> list[Any]:
    """Each route with data that fits, and each that takes a body or a query with others."""
    document = create_app(Settings(data=Path())).openapi()
    operations = [
        found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()
    ]
    return [
        pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
        for operation in operations
        for mode in GenerationMode
        if mode.is_positive or operation.body or operation.query
    ]


@pytest.mark.parametrize(("operation", "mode"), _asked())
def test_every_reply_is_as_documented(
    changing_service: Any, operation: Any, mode: GenerationMode
) -> None:
    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),  # one query or one vector: much is filtered
    )
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        reads = case.method in ("GET", "POST")  # others make and delete collections
        if mode is GenerationMode.POSITIVE and reads and "collection" in case.path_parameters:
            case.path_parameters["collection"] = "small"
        case.call_and_validate(base_url=changing_service.url, checks=CHECKS)

    ask()


def test_every_route_under_v1_documents_its_problems_and_its_key(service: Any) -> None:
    document = service.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            problems = {
                status: reply
                for status, reply in operation["responses"].items()
                if not status.startswith("2")
            }
            if path.startswith("/v1"):
                assert {"401", "403", "500", "503"} <= problems.keys(), path
                assert operation["security"] == [{}, {"key": []}]
            for reply in problems.values():
                assert list(reply["content"]) == ["application/problem+json"]


def test_documented_problem_statuses_are_those_that_a_request_can_meet(service: Any) -> None:
    document = service.client.get("/openapi.json").json()
    documented = {
        status
        for operations in document["paths"].values()
        for operation in operations.values()
        for status in operation["responses"]
    }
    assert documented == {"200", "201"} | {str(found.status) for found in REQUEST_PROBLEMS.values()}
