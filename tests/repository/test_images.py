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
