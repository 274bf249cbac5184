"""Run an image's build and start steps without a container engine, and use what they make.

    sudo .venv/bin/python docker/check.py docker/service-cpu.Dockerfile

Each stage of the Dockerfile gets an empty root folder. Only COPY puts files there; RUN runs there
(chroot, with mount and process namespaces of its own) and has the network; the start step runs
there as the image's user without a network. `check_start.py` says what must then hold.

What differs from a real build: the base image is not fetched. In its place stand this machine's
`/usr`, mounted read-only, and the Python that runs this script, mounted at `/usr/local`. So the
base's own contents, layers and image sizes are not checked. Needs Linux and root.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
FROM_BASE = ("passwd", "group", "shadow", "gshadow", "login.defs", "ld.so.cache", "nsswitch.conf")
FOR_NETWORK = ("resolv.conf", "hosts", "ssl", "ca-certificates")
BASE_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "LD_LIBRARY_PATH": "/usr/local/lib",  # the ld.so.cache at hand may lead to another libpython
}

# Arguments: root, Python's prefix, folder of local wheels or "", user ids or "", then the command.
ENTER = """
root=$1 prefix=$2 wheels=$3 user=$4; shift 4
mount --make-rprivate /
mount --bind --options ro /usr "$root/usr"
[ "$prefix" = /usr ] || mount --bind --options ro "$prefix" "$root/usr/local"
[ -z "$wheels" ] || mount --bind --options ro "$wheels" "$root/wheels"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot ${user:+--userspec="$user"} "$root" "$@"
"""

LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0x41))  # SIOCSIFFLAGS: up
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass
class Stage:
    """A stage as it is being built: its root folder, and the settings that later steps see."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)

    def path(self, inside: str) -> Path:
        return self.root / Path(self.workdir, inside).relative_to("/")


def read_steps(dockerfile: Path) -> list[tuple[str, str]]:
    """Give (instruction, arguments) pairs, continuation lines joined and comments dropped."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(instruction, arguments) for instruction, arguments in steps]


def new_root(parent: Path, name: str) -> Path:
    """Make a root folder with what every Debian has: the usual folders, users and `ld.so.cache`."""
    root = parent / name
    for folder in ("usr", "etc", "dev", "proc", "opt", "tmp", "var/tmp", "wheels"):
        (root / folder).mkdir(parents=True)
    root.chmod(0o755)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    for folder in ("bin", "sbin", "lib", "lib64"):
        (root / folder).symlink_to(f"usr/{folder}")
    copy_from_etc(root, FROM_BASE)
    return root


def copy_from_etc(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        source = Path("/etc", name)
        if source.is_dir():
            shutil.copytree(source, root / "etc" / name, symlinks=False, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, root / "etc" / name)


def enter(
    stage: Stage,
    command: list[str],
    *,
    environment: dict[str, str],
    user: str = "",
    wheels: str = "",
    network: bool,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command in the stage's root, in namespaces that end with it."""
    variables = BASE_ENVIRONMENT | stage.environment | environment
    cleanly = [
        "env",
        "-i",
        f"--chdir={stage.workdir}",
        *(f"{name}={value}" for name, value in variables.items()),
        *command,
    ]
    inside = [
        "sh",
        "-euc",
        ENTER,
        "enter",
        str(stage.root),
        sys.base_prefix,
        wheels,
        user,
        *cleanly,
    ]
    namespaces = ["--mount", "--pid", "--fork", "--kill-child"]
    if not network:
        namespaces.append("--net")
        inside = [sys.executable, "-c", LOOPBACK_UP, *inside]
    return subprocess.run(["unshare", *namespaces, *inside], input=stdin, text=True, check=False)


def run_step(stage: Stage, shell: str) -> None:
    """RUN: with the network, and with the caller's own pip settings."""
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    pip["PIP_QUIET"] = "1"
    wheels = pip.get("PIP_FIND_LINKS", "")
    if Path(wheels or "-").is_dir():
        pip["PIP_FIND_LINKS"] = "/wheels"
    else:
        wheels = ""
    done = enter(stage, ["sh", "-ec", shell], environment=pip, wheels=wheels, network=True)
    if done.returncode != 0:
        sys.exit(f"check: exit {done.returncode} from RUN {shell}")


def copy_step(stage: Stage, arguments: str, stages: dict[str, Stage]) -> None:
    """COPY [--from=STAGE] SOURCE... TARGET."""
    *sources, target = arguments.split()
    base = REPOSITORY
    if sources[0].startswith("--from="):
        base = stages[sources.pop(0).removeprefix("--from=")].root
    for name in sources:
        source = base / name.lstrip("/")
        destination = stage.path(target)
        if target.endswith("/") and source.is_file():
            destination /= source.name
        destination.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, destination, symlinks=True, ignore=LEFT_OUT)
        else:
            shutil.copy(source, destination)


def build(dockerfile: Path, folder: Path) -> Stage:
    """Carry out every step; give the last stage, which is the image."""
    stages: dict[str, Stage] = {}
    for instruction, arguments in read_steps(dockerfile):
        print(f"check: {instruction} {arguments}", flush=True)
        if instruction == "FROM":
            name = arguments.split(" AS ")[1] if " AS " in arguments else "image"
            stage = stages[name] = Stage(new_root(folder, name))
            copy_from_etc(stage.root, FOR_NETWORK)
            continue
        match instruction:
            case "RUN":
                run_step(stage, arguments)
            case "COPY":
                copy_step(stage, arguments, stages)
            case "ENV":
                stage.environment |= dict(item.split("=", 1) for item in shlex.split(arguments))
            case "WORKDIR":
                stage.workdir = arguments
                stage.path(arguments).mkdir(parents=True, exist_ok=True)
            case "USER":
                stage.user = user_ids(stage.root, arguments)
            case "ENTRYPOINT":
                stage.entrypoint = json.loads(arguments)
            case "CMD":
                stage.command = json.loads(arguments)
            case "HEALTHCHECK":
                stage.healthcheck = json.loads(arguments.partition("CMD ")[2] or "[]")
            case "ARG" | "EXPOSE" | "VOLUME":
                pass  # nothing to do without an engine
            case _:
                sys.exit(f"check: {dockerfile}: this script does not know {instruction}")
    return stages["image"]


def user_ids(root: Path, name: str) -> str:
    """Look a user up in the image's own list of users."""
    for line in (root / "etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return f"{fields[2]}:{fields[3]}"
    sys.exit(f"check: the image has no user {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build and start an image without an engine.")
    parser.add_argument("dockerfile", type=Path)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("check: needs root, to make namespaces and to change users")
    with tempfile.TemporaryDirectory(prefix="lamina-image-") as folder:
        image = build(arguments.dockerfile, Path(folder))
        if not image.user:
            sys.exit("check: the image would run as root")
        expected = {
            "start": [*image.entrypoint, *image.command],
            "entrypoint": image.entrypoint,
            "healthcheck": image.healthcheck,
        }
        done = enter(
            image,
            ["python", "-", json.dumps(expected)],
            environment={},
            user=image.user,
            network=False,
            stdin=Path(__file__).with_name("check_start.py").read_text(),
        )
    print(f"check: {arguments.dockerfile.name}: {'ok' if done.returncode == 0 else 'FAILED'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
