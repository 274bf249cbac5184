"""Requests a second, latency and CPU a request: `lamina serve` beside what people use today.

All services hold the same corpus and answer the ten best texts; all run at once, and wrk loads one
after the other in turns, so that a change in the machine hits all alike. Queries are those of the
data set, each different from the last ones; no service keeps a cache of results. Load comes from
one thread of wrk on the same machine (a closed loop: each client asks again when answered), whose
own share of the CPU is stated.

- `lamina`: `lamina serve --workers 2`, bundled int8 encoder.
- `plain`: FastAPI, sentence-transformers fp32 and IndexFlatIP (`stacks/plain.py`).
- `plain-onnx`: the same on Lamina's encoder file with ONNX Runtime (`stacks/plain_onnx.py`).
- `txtai`: txtai 9.14's API with content, its own choice of index.

The others run with one or two worker processes, whichever gave more requests a second at 16
clients beforehand. `raw_encoder` is the median time of one query through the encoder alone, in one
thread, which no service can be faster than.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import servers
from corpora import quora_corpus, small_corpus, write_queries
from harness import (
    BENCHMARKS,
    RESULTS,
    alternate,
    last_json,
    medians,
    parser,
    rounded,
    run_measured,
    write_result,
)
from servers import Running, Service

CLIENTS = (1, 16)
CHECKED_QUERIES = 200
LEAST_AGREEMENT = 0.8
WARM_UP_SECONDS = 2
LONGEST_WINDOW_SECONDS = 60
RAW_QUERIES = 1000
CONTESTANTS = {
    "lamina": servers.lamina,
    "plain": servers.plain,
    "plain-onnx": servers.plain_onnx,
    "txtai": servers.txtai,
}


@dataclass
class Load:
    """wrk, and where in the list of queries the next window begins."""

    queries: list[str]
    folder: Path
    position: int = 0

    def run(self, server: Running, clients: int, seconds: float) -> dict[str, float]:
        """Load a service for one window, twice as long a one where nothing was answered in it.

        Raises:
            RuntimeError: If nothing was answered in `LONGEST_WINDOW_SECONDS` either.
        """
        while seconds <= LONGEST_WINDOW_SECONDS:
            if row := self._window(server, clients, seconds):
                return row
            seconds *= 2
        raise RuntimeError(f"{server.service.name} answered nothing in {seconds / 2:g} s")

    def _window(self, server: Running, clients: int, seconds: float) -> dict[str, float]:
        service = server.service
        lines = self.folder / f"queries-{service.name}.txt"
        lines.write_text("".join(f"{service.line(query)}\n" for query in self.queries))
        script = BENCHMARKS / "stacks" / "wrk.lua"
        command = ["wrk", "--threads", "1", "--connections", str(clients), "--timeout", "10s"]
        command += ["--duration", f"{seconds:g}s", "--script", str(script)]
        command += [f"http://127.0.0.1:{server.port}", "--"]
        command += [str(lines), service.method, service.path, str(self.position)]
        before = server.cpu_seconds()
        wrk = run_measured(command)
        cpu_seconds = server.cpu_seconds() - before
        found = last_json(wrk.output)
        requests = found["requests"]
        if not requests:
            return {}
        self.position = (self.position + requests) % len(self.queries)
        return {
            "requests_per_second": requests / found["seconds"],
            "p50_ms": found["p50_ms"],
            "p95_ms": found["p95_ms"],
            "p99_ms": found["p99_ms"],
            "cpu_ms_per_request": cpu_seconds * 1000 / requests,
            "failed_share": found["failed"] / requests,
            "wrk_cpu_share": wrk.cpu_seconds / (wrk.cpu_seconds + cpu_seconds),
        }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--documents", type=int, help="use an even sample of so many texts")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=8, help="length of one window")
    options.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    arguments = options.parse_args()
    if not shutil.which("wrk"):
        raise SystemExit("needs wrk (Debian: apt install wrk)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the services are ended
    work: Path = arguments.work
    names, rounds, seconds = arguments.only, arguments.rounds, arguments.seconds
    if arguments.small:
        names, rounds, seconds = ["lamina", "plain"], 1, 1.0
    corpus = small_corpus(work) if arguments.small else quora_corpus(work, arguments.documents)
    queries = list(corpus.queries)
    random.Random(1).shuffle(queries)
    load = Load(queries, work)

    services = [CONTESTANTS[name](corpus, work) for name in names]
    trials = {
        service.name: try_workers(service, load, seconds)
        for service in services
        if len(service.worker_choices) > 1 and not arguments.small
    }
    with ExitStack() as stack:
        running = {}
        for service in services:
            trial = trials.get(service.name)
            workers = max(trial, key=trial.__getitem__) if trial else service.worker_choices[0]
            running[service.name] = stack.enter_context(start(service, workers, load, seconds))
        agreement = check_answers(running, queries[:CHECKED_QUERIES])
        results = {
            "started": {
                name: {
                    "workers": server.workers,
                    "ready_seconds": round(server.ready_seconds, 2),
                    "memory_mb": round(server.memory_mb()),
                    "top1_agreement": agreement[name],
                }
                for name, server in running.items()
            },
            "worker_trials": trials,
            **measure(running, load, rounds, seconds),
        }
    settings = {
        "corpus": corpus.name,
        "documents": corpus.documents,
        "queries": len(queries),
        "top_k": servers.TOP_K,
        "rounds": rounds,
        "window_seconds": seconds,
        "warm_up_seconds": min(seconds, WARM_UP_SECONDS),
        "txtai": ", ".join(servers.TXTAI_PACKAGES) if "txtai" in names else None,
        "load_generator": "wrk, 1 thread, keep-alive, same machine",
    }
    write_result(arguments.output or RESULTS / "service.json", settings, results)


def try_workers(service: Service, load: Load, seconds: float) -> dict[int, float]:
    """Measure requests a second at most clients with each number of workers."""
    found = {}
    for workers in service.worker_choices:
        print(f"  trying {service.name} with {workers} workers", file=sys.stderr, flush=True)
        with start(service, workers, load, seconds) as server:
            window = load.run(server, CLIENTS[-1], seconds)
            found[workers] = rounded(window["requests_per_second"])
    return found


def start(service: Service, workers: int, load: Load, seconds: float) -> Running:
    """Start a service and use it until it is warm, for not longer than it will be measured."""
    log = load.folder / "logs" / f"{service.name}.log"
    server = Running(service, workers, log, load.queries[0])
    try:
        server.wait_until_idle()
        load.run(server, CLIENTS[-1], min(seconds, WARM_UP_SECONDS))
    except BaseException:
        server.close()
        raise
    return server


def check_answers(running: dict[str, Running], queries: Sequence[str]) -> dict[str, float]:
    """Compare each service's best answer with the plain stack's, which is exact and fp32.

    Returns:
        The share of queries with the same best text.

    Raises:
        RuntimeError: If a service answers too few or others' texts; its speed would mean nothing.
    """
    best = {}
    for name, server in running.items():
        answers = [server.ask(query) for query in queries]
        if any(
            len(hits) != servers.TOP_K or not all(hit["text"] for hit in hits) for hits in answers
        ):
            raise RuntimeError(f"{name}: an answer without {servers.TOP_K} texts")
        best[name] = [hits[0]["text"] for hits in answers]
    reference = best["plain" if "plain" in best else next(iter(best))]
    agreement = {
        name: round(sum(map(str.__eq__, texts, reference)) / len(queries), 3)
        for name, texts in best.items()
    }
    if min(agreement.values()) < LEAST_AGREEMENT:
        raise RuntimeError(f"the services find different texts: {agreement}")
    return agreement


def measure(running: dict[str, Running], load: Load, rounds: int, seconds: float) -> dict[str, Any]:
    """Load all services in turns, at each number of clients, and time the encoder alone."""
    queries = load.folder / "queries.tsv"
    write_queries(queries, load.queries[:RAW_QUERIES])
    encode = [
        sys.executable,
        BENCHMARKS / "encode_alone.py",
        "one-query",
        queries,
        str(RAW_QUERIES),
    ]
    raw_rows = []
    rows: dict[tuple[int, str], list[dict[str, float]]] = {}
    for clients in CLIENTS:
        print(f"{clients} clients", file=sys.stderr)
        for _, name in alternate(list(running), rounds):
            if name == "lamina":
                raw_rows.append(last_json(run_measured(encode).output))
            window = load.run(running[name], clients, seconds)
            rows.setdefault((clients, name), []).append(window)
    return {
        "clients": {
            str(clients): {name: medians(rows[clients, name]) for name in running}
            for clients in CLIENTS
        },
        "raw_encoder": medians(raw_rows),
    }


if __name__ == "__main__":
    main()
