"""Storing, giving and deleting documents over HTTP: what is taken, refused and answered."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from lamina_index.encoder import Encoded, OnnxEncoder
from lamina_index.errors import EncoderOutputError
from lamina_service.document_stream import BLOCK_LINES
from lamina_service.keys import Scope, opened
from replies import problem, wait_for

DOCUMENTS = "/v1/collections/small/documents"
NDJSON = {"Content-Type": "application/x-ndjson"}
ODD_IDS = [
    "a/b",
    "a//b/",
    "/",
    " lead",
    "50%",
    "%2F",
    "a?b#c",
    "\\",
    "é😀",
    "...",
    "delete",
    "01",
    "1",
]


@pytest.fixture(scope="module")
def shared(running: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running(data=tmp_path_factory.mktemp("documents"), threads=2) as started:
        yield started


@pytest.fixture
def app(shared: Any, data: Path) -> Any:
    """The application that most tests share, with nothing but a fresh copy of `small`."""
    for alias in shared.client.get("/v1/aliases").json()["aliases"]:
        shared.client.delete(f"/v1/aliases/{alias['name']}")
    for found in shared.client.get("/v1/collections").json()["collections"]:
        assert shared.client.delete(f"/v1/collections/{found['name']}").status_code == 200
    shutil.copytree(data / "small", shared.service.settings.data / ".copy")
    (shared.service.settings.data / ".copy").rename(shared.service.settings.data / "small")
    return shared


def upsert(app: Any, *documents: Any, collection: str = "small") -> Any:
    reply = app.client.post(
        f"/v1/collections/{collection}/documents", json={"documents": documents}
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


def as_lines(*documents: Any) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def path_of(document_id: str) -> str:
    return f"{DOCUMENTS}/{quote(document_id, safe='')}"


def get(app: Any, document_id: str) -> httpx.Response:
    reply: httpx.Response = app.client.get(path_of(document_id))
    return reply


# Storing


def test_a_stored_document_is_found_given_and_replaced(app: Any) -> None:
    whales = {"id": "whales", "text": "Whales sing under water.", "metadata": {"legs": 0}}
    stored = upsert(app, whales, {"id": "cats", "text": "Cats purr."})
    assert (stored["collection"], stored["inserted"], stored["replaced"]) == ("small", 1, 1)
    assert (stored["error_count"], stored["errors"]) == (0, [])
    assert get(app, "whales").json() == whales
    assert app.search("whales under water", top_k=1).json()["hits"][0]["id"] == "whales"
    assert get(app, "cats").json() == {"id": "cats", "text": "Cats purr.", "metadata": {}}
    hits = app.search("Cats sleep for most of the day.", top_k=20).json()["hits"]
    assert [hit["text"] for hit in hits if hit["id"] == "cats"] == ["Cats purr."]
    again = upsert(app, whales)
    assert (again["inserted"], again["replaced"]) == (0, 1)
    assert again["generation"] > stored["generation"]
    assert app.client.get("/v1/collections/small").json()["generation"] == again["generation"]


def test_a_bare_list_and_lines_store_the_same_as_a_list_under_its_key(app: Any) -> None:
    document = {"id": "new", "text": "Whales sing.", "metadata": {"tags": ["sea"]}}
    vectors = []
    for body, headers in [
        (json.dumps({"documents": [document]}), {"Content-Type": "application/json"}),
        (json.dumps([document]), {"Content-Type": "application/json; charset=utf-8"}),
        (as_lines(document), NDJSON),
    ]:
        reply = app.client.post(DOCUMENTS, content=body, headers=headers)
        assert reply.status_code == 200
        found = app.client.get(f"{DOCUMENTS}/new?vector=true").json()
        vectors.append(found.pop("vector"))
        assert found == document
    assert vectors[0] == vectors[1] == vectors[2]
    assert np.linalg.norm(vectors[0]) == pytest.approx(1, abs=1e-5)
    embedded = app.client.post("/v1/embeddings", json={"input": "Whales sing."}).json()
    assert vectors[0] == pytest.approx(embedded["data"][0]["embedding"], abs=1e-6)


def test_a_bad_document_is_told_and_the_others_are_stored(app: Any) -> None:
    documents = [
        {"id": "first", "text": "first"},
        {"id": "", "text": "no id"},
        {"text": "no id"},
        {"id": "x" * 513, "text": "long id"},
        {"id": "blank", "text": " \n"},
        {"id": "no-text"},
        "no object",
        {"id": "typed", "text": "typed", "metadata": {"legs": "four"}},
        {"id": "last", "text": "last", "metadata": {"legs": 4}},
    ]
    stored = upsert(app, *documents)
    assert (stored["inserted"], stored["replaced"], stored["error_count"]) == (2, 0, 7)
    assert [error["position"] for error in stored["errors"]] == list(range(1, 8))
    told = {error["position"]: error for error in stored["errors"]}
    assert (told[4]["id"], told[7]["id"]) == ("blank", "typed")
    assert told[2]["id"] is None
    assert "blank" in told[4]["detail"]
    assert "legs" in told[7]["detail"]
    assert get(app, "first").status_code == get(app, "last").status_code == 200
    assert {get(app, name).status_code for name in ("blank", "no-text", "typed")} == {404}


@pytest.mark.parametrize(
    "bad",
    [
        {"id": "a", "text": "x", "metadata": {"year": "soon", "kind": {"deep": 1}}},
        {"id": "a", "text": "x", "metadata": {"year": "soon", "legs": "four"}},
        {"id": "a", "text": "\u200b", "metadata": {"year": "soon"}},
        {"id": " ", "text": "x", "metadata": {"year": "soon"}},
    ],
)
def test_a_refused_document_decides_no_type(app: Any, bad: dict[str, Any]) -> None:
    stored = upsert(app, bad, {"id": "b", "text": "y", "metadata": {"year": 3}})
    assert (stored["inserted"], [error["position"] for error in stored["errors"]]) == (1, [0])
    assert app.client.get("/v1/collections/small").json()["fields"]["year"] == "number"


def test_if_no_document_can_be_stored_the_request_is_refused(app: Any) -> None:
    bad = [{"id": "", "text": "x"}, {"id": "a"}]
    for body, headers in [
        (json.dumps(bad).encode(), {"Content-Type": "application/json"}),
        (as_lines(*bad), NDJSON),
    ]:
        reply = app.client.post(DOCUMENTS, content=body, headers=headers)
        assert problem(reply) == (422, "documents-refused")
        fields = [error["field"] for error in reply.json()["errors"]]
        assert fields == ["documents[0]", "documents[1]"]


@pytest.mark.parametrize("body", [b"[]", b'{"documents": []}'])
def test_no_documents_at_all_are_stored_without_complaint(app: Any, body: bytes) -> None:
    reply = app.client.post(DOCUMENTS, content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()["inserted"]) == (200, 0)
    reply = app.client.post(DOCUMENTS, content=b"\n \n", headers=NDJSON)
    assert (reply.status_code, reply.json()["inserted"]) == (200, 0)
    assert reply.json()["collection"] == "small"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}",
        b"7",
        b'{"documents": {}}',
        b'{"documents": [], "more": 1}',
        b'[{"id": "a", "text": "\xff"}]',
        b'[{"id": "a", "text": "b", "metadata": {"n": NaN}}]',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_list_of_documents_is_refused(app: Any, body: bytes) -> None:
    reply = app.client.post(DOCUMENTS, content=body, headers={"Content-Type": "application/json"})
    assert problem(reply) == (422, "invalid-request")


def test_a_body_of_another_kind_is_refused(app: Any) -> None:
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "text/csv"}):
        reply = app.client.post(DOCUMENTS, content=b"[]", headers=headers)
        assert problem(reply) == (415, "unsupported-media-type")
        assert "application/x-ndjson" in reply.json()["detail"]


def test_too_many_documents_or_bytes_are_refused_and_nothing_is_stored(
    start: Any, folder: Path
) -> None:
    app = start(data=folder, max_documents=2, max_body_bytes=4096)
    documents = [{"id": str(n), "text": "text"} for n in range(3)]
    reply = app.client.post(DOCUMENTS, json=documents)
    assert problem(reply) == (422, "invalid-request")
    assert "at most 2" in reply.json()["detail"]
    long = {"id": "long", "text": "x" * 4096}
    assert problem(app.client.post(DOCUMENTS, json=[long])) == (413, "body-too-large")
    assert {get(app, name).status_code for name in ("0", "1", "2", "long")} == {404}
    lines = as_lines(*documents, long)  # neither limit is one of lines
    stored = app.client.post(DOCUMENTS, content=lines, headers=NDJSON).json()
    assert (stored["inserted"], stored["error_count"]) == (4, 0)


def test_of_an_id_that_stands_twice_the_last_one_counts(app: Any) -> None:
    stored = upsert(app, {"id": "twice", "text": "first"}, {"id": "twice", "text": "second"})
    assert stored["inserted"] == 1
    assert get(app, "twice").json()["text"] == "second"


def test_ids_are_kept_apart_and_found_by_their_address(app: Any) -> None:
    upsert(app, *({"id": name, "text": f"document {name}"} for name in ODD_IDS))
    for name in ODD_IDS:
        assert get(app, name).json()["text"] == f"document {name}".strip()
    for name in ODD_IDS:
        assert app.client.delete(path_of(name)).json() == {"collection": "small", "deleted": 1}
        assert problem(get(app, name)) == (404, "document-not-found")
        assert problem(app.client.delete(path_of(name))) == (404, "document-not-found")
    assert app.client.get("/v1/collections/small").json()["count"] == 14


def test_numbers_beyond_53_bits_are_not_rounded(app: Any) -> None:
    exact = 2**53 + 1
    body = b'[{"id": "%d", "text": "n", "metadata": {"big": %d}}]' % (exact, exact)
    headers = {"Content-Type": "application/json"}
    assert app.client.post(DOCUMENTS, content=body, headers=headers).status_code == 200
    assert get(app, str(exact)).json()["metadata"] == {"big": exact}
    body = b'[{"id": "b", "text": "n", "metadata": {"big": %d}}]' % 2**64
    reply = app.client.post(DOCUMENTS, content=body, headers=headers)
    assert problem(reply) == (422, "documents-refused")


def test_lone_surrogates_and_nul_in_a_text_are_replaced_and_in_an_id_refused(app: Any) -> None:
    body = (
        b'[{"id": "s", "text": "emoji \\ud83d, \\u0000, \\ud83d\\ude00"},'
        b'{"id": "\\ud83d", "text": "t"}, {"id": "\\u0000", "text": "t"}]'
    )
    for content, headers in [
        (body, {"Content-Type": "application/json"}),
        (body[1:-1].replace(b"},", b"}\n"), NDJSON),
    ]:
        stored = app.client.post(DOCUMENTS, content=content, headers=headers).json()
        assert stored["error_count"] == 2
        assert get(app, "s").json()["text"] == "emoji \ufffd, \ufffd, 😀"


def test_metadata_found_by_a_write_can_be_filtered_by_at_once(app: Any) -> None:
    upsert(app, {"id": "new", "text": "Whales.", "metadata": {"ocean": "north", "born": 1999}})
    hits = app.search("cats", filter={"ocean": "north", "born": {"$gte": 1999}}).json()["hits"]
    assert [hit["id"] for hit in hits] == ["new"]


def test_texts_longer_than_the_encoder_reads_are_named(app: Any) -> None:
    stored = upsert(
        app, {"id": "short", "text": "short"}, {"id": "long", "text": "many words " * 500}
    )
    assert stored["truncated_count"] == 1
    (cut,) = stored["truncated"]
    assert (cut["id"], cut["token_count"]) == ("long", app.service.encoder.max_tokens)
    assert cut["full_token_count"] > 1000
    assert len(get(app, "long").json()["text"]) > 5000


def test_no_more_than_a_hundred_bad_documents_are_named_and_all_are_counted(app: Any) -> None:
    stored = upsert(app, {"id": "good", "text": "good"}, *[{"id": "bad"}] * 300)
    assert (stored["error_count"], len(stored["errors"])) == (300, 100)


class _Broken:
    """The bundled encoder, which gives no vector for a text that says so."""

    def __init__(self, encoder: OnnxEncoder) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, texts: list[str], *, role: Any) -> Encoded:
        if broken := tuple(place for place, text in enumerate(texts) if "NaN" in text):
            raise EncoderOutputError("the graph returned NaN", broken)
        return self._encoder.encode(texts, role=role)

    def close(self) -> None:
        """The session's encoder stays open."""


def test_a_document_without_a_usable_vector_does_not_fail_the_others(
    start: Any, folder: Path, default_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnnxEncoder, "load", lambda *_, **__: _Broken(default_encoder))
    app = start(data=folder)
    documents = [{"id": f"n{n}", "text": f"number {n}"} for n in range(128)]
    documents[77]["text"] = "NaN"
    stored = upsert(app, *documents)
    assert (stored["inserted"], stored["error_count"]) == (127, 1)
    assert (stored["errors"][0]["position"], stored["errors"][0]["id"]) == (77, "n77")
    metrics = app.client.get("/metrics").text
    assert 'lamina_documents_written_total{outcome="refused"} 1.0' in metrics
    assert 'lamina_documents_written_total{outcome="inserted"} 127.0' in metrics
    assert app.search("number 76", top_k=1).json()["hits"][0]["id"] == "n76"


# Where to


def test_writing_to_what_is_not_there_makes_nothing(app: Any) -> None:
    for headers in ({"Content-Type": "application/json"}, NDJSON):
        reply = app.client.post("/v1/collections/none/documents", content=b"[]", headers=headers)
        assert problem(reply) == (404, "collection-not-found")
    assert problem(app.client.delete("/v1/collections/none/documents/a")) == (
        404,
        "collection-not-found",
    )
    body = {"ids": ["a"]}
    reply = app.client.post("/v1/collections/none/documents/delete", json=body)
    assert problem(reply) == (404, "collection-not-found")
    assert not (app.service.settings.data / "none").exists()


def test_a_new_collection_can_be_written_to(app: Any) -> None:
    app.client.put("/v1/collections/new", json={"fields": {"year": "number"}})
    stored = upsert(app, {"id": "a", "text": "A text.", "metadata": {"year": 1}}, collection="new")
    assert (stored["collection"], stored["inserted"]) == ("new", 1)
    found = app.client.get("/v1/collections/new/search?q=text").json()
    assert [hit["id"] for hit in found["hits"]] == ["a"]


def test_a_write_to_an_alias_goes_where_it_leads(app: Any) -> None:
    app.client.put("/v1/collections/new")
    for goal in ("small", "new"):
        app.client.put("/v1/aliases/live", json={"collection": goal})
        stored = upsert(app, {"id": f"to-{goal}", "text": "text"}, collection="live")
        assert stored["collection"] == goal
        assert app.client.get(f"/v1/collections/{goal}/documents/to-{goal}").status_code == 200
    reply = app.client.delete("/v1/collections/live/documents/to-new")
    assert reply.json() == {"collection": "new", "deleted": 1}
    assert get(app, "to-small").status_code == 200


def test_a_collection_of_another_encoder_is_not_written_to(app: Any) -> None:
    manifest = app.service.settings.data / "small" / "collection.json"
    described = json.loads(manifest.read_text())
    described["encoder"]["fingerprint"] = "0" * 64
    manifest.write_text(json.dumps(described))
    reply = app.client.post(DOCUMENTS, json=[{"id": "a", "text": "b"}])
    assert problem(reply) == (409, "encoder-mismatch")


def test_a_collection_that_takes_anothers_place_gets_what_is_written_then(app: Any) -> None:
    upsert(app, {"id": "before", "text": "text"})
    assert app.client.delete("/v1/collections/small").status_code == 200
    assert problem(app.client.post(DOCUMENTS, json=[])) == (404, "collection-not-found")
    assert app.client.put("/v1/collections/small").status_code == 201
    stored = upsert(app, {"id": "after", "text": "text"})
    assert stored["inserted"] == 1
    assert get(app, "before").status_code == 404
    assert app.client.get("/v1/collections/small").json()["count"] == 1


def test_the_key_must_allow_it(start: Any, folder: Path) -> None:
    scopes: tuple[Scope, ...] = ("read", "write")
    with opened(folder) as keys:
        tokens = {scope: keys.create(scope)[1] for scope in scopes}
    app = start(data=folder)
    for scope in scopes:
        headers = {"Authorization": f"Bearer {tokens[scope]}"}
        for reply in (
            app.client.post(DOCUMENTS, json=[{"id": "a", "text": "b"}], headers=headers),
            app.client.delete(f"{DOCUMENTS}/a", headers=headers),
            app.client.post(f"{DOCUMENTS}/delete", json={"ids": ["a"]}, headers=headers),
        ):
            assert reply.status_code == (200 if scope == "write" else 403), reply.text
        reply = app.client.get(f"{DOCUMENTS}/cats", headers=headers)
        assert reply.status_code == 200


# Deleting


def deleted_so_far(app: Any) -> float:
    counted = 'lamina_documents_written_total{outcome="deleted"} '
    line = next(
        line for line in app.client.get("/metrics").text.splitlines() if line.startswith(counted)
    )
    return float(line.removeprefix(counted))


def test_documents_are_deleted_by_id_or_by_filter(app: Any) -> None:
    before = deleted_so_far(app)
    deleted = app.client.post(f"{DOCUMENTS}/delete", json={"ids": ["cats", "none", "cats", "sql"]})
    assert deleted.json() == {"collection": "small", "deleted": 2}
    body = {"filter": {"kind": "animal"}}
    assert app.client.post(f"{DOCUMENTS}/delete", json=body).json()["deleted"] == 2
    assert app.client.post(f"{DOCUMENTS}/delete", json=body).json()["deleted"] == 0
    assert deleted_so_far(app) == before + 4
    found = app.search("animals", top_k=20).json()
    assert found["total"] == len(found["hits"]) == 10
    assert not {"cats", "dogs", "birds", "sql"} & {hit["id"] for hit in found["hits"]}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, "invalid-request"),
        ({"ids": []}, "invalid-request"),
        ({"ids": None}, "invalid-request"),
        ({"ids": [1]}, "invalid-request"),
        ({"ids": "cats"}, "invalid-request"),
        ({"ids": ["a"], "filter": {"kind": "odd"}}, "invalid-request"),
        ({"ids": ["a"], "filter": None}, "invalid-request"),
        ({"filter": {}}, "invalid-filter"),
        ({"filter": {"$and": []}}, "invalid-filter"),
        ({"filter": {"$and": [{}]}}, "invalid-filter"),
        ({"filter": {"$or": [{}, {"kind": "odd"}]}}, "invalid-filter"),
        ({"filter": {"$not": {"$not": {}}}}, "invalid-filter"),
        ({"filter": {"colour": "red"}}, "invalid-filter"),
        ({"ids": ["a"] * 10_001}, "invalid-request"),
    ],
)
def test_a_deletion_that_does_not_say_what_deletes_nothing(app: Any, body: Any, kind: str) -> None:
    reply = app.client.post(f"{DOCUMENTS}/delete", json=body)
    assert problem(reply) == (422, kind)
    assert app.client.get("/v1/collections/small").json()["count"] == 14


@pytest.mark.parametrize("filter", [{}, {"$and": [{}]}, {"$not": {"$not": {}}}])
def test_a_deletion_without_a_condition_is_told_what_to_do(app: Any, filter: Any) -> None:
    reply = app.client.post(f"{DOCUMENTS}/delete", json={"filter": filter})
    [error] = reply.json()["errors"]
    assert error["field"] == "filter"
    assert error["message"].startswith("passes every document, so all would be deleted; expected")
    assert error["message"].endswith("to empty a collection, delete it and make it anew")


# Streams


def lines(count: int, first: int = 0) -> Iterator[bytes]:
    for number in range(first, first + count):
        yield as_lines({"id": f"n{number}", "text": f"number {number}"})


def test_a_stream_is_stored_in_blocks_and_answered_at_its_end(app: Any) -> None:
    count = 3 * BLOCK_LINES + 5
    before = app.client.get("/v1/collections/small").json()["generation"]
    stored = app.client.post(DOCUMENTS, content=lines(count), headers=NDJSON).json()
    assert (stored["inserted"], stored["error_count"]) == (count, 0)
    assert stored["generation"] == before + 4
    assert app.client.get("/v1/collections/small").json()["count"] == 14 + count


def test_a_byte_order_mark_before_a_list_is_passed_over(app: Any) -> None:
    content = b'\xef\xbb\xbf[{"id": "bom", "text": "after a byte order mark"}]'
    stored = app.client.post(
        DOCUMENTS, content=content, headers={"Content-Type": "application/json"}
    ).json()
    assert (stored["inserted"], stored["error_count"]) == (1, 0)
    assert get(app, "bom").json()["text"] == "after a byte order mark"


def test_bad_lines_of_a_stream_are_told_by_their_number(start: Any, folder: Path) -> None:
    app = start(data=folder, max_line_bytes=1024)
    content = (
        b'\xef\xbb\xbf{"id": "bom", "text": "after a byte order mark"}\r\n'
        b"\n"
        b"not json\n"
        b'{"id": "bad", "text": "\xff"}\n'
        b'{"id": "twice", "id": "twice", "text": "t"}\n'
        b'{"id": "long", "text": "' + b"x" * 5000 + b'"}\n'
        b"[]\n"
        b'{"id": "no-text"}\n'
        b'{"id": "last", "text": "without a line end"}'
    )
    stored = app.client.post(DOCUMENTS, content=content, headers=NDJSON).json()
    assert stored["inserted"] == 2
    told = {error["position"]: error["detail"] for error in stored["errors"]}
    assert sorted(told) == [2, 3, 4, 5, 6, 7]
    assert "not JSON" in told[2]
    assert "UTF-8" in told[3]
    assert "longer than 1024" in told[5]
    assert "text is missing" in told[7]
    assert get(app, "bom").status_code == get(app, "last").status_code == 200


def send_part(address: tuple[str, int], content: bytes) -> socket.socket:
    """Send the beginning of a stream and leave it open."""
    connection = socket.create_connection(address)
    head = f"POST {DOCUMENTS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    connection.sendall(f"{head}Content-Type: application/x-ndjson\r\n\r\n".encode())
    if content:  # an empty chunk would end it
        connection.sendall(b"%x\r\n%s\r\n" % (len(content), content))
    return connection


def test_a_stream_to_nowhere_is_refused_before_it_is_sent(app: Any) -> None:
    assert app.client.delete("/v1/collections/small").status_code == 200
    with send_part(app.address, b"") as connection:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 404 ")


def test_a_stream_that_breaks_off_leaves_whole_blocks(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def count() -> int:
        described = app.client.get("/v1/collections/small").json()
        return int(described["count"])

    with send_part(app.address, b"".join(lines(2 * BLOCK_LINES + 50))):
        wait_for(lambda: count() == 14 + 2 * BLOCK_LINES)
    wait_for(lambda: app.service.writes.depth == 0)
    stored = upsert(app, {"id": "after", "text": "text"})
    assert stored["inserted"] == 1
    assert count() == 14 + 2 * BLOCK_LINES + 1
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_stream_that_a_problem_ends_tells_what_was_stored(app: Any) -> None:
    with send_part(app.address, b"".join(lines(BLOCK_LINES))) as connection:
        wait_for(lambda: get(app, "n0").status_code == 200)
        assert app.client.delete("/v1/collections/small").status_code == 200
        more = b"".join(lines(BLOCK_LINES, first=1000))
        connection.sendall(b"%x\r\n%s\r\n" % (len(more), more))
        reply = b""
        while part := connection.recv(65_536):
            reply += part
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close" in head.lower()
    told = json.loads(body)
    assert told["type"] == "urn:lamina:problem:collection-not-found"
    assert told["stored"] == {"inserted": BLOCK_LINES, "replaced": 0, "lines": BLOCK_LINES}


def test_the_calls_that_the_guide_shows_work(app: Any, repository: Path, tmp_path: Path) -> None:
    guide = (repository / "docs/api.md").read_text()
    section = guide.partition("\n## Documents\n")[2].partition("\n## ")[0]
    calls = [block[1:] for block in section.split("```")[1::2] if block.startswith("\n")]
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(lines(300)))
    script = "".join(calls).replace("localhost:7650", app.url).replace("curl -s", "curl -sSf")
    done = subprocess.run(
        ["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    replies = [json.loads(reply) for reply in done.stdout.replace("}{", "}\n{").splitlines()]
    _, stored, streamed, given, *deleted, listed = replies
    assert (stored["inserted"], streamed["inserted"]) == (2, 300)
    assert len(given["vector"]) == 384
    assert [reply["deleted"] for reply in deleted] == [1, 0]
    assert len(listed["documents"]) == stored["inserted"] + streamed["inserted"] - 1
