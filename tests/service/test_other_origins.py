"""Pages of other origins ask only where the operator names them; requests are logged if asked."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina_service.app import create_app
from lamina_service.errors import SettingsError
from lamina_service.keys import opened
from lamina_service.settings import Settings
from replies import wait_for

OURS = "https://search.example.org"
SEARCH = "/v1/collections/small/search"
PREFLIGHT = {
    "Origin": OURS,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def _asked_from(app: Any, origin: str) -> Any:
    return app.client.post(SEARCH, json={"query": "cats"}, headers={"Origin": origin})


Guarded = Callable[[str], Any]


@pytest.fixture
def guarded(folder: Path, start: Any) -> Guarded:
    """Start a service with a key, which its client sends, for pages of some origins."""
    with opened(folder) as keys:
        _, token = keys.create("read")

    def start_for(origins: str) -> Any:
        app = start(data=folder, cors_origins=origins)
        app.client.headers["Authorization"] = f"Bearer {token}"
        return app

    return start_for


def test_a_named_origin_may_ask_and_read_the_reply(guarded: Guarded) -> None:
    app = guarded(f"{OURS} http://localhost:3000")
    allowed = app.client.options(SEARCH, headers=PREFLIGHT)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == OURS
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert "Authorization" in allowed.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in allowed.headers
    found = _asked_from(app, "http://localhost:3000")
    assert found.json()["hits"][0]["id"] == "cats"
    assert found.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "X-Request-ID" in found.headers["access-control-expose-headers"]
    refused = app.client.post(SEARCH, json={"query": ""}, headers={"Origin": OURS})
    assert refused.status_code == 422
    assert refused.headers["access-control-allow-origin"] == OURS  # so that the page can tell why


def test_another_origin_may_not(guarded: Guarded) -> None:
    app = guarded(OURS)
    for origin in ("https://evil.example", OURS + ".evil.example", "null"):
        asked = app.client.options(SEARCH, headers=PREFLIGHT | {"Origin": origin})
        assert asked.status_code == 400
        assert "access-control-allow-origin" not in asked.headers
        assert "access-control-allow-origin" not in _asked_from(app, origin).headers


def test_without_a_key_the_application_does_not_start_for_other_origins(folder: Path) -> None:
    app = create_app(Settings(data=folder, cors_origins=OURS))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(SettingsError, match="LAMINA_CORS_ORIGINS"):
        asyncio.run(start())


def test_by_default_no_origin_may(service: Any) -> None:
    assert service.client.options(SEARCH, headers=PREFLIGHT).status_code == 405
    assert "access-control-allow-origin" not in _asked_from(service, OURS).headers


def test_requests_are_logged_without_what_was_searched_for(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lamina_service")
    app = start(access_log=True)
    app.client.get(f"{SEARCH}?q=secret", headers={"X-Request-ID": "r-1"})
    app.client.get("/v1/collections/small/documents/a%0Ab", headers={"X-Request-ID": "r-2"})

    def logged() -> list[str]:
        return [line for line in caplog.messages if "request r-" in line]

    wait_for(lambda: len(logged()) == 2)  # the last reply is there before its line
    lines = logged()
    assert [line.split(" ms")[0].rpartition(" ")[0] for line in lines] == [
        f"127.0.0.1 GET {SEARCH} 200",
        "127.0.0.1 GET /v1/collections/small/documents/a%0Ab 404",
    ]
    assert lines[0].endswith(" ms, request r-1")
    assert "secret" not in caplog.text


def test_by_default_requests_are_not_logged(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="lamina_service")
    start().client.get("/livez", headers={"X-Request-ID": "r-1"})
    assert "r-1" not in caplog.text
