"""A command of the service that lacks the extra says so in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from lamina_index.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("fastapi", ["serve"]),
        ("uvicorn", ["serve"]),
        ("prometheus_client", ["serve", "--workers", "2"]),
        ("httptools", ["serve"]),
        ("pydantic_settings", ["demo"]),
        ("fastapi", ["keys", "create"]),
        ("fastapi", ["keys", "list"]),
        ("fastapi", ["keys", "revoke", "1"]),
    ],
)
def test_the_extra_to_install_is_named(package: str, command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    expected = f"{package} is not installed; pip install 'lamina-search[service]'"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"lamina: {expected}\n"
    assert not list(tmp_path.iterdir())


def test_help_needs_no_extra() -> None:
    for command in (["serve"], ["keys"], ["keys", "create"], ["demo"]):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, "fastapi", *command, "--help"], capture_output=True
        )
        assert (done.returncode, done.stderr) == (0, b"")
