"""What is declared, locked and released fits together."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lamina_index

PACKAGES = ("index", "service", "training")
REASON_MISSING = re.compile(
    r"#\s*(?:noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[\w\-, ]+\])?)\s*$"
)


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def locked(repository: Path) -> dict[str, Requirement]:
    lines = (repository / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines]
    assert all(
        [s.operator for s in requirement.specifier] == ["=="] for requirement in requirements
    )
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def pinned_version(requirement: Requirement) -> str:
    return next(iter(requirement.specifier)).version


def declared_requirements(project: dict[str, Any]) -> list[Requirement]:
    extras = project["optional-dependencies"].values()
    return [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]


def imported_modules(path: Path) -> set[str]:
    """Give the top-level names of a file's absolute imports, also those inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_lock_pins_every_declared_package_within_its_range(
    project: dict[str, Any], locked: dict[str, Requirement]
):
    for requirement in declared_requirements(project):
        pin = pinned_version(locked[canonicalize_name(requirement.name)])
        assert requirement.specifier.contains(pin), f"{requirement} is locked at {pin}: make lock"


def test_every_import_is_declared(
    repository: Path, project: dict[str, Any], project_files: list[Path]
):
    declared = {canonicalize_name(r.name) for r in declared_requirements(project)}
    distributions = packages_distributions()
    undeclared = {
        module
        for path in project_files
        if path.suffix == ".py" and path.relative_to(repository).parts[0] in PACKAGES
        for module in imported_modules(path)
        if module not in sys.stdlib_module_names and not module.startswith("lamina_")
        if declared.isdisjoint(map(canonicalize_name, distributions.get(module, [])))
    }
    assert undeclared <= {"pydantic_core"}, "pydantic pins its own core exactly"


def test_the_lock_installs_anywhere(locked: dict[str, Requirement]):
    for requirement in locked.values():
        assert requirement.url is None
        assert "+" not in pinned_version(requirement), "a local version is not on any index"


def test_the_version_is_said_once_and_the_changelog_knows_it(
    repository: Path, project: dict[str, Any]
):
    assert project["version"] == lamina_index.__version__
    assert f"## {project['version']}" in (repository / "CHANGELOG.md").read_text()


def test_every_silenced_check_gives_its_reason(project_files: list[Path]):
    bare = [
        f"{path}:{number}"
        for path in project_files
        if path.suffix == ".py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if REASON_MISSING.search(line)
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("line", "is_bare"),
    [
        ("x = y  # noqa: S608", True),
        ("x = y  # type: ignore[attr-defined]", True),
        ("x = y  # noqa: S608 - the names come from this module", False),
        ("x = y  # type: ignore[attr-defined]  # faiss has no stubs", False),
    ],
)
def test_the_guard_tells_a_reason_from_none(line: str, is_bare: bool):
    assert bool(REASON_MISSING.search(line)) is is_bare
