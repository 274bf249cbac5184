from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from lamina_index.corpus import Document
from lamina_index.manifest import CollectionManifest, EncoderReference, FieldType, Metadata
from lamina_index.snapshot import write_snapshot
from lamina_index.snapshot_files import Snapshot
from lamina_index.store import DocumentStore
from lamina_index.text import TEXT_VERSION
from word_encoder import WordEncoder


@pytest.fixture(scope="session")
def word_encoder() -> WordEncoder:
    return WordEncoder()


@dataclass
class MadeCollection:
    """A collection of given vectors, written row by row as the tests need it."""

    folder: Path
    store: DocumentStore

    def put(
        self,
        ids: Sequence[str],
        embeddings: NDArray[np.float32],
        text: str = "{}",
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        """Store documents whose text names their id."""
        given = metadata or [{}] * len(ids)
        self.store.upsert(
            [Document(each, text.format(each), row) for each, row in zip(ids, given, strict=True)],
            embeddings,
        )

    def snapshot(self, factory: str = "auto") -> Snapshot:
        """Write a snapshot of what is stored."""
        return write_snapshot(self.folder, self.store, factory=factory, threads=1)


MakeCollection: TypeAlias = Callable[..., MadeCollection]


@pytest.fixture
def make_collection(tmp_path: Path, word_encoder: WordEncoder) -> Iterator[MakeCollection]:
    """Make empty collections that the word encoder could have built."""
    with ExitStack() as stack:

        def make(
            name: str = "collection",
            dimension: int = word_encoder.dimension,
            fields: dict[str, FieldType] | None = None,
        ) -> MadeCollection:
            folder = tmp_path / name
            folder.mkdir()
            reference = EncoderReference(
                name=word_encoder.name,
                precision=word_encoder.precision,
                fingerprint=word_encoder.fingerprint,
            )
            CollectionManifest(
                encoder=reference,
                dimension=dimension,
                text_version=TEXT_VERSION,
                fields=fields or {},
                created="2026-01-01T00:00:00+00:00",
            ).write(folder / "collection.json")
            store = stack.enter_context(DocumentStore.create(folder, dimension=dimension))
            return MadeCollection(folder, store)

        yield make


@pytest.fixture(scope="session")
def memory_disk() -> Path | None:
    """Where folders in memory can be made: SIGKILL needs no real disk, and those are slow."""
    disk = Path("/dev/shm")
    return disk if disk.is_dir() else None


@pytest.fixture
def memory(memory_disk: Path | None) -> Iterator[Path]:
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir=memory_disk) as name:
        yield Path(name)


@pytest.fixture
def killed(memory: Path) -> Callable[..., list[str]]:
    """Have a program `killed_*.py` kill its work before every change; gives the changes."""

    def run(program: str, *arguments: object) -> list[str]:
        folder = Path(__file__).parent
        done = subprocess.run(
            [sys.executable, str(folder / program), str(memory), *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(folder.with_name("helpers"))},
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["wrong"] == [], done.stderr
        changes: list[str] = report["changes"]
        return changes

    return run
