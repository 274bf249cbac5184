import errno
import json
import os
import secrets
import shutil
import sqlite3
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lamina_index.encoder import OnnxEncoder
from lamina_index.errors import CollectionNotFoundError, DamagedError
from lamina_index.searcher import Searcher
from lamina_service.aliases import Aliases
from lamina_service.catalog import Catalog
from lamina_service.keys import KeyStore
from lamina_service.metrics import Metrics, forget_dead_workers


def _wait_until_verified(started: Any) -> Any:
    for _ in range(1000):
        info = started.client.get("/v1/collections/small").json()
        if info["verified"]:
            return info
    raise AssertionError("never verified")


def test_info_tells_what_really_runs(service: Any, default_encoder: OnnxEncoder) -> None:
    info = service.client.get("/info").json()
    assert info["encoder"]["provider"] == "CPUExecutionProvider"
    assert info["encoder"]["fingerprint"] == default_encoder.fingerprint
    assert info["encoder"]["precision"] == default_encoder.precision
    assert info["threads"] == 2
    assert {"python", "onnxruntime", "faiss-cpu", "sqlite"} <= info["versions"].keys()
    (collection,) = info["collections"]
    assert (collection["name"], collection["count"]) == ("small", 14)


def test_every_byte_of_the_index_is_verified_after_the_start(service: Any) -> None:
    info = _wait_until_verified(service)
    assert info["damage"] == []
    assert info["index"]["recall@10"] == 1.0


def test_a_started_service_is_alive_and_ready(service: Any) -> None:
    assert service.client.get("/livez").json() == {"status": "alive"}
    assert service.client.get("/readyz").json() == {
        "status": "ready",
        "provider": "CPUExecutionProvider",
        "collections": {"open": 1, "failed": 0},
    }


@pytest.fixture
def three(data: Path, tmp_path: Path) -> Path:
    """A data folder with a sound, a damaged and a foreign collection."""
    folder = tmp_path / "data"
    for name in ("sound", "damaged", "foreign"):
        shutil.copytree(data / "small", folder / name)
    store = folder / "damaged" / "documents.sqlite"
    store.write_bytes(store.read_bytes()[:1000])
    manifest = folder / "foreign" / "collection.json"
    content = json.loads(manifest.read_text())
    content["encoder"] |= {"name": "another", "fingerprint": "f" * 64}  # of the same dimension
    manifest.write_text(json.dumps(content))
    return folder


def test_a_damaged_and_a_foreign_collection_do_not_keep_the_sound_one_from_being_served(
    start: Any, three: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = start(data=three)

    def search(name: str) -> Any:
        return started.client.post(f"/v1/collections/{name}/search", json={"query": "cats"})

    assert search("sound").json()["hits"][0]["id"] == "cats"
    damaged = search("damaged")
    assert damaged.status_code == 503
    assert damaged.json()["type"] == "urn:lamina:problem:collection-damaged"
    assert damaged.json()["detail"].startswith("damaged/documents.sqlite: ")
    assert f"{three}/damaged/documents.sqlite: " in caplog.text  # the log has the whole path
    foreign = search("foreign")
    assert foreign.status_code == 409
    assert foreign.json()["type"] == "urn:lamina:problem:encoder-mismatch"
    assert "another" in foreign.json()["detail"]
    ready = started.client.get("/readyz").json()
    assert ready["status"] == "degraded"
    assert ready["collections"] == {"open": 1, "failed": 2}
    states = {
        found["name"]: found["status"]
        for found in started.client.get("/info").json()["collections"]
    }
    assert states == {"damaged": "failed", "foreign": "failed", "sound": "open"}
    for told in (damaged, foreign, started.client.get("/info")):
        assert str(three) not in told.text


@pytest.fixture
def catalog(tmp_path: Path, default_encoder: OnnxEncoder) -> Catalog:
    aliases = Aliases(tmp_path)
    return Catalog(tmp_path, default_encoder, Metrics(), aliases, write_encoder=default_encoder)


def test_a_collection_built_replaced_or_removed_meanwhile_is_taken_up(
    catalog: Catalog, data: Path, tmp_path: Path
) -> None:
    catalog.refresh()
    assert catalog.names() == []
    shutil.copytree(data / "small", tmp_path / "new")
    catalog.refresh()
    first = catalog.get("new")
    catalog.refresh()
    assert catalog.get("new") is first
    (tmp_path / "new").rename(tmp_path / ".new.old")
    shutil.copytree(data / "small", tmp_path / "new")
    catalog.refresh()
    assert catalog.get("new") is not first
    assert first.search("cats").hits  # a search that began before still ends
    shutil.rmtree(tmp_path / ".new.old")
    shutil.rmtree(tmp_path / "new")
    catalog.refresh()
    assert catalog.names() == []


def test_a_request_that_meets_a_replacement_is_answered_from_the_new_collection(
    start: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_service.catalog.REFRESH_SECONDS", 1000)
    folder = tmp_path / "data"
    shutil.copytree(data / "small", folder / "small")
    started = start(data=folder)
    _wait_until_verified(started)
    for request in ["search?q=cats", "documents/cats", ""]:
        (folder / "small").rename(folder / ".small.old")
        _copy_with_another_identity(data / "small", folder / "small")
        with ExitStack() as busy:  # the store's open connections, so that the request needs another
            store = started.service.catalog.get("small")._store
            for _ in range(4):
                with suppress(CollectionNotFoundError):
                    busy.enter_context(store.reading())
            reply = started.client.get(f"/v1/collections/small/{request}".removesuffix("/"))
        assert reply.status_code == 200, reply.text
        shutil.rmtree(folder / ".small.old")


def _copy_with_another_identity(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    with closing(sqlite3.connect(target / "documents.sqlite")) as store, store:
        identity = json.dumps(secrets.token_hex(16))
        store.execute("UPDATE meta SET value = ? WHERE name = 'identity'", (identity,))


@pytest.mark.parametrize("step", ["open", "info", "verify"])
def test_an_unforeseen_failure_of_one_collection_stops_no_other(
    step: str,
    start: Any,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(data / "small", tmp_path / name)
    sound = getattr(Searcher, step)

    def failing(of: Any, *arguments: Any) -> Any:
        if (of if step == "open" else of.folder).name == "b":
            raise OSError(errno.EIO, "a secret path")  # a broken disk cannot be had in a test
        return sound(of, *arguments)

    monkeypatch.setattr(Searcher, step, failing)
    started = start(data=tmp_path)
    infos: dict[str, Any] = {}
    for _ in range(1000):
        found = started.client.get("/v1/collections").json()["collections"]
        infos = {info["name"]: info for info in found}
        if infos["c"]["verified"] and infos["b"]["status"] == "failed":
            break
    assert infos["a"]["verified"]
    assert infos["c"]["verified"]
    told = "collection 'b' failed; the server's log tells why"
    assert infos["b"]["problem"] == {"type": "urn:lamina:problem:internal", "detail": told}
    assert "a secret path" in caplog.text
    assert started.client.get("/v1/collections/c/search?q=cats").json()["hits"]


def test_a_collection_may_be_a_link_to_one_elsewhere(
    catalog: Catalog, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "linked").symlink_to(data / "small")
    catalog.refresh()
    assert catalog.get("linked").search("cats").hits[0].id == "cats"


def test_what_replaces_a_collection_that_fails_verification_is_taken_up(
    catalog: Catalog, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data / "small", tmp_path / "new")
    catalog.refresh()

    def replaced_meanwhile(_: Searcher) -> None:
        (tmp_path / "new").rename(tmp_path / ".new.old")
        _copy_with_another_identity(data / "small", tmp_path / "new")
        raise DamagedError("found in the old files")

    with monkeypatch.context() as patch:
        patch.setattr(Searcher, "verify", replaced_meanwhile)
        catalog._verify("new")
    assert catalog.failed() == 1
    catalog.refresh()
    assert catalog.get("new").search("cats").hits[0].id == "cats"


def test_a_collection_whose_rights_are_mended_is_taken_up(
    catalog: Catalog, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data / "small", tmp_path / "new")
    with monkeypatch.context() as patch:  # root, who may run the tests, can read everything
        patch.setattr(Searcher, "open", Mock(side_effect=PermissionError("no")))
        catalog.refresh()
        catalog.refresh()
    assert catalog.failed() == 1
    (tmp_path / "new" / "documents.sqlite").chmod(0o644)
    catalog.refresh()
    assert catalog.failed() == 0


def test_a_repaired_collection_is_taken_up_without_a_restart(
    catalog: Catalog, three: Path, tmp_path: Path, data: Path
) -> None:
    shutil.copytree(three / "damaged", tmp_path / "broken")
    catalog.refresh()
    assert catalog.failed() == 1
    shutil.copy(data / "small" / "documents.sqlite", tmp_path / "broken" / "documents.sqlite")
    catalog.refresh()
    assert catalog.failed() == 0
    assert catalog.get("broken").search("cats").hits[0].id == "cats"


def test_reopening_a_collection_again_and_again_leaks_no_file(
    catalog: Catalog, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_service.catalog._RETIREMENT_SECONDS", -1.0)
    open_files = []
    for _ in range(20):
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        shutil.copytree(data / "small", tmp_path / "new")
        catalog.refresh()
        catalog._close_retired()
        catalog.get("new").search("cats")
        open_files.append(len(list(Path("/proc/self/fd").iterdir())))
    assert open_files[-1] <= open_files[2]


@pytest.mark.parametrize(
    ("metrics", "without", "with_key"), [("key", 401, 200), ("open", 200, 200), ("off", 404, 404)]
)
def test_metrics_are_behind_the_key_open_or_off(
    start: Any, data: Path, tmp_path: Path, metrics: str, without: int, with_key: int
) -> None:
    shutil.copytree(data / "small", tmp_path / "data" / "small")
    _, token = KeyStore.open(tmp_path / "data").create("read")
    started = start(data=tmp_path / "data", metrics=metrics)
    bearer = {"Authorization": f"Bearer {token}"}
    assert started.client.get("/metrics").status_code == without
    assert started.client.get("/metrics", headers=bearer).status_code == with_key


def test_once_a_key_was_made_all_but_health_and_pages_need_one(
    start: Any, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data / "small", tmp_path / "data" / "small")
    started = start(data=tmp_path / "data")
    needing = [
        "/info",
        "/metrics",
        "/v1/models",
        "/v1/collections",
        "/v1/collections/small/search?q=cats",
    ]
    assert {started.client.get(path).status_code for path in needing} == {200}
    keys = KeyStore.open(tmp_path / "data")
    key_id, token = keys.create("read")
    bearer = {"Authorization": f"Bearer {token}"}
    for path in needing:
        refused = started.client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert started.client.get(path, headers=bearer).status_code == 200
    for path in ["/livez", "/readyz", "/", "/docs", "/page/search.js"]:
        assert started.client.get(path).status_code == 200
    keys.revoke(key_id)
    assert started.client.get("/info", headers=bearer).status_code == 401


def test_metrics_count_requests_stages_and_sizes(start: Any) -> None:
    started = start()
    for _ in range(3):
        started.search("cats")
    started.client.get("/v1/collections/none/search?q=cats")
    started.client.get("/v1/nothing")
    started.client.put("/livez")
    text = started.client.get("/metrics").text
    route = "/v1/collections/{collection}/search"
    for line in [
        f'lamina_requests_total{{method="POST",route="{route}",status="200"}} 3.0',
        f'lamina_requests_total{{method="GET",route="{route}",status="404"}} 1.0',
        f'lamina_request_seconds_count{{route="{route}"}} 4.0',
        'lamina_stage_seconds_count{stage="encode"} 3.0',
        'lamina_stage_seconds_count{stage="queue"} 3.0',
        'lamina_rejected_total{reason="collection-not-found"} 1.0',
        'lamina_rejected_total{reason="not-found"} 1.0',
        'lamina_rejected_total{reason="method-not-allowed"} 1.0',
        'lamina_collection_documents{collection="small"} 14.0',
        "lamina_queue_depth 0.0",
    ]:
        assert line in text, line
    assert 'provider="CPUExecutionProvider"' in text


def test_documentation_can_be_switched_off(start: Any) -> None:
    started = start(docs=False)
    assert started.client.get("/docs").status_code == 404
    assert started.client.get("/openapi.json").status_code == 404
    assert started.client.get("/").status_code == 200


def test_what_a_killed_worker_had_waiting_is_forgotten(tmp_path: Path) -> None:
    alive = tmp_path / f"gauge_livesum_{os.getpid()}.db"
    dead = tmp_path / "gauge_livesum_4194999.db"  # above the kernel's highest process id
    counted = tmp_path / "counter_4194999.db"
    for path in (alive, dead, counted):
        path.touch()
    forget_dead_workers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, counted])
