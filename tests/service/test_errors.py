import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import lamina_index
import lamina_service
from lamina_index.errors import LaminaError
from lamina_service.errors import PROBLEMS, REQUEST_PROBLEMS, for_clients, problem_of

SERVED = ("lamina_index.", "lamina_service.")  # errors of training never meet a request


def _every_error(kind: type[LaminaError] = LaminaError) -> set[type[LaminaError]]:
    return {kind, *(found for child in kind.__subclasses__() for found in _every_error(child))}


def _import_everything() -> None:
    for package in (lamina_index, lamina_service):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def test_every_error_has_its_own_line_in_the_table() -> None:
    _import_everything()
    ours = {kind for kind in _every_error() if kind.__module__.startswith(SERVED)}
    assert ours == set(PROBLEMS)


def test_the_guide_lists_what_a_request_can_meet_and_nothing_else(repository: Path) -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.*?) \|", (repository / "docs/api.md").read_text(), re.M)
    listed = {(int(status), slug) for status, cell in rows for slug in re.findall(r"`(.+?)`", cell)}
    of_routes = {(404, "not-found"), (405, "method-not-allowed")}
    assert listed - of_routes == {(found.status, found.slug) for found in REQUEST_PROBLEMS.values()}


def test_problem_slugs_are_distinct() -> None:
    slugs = [problem.slug for problem in PROBLEMS.values()]
    assert len(slugs) == len(set(slugs))


def test_an_error_without_a_line_is_answered_as_its_parent() -> None:
    parent = next(kind for kind in PROBLEMS if kind is not LaminaError)
    child = type("ChildError", (parent,), {"__module__": "test"})
    assert problem_of(child("found")) is PROBLEMS[parent]


@pytest.mark.parametrize("kind", PROBLEMS, ids=lambda kind: kind.__name__)
def test_statuses_tell_errors(kind: type[LaminaError]) -> None:
    assert 400 <= PROBLEMS[kind].status <= 599


@pytest.mark.parametrize("given", ["data", "elsewhere/data", "{here}/data", "."])
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "{data}/c/keys.npy: cut; `lamina index compact {data}/c` makes it again",
            "c/keys.npy: cut; `lamina index compact c` makes it again",
        ),
        ("{data}: cannot be written", "the data folder: cannot be written"),
        ("{data}: no data of data sets", "the data folder: no data of data sets"),
        ("{archives}/c.tar: no space", "c.tar: no space"),
        (
            "{data}2/c: is another, and metadata/c, too",
            "{data}2/c: is another, and metadata/c, too",
        ),
    ],
)
def test_paths_begin_in_the_folders_that_are_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, message: str, expected: str
) -> None:
    here, archives = tmp_path / "here", tmp_path / "archives"
    here.mkdir()
    monkeypatch.chdir(here)
    data = Path(given.format(here=here))
    for written in (data, data.absolute()):
        if given == "." and written == data:
            continue  # a path in it has no folder before it
        places = {"data": written, "archives": archives}
        told = for_clients(message.format(**places), data, archives)
        assert told == expected.format(**places)
