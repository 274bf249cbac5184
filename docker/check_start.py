"""What must hold where an image starts. `check.py` feeds this to the image's own Python.

It indexes three texts with the image's own command, starts the service, waits for the image's own
health check, searches with the key that the first start left, and stops it. An image without a
health check (training) must only run its start step. With LAMINA_DEVICE=cuda and no NVIDIA driver
the service must refuse to start.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

CORPUS = [
    {"id": "bread", "text": "How do I bake bread at home?"},
    {"id": "python", "text": "Which books teach the Python language?"},
    {"id": "visa", "text": "What do I need for a tourist visa?"},
]
QUERY = {"query": "a recipe for a loaf", "top_k": 1}
START_SECONDS = 60
STOP_SECONDS = 20


def search(key: str) -> tuple[int, Any]:
    """Give the status and body of one search."""
    request = Request(
        f"http://127.0.0.1:{os.environ['LAMINA_PORT']}/v1/collections/check/search",
        data=json.dumps(QUERY).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    try:
        with urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def check_is_lean() -> None:
    assert os.geteuid() != 0, "the service runs as root"
    for module in ("torch", "transformers", "pip"):
        assert importlib.util.find_spec(module) is None, f"{module} is in a service image"


def build_collection(entrypoint: list[str]) -> None:
    corpus = Path("corpus.jsonl")
    corpus.write_text("".join(json.dumps(document) + "\n" for document in CORPUS))
    index = ["index", "build", "--input", str(corpus), "--collection", "check"]
    subprocess.run([*entrypoint, *index], check=True)


def wait_until_healthy(service: subprocess.Popen[bytes], healthcheck: list[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while subprocess.run(healthcheck, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        assert service.poll() is None, f"the service ended with {service.returncode}"
        assert time.monotonic() < deadline, f"not healthy after {START_SECONDS} s"
        time.sleep(0.5)


def key_of_first_start() -> str:
    file = Path(os.environ["LAMINA_DATA"], "admin.key")
    assert file.stat().st_mode & 0o777 == 0o600, "others may read the key"
    return file.read_text().strip()


def check_service(start: list[str], healthcheck: list[str]) -> None:
    log = Path("start.log")
    with log.open("w") as output:
        service = subprocess.Popen(start, stdout=output, stderr=output)
        try:
            wait_until_healthy(service, healthcheck)
            key = key_of_first_start()
            assert key not in log.read_text(), "the key is in the log"
            status, found = search(key)
            assert status == 200, found
            assert [hit["id"] for hit in found["hits"]] == ["bread"], found
            assert search("not-a-key")[0] == 401, "a wrong key was accepted"
            service.send_signal(signal.SIGTERM)
            assert service.wait(STOP_SECONDS) == 0, f"SIGTERM gave {service.returncode}"
        except BaseException:
            print(log.read_text())
            raise
        finally:
            service.kill()
    print("check_start: indexed, healthy, found, wrong key refused, stopped")


def check_refuses_without_cuda(start: list[str]) -> None:
    done = subprocess.run(start, capture_output=True, text=True, check=False, timeout=START_SECONDS)
    assert done.returncode != 0, "started without CUDA"
    reasons = [line for line in done.stderr.splitlines() if "ERROR" in line and "CUDA" in line]
    assert reasons, done.stderr
    print(f"check_start: refused without CUDA: {reasons[0]}")


def main() -> None:
    image = json.loads(sys.argv[1])
    if not image["healthcheck"]:
        subprocess.run(image["start"], check=True, stdout=subprocess.DEVNULL)
        print(f"check_start: {' '.join(image['start'])} ran")
        return
    check_is_lean()
    if os.environ["LAMINA_DEVICE"] == "cuda" and not Path("/proc/driver/nvidia").exists():
        check_refuses_without_cuda(image["start"])
        return
    build_collection(image["entrypoint"])
    check_service(image["start"], image["healthcheck"])


if __name__ == "__main__":
    main()
