"""The benchmarks run, in small, and their results become tables; speed itself is not asserted."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TEXTS = 100
MEASURED_SERVICE = {
    *("requests_per_second", "p50_ms", "p95_ms", "p99_ms", "cpu_ms_per_request"),
    *("failed_share", "wrk_cpu_share"),
}
SOURCE = {"benchmark", "command", "date", "commit", "machine", "versions", "settings", "results"}


def run(repository: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    script, *options = command
    return subprocess.run(
        [sys.executable, repository / "benchmarks" / script, *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"OMP_NUM_THREADS": "1"},  # else torch's threads spin, and nothing is faster
    )


@pytest.fixture(scope="module")
def results(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the two benchmarks that compare Lamina with others, in small."""
    if not importlib.util.find_spec("sentence_transformers"):  # importing it takes seconds
        pytest.skip("no sentence_transformers, the other contestant")  # never in CI
    if not shutil.which("wrk"):
        pytest.skip("no wrk on PATH, the load generator (Debian: apt install wrk)")
    folder = tmp_path_factory.mktemp("results")
    for name in ("index", "service"):
        options = ["--small", "--work", folder / "work", "--output", folder / f"{name}.json"]
        done = run(repository, f"bench_{name}.py", *options)
        assert done.returncode == 0, done.stderr
    return folder


def load(results: Path, name: str) -> dict[str, Any]:
    return json.loads((results / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["index", "service"])
def test_results_say_where_they_come_from_and_name_no_machine(
    results: Path, repository: Path, name: str
):
    record = load(results, name)
    assert record.keys() == SOURCE
    assert record["machine"]["cores"] >= 1
    assert record["versions"].keys() >= {"python", "numpy", "torch"}
    assert record["settings"]["documents"] == TEXTS
    assert record["command"].startswith(f"python benchmarks/bench_{name}.py --small")
    assert str(repository) not in json.dumps(record)


def test_indexing_measures_both_contestants(results: Path):
    found = load(results, "index")["results"]
    for part in ("index", "encode"):
        lamina, other = found[part]["lamina"], found[part]["sentence-transformers"]
        assert lamina.keys() >= {"documents_per_second", "cpu_seconds"}
        ratio = lamina["documents_per_second"] / other["documents_per_second"]
        assert found[part]["times_as_fast"] == pytest.approx(ratio, rel=0.01)
    lamina = found["index"]["lamina"]
    assert lamina["documents_per_second"] == pytest.approx(TEXTS / lamina["wall_seconds"], rel=0.01)
    assert TEXTS * 384 * 4 / 1e6 <= lamina["faiss_mb"] < lamina["size_mb"]
    assert 30 < lamina["peak_rss_mb"] < found["index"]["sentence-transformers"]["peak_rss_mb"]


def test_service_answers_alike_and_counts_its_processes(results: Path):
    found = load(results, "service")["results"]
    assert found["started"]["lamina"]["workers"] == 2
    assert found["started"]["plain"]["top1_agreement"] == 1
    assert found["started"]["lamina"]["top1_agreement"] >= 0.9
    for clients, share in (("1", 1), ("16", 16)):
        for row in found["clients"][clients].values():
            assert row.keys() == MEASURED_SERVICE
            assert row["failed_share"] == 0
            assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
            assert row["cpu_ms_per_request"] > 0
            # Little's law: clients that wait all the time see their number in flight
            in_flight = row["requests_per_second"] * row["p50_ms"] / 1000
            assert in_flight < 2.5 * share
    assert found["raw_encoder"]["p50_ms"] > 0


def test_a_slow_service_is_given_a_longer_window(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if not shutil.which("wrk"):
        pytest.skip("no wrk on PATH, the load generator (Debian: apt install wrk)")
    monkeypatch.syspath_prepend(repository / "benchmarks")
    from bench_service import Load
    from servers import Service

    class Slow(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            time.sleep(1.2)  # longer than the first window
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        service = Service("slow", [], "GET", "/?query=")
        running = SimpleNamespace(
            service=service, port=server.server_port, cpu_seconds=time.process_time
        )
        row = Load(["one"], tmp_path).run(running, 1, 1.0)
        server.shutdown()
        thread.join()
    assert row.keys() == MEASURED_SERVICE
    assert row["p50_ms"] > 1000


def test_filters_are_measured_at_every_share(repository: Path, tmp_path: Path):
    output = tmp_path / "filters.json"
    done = run(repository, "bench_filters.py", "--small", "--work", tmp_path, "--output", output)
    assert done.returncode == 0, done.stderr
    record = json.loads(output.read_text())
    assert record.keys() == SOURCE
    found = record["results"]
    assert {name for name in found if name.endswith(" 10%")} == {
        "random 10%",
        "near 10%",
        "far 10%",
    }
    assert [found[f"near {share}"]["matching"] for share in ("50%", "25%", "10%", "1%")] == [
        50, 25, 10, 1,
    ]  # fmt: skip
    assert all(row["recall@10"] == 1 for name, row in found.items() if name != "facets")


def test_searches_are_measured_while_documents_are_written(repository: Path, tmp_path: Path):
    if not shutil.which("wrk"):
        pytest.skip("no wrk on PATH, the load generator (Debian: apt install wrk)")
    output = tmp_path / "live.json"
    done = run(repository, "bench_live.py", "--small", "--work", tmp_path, "--output", output)
    assert done.returncode == 0, done.stderr
    record = json.loads(output.read_text())
    assert record.keys() == SOURCE
    found = record["results"]
    assert found["writes"]["upserts"] == 640
    assert found["writes"]["not_found"] == 0 < found["writes"]["searched_for"]
    rows = [found["before"], found["after"], found["writes"]["outside_compactions"]]
    assert all(row["failed"] == row["wrong_hits"] == 0 < row["searches"] for row in rows)
    assert found["upserts"].keys() == {"per_second", "encoder_per_second", "share"}


@pytest.fixture(scope="module")
def sizing_results(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sizing")
    options = ["--small", "--work", folder / "work", "--output", folder / "sizing.json"]
    done = run(repository, "bench_sizing.py", *options)
    assert done.returncode == 0, done.stderr
    assert list((folder / "work").glob("sizing*")) == []  # gigabytes, in earnest
    return folder


def test_sizes_are_measured_one_after_the_other(sizing_results: Path, repository: Path):
    record = load(sizing_results, "sizing")
    assert record.keys() == SOURCE
    assert str(repository) not in json.dumps(record)
    found = record["results"]
    assert found["sizes"].keys() == {"200", "400"}
    for size, row in found["sizes"].items():
        assert row["build"]["rows"] == int(size)
        assert row["build"]["factory"] == "Flat"
        assert row["serve"]["recall@10"] == 1
        assert row["compact"]["added"] == 50
        assert row["compact"]["rows"] == int(size) + 50
        process = row["build"]["process"]
        assert 0 < process["peak_own_bytes"] < process["peak_bytes"]
        for part in ("cold", "new", "again"):
            assert 0 < row["serve"][part]["p50_ms"] <= row["serve"][part]["p99_ms"]
    factories = [row["build"]["factory"] for row in found["others"]["400"]]
    assert factories == ["HNSW32,SQ8", "IVF64_HNSW32,SQ8"]
    assert [row["made_from"] for row in found["alike"]] == [None, 100, 25]


def test_sizes_become_tables(sizing_results: Path, repository: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    names = ["sizing", *(f"sizing-{name}" for name in ("search", "upkeep", "others", "alike"))]
    page.write_text("".join(f"<!-- table:{name} -->\n<!-- /table -->\n" for name in names))
    assert run(repository, "report.py", "--results", sizing_results, page).returncode == 0
    text = page.read_text()
    assert text.count("| 400 |") == 5
    assert text.count("commit ") == len(names)


def test_other_sizes_follow_from_the_nearest_of_their_kind(
    repository: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    from sizing_tables import Plan, extrapolated

    graphs = [
        Plan(100, "HNSW32,SQ8", 1000, 600, 10, 20, 700),
        Plan(400, "HNSW32,SQ8", 4400, 2400, 44, 160, 2600),
    ]
    lists = Plan(6000, "IVF_HNSW32,SQ8", 66_000, 2400, 660, 90, 3000)
    found = extrapolated([*graphs, lists], 800, "HNSW32,SQ8")
    # from 400: twice of everything; the build by 4 ** 1.5 = 8, so 2 ** 1.5; 1900 bytes a 300
    seconds, size_bytes = pytest.approx(160 * 2**1.5), pytest.approx(2600 + 400 * 1900 / 300)
    assert found == Plan(800, "HNSW32,SQ8", 8800, 4800, 88, seconds, size_bytes, measured=False)
    found = extrapolated([*graphs, lists], 9000, "IVF_HNSW32,SQ8")
    assert found == Plan(9000, "IVF_HNSW32,SQ8", 99_000, 3600, 990, 135, 4500, measured=False)
    assert extrapolated([lists], 800, "HNSW32,SQ8") is None


def test_results_become_tables(results: Path, repository: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    empty = "".join(
        f"<!-- table:{name} -->\n<!-- /table -->\n"
        for name in ("indexing", "service", "started", "quality")
    )
    page.write_text(empty)
    options = ["--results", results, page]
    assert run(repository, "report.py", "--check", *options).returncode == 1
    assert page.read_text() == empty
    assert run(repository, "report.py", *options).returncode == 0
    assert run(repository, "report.py", "--check", *options).returncode == 0
    text = page.read_text()
    requests = load(results, "service")["results"]["clients"]["16"]["lamina"]["requests_per_second"]
    row = next(line for line in text.splitlines() if line.startswith("| 16 | **Lamina**"))
    assert float(row.split("|")[3].replace(",", "")) == pytest.approx(requests, rel=0.01)
    assert text.endswith("<!-- table:quality -->\n<!-- /table -->\n")  # no result, no table


def test_a_marker_that_names_no_table_is_an_error(repository: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table:wishes -->\n<!-- /table -->\n")
    done = run(repository, "report.py", page)
    assert done.returncode != 0
    assert "wishes" in done.stderr


@pytest.fixture(scope="module")
def gpu_results(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GPU's benchmark in small, which goes the same way on the CPU."""
    for name in ("torch", "sentence_transformers"):
        if not importlib.util.find_spec(name):  # importing it takes seconds
            pytest.skip(f"no {name}, which trains")  # never in CI
    folder = tmp_path_factory.mktemp("gpu")
    options = ["--small", "--work", folder / "work", "--output", folder / "gpu.json"]
    done = run(repository, "bench_gpu.py", *options)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_gpu_benchmark_trains_exports_encodes_and_compares(gpu_results: Path, repository: Path):
    record = load(gpu_results, "gpu")
    assert record.keys() == SOURCE
    assert record["settings"]["device"] == "cpu"
    assert "not what GPUs do" in record["settings"]["note"]
    assert str(repository) not in json.dumps(record)
    found = record["results"]
    for row in found["train"].values():
        assert row["texts_per_second"] == pytest.approx(16 * row["steps_per_second"], rel=0.01)
    assert 1.8 < found["export"]["fp32_mb"] / found["export"]["fp16_mb"] < 2.2
    assert found["parity"]["fp32"]["max_absolute_difference"] < 1e-6
    assert 0 < found["parity"]["fp16"]["max_absolute_difference"] < 1e-2
    for encoded in found["runtime"].values():
        assert encoded["many"]["texts_per_second"] > 0
        assert encoded["graph"].keys() == {"1x16", "8x16"}
        for times in (encoded["one"], *encoded["graph"].values()):
            assert 0 < times["p50_ms"] <= times["p95_ms"]


def test_the_gpu_benchmark_becomes_a_table(gpu_results: Path, repository: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table:gpu -->\n<!-- /table -->\n")
    assert run(repository, "report.py", "--results", gpu_results, page).returncode == 0
    steps = load(gpu_results, "gpu")["results"]["train"]["fp32"]["steps_per_second"]
    row = next(line for line in page.read_text().splitlines() if "steps of 8 pairs" in line)
    assert float(row.split("|")[2].replace(",", "")) == pytest.approx(steps, rel=0.01)
    assert "on the CPU | fp32 | bf16 to train" in page.read_text()


def test_without_a_gpu_its_benchmark_says_what_is_missing(repository: Path, tmp_path: Path):
    if not importlib.util.find_spec("torch"):  # importing it takes seconds
        pytest.skip("no torch, which would find the GPU")  # never in CI
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("there is an NVIDIA driver on this machine")  # and the benchmark would run
    done = run(repository, "bench_gpu.py", "--output", tmp_path / "gpu.json")
    assert done.returncode == 1
    assert "torch finds no CUDA device" in done.stderr
    assert "--small" in done.stderr
    assert not (tmp_path / "gpu.json").exists()


def test_encoders_are_compared_with_the_first(
    repository: Path, shared_data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "encoders.json"
    options = ["--small", "--output", output]
    done = run(repository, "compare_encoders.py", "default", "fast", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())["results"]
    assert list(found) == ["default", "fast"]
    for task in ("quora", "qnli", "stsb"):
        first, other = found["default"][task], found["fast"][task]
        assert (first["difference"], first["low"], first["high"]) == (0, 0, 0)
        assert other["difference"] == pytest.approx(other["score"] - first["score"], abs=2e-5)
        assert other["low"] <= other["difference"] <= other["high"]
    assert found["default"]["encode"]["times_as_fast"] == 1


def test_masked_links_make_more_noise_than_as_many_plainly_dropped(
    repository: Path, shared_data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
    output = tmp_path / "dropout_noise.json"
    done = run(repository, "dropout_noise.py", "--small", "--output", output)
    assert done.returncode == 0, done.stderr
    kinds = json.loads(output.read_text())["results"]["kinds"]
    noise = {(found["kind"], found["rate"]): found["noise"] for found in kinds}
    assert noise["plain", 0.1] < noise["plain", 0.2] < noise["plain", 0.3]
    assert noise["scheduled_bernoulli", 0.1] > noise["plain", 0.1]
    assert all(found["dropped"] is None or 0 < found["dropped"] < 0.4 for found in kinds)
    page = tmp_path / "page.md"
    page.write_text("<!-- table:dropout-noise -->\n<!-- /table -->\n")
    assert run(repository, "report.py", "--results", tmp_path, page).returncode == 0
    assert "| `plain` | 0.2 | 0." in page.read_text()
