"""What the benchmarks share: options, measured processes, and how results are written."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
BENCHMARKS = REPOSITORY / "benchmarks"
RESULTS = BENCHMARKS / "results"
ENCODER = REPOSITORY / "index" / "lamina_index" / "encoders" / "default"
LAMINA = Path(sys.executable).with_name("lamina")

MEMORY_POLL_SECONDS = 0.05
PACKAGES = (
    *("numpy", "faiss-cpu", "tokenizers", "onnxruntime", "onnxruntime-gpu"),
    *("fastapi", "uvicorn", "torch", "transformers", "sentence-transformers"),
)


@dataclass(frozen=True)
class Measured:
    """One finished process, with the children that it waited for.

    `peak_rss_bytes` is the process's own high-water mark, mapped files included; `peak_own_bytes`
    the most that was seen of it without them, 20 times a second.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    output: str
    peak_own_bytes: int


def parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the options of every benchmark."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--small", action="store_true", help="a few hundred texts, in seconds")
    options.add_argument("--output", type=Path, help="result file (default: benchmarks/results)")
    options.add_argument(
        "--work", type=Path, default=REPOSITORY / "build" / "bench", help="folder for what is built"
    )
    return options


def run_measured(command: Sequence[object], *, env: dict[str, str] | None = None) -> Measured:
    """Run a program to its end and measure it; its stderr stays visible.

    The high-water mark is read from /proc while it runs, since `ru_maxrss` of a new process starts
    at the size of the process that made it.

    Raises:
        RuntimeError: If it fails.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
    )
    assert process.stdout
    peak_bytes = own_bytes = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak_bytes, own_bytes
        while not ended.wait(MEMORY_POLL_SECONDS):
            high_water, own = _memory_bytes(process.pid)
            peak_bytes, own_bytes = max(peak_bytes, high_water), max(own_bytes, own)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with process.stdout as stream:
            output = stream.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall_seconds = time.perf_counter() - started
    except BaseException:
        process.terminate()
        raise
    finally:
        ended.set()
        watcher.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command_line(command)}: exit {process.returncode}\n{output[-2000:]}")
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Measured(wall_seconds, cpu_seconds, peak_bytes, output, own_bytes)


def last_json(output: str) -> dict[str, Any]:
    """Parse the last line of a program's output."""
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def alternate(contestants: Sequence[str], rounds: int, seed: int = 1) -> Iterator[tuple[int, str]]:
    """Yield every contestant once a round, in another order each round."""
    order = list(contestants)
    shuffler = random.Random(seed)
    for number in range(rounds):
        for name in order:
            print(f"  round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            yield number, name
        shuffler.shuffle(order)


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Take the median of each column, to four significant digits."""
    return {name: rounded(statistics.median(row[name] for row in rows)) for name in rows[0]}


def rounded(value: float) -> float:
    """Keep four significant digits."""
    return float(f"{value:.4g}")


def write_result(path: Path, settings: dict[str, Any], results: dict[str, Any]) -> None:
    """Write results with all that is needed to read and to repeat them."""
    record = {
        "benchmark": path.stem,
        "command": command_line(["python", *sys.argv]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "machine": machine(),
        "versions": versions(),
        "settings": settings,
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {shown(path)}", file=sys.stderr)


def machine() -> dict[str, Any]:
    """Describe the processor and memory."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    flags = set(fields.get("flags", "").split())
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": fields.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "avx2": "avx2" in flags,
        "avx512": "avx512f" in flags,
        "vnni": bool(flags & {"avx512_vnni", "avx_vnni"}),
        "amx_int8": "amx_int8" in flags,
    }


def versions() -> dict[str, str]:
    """Give the versions of Python and of the packages that decide speed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def folder_bytes(folder: Path) -> int:
    """Add up the files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def command_line(parts: Sequence[object]) -> str:
    """Join a command, with paths as seen from the repository."""
    return " ".join(shown(str(part)) for part in parts)


def shown(part: str | Path) -> str:
    """Give a path as seen from the repository, so that results name no machine."""
    if not Path(part).is_absolute():
        return str(part)
    return os.path.relpath(part, REPOSITORY)


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "index", "service", "training", "benchmarks/*.py")
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def _memory_bytes(pid: int) -> tuple[int, int]:
    """The most memory that a process has had, and what it has now without mapped files."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0, 0
    lines = [line.split() for line in status.splitlines()]
    found = {line[0]: int(line[1]) * 1024 for line in lines if line[-1] == "kB"}
    return found.get("VmHWM:", 0), found.get("RssAnon:", 0)
