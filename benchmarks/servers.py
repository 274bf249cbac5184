"""The search services that `bench_service.py` compares, over one corpus."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil
from corpora import Corpus, base_weights
from harness import BENCHMARKS, ENCODER, LAMINA, run_measured

TOP_K = 10
READY_SECONDS = 180
IDLE_SECONDS = 1.0
IDLE_SHARE = 0.05
TXTAI = BENCHMARKS / ".venv-txtai"
TXTAI_PACKAGES = ("torch==2.13.0", "txtai[api]==9.14.0")


@dataclass
class Service:
    """One contestant: how it starts, how it is asked, and what its answers look like.

    Attributes:
        command: Its command line, with `{port}` and `{workers}` where it takes them.
        path: Where searches go; a GET request adds the query to it, a POST has it in the body.
        worker_choices: Numbers of worker processes to try; the one with most requests a second at
            16 clients is kept.
    """

    name: str
    command: Sequence[str]
    method: str
    path: str
    environment: dict[str, str] = field(default_factory=dict)
    worker_choices: tuple[int, ...] = (1, 2)

    def line(self, query: str) -> str:
        """Write one query as wrk.lua wants it: a body, or the end of the address."""
        if self.method == "GET":
            return quote(query, safe="")
        return json.dumps({"query": query, "top_k": TOP_K})

    def ask(self, port: int, query: str) -> list[dict[str, Any]]:
        """Search once; hits with `id` and `text`."""
        url, body = f"http://127.0.0.1:{port}{self.path}", None
        if self.method == "GET":
            url += self.line(query)
        else:
            body = self.line(query).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(url, data=body, headers=headers, method=self.method)
        with urlopen(request, timeout=30) as reply:
            found = json.load(reply)
        hits: list[dict[str, Any]] = found if isinstance(found, list) else found["hits"]
        return hits


class Running:
    """A service that answers, with all its processes; a context manager that ends them."""

    def __init__(self, service: Service, workers: int, log: Path, question: str) -> None:
        """Start it and wait for the first answer.

        Raises:
            RuntimeError: If it ends or does not answer in time; its log says why.
        """
        self.service = service
        self.workers = workers
        self.port = _free_port()
        values = {"port": self.port, "workers": workers}
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log: IO[bytes] = log.open("wb")
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [part.format(**values) for part in service.command],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | service.environment,
        )
        try:
            self._wait(started + READY_SECONDS, question, log)
        except BaseException:
            self.close()
            raise
        self.ready_seconds = time.perf_counter() - started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cpu_seconds(self) -> float:
        """CPU time so far of all its processes."""
        return sum(
            times.user + times.system for times in (each.cpu_times() for each in self._tree())
        )

    def memory_mb(self) -> float:
        """Memory of all its processes, shared pages divided among their users (PSS)."""
        return sum(each.memory_full_info().pss for each in self._tree()) / 1e6

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Search once."""
        return self.service.ask(self.port, query)

    def wait_until_idle(self) -> None:
        """Wait until no process works any more: other workers may still be loading."""
        used, share = self.cpu_seconds(), 1.0
        while share > IDLE_SHARE:
            time.sleep(IDLE_SECONDS)
            now = self.cpu_seconds()
            used, share = now, (now - used) / IDLE_SECONDS

    def close(self) -> None:
        """End all processes that it started; they also end with the benchmark's process group."""
        tree = self._tree()
        self._process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(tree, timeout=20)
        for each in alive:
            each.kill()
        self._process.wait()
        self._log.close()

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _wait(self, deadline: float, question: str, log: Path) -> None:
        while time.perf_counter() < deadline:
            if self._process.poll() is not None:
                break
            try:
                self.ask(question)
            except (URLError, ConnectionError):
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"{self.service.name} did not answer; see {log}")


def lamina_collection(corpus: Corpus, work: Path) -> Path:
    """Index the corpus with `lamina index build`."""
    collection = work / "collections" / "lamina"
    command = [LAMINA, "index", "build", "--input", corpus.path, "--id-field", "qid"]
    _once(collection, corpus, lambda: run_measured([*command, "--collection", collection]))
    return collection


def lamina(corpus: Corpus, work: Path) -> Service:
    """`lamina serve` with two workers."""
    return lamina_on(lamina_collection(corpus, work).parent)


def lamina_on(data: Path) -> Service:
    """`lamina serve` on a data folder with a collection `lamina`."""
    return Service(
        name="lamina",
        command=[
            *(str(LAMINA), "serve", "--data", str(data)),
            *("--port", "{port}", "--workers", "{workers}"),
        ],
        method="POST",
        path="/v1/collections/lamina/search",
        worker_choices=(2,),
    )


def plain(corpus: Corpus, work: Path) -> Service:
    """The plain stack: FastAPI, sentence-transformers fp32, a flat index."""
    index = work / "plain-index"
    script = BENCHMARKS / "stacks" / "plain_index.py"
    command = [sys.executable, script, base_weights(), corpus.path, index]
    _once(index, corpus, lambda: run_measured(command))
    return Service(
        name="plain",
        command=_uvicorn("plain:app", Path(sys.executable)),
        method="POST",
        path="/search",
        environment={"PLAIN_INDEX": str(index), "PLAIN_WEIGHTS": str(base_weights())},
    )


def plain_onnx(corpus: Corpus, work: Path) -> Service:
    """The plain stack on Lamina's encoder file, with the vectors that Lamina made."""
    index = work / "plain-onnx-index"
    _once(index, corpus, lambda: _flat_index_of(work / "collections" / "lamina", index))
    return Service(
        name="plain-onnx",
        command=_uvicorn("plain_onnx:app", Path(sys.executable)),
        method="POST",
        path="/search",
        environment={"PLAIN_INDEX": str(index), "PLAIN_ONNX": str(ENCODER)},
    )


def txtai(corpus: Corpus, work: Path) -> Service:
    """txtai's API in its own environment, index and settings as its documentation has them."""
    python = TXTAI / "bin" / "python"
    if not python.exists():
        run_measured([sys.executable, "-m", "venv", TXTAI])
        for package in TXTAI_PACKAGES:  # torch first, so that the pinned build is kept
            run_measured([python, "-m", "pip", "install", "--quiet", package])
    index = work / "txtai-index"
    script = BENCHMARKS / "stacks" / "txtai_index.py"
    command = [python, script, base_weights(), corpus.path, index]
    offline = {"HF_HUB_OFFLINE": "1"}
    _once(index, corpus, lambda: run_measured(command, env=offline))
    settings = work / "txtai.yml"
    settings.write_text(
        f"path: {index}\nwritable: false\n"
        f"embeddings:\n  path: {base_weights()}\n  content: true\n  gpu: false\n",
        encoding="utf-8",
    )
    return Service(
        name="txtai",
        command=_uvicorn("txtai.api:app", python),
        method="GET",
        path=f"/search?limit={TOP_K}&query=",
        environment={"CONFIG": str(settings)},
    )


def _uvicorn(app: str, python: Path) -> list[str]:
    return [
        *(str(python), "-m", "uvicorn", app, "--app-dir", str(BENCHMARKS / "stacks")),
        *("--port", "{port}", "--workers", "{workers}", "--log-level", "warning"),
        "--no-access-log",
    ]


def _once(index: Path, corpus: Corpus, make: Callable[[], object]) -> None:
    """Make an index unless there is one; running a benchmark again is then quick."""
    if corpus.is_indexed(index):
        return
    print(f"  preparing {index.name}", file=sys.stderr, flush=True)
    shutil.rmtree(index, ignore_errors=True)
    index.parent.mkdir(parents=True, exist_ok=True)
    make()
    corpus.set_indexed(index)


def _flat_index_of(collection: Path, output: Path) -> None:
    """Write a collection's documents and vectors in the plain stack's two files."""
    import faiss
    import numpy as np

    exported = output.with_name("exported")
    shutil.rmtree(exported, ignore_errors=True)
    run_measured([LAMINA, "index", "export", collection, "--output", exported])
    embeddings = np.load(exported / "embeddings.npy")
    with open(exported / "documents.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    shutil.rmtree(exported)
    index = faiss.IndexFlatIP(embeddings.shape[1])
    index.add(embeddings)
    output.mkdir(parents=True)
    faiss.write_index(index, str(output / "vectors.faiss"))
    documents = [{"qid": row["id"], "text": row["text"]} for row in rows]
    (output / "documents.json").write_text(json.dumps(documents), encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
