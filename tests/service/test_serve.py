"""`lamina serve` and `lamina demo` as processes of their own."""

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from lamina_index.cli import main
from lamina_service.keys import KeyStore

RUN = "from lamina_index.cli import run; run()"
WITHOUT_TORCH = f"""
import sys
for name in ("torch", "transformers", "sentence_transformers"):
    sys.modules[name] = None
{RUN}
"""
SEARCH = "/v1/collections/small/search"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LAMINA_")}


@contextmanager
def _process(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # workers too
        process.communicate()


def _lamina(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", RUN, *map(str, arguments)]


def _read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read the process's standard output up to a line that matches."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if found := re.search(pattern, line):
            return found
    assert process.stderr is not None
    raise AssertionError(f"ended without {pattern}: {read} {process.stderr.read()}")


def _interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


@pytest.mark.parametrize("workers", [1, 2])
def test_it_answers_sums_its_metrics_and_stops_cleanly(data: Path, workers: int) -> None:
    command = _lamina("serve", "--data", data, "--port", 0, "--workers", workers)
    with _process(*command) as process:
        url = _read_until(process, r"http://127\.0\.0\.1:\d+")[0]
        for _ in range(20):  # each on a connection of its own, so all workers get some
            reply = httpx.post(url + SEARCH, json={"query": "cats"}, timeout=60, trust_env=False)
            assert reply.json()["hits"][0]["id"] == "cats"
        info = httpx.get(f"{url}/info", trust_env=False).json()
        assert info["workers"] == workers
        metrics = httpx.get(f"{url}/metrics", trust_env=False).text
        assert re.search(r'lamina_requests_total\{.*search".* 20\.0', metrics)
        code, errors = _interrupt(process)
    assert code == 0
    assert "Traceback" not in errors
    assert "collection small is open: 14 documents" in errors


def test_sigterm_ends_it_without_an_error(data: Path) -> None:
    with _process(*_lamina("serve", "--data", data, "--port", 0)) as process:
        url = _read_until(process, r"http://\S+")[0]
        assert httpx.get(f"{url}/readyz", timeout=60, trust_env=False).status_code == 200
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_idle_connections_beyond_the_files_that_it_may_open_do_not_freeze_it(data: Path) -> None:
    command = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *_lamina("serve", "--data", data)]
    with _process(*command, "--port", "0") as process, ExitStack() as stack:
        url = httpx.URL(_read_until(process, r"http://\S+")[0])
        for _ in range(400):
            stack.enter_context(socket.create_connection((url.host, url.port or 0)))
        for _ in range(3):
            reply = httpx.post(
                url.join(SEARCH), json={"query": "cats"}, timeout=60, trust_env=False
            )
            assert reply.json()["hits"][0]["id"] == "cats"
        code, errors = _interrupt(process)
    assert code == 0
    assert errors.count("ERROR") == 0


def test_a_worker_that_dies_is_replaced(data: Path) -> None:
    command = _lamina("serve", "--data", data, "--port", 0, "--workers", 2)
    with _process(*command) as process:
        url = _read_until(process, r"http://\S+")[0]
        assert httpx.get(f"{url}/readyz", timeout=60, trust_env=False).status_code == 200
        killed = _workers(process)[0]
        worker = os.pidfd_open(killed)
        os.kill(killed, signal.SIGKILL)  # till it is gone, connections that it took are reset
        assert select.select([worker], [], [], 30)[0]
        os.close(worker)
        for _ in range(20):
            reply = httpx.post(url + SEARCH, json={"query": "cats"}, timeout=60, trust_env=False)
            assert reply.status_code == 200
        assert _interrupt(process)[0] == 0


def test_workers_end_with_a_supervisor_that_is_killed_and_free_the_port(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its folder of counters is left behind
    command = _lamina("serve", "--data", data, "--port", 0, "--workers", 2)
    with _process(*command) as process:
        url = httpx.URL(_read_until(process, r"http://\S+")[0])
        with httpx.Client(base_url=url, trust_env=False) as client:  # holds its connection open
            assert client.get("/livez").status_code == 200
            workers = [os.pidfd_open(pid) for pid in _workers(process)]
            assert len(workers) == 2
            process.kill()
            for worker in workers:
                ended, _, _ = select.select([worker], [], [], 15)
                os.close(worker)
                assert ended
        assert url.port is not None
        socket.create_server((url.host, url.port)).close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def _workers(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "spawn_main" in _command_line(pid)]


def _command_line(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_it_starts_and_answers_without_torch(data: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "serve", "--data", str(data), "--port", "0"]
    with _process(*command) as process:
        url = _read_until(process, r"http://\S+")[0]
        reply = httpx.post(url + SEARCH, json={"query": "cats"}, timeout=60, trust_env=False)
        assert reply.json()["hits"][0]["id"] == "cats"


_ASK = """
import json, re, subprocess, sys, urllib.request
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
url = re.search(r"http://\\S+", process.stdout.readline())[0]
request = urllib.request.Request(
    url + "/v1/collections/small/search", b'{"query": "cats"}', {"Content-Type": "application/json"}
)
print(json.load(urllib.request.urlopen(request, timeout=60))["hits"][0]["id"])
process.terminate()
process.wait()
"""


def test_it_starts_and_answers_without_a_network(data: Path) -> None:
    unshare = shutil.which("unshare")
    isolated = [unshare or "", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && "$@"']
    if unshare is None or subprocess.run([*isolated, "sh", "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process give up its network")
    command = [*isolated, "sh", sys.executable, "-c", _ASK]
    answer = subprocess.run(
        [*command, *_lamina("serve", "--data", data, "--port", "0")],
        capture_output=True,
        text=True,
        timeout=120,
        env=_environment(),
    )
    assert answer.stdout.strip() == "cats", answer.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_start_that_fails_says_why_in_a_line_and_ends(data: Path, workers: str) -> None:
    command = _lamina("serve", "--data", data, "--port", 0, "--workers", workers)
    with _process(*command, "--encoder", "/nowhere") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "/nowhere: no encoder.json there" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "lamina keys create"),
        (["--data", "/proc/nowhere"], "/proc/nowhere: the folder cannot be made"),
        (["--data", __file__], f"{__file__}: is a file, expected the folder"),
        (["--port", "70000"], "LAMINA_PORT (--port)"),
        (["--device", "abacus"], "LAMINA_DEVICE (--device)"),
        (["--host", "203.0.113.9"], "lamina keys create"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_remedy(
    data: Path,
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LAMINA_SHARED_DATA", raising=False)
    assert main(["serve", "--data", str(data), *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_folder_that_is_missing_is_made_and_can_be_filled(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    with _process(*_lamina("serve", "--data", folder, "--port", 0)) as process:
        url = _read_until(process, r"http://\S+")[0]
        made = httpx.put(f"{url}/v1/collections/new", timeout=60, trust_env=False)
        assert made.status_code == 201
        code, errors = _interrupt(process)
    assert code == 0
    assert errors.startswith(f"{folder} was missing and was made; it has no collection yet\n")
    assert (folder / "new" / "collection.json").is_file()


def test_the_demo_refuses_a_file_in_the_place_of_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMINA_SHARED_DATA", raising=False)
    (tmp_path / "file").touch()
    for data in (tmp_path / "file", tmp_path / "file" / "inside"):
        assert main(["demo", "--data", str(data)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert str(data) in line
        assert "give another with --data" in line


def test_without_a_key_pages_of_other_origins_are_refused_at_the_start(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMINA_SHARED_DATA", raising=False)
    monkeypatch.setenv("LAMINA_CORS_ORIGINS", "*")
    assert main(["serve", "--data", str(data)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "LAMINA_CORS_ORIGINS" in line
    assert "lamina keys create" in line


def test_a_port_in_use_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMINA_SHARED_DATA", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["serve", "--data", str(data), "--port", port]) == 1
    assert f"127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_with_a_key_it_serves_other_machines(tmp_path: Path, data: Path) -> None:
    shutil.copytree(data / "small", tmp_path / "small")
    _, token = KeyStore.open(tmp_path).create("read")
    command = _lamina("serve", "--data", tmp_path, "--port", 0, "--host", "0.0.0.0")
    with _process(*command) as process:
        port = _read_until(process, r"http://0\.0\.0\.0:(\d+)")[1]
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/info", timeout=60, trust_env=False).status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/info", headers=headers, trust_env=False).status_code == 200


def test_the_demo_indexes_a_file_once_and_its_printed_calls_work(tmp_path: Path) -> None:
    threads = threading.active_count()  # those of the services that other tests keep
    corpus = tmp_path / "my questions.jsonl"
    lines = [{"id": str(n), "text": f"It's question {n} of the user's own file"} for n in range(9)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with socket.create_server(("127.0.0.1", 0)) as other:  # the wanted port is taken
        port = other.getsockname()[1]
        command = _lamina("demo", "--corpus", corpus, "--data", tmp_path / "data", "--port", port)
        for _ in range(2):
            with _process(*command) as process:
                assert _read_until(process, r"(\d+) documents in \S+")[1] == "9"
                _read_until(process, rf"Port {port} is taken")
                _read_until(process, r"http://127\.0\.0\.1:\d+")
                calls = [_read_until(process, r"^curl .*")[0] for _ in range(3)]
                answers = [
                    json.loads(
                        subprocess.run(
                            call, shell=True, capture_output=True, check=True, timeout=60
                        ).stdout
                    )
                    for call in calls
                ]
                assert _interrupt(process)[0] == 0
            assert len(answers[0]["hits"]) == 3
            assert answers[1]["hits"][0] == answers[0]["hits"][0]
            assert len(answers[2]["data"][0]["embedding"]) == 384
            built = (tmp_path / "data" / "my-questions" / "collection.json").stat().st_ino
    lines[0]["text"] = "The user has changed the file"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with _process(*command) as process:
        _read_until(process, r"9 documents in")
    assert (tmp_path / "data" / "my-questions" / "collection.json").stat().st_ino != built
    assert threading.active_count() < threads + 10
