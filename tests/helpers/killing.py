"""Kill a process before any of its changes on disk.

For programs of their own, which fork and start no threads themselves: a fork for each kill takes a
tenth of the time of a new interpreter.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Count = Callable[[str], None]
"""Counts a change, for steps that are to count as one."""

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}
_OWN = re.compile(r"(INSERT INTO|DELETE FROM|UPDATE) [a-z]")
"""Statements of ours, other than those that the word index makes of them."""


def die_before_change(
    fatal: int, log: int | None = None, *, every_statement: bool = False
) -> Count:
    """Kill this process with SIGKILL before its n-th change on disk; n = 0 only lists them.

    Of a transaction the commit is a change, or every statement that changes a row.
    """
    changes = 0

    def count(change: str) -> None:
        nonlocal changes
        changes += 1
        if changes == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        if log is not None:
            os.write(log, f"{change}\n".encode())

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            count(f"{event} {arguments[:2]}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT:
            count(f"open {arguments[0]}")

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = plain_connect(*arguments, **options)
        writing = False

        def trace(statement: str) -> None:
            nonlocal writing
            if writing and (statement == "COMMIT" or (every_statement and _OWN.match(statement))):
                count(" ".join(statement.split()))
            writing = statement == "BEGIN IMMEDIATE" or (writing and statement != "COMMIT")

        connection.set_trace_callback(trace)
        return connection

    plain_connect, sqlite3.connect = sqlite3.connect, connect
    sys.addaudithook(hook)
    return count


def in_child(task: Callable[[], object]) -> int:
    """Run a task in a forked child; give its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            task()
        except BaseException:  # whatever it is, the child must not go on as a second parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def changes_of(
    task: Callable[[Count], object], log: Path, *, every_statement: bool = False
) -> list[str]:
    """Do a task in a child, undisturbed, and list the changes that it makes on disk."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def listing() -> None:
        task(die_before_change(0, descriptor, every_statement=every_statement))

    assert in_child(listing) == 0
    os.close(descriptor)
    return log.read_text().splitlines()


def kill_before(
    number: int, task: Callable[[Count], object], *, every_statement: bool = False
) -> list[str]:
    """Do a task in a child that is killed before its n-th change; what is wrong, if it is not."""
    status = in_child(lambda: task(die_before_change(number, every_statement=every_statement)))
    return [] if status == -signal.SIGKILL else [f"exit status {status}"]


def report(changes: list[str], wrong: list[str]) -> None:
    """Print what was killed before, and what went wrong, as the fixture `killed` reads it."""
    json.dump({"changes": changes, "wrong": wrong}, sys.stdout)
