"""Writing while others search, over several workers, through kills, and where there is no room."""

import itertools
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from lamina_index.cli import main
from lamina_index.collection import verify_collection
from lamina_service.document_stream import BLOCK_LINES
from replies import problem, wait_for

SMALL = "/v1/collections/small"
DOCUMENTS = f"{SMALL}/documents"


def connect(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=60, trust_env=False)


# Several workers


def check_own_writes(clients: list[httpx.Client], name: str, rounds: int) -> list[str]:
    """Write, read, search and delete through connections taken at random; what was stale."""
    chance = random.Random(name)
    stale = []

    def client() -> httpx.Client:
        return chance.choice(clients)

    def ids_found(text: str) -> dict[str, str]:
        body = {"query": text, "top_k": 3, "mode": "dense"}
        reply = client().post(f"{SMALL}/search", json=body)
        assert reply.status_code == 200, reply.text
        return {hit["id"]: hit["text"] for hit in reply.json()["hits"]}

    for number in range(rounds):
        text = f"{name} writes round {number} about {chance.random()}"
        reply = client().post(DOCUMENTS, json=[{"id": name, "text": text}])
        assert reply.status_code == 200, reply.text
        found = client().get(f"{DOCUMENTS}/{name}")
        if found.status_code != 200 or found.json()["text"] != text:
            stale.append(f"round {number}: read {found.text}")
        if ids_found(text).get(name) != text:
            stale.append(f"round {number}: not found by a search")
        if number % 3 == 0:
            assert client().delete(f"{DOCUMENTS}/{name}").status_code == 200
            if client().get(f"{DOCUMENTS}/{name}").status_code != 404:
                stale.append(f"round {number}: still there")
            if name in ids_found(text):
                stale.append(f"round {number}: still found")
    return stale


@pytest.mark.parametrize(
    "rounds", [pytest.param(25, id="25"), pytest.param(800, id="800", marks=pytest.mark.slow)]
)
def test_what_one_worker_has_acknowledged_every_worker_shows(
    rounds: int, serving: Any, folder: Path
) -> None:
    with serving(folder, "--workers", "2") as url, ExitStack() as stack:
        clients = [  # a connection each, which the kernel spreads over the workers
            [stack.enter_context(connect(url)) for _ in range(6)] for _ in range(4)
        ]
        with ThreadPoolExecutor(4) as pool:
            checks = [
                pool.submit(check_own_writes, own, f"client-{number}", rounds)
                for number, own in enumerate(clients)
            ]
            assert [check.result() for check in checks] == [[], [], [], []]
    assert verify_collection(folder / "small") == []


GROUP = 20


def write_rounds(client: httpx.Client, acknowledged: list[int], over: threading.Event) -> None:
    """Replace a group of documents again and again, all at once; sometimes take it away."""
    for number in itertools.count(1):
        if over.is_set():
            return
        documents = [
            {"id": f"g{n}", "text": f"group member {n}", "metadata": {"round": number}}
            for n in range(GROUP)
        ]
        reply = client.post(DOCUMENTS, json=documents)
        assert reply.status_code == 200, reply.text
        acknowledged.append(number)
        if number % 5 == 0:
            body = {"filter": {"round": {"$lte": number}}}
            reply = client.post(f"{DOCUMENTS}/delete", json=body)
            assert (reply.status_code, reply.json()["deleted"]) == (200, GROUP)


def search_rounds(client: httpx.Client, acknowledged: list[int], over: threading.Event) -> int:
    """Search the group; each reply must show one committed state, and none that is over."""
    body = {
        "query": "group member",
        "top_k": 2 * GROUP,
        "filter": {"round": {"$exists": True}},
        "facets": ["round"],
    }
    count = 0
    while not over.is_set():
        known = acknowledged[-1]
        reply = client.post(f"{SMALL}/search", json=body)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        rounds = [hit["metadata"]["round"] for hit in found["hits"]]
        assert found["total"] == len(rounds) in (0, GROUP)
        assert len(set(rounds)) <= 1
        assert all(number >= known for number in rounds)
        counted = [(value["value"], value["count"]) for value in found["facets"]["round"]["values"]]
        assert counted == [(number, GROUP) for number in sorted(set(rounds))]
        count += 1
    return count


def search_while_writing(urls: list[str], seconds: float) -> None:
    over = threading.Event()
    acknowledged: list[int] = []
    with ExitStack() as stack, ThreadPoolExecutor(5) as pool:
        stack.callback(over.set)
        clients = [
            stack.enter_context(connect(url)) for url in itertools.islice(itertools.cycle(urls), 5)
        ]
        writing = pool.submit(write_rounds, clients[0], acknowledged, over)
        wait_for(lambda: bool(acknowledged) or writing.done())
        searching = [pool.submit(search_rounds, own, acknowledged, over) for own in clients[1:]]
        time.sleep(seconds)
        over.set()
        writing.result()
        assert all(done.result() > 3 for done in searching)
        assert len(acknowledged) > 3


@pytest.mark.parametrize(
    "seconds", [pytest.param(4, id="4s"), pytest.param(30, id="30s", marks=pytest.mark.slow)]
)
def test_each_reply_under_writes_shows_one_committed_state(
    seconds: float, start: Any, folder: Path
) -> None:
    first, second = start(data=folder), start(data=folder)
    search_while_writing([first.url, second.url], seconds)


# Kills


class Acknowledged:
    """What was answered to one client: text by id, and what may or may not have been done."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.doubtful: set[str] = set()
        self.count = 0

    def write(self, url: str, name: str, over: threading.Event) -> None:
        chance = random.Random(name)
        for number in itertools.count():
            if over.is_set():
                return
            ids = [f"{name}-{chance.randrange(200)}" for _ in range(chance.choice([1, 3, 20]))]
            text = f"{name} {number}"
            with suppress(httpx.HTTPError), connect(url) as client:
                self.doubtful |= set(ids)
                if number % 4 == 3:
                    reply = client.post(f"{DOCUMENTS}/delete", json={"ids": ids})
                elif number % 4 == 2:
                    lines = "".join(f'{{"id": "{one}", "text": "{text}"}}\n' for one in ids)
                    headers = {"Content-Type": "application/x-ndjson"}
                    reply = client.post(DOCUMENTS, content=lines, headers=headers)
                else:
                    reply = client.post(DOCUMENTS, json=[{"id": one, "text": text} for one in ids])
                assert reply.status_code == 200, reply.text
                self.doubtful -= set(ids)
                self.count += 1
                for document_id in ids:
                    self.stored.pop(document_id, None)
                    if number % 4 != 3:
                        self.stored[document_id] = text
                self.deleted = (self.deleted | set(ids)) - self.stored.keys()

    def missing(self, client: httpx.Client) -> list[str]:
        """What is not as it was acknowledged."""
        wrong = []
        for document_id in (self.stored.keys() | self.deleted) - self.doubtful:
            reply = client.get(f"{DOCUMENTS}/{document_id}")
            found = reply.json().get("text") if reply.status_code == 200 else None
            if found != self.stored.get(document_id):
                wrong.append(f"{document_id}: {found}")
        return wrong


@contextmanager
def writing(url: str, clients: list[Acknowledged]) -> Iterator[list[Future[None]]]:
    over = threading.Event()
    with ThreadPoolExecutor(len(clients)) as pool:
        try:
            yield [
                pool.submit(client.write, url, f"c{number}", over)
                for number, client in enumerate(clients)
            ]
        finally:
            over.set()


def write_some(clients: list[Acknowledged], tasks: list[Future[None]]) -> None:
    """Wait until each client has had some more answers."""
    wanted = [client.count + 8 for client in clients]

    def enough() -> bool:
        if any(task.done() for task in tasks):
            return True  # one has failed, which its result tells
        return all(client.count >= count for client, count in zip(clients, wanted, strict=True))

    wait_for(enough)


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, id="1"), pytest.param(20, id="20", marks=pytest.mark.slow)]
)
def test_every_acknowledged_write_is_there_after_a_kill(
    rounds: int, serving: Any, folder: Path
) -> None:
    chance = random.Random(rounds)
    clients = [Acknowledged() for _ in range(3)]
    for _ in range(rounds):
        with serving(folder, "--workers", "2") as url:
            with connect(url) as client:
                wait_for(lambda url=url: _answers(url))
                assert [wrong for known in clients for wrong in known.missing(client)] == []
            with writing(url, clients) as tasks:
                write_some(clients, tasks)
                os.kill(chance.choice(url.workers()), signal.SIGKILL)
                write_some(clients, tasks)
                time.sleep(chance.uniform(0, 0.1))
                url.kill()
            for task in tasks:
                task.result()
    assert verify_collection(folder / "small") == []
    assert all(known.stored and known.deleted for known in clients)
    with serving(folder) as url, connect(url) as client:
        assert [wrong for known in clients for wrong in known.missing(client)] == []


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/readyz", timeout=60, trust_env=False).status_code == 200
    return False


# No room


def test_a_full_queue_of_writes_answers_429_and_searches_go_on(
    start: Any, folder: Path, held_encoder: Any
) -> None:
    app = start(data=folder, write_queue_size=2)
    document = {"id": "a", "text": "text"}
    with ThreadPoolExecutor(2) as pool:
        admitted = [pool.submit(app.client.post, DOCUMENTS, json=[document]) for _ in range(2)]
        wait_for(lambda: app.service.writes.depth == 2)
        refused = app.client.post(DOCUMENTS, json=[document])
        assert problem(refused) == (429, "queue-full")
        assert int(refused.headers["retry-after"]) >= 1
        vector = [1.0] + [0.0] * 383  # needs no encoder, which is held
        reply = app.client.post(f"{SMALL}/search", json={"vector": vector})
        assert reply.status_code == 200
        assert "lamina_write_queue_depth 2.0" in app.client.get("/metrics").text
        held_encoder.gate.set()
        assert {done.result().status_code for done in admitted} == {200}
    assert app.client.post(DOCUMENTS, json=[document]).status_code == 200
    assert app.service.writes.depth == 0


def test_a_stream_waits_for_room_once_it_has_begun(
    start: Any, folder: Path, held_encoder: Any
) -> None:
    app = start(data=folder, write_queue_size=1)
    held_encoder.gate.set()

    def lines() -> Iterator[bytes]:
        for number in range(2 * BLOCK_LINES):
            if number == BLOCK_LINES + 1:
                wait_for(lambda: app.client.get(f"{DOCUMENTS}/n0").status_code == 200)
                held_encoder.gate.clear()
                busy.append(
                    pool.submit(app.client.post, DOCUMENTS, json=[{"id": "a", "text": "text"}])
                )
                wait_for(lambda: app.service.writes.depth == 1)
            yield b'{"id": "n%d", "text": "text"}\n' % number

    busy: list[Future[httpx.Response]] = []
    headers = {"Content-Type": "application/x-ndjson"}
    with ThreadPoolExecutor(2) as pool, connect(app.url) as client:
        stream = pool.submit(client.post, DOCUMENTS, content=lines(), headers=headers)
        wait_for(lambda: bool(busy))
        time.sleep(0.3)  # the stream's second block meets a full queue meanwhile
        assert not stream.done()
        held_encoder.gate.set()
        assert busy[0].result().status_code == 200
        assert stream.result().json()["inserted"] == 2 * BLOCK_LINES


def test_clients_that_go_away_leave_nothing_half_done(
    start: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = start(data=folder)
    chance = random.Random(3)
    body = b"".join(b'{"id": "n%d", "text": "text %d"}\n' % (n, n) for n in range(BLOCK_LINES + 9))
    for kind, content in [
        (b"application/x-ndjson", body),
        (b"application/json", b'[{"id": "j", "text": "t"}]'),
    ]:
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n" % (
            DOCUMENTS.encode(),
            kind,
        )
        request = head + b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
        for _ in range(50):
            with socket.create_connection(app.address) as connection:
                connection.sendall(request[: chance.randrange(1, len(request) + 1)])
    wait_for(lambda: app.service.writes.depth == 0)
    count = app.client.get(SMALL).json()["count"] - 14
    found = app.client.get(f"{DOCUMENTS}/n{BLOCK_LINES}").status_code == 200
    assert count - (9 if found else 0) in (BLOCK_LINES, BLOCK_LINES + 1)
    assert app.client.post(DOCUMENTS, json=[{"id": "a", "text": "b"}]).status_code == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_database_that_another_program_keeps_locked_is_a_problem_and_no_crash(
    start: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.store_file._BUSY_TIMEOUT_SECONDS", 0.05)
    app = start(data=folder)
    other = sqlite3.connect(folder / "small" / "documents.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    refused = [
        app.client.post(DOCUMENTS, json=[{"id": "a", "text": "b"}]),
        app.client.delete(f"{DOCUMENTS}/cats"),
        app.client.post(f"{DOCUMENTS}/delete", json={"ids": ["cats"]}),
    ]
    assert [problem(reply) for reply in refused] == [(409, "collection-busy")] * 3
    assert app.client.get(f"{DOCUMENTS}/cats").status_code == 200
    other.execute("ROLLBACK")
    other.close()
    assert app.client.delete(f"{DOCUMENTS}/cats").status_code == 200


def test_a_full_disk_is_told_and_what_was_stored_stays(
    start: Any, folder: Path, small_disk: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    shutil.copytree(folder / "small", small_disk / "small")
    app = start(data=small_disk)
    stored, reply = 0, None
    for number in range(40):
        documents = [
            {"id": f"n{number}-{n}", "text": f"{number} {n} " + "x" * 8000} for n in range(20)
        ]
        reply = app.client.post(DOCUMENTS, json=documents)
        if reply.status_code != 200:
            break
        stored += 20
    assert reply is not None
    assert problem(reply) == (507, "storage-full")
    assert stored > 0
    assert app.client.get(SMALL).json()["count"] == 14 + stored
    assert app.client.get(f"{SMALL}/search?q=cats&top_k=1").json()["hits"][0]["id"] == "cats"
    lines = b"".join(b'{"id": "l%d", "text": "%s"}\n' % (n, b"y" * 8000) for n in range(200))
    headers = {"Content-Type": "application/x-ndjson"}
    assert problem(app.client.post(DOCUMENTS, content=lines, headers=headers)) == (
        507,
        "storage-full",
    )
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    assert app.client.post(DOCUMENTS, json=documents).json()["inserted"] == 20
    assert app.client.get(SMALL).json()["count"] == 14 + stored + 20


def test_a_folder_that_cannot_be_written_to_is_searched_and_refuses_writes(
    start: Any, folder: Path, read_only: Callable[[Path], Path]
) -> None:
    app = start(data=folder)
    moved = folder / "elsewhere"
    (folder / "small").rename(moved)
    (folder / "small").symlink_to(read_only(moved))
    refused = [
        app.client.post(DOCUMENTS, json=[{"id": "a", "text": "b"}]),
        app.client.delete(f"{DOCUMENTS}/cats"),
        app.client.post(f"{DOCUMENTS}/delete", json={"filter": {"kind": "animal"}}),
    ]
    assert [problem(reply) for reply in refused] == [(409, "read-only")] * 3
    assert app.client.get(f"{DOCUMENTS}/cats").status_code == 200
    assert app.client.get(f"{SMALL}/search?q=cats&top_k=1").json()["hits"][0]["id"] == "cats"


def test_writes_that_the_index_cannot_keep_up_with_are_refused_for_a_while(
    start: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.backlog.DELTA_LIMIT", 30)
    app = start(data=folder)
    for number in range(3):
        documents = [{"id": f"n{number}-{n}", "text": "text"} for n in range(10)]
        assert app.client.post(DOCUMENTS, json=documents).status_code == 200
    refused = app.client.post(DOCUMENTS, json=[{"id": "more", "text": "text"}])
    assert problem(refused) == (429, "backlog-full")
    assert int(refused.headers["retry-after"]) >= 1
    assert app.client.delete(f"{DOCUMENTS}/cats").status_code == 200
    assert main(["index", "compact", str(folder / "small")]) == 0
    assert app.client.post(DOCUMENTS, json=[{"id": "more", "text": "text"}]).status_code == 200


def test_a_list_that_never_has_room_is_refused_for_good_and_a_stream_of_it_is_stored(
    start: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = start(data=folder, compact_rows=20)
    split = {"chunking": {"tokens": 8, "overlap": 0}}
    assert app.client.put("/v1/collections/parts", json=split).status_code == 201
    path = "/v1/collections/parts/documents"
    words = "water bread garden stone river music window letter " * 5  # a token each
    documents = [{"id": f"n{number}", "text": words * 7} for number in range(300)]
    refused = app.client.post(path, json=documents)  # 35 parts each
    assert problem(refused) == (413, "write-too-large")
    assert "retry-after" not in refused.headers
    assert re.search(r"10500 documents or parts .* at most 9000", refused.json()["detail"])
    assert app.client.get("/v1/collections/parts").json()["count"] == 0
    monkeypatch.setattr("lamina_index.backlog.DELTA_LIMIT", 50)
    documents = [{"id": f"n{number}", "text": words} for number in range(12)]
    refused = app.client.post(path, json=documents)  # 60 parts
    assert problem(refused) == (413, "write-too-large")
    headers = {"Content-Type": "application/x-ndjson"}
    lines = b"".join(orjson.dumps(document) + b"\n" for document in documents)
    stored = app.client.post(path, content=lines, headers=headers)
    assert (stored.status_code, stored.json()["inserted"]) == (200, 12)
    long = {"id": "long", "text": words * 10}  # 50 parts
    stored = app.client.post(path, json=[long, {"id": "short", "text": "Water."}]).json()
    assert (stored["inserted"], stored["errors"][0]["position"]) == (1, 0)
    assert "50 parts, expected at most 45" in stored["errors"][0]["detail"]
