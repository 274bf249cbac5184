from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("mode", ["new", "append", "replace"])
def test_a_build_killed_before_any_change_on_disk_resumes_to_the_same_collection(
    mode: str, killed: Callable[..., list[str]]
) -> None:
    changes = killed("killed_builds.py", mode)
    assert len(changes) >= 25
    for needed in ("COMMIT", "os.rename", "collection.json", "rejects.jsonl", "snapshots"):
        assert needed in " ".join(changes), f"no kill point at {needed}"
