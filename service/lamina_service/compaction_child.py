"""One compaction in a child process, and what is told of those that fail."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from lamina_index import errors
from lamina_index.compaction_process import BUSY_EXIT
from lamina_index.errors import CollectionBusyError, CompactionError, LaminaError
from lamina_index.manifest import write_atomically
from lamina_service.errors import for_clients

FAILURE_FILE = "compaction-failure.json"
"""In the collection's folder, since any worker may be asked what another has met."""

_POLL_SECONDS = 0.1


def compact_in_child(
    folder: Path, closing: threading.Event, *, factory: str | None = None, full: bool = False
) -> dict[str, Any]:
    """Compact a collection in a process that ends with this one, or when `closing` is set.

    Returns:
        What `Compaction.summary` tells.

    Raises:
        CollectionBusyError: If the collection is busy or the service stops.
        LaminaError: What ended it.
    """
    command = [sys.executable, "-P", "-m", "lamina_index.compaction_process", "--with-parent"]
    command += ["--full"] if full else []
    command += [f"--factory={factory}"] if factory is not None else []
    with subprocess.Popen(
        [*command, "--", str(folder)],
        stdin=subprocess.PIPE,  # held open: its end tells the child that this process is gone
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C in a terminal is for this process, which ends the child
    ) as process:
        try:
            while process.poll() is None:
                if closing.wait(_POLL_SECONDS):
                    raise CollectionBusyError("the service stops, so the compaction was given up")
            assert process.stdout is not None
            output = process.stdout.read()  # a few hundred bytes, which the pipe holds
        finally:
            process.kill()
    try:
        reply: dict[str, Any] = orjson.loads(output)
    except orjson.JSONDecodeError as error:
        raise CompactionError(
            f"{folder}: the process that compacted ended with {process.returncode} and "
            "without a word; the log tells what it wrote, the index is as it was"
        ) from error
    if process.returncode == 0:
        return reply
    if process.returncode == BUSY_EXIT:
        raise CollectionBusyError(reply["detail"])
    kind = getattr(errors, reply["error"], LaminaError)
    raise kind(reply["detail"])


def tell_failure(folder: Path, snapshot: int | None, failures: int, error: Exception) -> None:
    """Let all workers know that compactions in the background fail.

    Args:
        folder: The collection's.
        snapshot: Number of the index that stays in use.
        failures: How many have failed, one after another.
        error: The last one.
    """
    told = {
        "snapshot": snapshot,
        "failures": failures,
        "error": for_clients(str(error), folder.parent),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with suppress(OSError):  # where nothing can be written, the log has told it
        write_atomically(folder / FAILURE_FILE, orjson.dumps(told))


def failure_of(folder: Path, snapshot: int | None) -> dict[str, Any] | None:
    """How the last compactions in the background failed, None if one has gone well since.

    Args:
        folder: The collection's.
        snapshot: The index in use; another than at the failure proves it overcome.
    """
    try:
        told: dict[str, Any] = orjson.loads((folder / FAILURE_FILE).read_bytes())
        if told.pop("snapshot") != snapshot:
            return None
        return {name: told[name] for name in ("failures", "error", "when")}
    except (OSError, ValueError, KeyError, AttributeError):
        return None
