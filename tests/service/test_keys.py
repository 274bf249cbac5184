import sqlite3
from pathlib import Path

import pytest

from lamina_index.cli import main
from lamina_index.errors import DamagedError, FormatError
from lamina_service.database import DATABASE
from lamina_service.errors import SettingsError
from lamina_service.keys import KeyStore, allows


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore.open(tmp_path)


def test_a_made_key_is_found_with_its_scope_and_no_other_is(keys: KeyStore) -> None:
    _, token = keys.create("write", "ci")
    assert keys.find(token) == "write"
    assert keys.find(token[:-1]) is None
    assert keys.find("") is None


def test_the_file_holds_no_key_that_could_be_used(keys: KeyStore, tmp_path: Path) -> None:
    _, token = keys.create("admin")
    keys.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.encode() not in content
    assert token.removeprefix("lamina_").encode() not in content


def test_another_process_sees_a_new_and_a_revoked_key_with_its_next_look(
    keys: KeyStore, tmp_path: Path
) -> None:
    service = KeyStore.open(tmp_path)
    assert not service.required
    key_id, token = keys.create("read")
    assert service.find(token) == "read"
    assert keys.revoke(key_id)
    assert service.find(token) is None


def test_revoking_the_last_key_leaves_the_service_closed(keys: KeyStore) -> None:
    key_id, _ = keys.create("read")
    keys.revoke(key_id)
    assert keys.required
    assert not keys.usable


def test_a_key_is_revoked_once_and_stays_listed(keys: KeyStore) -> None:
    key_id, _ = keys.create("read", "alice")
    assert keys.revoke(key_id)
    assert not keys.revoke(key_id)
    assert not keys.revoke(99)
    (key,) = keys.list()
    assert (key.id, key.name, key.scope) == (key_id, "alice", "read")
    assert key.revoked is not None


def test_a_scope_includes_those_before_it() -> None:
    assert allows("admin", "read")
    assert allows("write", "write")
    assert not allows("read", "write")
    assert not allows("write", "admin")


def test_a_missing_folder_a_newer_file_and_a_damaged_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such folder"):
        KeyStore.open(tmp_path / "nowhere")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "collection.json").write_text("{}")
    with pytest.raises(SettingsError, match=rf"one: is one collection, .*; give {tmp_path}, "):
        KeyStore.open(tmp_path / "one")
    assert not (tmp_path / "one" / DATABASE).exists()
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FormatError, match="version 99"):
        KeyStore.open(tmp_path)
    (tmp_path / DATABASE).write_bytes(b"not a database at all" * 100)
    with pytest.raises(DamagedError, match=rf"{DATABASE}: .*loses all keys and aliases"):
        KeyStore.open(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused_with_the_way_round() -> None:
    with pytest.raises(SettingsError, match="can be linked into a folder"):
        KeyStore.open(Path("/proc"))  # not even root can make a file there


def test_the_command_shows_a_key_once_lists_it_without_and_revokes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "new"
    assert main(["keys", "create", "--data", str(data), "--scope", "write", "--name", "bob"]) == 0
    token = capsys.readouterr().out.strip()
    assert KeyStore.open(data).find(token) == "write"
    assert main(["keys", "list", "--data", str(data)]) == 0
    listed = capsys.readouterr().out
    assert "bob" in listed
    assert token not in listed
    assert main(["keys", "revoke", "1", "--data", str(data)]) == 0
    assert KeyStore.open(data).find(token) is None
    assert main(["keys", "revoke", "1", "--data", str(data)]) == 1
    assert main(["keys", "create", "--data", str(data), "--scope", "owner"]) == 2


@pytest.mark.parametrize("command", [["create"], ["list"], ["revoke", "1"]])
def test_a_file_in_the_place_of_the_folder_is_told(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["keys", *command, "--data", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"lamina: {file}: is a file, expected the folder of the collections; "
        "give another with --data"
    )


@pytest.mark.parametrize("command", [["list"], ["revoke", "1"]])
def test_looking_for_keys_where_none_was_made_says_so_and_leaves_no_file(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", *command, "--data", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert f"{tmp_path}: no {DATABASE}" in told
    assert "lamina keys create" in told
    assert not list(tmp_path.iterdir())
