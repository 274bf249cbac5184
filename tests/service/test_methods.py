"""What every route owes to HTTP: HEAD beside GET, and Allow beside a refusal."""

import http.client
from typing import Any

import pytest

GETS = ("/", "/page/search.js", "/docs", "/openapi.json", "/livez", "/readyz", "/metrics", "/info")
COLLECTION = "/v1/collections/small"


@pytest.mark.parametrize(
    "path", [*GETS, COLLECTION, f"{COLLECTION}/documents/cats", "/nothing", "/v1/aliases/nothing"]
)
def test_head_is_answered_as_get_without_the_body(service: Any, path: str) -> None:
    get, head = service.client.get(path), service.client.head(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    told = ("content-type", "content-security-policy", "www-authenticate")
    assert [head.headers.get(name) for name in told] == [get.headers.get(name) for name in told]
    if path != "/metrics":  # they count these very requests
        assert head.headers["content-length"] == get.headers["content-length"]


def test_a_connection_lives_on_after_head(service: Any) -> None:
    connection = http.client.HTTPConnection(*service.address)
    for method in ("HEAD", "GET"):  # a body after HEAD would be read as the reply to GET
        connection.request(method, "/livez")
        reply = connection.getresponse()
        assert (reply.status, len(reply.read())) == (200, 0 if method == "HEAD" else 18)
    connection.close()


def test_head_is_counted_by_its_own_name(service: Any) -> None:
    service.client.head("/livez")
    assert 'method="HEAD",route="/livez",status="200"' in service.client.get("/metrics").text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", COLLECTION, "DELETE, GET, HEAD, PUT"),
        ("POST", f"{COLLECTION}/documents/cats", "DELETE, GET, HEAD"),
        ("PATCH", f"{COLLECTION}/documents/delete", "DELETE, GET, HEAD, POST"),
        ("PUT", f"{COLLECTION}/search", "GET, HEAD, POST"),
        ("HEAD", f"{COLLECTION}/compact", "POST"),
        ("PATCH", "/v1/aliases/live", "DELETE, GET, HEAD, PUT"),
        ("POST", "/", "GET, HEAD"),
    ],
)
def test_a_refused_method_is_told_all_that_the_path_takes(
    service: Any, method: str, path: str, allowed: str
) -> None:
    refused = service.client.request(method, path)
    assert refused.status_code == 405
    assert refused.headers["allow"] == allowed
