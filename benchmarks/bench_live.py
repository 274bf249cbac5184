"""Search latency while documents are being written, and how fast documents can be written.

`lamina serve --workers 2` over the Quora questions. Searches come in an open loop: each has its
time, whether or not the ones before it were answered, at 30% of what the service answers with 16
clients of wrk, and its latency counts from that time on. Parts of one run:

- `before`, `after`: searches alone.
- `writes`: meanwhile 50,000 documents are upserted, 200 a second in lists of 64, half of them new
  (sentences of Wikipedia), half in place of questions that are there. Searches are counted apart
  while a compaction runs in them.
- `upserts`: nothing but upserts, by one client in lists of 64, beside the encoder alone on the same
  texts, in turns.

Every reply is compared with what was committed: a hit must have a text that its document had at
some moment of the search. Every 20th list is searched for, by the text of one of its documents, as
soon as it is acknowledged.
"""

from __future__ import annotations

import csv
import gzip
import http.client
import json
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import numpy as np
import servers
from bench_service import Load
from corpora import WIKI, quora_corpus, small_corpus
from harness import RESULTS, medians, parser, rounded, write_result
from servers import Running

from lamina_index.encoder import OnnxEncoder

LOAD_SHARE = 0.3
CLIENTS = 16
SENDERS = 48
LIST = 64
CHECKED_LISTS = 20
UPSERTS_A_SECOND = 200
PATIENCE_SECONDS = 60.0
IDLE_SECONDS = 2.0
LOOK_SECONDS = 0.1
SEARCH = "/v1/collections/lamina/search"
DOCUMENTS = "/v1/collections/lamina/documents"

Reply = tuple[int, dict[str, Any]]


class Client:
    """A connection that is kept, but not for longer than a server keeps one that is idle."""

    def __init__(self, port: int) -> None:
        self._used = time.perf_counter()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def post(self, path: str, sent: dict[str, Any]) -> Reply:
        """Send JSON; status and body of the answer."""
        headers = {"Content-Type": "application/json"}
        if time.perf_counter() - self._used > IDLE_SECONDS:
            self._connection.close()  # the next request opens it again
        self._connection.request("POST", path, json.dumps(sent), headers)
        with self._connection.getresponse() as reply:
            body = json.load(reply)
        self._used = time.perf_counter()
        return reply.status, body


@dataclass(frozen=True)
class Searched:
    """One search: seconds since the part began at which it was due and was answered."""

    due: float
    done: float
    status: int
    wrong_hits: int


@dataclass
class Version:
    """A text of a document: from when its write was sent until the next one was acknowledged."""

    text: str
    since: float
    until: float = float("inf")


class Versions:
    """The texts that documents had over time, of `time.perf_counter`.

    Between the sending of a write and its acknowledgement both texts are a committed state's.
    """

    def __init__(self, first: dict[str, str]) -> None:
        self.first = first
        self._written: dict[str, list[Version]] = {}

    def sent(self, documents: Sequence[dict[str, Any]], at: float) -> None:
        """Note a write before it is sent."""
        for document in documents:
            name = document["id"]
            if name not in self._written:
                self._written[name] = [Version(self.first[name], 0)] if name in self.first else []
            self._written[name].append(Version(document["text"], at))

    def acknowledged(self, documents: Sequence[dict[str, Any]], at: float) -> None:
        """Note that the older texts of these documents are gone."""
        for document in documents:
            for version in self._written[document["id"]][:-1]:
                version.until = min(version.until, at)

    def holds(self, name: str, text: str, begun: float, ended: float) -> bool:
        """Whether a document had a text at some moment of a search."""
        if name not in self._written:
            return self.first.get(name) == text
        return any(
            version.text == text and version.since <= ended and version.until >= begun
            for version in list(self._written[name])
        )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=60, help="of searches alone")
    options.add_argument("--upserts", type=int, default=50_000)
    options.add_argument("--rounds", type=int, default=3, help="of upserts alone")
    arguments = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the service is ended
    work: Path = arguments.work
    seconds, upserts, rounds = arguments.seconds, arguments.upserts, arguments.rounds
    if arguments.small:
        seconds, upserts, rounds = 2.0, 640, 1
    corpus = small_corpus(work) if arguments.small else quora_corpus(work)
    data = work / "live"
    service = servers.lamina_on(_copied(servers.lamina_collection(corpus, work), data))
    queries = list(corpus.queries)
    random.Random(1).shuffle(queries)
    versions = Versions(dict(_rows(corpus.path)))
    documents = new_documents(versions.first, upserts, small=arguments.small)
    with Running(service, 2, work / "logs" / "live.log", queries[0]) as server:
        server.wait_until_idle()
        capacity = measure_capacity(server, queries, work, seconds)
        rate = LOAD_SHARE * capacity
        parts: dict[str, Any] = {
            "capacity": rounded(capacity),
            "searches_per_second": rounded(rate),
        }
        parts["before"] = quiet(server.port, queries, rate, seconds, versions)
        parts |= written(server.port, queries, rate, documents, versions)
        parts["after"] = quiet(server.port, queries, rate, seconds, versions)
        parts["upserts"] = upserts_alone(server.port, documents, rounds)
    shutil.rmtree(data)
    parts["p99_ratio"] = ratios(parts)
    settings = {
        "corpus": corpus.name,
        "documents": corpus.documents,
        "upserts": upserts,
        "upserts_per_second": UPSERTS_A_SECOND,
        "list": LIST,
        "seconds": seconds,
        "load_share": LOAD_SHARE,
        "load_generator": f"{SENDERS} threads of Python, open loop, same machine",
    }
    write_result(arguments.output or RESULTS / "live.json", settings, parts)


def measure_capacity(server: Running, queries: list[str], work: Path, seconds: float) -> float:
    """Searches a second at most clients, in a closed loop."""
    load = Load(queries, work)
    load.run(server, CLIENTS, min(seconds, 2))
    return load.run(server, CLIENTS, min(seconds, 10))["requests_per_second"]


def new_documents(present: dict[str, str], count: int, *, small: bool) -> list[dict[str, Any]]:
    """Documents to write: in turn a new one, and another text for one that is there."""
    if small:
        sentences = [f"a sentence about matter number {number}" for number in range(count)]
    else:
        with gzip.open(WIKI, "rt", encoding="utf-8") as file:
            sentences = [line.strip() for line in islice(file, 1, count + 1)]
    replaced = random.Random(2).choices(sorted(present), k=count)
    return [
        {"id": f"wiki-{number}", "text": sentence}
        if number % 2
        else {"id": replaced[number], "text": f"{sentence} ({number})"}
        for number, sentence in enumerate(sentences)
    ]


def quiet(
    port: int, queries: list[str], rate: float, seconds: float, versions: Versions
) -> dict[str, float]:
    """Searches alone."""
    searched = search_at_rate(port, queries, rate, versions, until=lambda due: due >= seconds)
    return summary(searched)


def written(
    port: int,
    queries: list[str],
    rate: float,
    documents: list[dict[str, Any]],
    versions: Versions,
) -> dict[str, Any]:
    """Searches while documents are written; those beside a compaction apart."""
    began = time.perf_counter()
    ended = threading.Event()
    compactions: list[tuple[float, float]] = []
    told: dict[str, Any] = {}

    def write() -> None:
        try:
            told.update(write_at_rate(port, documents, versions))
        finally:
            ended.set()

    writer = threading.Thread(target=write)
    watcher = threading.Thread(target=watch_compactions, args=(port, began, ended, compactions))
    writer.start()
    watcher.start()
    searched = search_at_rate(port, queries, rate, versions, until=lambda _: ended.is_set())
    writer.join()
    watcher.join()
    beside, outside = [], []
    for each in searched:
        met = any(each.due <= end and each.done >= start for start, end in compactions)
        (beside if met else outside).append(each)
    return {
        "writes": {
            **told,
            "compactions": len(compactions),
            "compaction_seconds": rounded(sum(end - start for start, end in compactions)),
            "outside_compactions": summary(outside),
            "beside_compactions": summary(beside),
        }
    }


def search_at_rate(
    port: int,
    queries: list[str],
    rate: float,
    versions: Versions,
    *,
    until: Callable[[float], bool],
) -> list[Searched]:
    """Search at fixed times, whether or not earlier searches were answered."""
    found: list[Searched] = []
    turn = threading.Lock()
    position = 0
    began = time.perf_counter()

    def send() -> None:
        nonlocal position
        with Client(port) as client:
            while True:
                with turn:
                    number, position = position, position + 1
                due = number / rate
                if until(due):
                    return
                time.sleep(max(0.0, began + due - time.perf_counter()))
                sent = time.perf_counter()
                query = queries[number % len(queries)]
                status, body = client.post(SEARCH, {"query": query, "top_k": servers.TOP_K})
                done = time.perf_counter()
                wrong = sum(
                    not versions.holds(hit["id"], hit["text"], sent, done)
                    for hit in body.get("hits", ())
                )
                found.append(Searched(due, done - began, status, wrong))

    senders = [threading.Thread(target=send) for _ in range(SENDERS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return found


def write_at_rate(port: int, documents: list[dict[str, Any]], versions: Versions) -> dict[str, Any]:
    """Upsert lists at fixed times; search for some of what was acknowledged."""
    began = time.perf_counter()
    seconds: list[float] = []
    refused = checked = missed = late = 0
    with Client(port) as client, Client(port) as reader:
        for number, start in enumerate(range(0, len(documents), LIST)):
            part = documents[start : start + LIST]
            due = began + start / UPSERTS_A_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            late += time.perf_counter() > due + 1
            sent = time.perf_counter()
            versions.sent(part, sent)
            while (status := _put(client, part)) == 429:
                refused += 1
                time.sleep(0.1)
            if status != 200:
                raise RuntimeError(f"an upsert got status {status}")
            done = time.perf_counter()
            versions.acknowledged(part, done)
            seconds.append(done - sent)
            if number % CHECKED_LISTS == 0:
                document = part[-1]
                _, body = reader.post(SEARCH, {"query": document["text"], "top_k": 10})
                checked += 1
                missed += document["id"] not in [hit["id"] for hit in body["hits"]]
    return {
        "upserts": len(documents),
        "seconds": rounded(time.perf_counter() - began),
        "list_p50_ms": _percentile(seconds, 50),
        "list_p99_ms": _percentile(seconds, 99),
        "refused_lists": refused,
        "late_lists": late,
        "searched_for": checked,
        "not_found": missed,
    }


def watch_compactions(
    port: int, began: float, ended: threading.Event, found: list[tuple[float, float]]
) -> None:
    """Note from when to when compactions ran, since the service counts and times them."""
    before = _compactions(port)
    while not ended.wait(LOOK_SECONDS):
        now = _compactions(port)
        if now[0] > before[0]:
            end = time.perf_counter() - began
            found.append((end - LOOK_SECONDS - (now[1] - before[1]), end))
        before = now


def upserts_alone(port: int, documents: list[dict[str, Any]], rounds: int) -> dict[str, float]:
    """Documents a second through REST, and texts a second of the encoder alone, in turns."""
    part = documents[: 40 * LIST]
    texts = [document["text"] for document in part]
    rows = []
    with closing(OnnxEncoder.load("default")) as encoder, Client(port) as client:
        encoder.encode(texts[:LIST], role="document")
        for _ in range(rounds):
            started = time.perf_counter()
            for start in range(0, len(part), LIST):
                while (status := _put(client, part[start : start + LIST])) == 429:
                    time.sleep(0.1)
                if status != 200:
                    raise RuntimeError(f"an upsert got status {status}")
            rest = len(part) / (time.perf_counter() - started)
            started = time.perf_counter()
            encoder.encode(texts, role="document")
            raw = len(part) / (time.perf_counter() - started)
            rows.append({"per_second": rest, "encoder_per_second": raw, "share": rest / raw})
    return medians(rows)


def summary(searched: Sequence[Searched]) -> dict[str, float]:
    """Latency in milliseconds, and what went wrong."""
    seconds = [each.done - each.due for each in searched]
    return {
        "searches": len(searched),
        "p50_ms": _percentile(seconds, 50),
        "p95_ms": _percentile(seconds, 95),
        "p99_ms": _percentile(seconds, 99),
        "failed": sum(each.status != 200 for each in searched),
        "wrong_hits": sum(each.wrong_hits for each in searched),
    }


def ratios(parts: dict[str, Any]) -> dict[str, float]:
    """p99 with writes over p99 without, taken as the mean of before and after."""
    alone = (parts["before"]["p99_ms"] + parts["after"]["p99_ms"]) / 2
    return {
        name: rounded(parts["writes"][name]["p99_ms"] / alone)
        for name in ("outside_compactions", "beside_compactions")
        if parts["writes"][name]["searches"]
    }


def _put(client: Client, documents: list[dict[str, Any]]) -> int:
    status, body = client.post(DOCUMENTS, {"documents": documents})
    if status == 200 and body["error_count"]:
        raise RuntimeError(f"a document was not stored: {body['errors'][0]}")
    return status


def _compactions(port: int) -> tuple[float, float]:
    """Number of compactions and their seconds, of the service's metrics."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS) as reply:
        lines = [line.rsplit(" ", 1) for line in reply.read().decode().splitlines()]
    values = {name: float(value) for name, value in lines if not name.startswith("#")}
    return (
        values.get("lamina_compaction_seconds_count", 0.0),
        values.get("lamina_compaction_seconds_sum", 0.0),
    )


def _percentile(seconds: Sequence[float], share: float) -> float:
    return rounded(float(np.percentile(seconds, share)) * 1000) if seconds else 0.0


def _copied(collection: Path, data: Path) -> Path:
    """A collection of its own, since this benchmark writes to it."""
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(collection, data / "lamina")
    return data


def _rows(path: Path) -> list[tuple[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["qid"], row["text"]) for row in rows]


if __name__ == "__main__":
    main()
