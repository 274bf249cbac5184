"""`service.sqlite` of an older Lamina: taken over in one step, by however many workers at once."""

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from lamina_service.database import DATABASE, DATABASE_VERSION, exclusive, open_database
from lamina_service.keys import KeyStore

VERSION_1 = """
CREATE TABLE keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('read', 'write', 'admin')),
    sha256 BLOB NOT NULL UNIQUE,
    created TEXT NOT NULL,
    revoked TEXT
) STRICT;
INSERT INTO keys (name, scope, sha256, created) VALUES
    ('old', 'admin', x'8d969eef6ecad3c29a3a629280e686cf0c3f5d5a86aff3ca12020c923adc6c92', '2026');
PRAGMA user_version = 1;
"""
OLD_TOKEN = "123456"
"""Its sha256 is the one above."""

OPEN_ALL = """
import sys
from pathlib import Path
from lamina_service.database import open_database
sys.stdin.read()
for number in range(15):
    open_database(Path(sys.argv[1]) / str(number)).close()
"""
KILL_AT = """
import os, signal, sqlite3, sys
from pathlib import Path
plain, fatal, seen = sqlite3.connect, int(sys.argv[2]), 0
def trace(statement):
    global seen
    seen += 1
    if seen == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
def connect(*arguments, **options):
    connection = plain(*arguments, **options)
    connection.set_trace_callback(trace)
    return connection
sqlite3.connect = connect
from lamina_service.database import open_database
open_database(Path(sys.argv[1])).close()
print(seen)
"""


def make_version_1(data: Path) -> None:
    data.mkdir(exist_ok=True)
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        connection.executescript(f"PRAGMA journal_mode = WAL; {VERSION_1}")


def state(data: Path) -> tuple[int, list[str]]:
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
    return version, sorted(name for (name,) in tables)


def test_a_file_of_version_1_keeps_its_keys_and_gains_aliases(tmp_path: Path) -> None:
    make_version_1(tmp_path)
    with closing(KeyStore.open(tmp_path)) as keys:
        assert keys.find(OLD_TOKEN) == "admin"
    assert state(tmp_path) == (DATABASE_VERSION, ["aliases", "keys"])


@pytest.mark.parametrize("old", [True, False], ids=["version 1", "no file"])
def test_processes_that_start_at_once_all_get_their_database(old: bool, tmp_path: Path) -> None:
    for number in range(15):
        data = tmp_path / str(number)
        make_version_1(data) if old else data.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_ALL, tmp_path],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        assert process.stderr is not None
        with process.stderr as errors:
            assert (process.wait(60), errors.read()) == (0, "")
    for number in range(15):
        assert state(tmp_path / str(number)) == (DATABASE_VERSION, ["aliases", "keys"])


@pytest.mark.parametrize("old", [True, False], ids=["version 1", "no file"])
def test_a_kill_at_any_statement_leaves_a_file_that_the_next_start_takes_over(
    old: bool, tmp_path: Path
) -> None:
    def run(folder: Path, fatal: int) -> subprocess.CompletedProcess[str]:
        folder.mkdir()
        if old:
            make_version_1(folder)
        command = [sys.executable, "-c", KILL_AT, str(folder), str(fatal)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    statements = json.loads(run(tmp_path / "whole", 0).stdout)
    assert statements >= 5
    for fatal in range(1, statements + 1):
        data = tmp_path / str(fatal)
        assert run(data, fatal).returncode == -signal.SIGKILL
        with closing(KeyStore.open(data)) as keys:
            assert keys.required == old
            if old:
                assert keys.find(OLD_TOKEN) == "admin"
        assert state(data) == (DATABASE_VERSION, ["aliases", "keys"])


def test_a_change_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    open_database(tmp_path).close()

    def fail() -> None:
        with exclusive(tmp_path) as connection:
            connection.execute("INSERT INTO aliases VALUES ('a', 'b', 'c')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with exclusive(tmp_path) as connection:
        assert connection.execute("SELECT * FROM aliases").fetchall() == []
