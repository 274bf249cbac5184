"""The packages keep to their place: one direction of imports, no torch below training."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer

PACKAGES = ("index", "service", "training")
CODE_FROM_DATA = {"pickle", "joblib", "marshal", "dill", "cloudpickle", "shelve"}
UNSAFE_ARGUMENTS = {
    ("allow_pickle", True),
    ("weights_only", False),
    ("trust_remote_code", True),
}
HEAVY = ("numpy", "faiss", "onnxruntime", "tokenizers", "pydantic", "fastapi", "torch")

WALK_WITHOUT_TORCH = """
import importlib, pkgutil, sys
for name in ("torch", "transformers", "sentence_transformers"):
    sys.modules[name] = None
for root in ("lamina_index", "lamina_service"):
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""

HELP_THEN_LIST_MODULES = """
import contextlib, io, json, sys
from lamina_index.cli import main
output = io.StringIO()
with contextlib.redirect_stdout(output):
    code = main(["--help"])
print(json.dumps([code, output.getvalue(), sorted(sys.modules)]))
"""


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def unsafe_spots(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.append(f"line {node.lineno}: {name}()")
                continue
            case ast.keyword(arg=str(name), value=ast.Constant(value=value)):
                if (name, value) in UNSAFE_ARGUMENTS:
                    found.append(f"line {node.value.lineno}: {name}={value}")
                continue
            case _:
                continue
        found += [
            f"line {node.lineno}: import {module}"
            for module in modules
            if module.split(".")[0] in CODE_FROM_DATA
        ]
    return found


def test_imports_point_one_way(repository: Path):
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_index_and_service_import_without_torch():
    modules = run_python(WALK_WITHOUT_TORCH).split()
    assert {"lamina_index.encoder", "lamina_service.app"} <= set(modules)


def test_help_lists_every_command_and_loads_nothing_heavy():
    code, output, modules = json.loads(run_python(HELP_THEN_LIST_MODULES))
    assert code == 0
    for entry_point in entry_points(group="lamina.commands"):
        assert entry_point.name in output
    assert not [name for name in HEAVY if name in modules]


def test_every_entry_point_is_a_typer_app(repository: Path):
    declared = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    commands = entry_points(group="lamina.commands")
    assert declared["entry-points"]["lamina.commands"] == {c.name: c.value for c in commands}
    for command in commands:
        assert isinstance(command.load(), typer.Typer)


def test_no_package_runs_code_from_data(repository: Path, project_files: list[Path]):
    modules = [
        path
        for path in project_files
        if path.suffix == ".py" and path.relative_to(repository).parts[0] in PACKAGES
    ]
    assert len(modules) > 20
    found = {path: unsafe_spots(ast.parse(path.read_bytes())) for path in modules}
    assert not {path: spots for path, spots in found.items() if spots}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "eval(text)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_the_guard_sees_code_from_data(code: str):
    assert unsafe_spots(ast.parse(code))
