"""The API's documentation in a real browser, and the calls that it prints."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect


@pytest.fixture
def app(start: Any, folder: Path) -> Any:
    """A service whose collections and archives may change."""
    return start(data=folder, snapshots=folder.parent / "archives")


def _operations(app: Any) -> Iterator[tuple[str, str, Any]]:
    for path, operations in app.client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def _printed(page: Page, app: Any) -> dict[str, list[str]]:
    """The calls that stand under each operation's heading."""
    page.goto(f"{app.url}/docs")
    expect(page.locator("article").last).to_be_visible()
    return {
        article.locator("h2").inner_text(): article.locator("pre").all_inner_texts()
        for article in page.locator("article").all()
    }


def _run(call: str) -> str:
    """Paste a call into a shell, and give the status of the reply."""
    script = call + " -sS -o /dev/null -w '%{http_code}'"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout


def _answered(app: Any) -> Counter[tuple[str, str, str]]:
    """How many requests each operation was sent, by status; the service's own count."""
    counted = re.findall(
        r'^lamina_requests_total\{method="(\w+)",route="(\S+)",status="(\d+)"\} (\S+)$',
        app.client.get("/metrics").text,
        re.MULTILINE,
    )
    return Counter(
        {
            (method, route.replace(":path}", "}"), status): int(float(count))
            for method, route, status, count in counted
        }
    )


def test_every_route_is_shown(page: Page, app: Any) -> None:
    routes = [f"{method} {path}" for method, path, _ in _operations(app)]
    assert list(_printed(page, app)) == routes


def test_every_printed_call_reaches_its_operation_and_is_taken(page: Page, app: Any) -> None:
    printed = _printed(page, app)
    make, store, lead = (
        printed[operation][0]
        for operation in (
            "PUT /v1/collections/{collection}",
            "POST /v1/collections/{collection}/documents",
            "PUT /v1/aliases/{alias}",
        )
    )
    assert app.client.put("/v1/collections/questions-2").status_code == 201
    for operation, calls in printed.items():
        method, path = operation.split()
        for call in calls:
            assert _run(make) in ("200", "201")  # what the call before may have deleted
            assert (_run(store), _run(lead)) == ("200", "200")
            before = _answered(app)
            status = _run(call)
            # the bundled encoder keeps no attention over layers
            taken = ("409",) if path == "/v1/layers" else ("200", "201")
            assert status in taken, call
            assert _answered(app)[method, path, status] > before[method, path, status], call


def test_an_operation_with_bodies_has_a_call_for_each(page: Page, app: Any) -> None:
    printed = _printed(page, app)
    for method, path, operation in _operations(app):
        calls = printed[f"{method} {path}"]
        content = operation.get("requestBody", {}).get("content", {})
        required = operation.get("requestBody", {}).get("required")
        assert len(calls) == max(1, len(content))
        for call, media_type in zip(calls, content, strict=False):
            assert f"Content-Type: {media_type}" in call or not required
    assert "?q=how%20do%20I" in printed["GET /v1/collections/{collection}/search"][0]


def test_a_reply_is_no_problem(page: Page, app: Any) -> None:
    _printed(page, app)
    made = page.locator("article").filter(has=page.get_by_text("PUT /v1/collections/{collection}"))
    assert made.locator("h3").all_inner_texts() == [
        "Parameters",
        "Body, may be left out",
        "Reply 200 or 201 Made",
        "Problems",
    ]
    for article in page.locator("article").all():
        *_, last = article.locator("h3").all_inner_texts()
        if last == "Problems":
            rows = article.locator("table").last.locator("tr").all_inner_texts()
            assert [row[0] for row in rows if row[0] not in "45"] == []


def _fields_shown(page: Page, schema: str) -> set[str]:
    cells = page.locator(f"#schema-{schema} td:first-child").all_inner_texts()
    return {name.removesuffix("?") for name in cells}


def test_every_field_of_every_object_is_shown(page: Page, app: Any) -> None:
    _printed(page, app)
    schemas = app.client.get("/openapi.json").json()["components"]["schemas"]
    targets = {str(link.get_attribute("href")) for link in page.locator("main a[href^='#']").all()}
    shown = {str(section.get_attribute("id")) for section in page.locator("section").all()}
    assert {target.removeprefix("#") for target in targets} == shown
    for section in shown:
        name = section.removeprefix("schema-")
        assert _fields_shown(page, name) == schemas[name]["properties"].keys()
    assert {f"schema-{name}" for name in ("Hit", "Took", "Scores", "NewDocument")} <= shown
    everything = page.locator("main").inner_text()
    for name, schema in schemas.items():  # others are the whole of a body or a reply
        for field in schema["properties"]:
            assert re.search(rf"^{re.escape(field)}\??\t", everything, re.MULTILINE), (name, field)


@pytest.mark.parametrize(
    ("operation", "title", "first"),
    [
        (
            "POST /v1/collections/{collection}/documents",
            "Body as application/json, either",
            "documents",
        ),
        ("POST /v1/collections/{collection}/search/batch", "Body", "searches"),
    ],
)
def test_bodies_are_drawn(page: Page, app: Any, operation: str, title: str, first: str) -> None:
    _printed(page, app)
    article = page.locator("article").filter(has=page.get_by_text(operation, exact=True))
    heading = article.get_by_role("heading", name=title, exact=True)
    expect(heading.locator("xpath=following-sibling::*[1]//td").first).to_have_text(first)


def test_a_link_leads_to_the_fields_of_an_object(page: Page, app: Any) -> None:
    _printed(page, app)
    page.get_by_role("link", name="Hit", exact=True).first.click()
    expect(page.locator("#schema-Hit h2")).to_be_in_viewport()
    page.goto(f"{app.url}/docs#schema-Took")
    page.reload()
    expect(page.locator("#schema-Took h2")).to_be_in_viewport()
