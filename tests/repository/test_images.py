"""The images' recipes: checked as text here, and carried out by `docker/check.py`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

DOCKERFILES = ("service-cpu", "service-gpu", "training")
SERVICES = ("service-cpu", "service-gpu")


def last_stage(dockerfile: Path) -> str:
    return re.split(r"^FROM ", dockerfile.read_text(), flags=re.MULTILINE)[-1]


@pytest.fixture
def docker(repository: Path) -> Path:
    return repository / "docker"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_no_image_runs_as_root_or_installs_in_its_last_stage(docker: Path, name: str):
    stage = last_stage(docker / f"{name}.Dockerfile")
    assert re.search(r"^USER lamina$", stage, re.MULTILINE)
    assert not re.search(r"\b(pip|apt-get|gcc)\b", stage)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_image_has_no_training_extra_and_a_health_check(docker: Path, name: str):
    text = (docker / f"{name}.Dockerfile").read_text()
    build = text.split(" AS build\n")[1]
    assert "training]" not in build
    assert re.search(r"^HEALTHCHECK .*\n.*/readyz", build, re.MULTILINE)


@pytest.mark.parametrize("name", SERVICES)
def test_the_health_check_asks_the_port_that_is_set(docker: Path, name: str):
    text = (docker / f"{name}.Dockerfile").read_text()
    found = re.search(r"^HEALTHCHECK .*\\\n +CMD (.*)$", text, re.MULTILINE)
    assert found
    _, *arguments = json.loads(found[1])
    asked = []

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200 if len(asked) == 1 else 503)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environment = {"LAMINA_PORT": str(server.server_port)}
        command = [sys.executable, *arguments]
        codes = [
            subprocess.run(command, env=environment, stderr=subprocess.DEVNULL).returncode
            for _ in range(2)
        ]
        server.shutdown()
        thread.join()
    assert asked == ["/readyz", "/readyz"]
    assert codes == [0, 1]


def test_the_gpu_image_insists_on_cuda(docker: Path):
    stage = last_stage(docker / "service-gpu.Dockerfile")
    assert "LAMINA_DEVICE=cuda" in stage
    assert "LAMINA_ENCODER=/opt/encoder" in stage


@pytest.mark.parametrize("name", DOCKERFILES)
def test_every_install_is_held_by_the_lock(docker: Path, name: str):
    text = (docker / f"{name}.Dockerfile").read_text().replace("\\\n", " ")
    installs = [line for line in text.splitlines() if " install --no-cache-dir" in line]
    assert installs
    assert all("--constraint constraints.txt" in line for line in installs)


def test_the_compose_file_fits_its_schema(repository: Path):
    done = subprocess.run(
        [
            Path(sys.executable).with_name("check-jsonschema"),
            "--builtin-schema",
            "vendor.compose-spec",
            repository / "docker-compose.yml",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_compose_file_builds_each_service_on_the_data_volume(repository: Path):
    compose = yaml.safe_load((repository / "docker-compose.yml").read_text())
    assert set(compose["volumes"]) == {"data"}
    profiles = {}
    for service in compose["services"].values():
        assert (repository / service["build"]["dockerfile"]).is_file()
        assert service["volumes"] == ["data:/data"]
        assert [port.split(":")[0] for port in service["ports"]] == ["127.0.0.1"]
        profiles[service["profiles"][0]] = service["build"]["dockerfile"]
    assert profiles == {
        "cpu": "docker/service-cpu.Dockerfile",
        "gpu": "docker/service-gpu.Dockerfile",
    }


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_stage_that_installs_torch_takes_an_index_of_lighter_wheels(docker: Path, name: str):
    stages = re.split(r"^FROM ", (docker / f"{name}.Dockerfile").read_text(), flags=re.MULTILINE)
    with_torch = [stage for stage in stages if re.search(r"install .*training", stage, re.DOTALL)]
    assert bool(with_torch) == (name != "service-cpu")
    assert all("\nARG PIP_EXTRA_INDEX_URL\n" in stage for stage in with_torch)


@pytest.fixture
def start_container(docker: Path, tmp_path: Path):
    """Run the images' start script on `tmp_path / "data"`; `serve` finds no encoder and ends."""
    scripts = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if name[:7] != "LAMINA_"}
    environment |= {
        "PATH": f"{scripts}:{environment['PATH']}",
        "LAMINA_DATA": str(tmp_path / "data"),
        "LAMINA_HOST": "127.0.0.1",
        "LAMINA_PORT": "0",
        "LAMINA_ENCODER": str(tmp_path / "nowhere"),
    }
    (tmp_path / "data").mkdir()

    def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", docker / "entrypoint.sh", *arguments],
            capture_output=True,
            text=True,
            env=environment | variables,
        )

    return start


def test_the_first_start_leaves_a_key_in_a_file_and_none_in_the_log(start_container, tmp_path):
    first = start_container("serve")
    assert "no encoder.json there" in first.stderr  # it came as far as that
    file = tmp_path / "data" / "admin.key"
    key = file.read_text().strip()
    assert re.fullmatch(r"lamina_[\w-]{43}", key)
    assert file.stat().st_mode & 0o777 == 0o600
    assert str(file) in first.stderr
    assert key not in first.stdout + first.stderr
    assert "no service.sqlite" not in first.stderr
    assert "\tadmin\t" in start_container("keys", "list").stdout

    file.unlink()
    second = start_container("serve")
    assert "key" not in second.stdout + second.stderr
    assert not file.exists()
    assert len(start_container("keys", "list").stdout.splitlines()) == 1


def test_a_start_without_a_key_in_force_tells_how_to_make_one(start_container, tmp_path):
    start_container("keys", "create", "--name", "in force")
    start_container("keys", "revoke", "1")
    done = start_container("serve", LAMINA_HOST="0.0.0.0")
    assert done.returncode == 1
    assert "docker compose --profile cpu run --rm lamina keys create --scope admin" in done.stderr
    assert not (tmp_path / "data" / "admin.key").exists()


def test_a_start_on_a_damaged_list_of_keys_makes_none(start_container, tmp_path):
    damaged = b"not a database at all" * 100
    (tmp_path / "data" / "service.sqlite").write_bytes(damaged)
    done = start_container("serve")
    assert done.returncode == 1
    assert done.stderr.count("service.sqlite") == 1
    assert not (tmp_path / "data" / "admin.key").exists()
    assert (tmp_path / "data" / "service.sqlite").read_bytes() == damaged


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make namespaces")
def test_the_cpu_image_starts_and_answers(docker: Path):
    done = subprocess.run(
        [sys.executable, docker / "check.py", docker / "service-cpu.Dockerfile"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "indexed, healthy, found, wrong key refused, stopped" in done.stdout
