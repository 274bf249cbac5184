"""Promise 6: memory is flat over many varied requests."""

import itertools
import os
import random
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

RUN = "from lamina_index.cli import run; run()"
MIB = 1024 * 1024


@pytest.fixture
def served(data: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A service in a process of its own; its address and the process."""
    environment = {name: value for name, value in os.environ.items() if "LAMINA_" not in name}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "serve", "--data", str(data), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    yield found[0], psutil.Process(process.pid)
    process.kill()
    process.communicate()


def _text(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.01:  # long, and without a space
        return "".join(chance.choices(string.ascii_letters, k=12_345))
    if kind < 0.05:
        return chr(chance.randrange(0x20, 0xD800)) * chance.randrange(1, 300)
    words = (
        "".join(chance.choices(string.ascii_lowercase, k=chance.randrange(1, 9))) for _ in "ab"
    )
    return " ".join(words) + f" {chance.random()}"


def _ask(client: httpx.Client, chance: random.Random) -> int:
    search = "/v1/collections/small/search"
    kind = chance.random()
    if kind < 0.6:
        body: dict[str, Any] = {"query": _text(chance), "top_k": chance.randrange(1, 100)}
        return client.post(search, json=body).status_code
    if kind < 0.7:
        return client.get(search, params={"q": _text(chance)}).status_code
    if kind < 0.75:
        vector = [chance.gauss(0, 1) for _ in range(384)]
        return client.post(search, json={"vector": vector}).status_code
    if kind < 0.8:
        texts = [_text(chance) for _ in range(chance.randrange(1, 4))]
        return client.post("/v1/embeddings", json={"input": texts}).status_code
    if kind < 0.9:  # names that nobody has: of no use to remember
        name = "".join(chance.choices(string.ascii_lowercase, k=20))
        paths = [f"/v1/collections/{name}", f"/{name}", f"/v1/collections/small/documents/{name}"]
        return client.get(chance.choice(paths)).status_code
    return client.post(search, content=b'{"query": 1}').status_code


def _growth(served: tuple[str, psutil.Process], *, warm_up: int, requests: int) -> int:
    """Bytes of resident memory that the requests after the warm-up added."""
    url, process = served
    chance = random.Random(11)
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        answered = {_ask(client, chance) for _ in range(warm_up)}
        before = process.memory_info().rss
        answered |= {_ask(client, chance) for _ in range(requests)}
        after = process.memory_info().rss
    assert answered <= {200, 404, 415, 422}
    return int(after - before)


def test_memory_is_flat_over_some_thousand_varied_requests(served: Any) -> None:
    assert _growth(served, warm_up=1500, requests=3500) < 12 * MIB


@pytest.mark.slow
def test_memory_is_flat_over_a_hundred_thousand_varied_requests(served: Any) -> None:
    assert _growth(served, warm_up=5000, requests=100_000) < 12 * MIB


def test_memory_does_not_grow_with_the_length_of_a_stream(
    serving: Any, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data / "small", tmp_path / "data" / "small")
    line = b'{"id": "long", "junk": "' + b"x" * (MIB - 100) + b'"}\n'

    def send(client: httpx.Client, count: int) -> None:
        stream = itertools.chain(
            [b'{"id": "good", "text": "good"}\n'], itertools.repeat(line, count)
        )
        path, headers = "/v1/collections/small/documents", {"Content-Type": "application/x-ndjson"}
        reply = client.post(path, content=stream, headers=headers)
        assert reply.json()["error_count"] == count

    with serving(tmp_path / "data") as url:
        process = psutil.Process(url.process.pid)
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
            send(client, 50)
            before = process.memory_info().rss
            send(client, 400)
            assert process.memory_info().rss - before < 30 * MIB
        highest = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        assert highest is not None
        assert int(highest[1]) * 1024 - before < 60 * MIB
