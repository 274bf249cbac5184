"""Archives: one committed state in one file, and nothing but that comes back out of it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tarfile
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina_index import archive
from lamina_index.archive import write_archive
from lamina_index.archive_format import ARCHIVE_FILE, check_archive
from lamina_index.archive_restore import restore_archive
from lamina_index.cli import main
from lamina_index.collection import LOCK_FILE, verify_collection, writer_lock
from lamina_index.corpus import Document
from lamina_index.errors import (
    CollectionBusyError,
    CollectionExistsError,
    CollectionNotFoundError,
    DamagedError,
    FormatError,
    LaminaError,
    StorageFullError,
)
from lamina_index.manifest import ArchiveManifest, ArchiveMember
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore
from vectors import unit

MakeCollection = Callable[..., Any]


@pytest.fixture
def made(make_collection: MakeCollection) -> Any:
    """A collection with rows in its index, newer ones, and deletions of both."""
    collection = make_collection()
    collection.put([f"d{number}" for number in range(30)], unit(30), text="text of {}")
    collection.snapshot()
    collection.put(["d3", "late", "gone"], unit(3, seed=1), text="newer text of {}")
    collection.store.delete(["d7", "gone"])
    (collection.folder / "build.json").write_text("{}")
    return collection


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backups" / "c.tar"


@pytest.fixture(autouse=True)
def _folder(file: Path) -> None:
    file.parent.mkdir()


def content(folder: Path) -> list[tuple[str, str, bytes]]:
    with DocumentStore.open(folder, read_only=True) as store:
        return [
            (document.id, document.text, store.vectors([document.key]).tobytes())
            for document in store.documents()
        ]


def hits(folder: Path) -> list[tuple[str, float]]:
    with Searcher.open(folder) as searcher:
        found = searcher.search_embedding(unit(1, seed=9)[0], SearchOptions(top_k=500)).hits
    return [(hit.id, hit.score) for hit in found]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_restored_is_what_was_archived(made: Any, file: Path, tmp_path: Path) -> None:
    written = write_archive(made.folder, file)
    assert (written.documents, written.snapshot) == (30, 1)
    assert written.generation == made.store.version()
    target = tmp_path / "new" / "restored"
    assert restore_archive(file, target) == written
    assert content(target) == content(made.folder)
    assert hits(target) == hits(made.folder)
    assert len(hits(target)) == 30
    assert verify_collection(target) == []
    with Searcher.open(target) as searcher:
        assert searcher.info()["index"]["snapshot"] == 1
    assert names(target.parent) == ["restored"]
    assert names(file.parent) == ["c.tar"]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
DOCUMENTS = st.dictionaries(
    TEXTS.filter(bool), st.tuples(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2)), max_size=8
)


@given(before=DOCUMENTS, after=DOCUMENTS, snapshot=st.booleans())
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_documents_come_back_as_they_were(
    before: Any, after: Any, snapshot: bool, make_collection: MakeCollection, tmp_path: Path
) -> None:
    name = secrets.token_hex(8)
    made = make_collection(name)
    for number, documents in enumerate((before, after)):
        rows = [Document(found, *rest) for found, rest in documents.items()]
        made.store.upsert(rows, unit(len(rows), seed=number))
        if snapshot and number == 0:
            made.snapshot()
    file, target = tmp_path / f"{name}.tar", tmp_path / f"{name}-again"
    assert write_archive(made.folder, file).documents == len(before | after)
    restore_archive(file, target)
    with DocumentStore.open(target) as store:
        assert list(store.documents()) == list(made.store.documents())
    assert content(target) == content(made.folder)
    assert hits(target) == hits(made.folder)


def test_an_empty_collection_and_one_without_an_index_come_back(
    make_collection: MakeCollection, file: Path, tmp_path: Path
) -> None:
    empty = make_collection()
    assert write_archive(empty.folder, file).snapshot is None
    restore_archive(file, tmp_path / "empty")
    assert hits(tmp_path / "empty") == []
    empty.put(["a"], unit(1))
    write_archive(empty.folder, file.with_name("one.tar"))
    restore_archive(file.with_name("one.tar"), tmp_path / "one")
    assert [found for found, _ in hits(tmp_path / "one")] == ["a"]


def test_it_is_a_tar_file_whose_manifest_comes_first(made: Any, file: Path) -> None:
    written = write_archive(made.folder, file)
    with tarfile.open(file) as tar:
        members = tar.getmembers()
        assert members[0].name == ARCHIVE_FILE
        assert all(member.isreg() for member in members)
        found = [
            (member.name, hashlib.file_digest(tar.extractfile(member), "sha256").hexdigest())
            for member in members[1:]
        ]
        assert found == [(member.name, member.sha256) for member in written.members]
    assert "build.json" in dict(found)
    assert LOCK_FILE not in dict(found)


def test_a_restored_collection_is_another_one_to_whoever_has_the_first_open(
    made: Any, file: Path
) -> None:
    write_archive(made.folder, file)
    with Searcher.open(made.folder) as searcher, searcher._store.reading():
        made.folder.rename(made.folder.with_name("away"))
        restore_archive(file, made.folder)
        with pytest.raises(CollectionNotFoundError, match="another collection"):
            searcher.get("d1")  # needs a second connection


def test_an_archive_made_under_writes_and_compactions_is_one_committed_state(
    made: Any, file: Path, tmp_path: Path
) -> None:
    over = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            number = 0
            while not over.is_set():
                number += 1
                ids = [f"{side}{number % 40}" for side in ("left", "right")]
                text = f"round {number}"
                made.put(ids, unit(2, seed=number), text=text)
                if number % 3 == 0:
                    made.store.delete([f"{side}{number // 2 % 40}" for side in ("left", "right")])
                if number % 5 == 0:
                    made.snapshot()
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        generations = []
        for number in range(8):
            archived = file.with_name(f"{number}.tar")
            generations.append(write_archive(made.folder, archived).generation)
            target = tmp_path / f"restored-{number}"
            restore_archive(archived, target)
            rows = {found: text for found, text, _ in content(target)}
            rounds = {found: text for found, text in rows.items() if found.startswith("left")}
            assert rounds == {
                found.replace("right", "left"): text
                for found, text in rows.items()
                if found.startswith("right")
            }
            assert sorted(found for found, _ in hits(target)) == sorted(rows)
    finally:
        over.set()
        writer.join()
    assert failed == []
    assert generations == sorted(generations)
    assert len(set(generations)) > 1  # two may be of one, where no write came between


def test_an_index_that_is_replaced_while_it_is_opened_is_not_archived_without_its_deletions(
    made: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = archive._snapshot_sources

    def compact_meanwhile(files: Any, collection: Path, number: int) -> Any:
        sources = opening(files, collection, number)
        if number == 1:
            made.store.delete(["d1"])
            made.snapshot()  # and the database forgets that d1, d3 and d7 were buried
        return sources

    monkeypatch.setattr(archive, "_snapshot_sources", compact_meanwhile)
    assert write_archive(made.folder, file).snapshot == 2
    restore_archive(file, tmp_path / "restored")
    assert hits(tmp_path / "restored") == hits(made.folder)


def test_nothing_that_is_there_is_overwritten(made: Any, file: Path, tmp_path: Path) -> None:
    write_archive(made.folder, file)
    before = file.read_bytes()
    with pytest.raises(CollectionExistsError, match="is there already"):
        write_archive(made.folder, file)
    assert file.read_bytes() == before
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    for target in (made.folder, file, dangling, tmp_path / "folder"):
        with pytest.raises(CollectionExistsError, match="is there already"):
            restore_archive(file, target)
    assert len(hits(made.folder)) == 30
    assert not (tmp_path / "nowhere").exists()
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_replacement_that_was_killed_half_way_is_brought_back_rather_than_restored_over(
    made: Any, file: Path
) -> None:
    write_archive(made.folder, file)
    made.folder.rename(made.folder.with_name(f".{made.folder.name}.old"))
    with pytest.raises(CollectionExistsError):
        restore_archive(file, made.folder)
    assert len(hits(made.folder)) == 30


# Damage


def test_every_altered_byte_and_every_cut_is_found(made: Any, file: Path, tmp_path: Path) -> None:
    write_archive(made.folder, file)
    sound = file.read_bytes()
    positions = sorted(
        {*range(2048), *range(0, len(sound), 331), *range(len(sound) - 1100, len(sound))}
    )
    missed = []
    with file.open("r+b") as stream:
        for position in positions:
            stream.seek(position)
            stream.write(bytes([sound[position] ^ 0x10]))
            stream.flush()
            try:
                check_archive(file, lambda: None)
                missed.append(position)
            except (DamagedError, FormatError):
                pass
            stream.seek(position)
            stream.write(sound[position : position + 1])
        stream.flush()
        check_archive(file, lambda: None)
    assert missed == []
    for size in (0, 1, 511, 512, 700, len(sound) // 2, len(sound) - 1):
        file.write_bytes(sound[:size])
        with pytest.raises((DamagedError, FormatError)):
            restore_archive(file, tmp_path / "restored")
    file.write_bytes(sound + bytes(512))
    with pytest.raises(DamagedError, match="expected"):
        restore_archive(file, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    assert [name for name in names(tmp_path) if "restor" in name] == []


def test_an_altered_member_is_named_and_nothing_of_it_is_left(
    made: Any, file: Path, tmp_path: Path
) -> None:
    write_archive(made.folder, file)
    altered = bytearray(file.read_bytes())
    place = altered.index(b"newer text of late")
    altered[place] ^= 1
    file.write_bytes(altered)
    with pytest.raises(DamagedError, match=r"documents\.sqlite in it was altered"):
        restore_archive(file, tmp_path / "restored")
    assert [name for name in names(tmp_path) if "restor" in name] == []


def craft(file: Path, members: list[tuple[str, bytes]], **changes: Any) -> None:
    """Write a file that is an archive in all but its members."""
    manifest = ArchiveManifest(
        lamina="9",
        created="2026-01-01T00:00:00+00:00",
        collection="c",
        documents=0,
        generation=0,
        snapshot=1,
        members=[
            ArchiveMember(
                name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
            ).model_copy(update=changes)
            for name, data in members
        ],
        checksum="0" * 64,
    )
    manifest = manifest.model_copy(update={"checksum": manifest.digest()})
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in [(ARCHIVE_FILE, manifest.model_dump_json().encode()), *members]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    with tarfile.open(file) as tar:
        used = tar.getmembers()[-1]
    end = used.offset_data + -(-used.size // 512) * 512 + 1024
    os.truncate(file, end)


NEEDED = [("collection.json", b"{}"), ("documents.sqlite", b"x")]


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/tmp/evil",
        "snapshots/../evil",
        "snapshots/1/../../evil",
        "snapshots/1/deep/file",
        "snapshots/2/keys.npy",
        "snapshots/1/.hidden",
        "snapshots/01/keys.npy",
        ".lock",
        "documents.sqlite-wal",
        "documents.sqlite\n",
        "collection.json",
    ],
)
def test_a_member_that_no_collection_has_is_refused(name: str, file: Path, tmp_path: Path) -> None:
    craft(file, [*NEEDED, (name, b"evil")])
    with pytest.raises(DamagedError, match=r"is no file of a collection|its members are"):
        restore_archive(file, tmp_path / "c")
    assert [path for path in tmp_path.rglob("*") if "evil" in path.name] == []


def test_links_and_other_kinds_of_members_are_refused(file: Path, tmp_path: Path) -> None:
    craft(file, NEEDED)
    content = bytearray(file.read_bytes())
    place = content.index(b"documents.sqlite\0")
    for kind in (b"1", b"2", b"3", b"5", b"6", b"L", b"x", b"S"):
        info = tarfile.TarInfo("documents.sqlite")
        info.size, info.type, info.linkname = 1, kind, "/etc/passwd"
        content[place : place + 512] = info.tobuf(tarfile.GNU_FORMAT)
        file.write_bytes(content)
        with pytest.raises(DamagedError, match=r"header of documents\.sqlite"):
            restore_archive(file, tmp_path / "c")


def test_sizes_that_do_not_fit_the_file_are_refused_before_anything_is_written(
    file: Path, tmp_path: Path
) -> None:
    for size in (0, 2**40, 2**62):
        craft(file, NEEDED, size_bytes=size)
        with pytest.raises(DamagedError, match="expected"):
            restore_archive(file, tmp_path / "c")


def test_an_archive_without_its_database_is_refused(file: Path, tmp_path: Path) -> None:
    craft(file, NEEDED[:1])
    with pytest.raises(DamagedError, match="its members are"):
        restore_archive(file, tmp_path / "c")


def test_a_right_archive_of_a_wrong_collection_is_refused(file: Path, tmp_path: Path) -> None:
    craft(file, NEEDED)
    with pytest.raises(LaminaError):
        restore_archive(file, tmp_path / "c")
    assert [name for name in names(tmp_path) if name.startswith((".c", "c"))] == []


def test_what_is_no_archive_or_a_newer_one_is_told(made: Any, file: Path, tmp_path: Path) -> None:
    for other in (b"", b"text\n" * 1000, b"\0" * 4096):
        file.write_bytes(other)
        with pytest.raises(FormatError, match="no archive that"):
            restore_archive(file, tmp_path / "c")
    with pytest.raises(FormatError, match="no regular file"):
        restore_archive(Path("/dev/zero"), tmp_path / "c")
    with pytest.raises(LaminaError, match="No such file"):
        restore_archive(tmp_path / "nowhere", tmp_path / "c")
    file.unlink()
    write_archive(made.folder, file)
    file.write_bytes(file.read_bytes().replace(b'"format_version": 1', b'"format_version": 9', 1))
    with pytest.raises(FormatError, match="format version 9, expected 1"):
        restore_archive(file, tmp_path / "c")


def test_a_damaged_collection_is_not_archived(made: Any, file: Path) -> None:
    index = made.folder / "snapshots" / "1" / "vectors.faiss"
    sound = index.read_bytes()
    altered = bytearray(sound)
    altered[len(altered) // 2] ^= 1
    index.write_bytes(altered)
    with pytest.raises(DamagedError, match=r"vectors\.faiss: altered; `lamina index compact"):
        write_archive(made.folder, file)
    index.write_bytes(sound[:-1])
    with pytest.raises(DamagedError, match=r"vectors\.faiss: has"):
        write_archive(made.folder, file)
    index.unlink()
    with pytest.raises(DamagedError, match="missing"):
        write_archive(made.folder, file)
    index.write_bytes(sound)
    with made.store._connections.writing() as connection:
        connection.execute("UPDATE documents SET text = 'altered' WHERE id = 'd5'")
    with pytest.raises(DamagedError, match=f"{made.folder}.*d5") as found:
        write_archive(made.folder, file)
    assert "archiving" not in str(found.value)
    assert names(file.parent) == []


# Ends that come too early


def test_a_full_disk_leaves_no_archive_and_no_collection(
    made: Any, small_disk: Path, file: Path
) -> None:
    made.put([f"more{number}" for number in range(5000)], unit(5000))
    with pytest.raises(StorageFullError, match="there is no archive"):
        write_archive(made.folder, small_disk / "c.tar")
    assert names(small_disk) == []
    write_archive(made.folder, file)
    with pytest.raises(StorageFullError, match="nothing was restored"):
        restore_archive(file, small_disk / "c")
    assert names(small_disk) == []
    check_archive(file, lambda: None)


def test_work_that_is_no_longer_wanted_ends_without_a_trace(
    made: Any, file: Path, tmp_path: Path
) -> None:
    def wanted_for(calls: int) -> Callable[[], None]:
        left = iter(range(calls))

        def ask() -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        return ask

    for calls in range(4):
        with pytest.raises(KeyboardInterrupt):
            write_archive(made.folder, file, still_wanted=wanted_for(calls))
        assert names(file.parent) == []
    write_archive(made.folder, file)
    with pytest.raises(KeyboardInterrupt):
        restore_archive(file, tmp_path / "c", still_wanted=wanted_for(2))
    assert [name for name in names(tmp_path) if name.startswith((".c.", "c"))] == ["collection"]


def test_what_a_killed_run_left_is_removed_and_what_a_live_one_works_with_is_kept(
    made: Any, file: Path
) -> None:
    dead, alive = file.with_name(".a.tar.archiving"), file.with_name(".b.tar.archiving")
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "documents.sqlite").touch()
    with writer_lock(alive):
        write_archive(made.folder, file)
        assert names(file.parent) == [alive.name, file.name]
        with pytest.raises(CollectionBusyError):
            write_archive(made.folder, file.with_name("b.tar"))


def test_a_collection_on_media_that_cannot_be_written_is_archived(
    made: Any, file: Path, read_only: Callable[[Path], Path], tmp_path: Path
) -> None:
    made.store.close()
    write_archive(read_only(made.folder), file)
    restore_archive(file, tmp_path / "restored")
    assert len(content(tmp_path / "restored")) == 30


@pytest.mark.parametrize("work", ["archive", "restore", "create", "remove"])
def test_a_kill_before_any_change_on_disk_leaves_all_or_nothing_and_the_next_run_goes_well(
    work: str, killed: Callable[..., list[str]]
) -> None:
    assert "os.rename" in " ".join(killed("killed_archives.py", work))


def test_the_commands_archive_and_restore(
    made: Any, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "snapshot", str(made.folder), str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 30
    assert main(["index", "restore", str(file), str(tmp_path / "c")]) == 0
    assert "30 documents" in capsys.readouterr().err
    assert main(["index", "restore", str(file), str(tmp_path / "c")]) == 1
    assert "is there already" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "c")
    assert main(["index", "snapshot", str(tmp_path / "c"), str(tmp_path / "d.tar")]) == 1
