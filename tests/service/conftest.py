"""A small real collection, and the real application on a real socket."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from lamina_index.build import build_collection
from lamina_index.encoder import Encoded, OnnxEncoder, Role
from lamina_service.app import create_app
from lamina_service.connection import Connection
from lamina_service.service import Service
from lamina_service.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN = "from lamina_index.cli import run; run()"
ODD_ID = "shelf/b 2?x=1#top%2F\"'\\é😀"
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "cats", "text": "Cats sleep for most of the day.", "kind": "animal", "legs": 4},
    {"id": "dogs", "text": "Dogs like to run after a ball.", "kind": "animal", "legs": 4},
    {"id": "birds", "text": "Most birds can fly.", "kind": "animal", "legs": 2},
    {"id": "bread", "text": "Bread is baked from flour, water and yeast.", "kind": "food"},
    {"id": "soup", "text": "Soup is best eaten while it is hot.", "kind": "food"},
    {"id": "rust", "text": "Rust is a language without a garbage collector.", "kind": "code"},
    {"id": "python", "text": "Python programs read files line by line.", "kind": "code"},
    {"id": "sql", "text": "A database answers queries written in SQL.", "kind": "code"},
    {"id": "moon", "text": "The moon goes round the earth in a month.", "kind": "space"},
    {"id": "sun", "text": "The sun is a star.", "kind": "space"},
    {"id": ODD_ID, "text": "A text whose id holds every odd character.", "kind": "odd"},
    {
        "id": "html",
        "text": "<img src=x onerror=\"document.title='owned'\"><b>bold</b>",
        "kind": "odd",
    },
    {"id": "twin-b", "text": "Two documents say this.", "kind": "odd"},
    {"id": "twin-a", "text": "Two documents say this.", "kind": "odd"},
]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, default_encoder: OnnxEncoder) -> Path:
    """A data folder with the collection `small`; not to be written."""
    folder = tmp_path_factory.mktemp("service")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    build_collection([corpus], folder / "data" / "small", default_encoder)
    return folder / "data"


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    """A data folder of a test's own, for a service of its own."""
    shutil.copytree(data / "small", tmp_path / "data" / "small")
    return tmp_path / "data"


@dataclass(frozen=True)
class Running:
    """The application on a socket."""

    app: FastAPI
    server: uvicorn.Server
    url: str
    client: httpx.Client
    documents = DOCUMENTS

    @property
    def service(self) -> Service:
        """The opened service inside."""
        service: Service = self.app.state.service
        return service

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for raw sockets."""
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    @property
    def peers(self) -> set[tuple[str, int] | None]:
        """Addresses that connections are open to."""
        return {connection.client for connection in self.server.server_state.connections.copy()}

    def search(self, query: str, **more: Any) -> httpx.Response:
        """Search the collection `small`."""
        return self.client.post("/v1/collections/small/search", json={"query": query, **more})


@contextmanager
def serve_here(settings: Settings) -> Iterator[Running]:
    """Serve an application in a thread until the block ends."""
    app = create_app(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=Connection, lifespan="on", ws="none", access_log=False, log_config=None
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
                client.get("/livez")
                yield Running(app, server, url, client)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def service(data: Path) -> Iterator[Running]:
    """The real application with the bundled encoder, shared by tests that change nothing."""
    with serve_here(Settings(data=data, threads=2)) as started:
        yield started


@pytest.fixture(scope="session")
def reranking_service(data: Path, overlap_reranker: Path) -> Iterator[Running]:
    """The same with a reranker whose scores can be counted."""
    with serve_here(Settings(data=data, reranker=overlap_reranker, threads=2)) as started:
        yield started


@pytest.fixture(scope="session")
def changing_service(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The same on a copy of the data folder, with a folder for archives, to be changed."""
    folder = tmp_path_factory.mktemp("changing")
    shutil.copytree(data / "small", folder / "data" / "small")
    settings = Settings(data=folder / "data", snapshots=folder / "archives", threads=2)
    with serve_here(settings) as started:
        yield started


@pytest.fixture(scope="session")
def running() -> Callable[..., AbstractContextManager[Running]]:
    """Serve an application, by settings, until a block ends."""
    return lambda **settings: serve_here(Settings(**settings))


class Served(str):
    """The address of a service that runs as processes of its own, and how to end them."""

    process: subprocess.Popen[str]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def workers(self) -> list[int]:
        """Ids of the processes that answer, where there are several."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [
            int(child)
            for child in children
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]


@contextmanager
def serve_elsewhere(folder: Path, *options: str) -> Iterator[Served]:
    """`lamina serve` as processes of its own; gives its address."""
    environment = {name: value for name, value in os.environ.items() if name[:7] != "LAMINA_"}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "serve", "--data", str(folder), "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "LAMINA_SNAPSHOTS": str(folder.parent / "archives")},
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        found = re.search(r"http://\S+", process.stdout.readline())
        served = Served(found[0] if found else "")
        served.process = process
        try:
            assert found is not None
            yield served
        finally:
            served.kill()
            process.wait()


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[Served]]:
    """Run `lamina serve` on a folder, with options, until a block ends."""
    return serve_elsewhere


Start = Callable[..., Running]


@pytest.fixture
def start(data: Path) -> Iterator[Start]:
    """Start an application of one's own, by settings."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            serve_here(Settings(**{"data": data, "threads": 1, **settings}))
        )


class HeldEncoder:
    """The bundled encoder behind a gate: while it is shut, `encode` waits."""

    def __init__(self, encoder: OnnxEncoder) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, texts: list[str], *, role: Role) -> Encoded:
        self.entered.set()
        assert self.gate.wait(60)
        return self._encoder.encode(texts, role=role)

    def close(self) -> None:
        """The session's encoder stays open."""


@pytest.fixture
def held_encoder(
    default_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HeldEncoder]:
    """Make services started in this test use an encoder that waits at a gate."""
    encoder = HeldEncoder(default_encoder)
    monkeypatch.setattr(OnnxEncoder, "load", lambda *_, **__: encoder)
    yield encoder
    encoder.gate.set()


BROWSER_FLAGS = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A real browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    """A page whose scripts must not fail and which loads nothing from elsewhere."""
    context = browser.new_context()
    page: Page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None if "//127.0.0.1:" in request.url else failures.append(f"foreign {request.url}")
        ),
    )
    yield page
    context.close()
    assert failures == []
