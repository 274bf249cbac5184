"""A command that lacks its extra says so in one line, and which one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lamina_index.errors import MissingExtraError
from lamina_training.commands.training_extra import training_extra

WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from lamina_index.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("torch", ["train", "--config", "a.toml"]),
        ("onnx", ["export", "a", "b"]),
        ("matplotlib", ["train", "--config", "a.toml"]),
    ],
)
def test_the_extra_to_install_is_named(package: str, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *command], capture_output=True, text=True
    )
    expected = f"{package} is not installed; pip install 'lamina-search[training,cpu]'"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"lamina: {expected}\n"


def test_a_module_of_a_package_is_no_name_to_install() -> None:
    with pytest.raises(MissingExtraError, match="torch is not installed"), training_extra():
        raise ModuleNotFoundError("no such module", name="torch.nn")


def test_other_errors_of_an_import_are_not_taken_for_a_missing_package() -> None:
    with pytest.raises(ImportError, match="cannot import name") as caught, training_extra():
        from json import no_such_name  # type: ignore[attr-defined]  # noqa: F401  # meant to fail
    assert not isinstance(caught.value, MissingExtraError)
