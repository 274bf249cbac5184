"""`python -m lamina_index.compaction_process DIR`: one compaction in a process of its own.

So neither Python's lock nor the CPUs of whoever searches are held up. It prints one JSON object:
what `Compaction.summary` tells, or the class and the message of the error that ended it.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

BUSY_EXIT = 75
"""Exit status (EX_TEMPFAIL) where a build or another compaction is at work."""

_NICE = 10
"""A tenth of a search's share of a CPU that both want, and twice that of a thread which encodes
documents: rows must get into the index faster than they come."""


def main(arguments: list[str] | None = None) -> int:
    """Compact a collection; give the exit status."""
    parser = argparse.ArgumentParser(prog="lamina_index.compaction_process")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--factory")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--threads", type=int, help="by default half of the CPUs")
    parser.add_argument(
        "--with-parent", action="store_true", help="end at once when standard input is closed"
    )
    asked = parser.parse_args(arguments)
    if asked.with_parent:
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    os.nice(_NICE)

    from lamina_index.runtime import available_threads

    threads = asked.threads or max(1, available_threads() // 2)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))  # read when numpy is imported

    import orjson

    from lamina_index.compaction import compact
    from lamina_index.errors import CollectionBusyError, LaminaError

    status = 0
    try:
        done = compact(asked.folder, factory=asked.factory, full=asked.full, threads=threads)
        reply = done.summary()
    except LaminaError as error:
        status = BUSY_EXIT if isinstance(error, CollectionBusyError) else 1
        reply = {"error": type(error).__name__, "detail": str(error)}
    os.write(1, orjson.dumps(reply) + b"\n")
    return status


def _end_with_parent() -> None:
    """Wait until whoever holds the other end of standard input is gone, however it ended.

    To end here is as safe as to be killed: the collection keeps the index that it has.
    """
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main())
