from __future__ import annotations

from collections.abc import Callable

import pytest

Killed = Callable[..., list[str]]
PROGRAM = "killed_writes.py"


@pytest.mark.parametrize("work", ["upsert", "replace", "delete", "filter", "chunked"])
def test_a_write_killed_before_any_step_is_there_whole_or_not_at_all(
    work: str, killed: Killed
) -> None:
    steps = " | ".join(killed(PROGRAM, work))
    needed = {
        "upsert": ["INSERT INTO documents", "INSERT INTO vectors", "UPDATE meta"],
        "delete": ["DELETE FROM documents", "DELETE FROM vectors", "INSERT INTO tombstones"],
    }
    needed["filter"] = needed["delete"]
    needed["replace"] = [*needed["upsert"], *needed["delete"], "os.rename"]
    needed["chunked"] = needed["replace"]
    for step in (".write-lock", *needed[work], "COMMIT"):
        assert step in steps, f"no kill point at {step}"


def test_writers_killed_at_any_moment_lose_nothing_that_they_had_acknowledged(
    killed: Killed,
) -> None:
    assert int(killed(PROGRAM, "random", 10)[0]) >= 10


@pytest.mark.slow
def test_writers_and_compactions_killed_at_any_moment_for_200_rounds(killed: Killed) -> None:
    assert int(killed(PROGRAM, "random", 200)[0]) >= 200
