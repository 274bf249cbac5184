"""One run of a build in its folder: rows in, then the index, then the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import orjson

from lamina_index.backlog import Backlog
from lamina_index.build_blocks import Block, EncodedBlock, blocks, encode_block
from lamina_index.build_plan import Mode, estimate_rows
from lamina_index.build_report import BuildReport, Stopwatch, Truncation, peak_memory_bytes
from lamina_index.build_site import PROGRESS, BuildSite
from lamina_index.chunking import splitter
from lamina_index.collection import MANIFEST_FILE, write_turn
from lamina_index.corpus import Document, FieldTypes, Rejected
from lamina_index.encoder import Encoder
from lamina_index.errors import CorpusError, DamagedError
from lamina_index.manifest import CollectionManifest
from lamina_index.parts import present
from lamina_index.row_log import REJECTS_FILE, TRUNCATED_FILE, RowLog
from lamina_index.snapshot import write_snapshot
from lamina_index.snapshot_files import Snapshot

REPORT_FILE = "build.json"


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """What a running build tells.

    Attributes:
        stage: `rows` while documents are read, embedded and stored, then `index`, and `place` if
            another process has to be awaited before all is put in its place.
        rows: Records dealt with, those of interrupted runs included; then rows in the index.
        total_rows: How many there are, of records only about; None if that cannot be told.
    """

    stage: Literal["rows", "index", "place"]
    rows: int
    total_rows: int | None


OnProgress = Callable[[BuildStatus], None]


class BuildRun:
    """Stores rows with the progress they make, and finishes the collection."""

    def __init__(
        self,
        site: BuildSite,
        encoder: Encoder,
        types: FieldTypes,
        watch: Stopwatch,
        on_progress: OnProgress,
        factory: str,
        threads: int | None,
    ) -> None:
        self._site = site
        self._encoder = encoder
        self._types = types
        self._watch = watch
        self._on_progress = on_progress
        self._factory = factory
        self._threads = threads
        self._chunking = site.manifest.chunking
        self._progress = site.progress
        self._resumed_rows = site.progress.rows
        self._rejects = RowLog(site.folder / REJECTS_FILE, site.progress.rejects_bytes)
        self._truncated = RowLog(site.folder / TRUNCATED_FILE, site.progress.truncated_bytes)

    def store_rows(self, records: Iterator[Document | Rejected]) -> None:
        """Embed and store what is left of the inputs."""
        stream = blocks(records, splitter(self._encoder, self._chunking))
        self._tell_rows()
        with ThreadPoolExecutor(1, "lamina-build-encode") as encoding:
            waiting: Future[EncodedBlock] | None = None
            while block := self._read(stream):
                following = encoding.submit(self._encode, block)
                if waiting is not None:
                    self._store(waiting.result())
                waiting = following
            if waiting is not None:
                self._store(waiting.result())

    def finish(self, mode: Mode) -> None:
        """Build the index, check that nothing is missing, and write the report.

        Raises:
            CorpusError: If a replacement would hold nothing, or all rows of a new collection are
                rejected. A new one of inputs without a row is made, and is empty.
            DamagedError: If vectors, documents and rows of the index are not the same number.
        """
        store, progress = self._site.store, self._progress
        if progress.indexed == 0 and (mode == "replace" or (mode == "new" and progress.rows)):
            raise self._refuse_empty(mode)
        snapshot = self._write_snapshot()
        self._check_complete(snapshot)
        report = BuildReport(
            collection=str(self._site.target),
            mode=mode,
            rows_read=progress.rows,
            rows_resumed=self._resumed_rows,
            rows_indexed=progress.indexed,
            rows_replaced=progress.replaced,
            rows_rejected=progress.rejected,
            truncation=Truncation(
                texts=progress.truncated,
                longest_tokens=progress.longest_tokens,
                max_tokens=self._encoder.max_tokens,
            ),
            documents=snapshot.count,
            encoder=self._site.manifest.encoder,
            stage_seconds=self._watch.seconds,
            total_seconds=self._watch.total(),
            rows_per_second=(progress.rows - self._resumed_rows) / self._watch.total(),
            peak_memory_bytes=peak_memory_bytes(),
            index=snapshot.summary(),
        )
        report.write(self._site.folder / REPORT_FILE)
        finished = progress.model_copy(update={"finished": True})
        store.set_meta(PROGRESS, finished.model_dump(mode="json"))

    def _refuse_empty(self, mode: Mode) -> CorpusError:
        """Remove what was built and say why; of the rejected rows the first stands for all."""
        progress, target = self._progress, self._site.target
        spared = f"{target} stays as it was" if mode == "replace" else f"{target} is not made"
        if progress.rows == 0:
            inputs = ", ".join(item.path for item in progress.plan.inputs)
            found = f"{inputs}: not one row, so {spared}; see whether the input is whole"
        else:
            first = orjson.loads(self._rejects.first_line())
            found = (
                f"not one of {progress.rows} rows can be indexed, so {spared}; the first, "
                f"{first['file']}:{first['line']}: {first['reason']}"
            )
        self._site.abandon()
        return CorpusError(found)

    def _read(self, stream: Iterator[Block]) -> Block | None:
        with self._watch.stage("read"):
            block = next(stream, None)
        if block is not None:
            block.fields = dict(self._types.known)
        return block

    def _encode(self, block: Block) -> EncodedBlock:
        with self._watch.stage("encode"):
            return encode_block(block, self._encoder, chunked=self._chunking is not None)

    def _store(self, encoded: EncodedBlock) -> None:
        """Commit a block with the progress it makes; its log lines go to disk before."""
        with self._watch.stage("store"), self._turn():
            self._commit(encoded)
        self._tell_rows()
        if self._progress.plan.append and self._backlog_is_full():
            self._write_snapshot()

    def _commit(self, encoded: EncodedBlock) -> None:
        encoded = encoded.held_to(self._site.manifest.fields)
        self._types.adopt(self._site.manifest.fields)
        progress, block, rows = self._progress, encoded.block, encoded.rows()
        self._rejects.append(block.rejected)
        self._truncated.append(rows.cut)
        self._widen_manifest()
        with self._site.store.writing() as writing:
            known, stale = present(writing.reading, rows.parts, chunked=self._chunking is not None)
            done = progress.model_copy(
                update={
                    "rows": progress.rows + block.rows,
                    "indexed": progress.indexed + len(encoded.kept),
                    "replaced": progress.replaced + rows.repeated + known,
                    "rejected": progress.rejected + len(block.rejected),
                    "truncated": progress.truncated + len(rows.cut),
                    "longest_tokens": max(
                        [progress.longest_tokens, *(cut.tokens for cut in rows.cut)]
                    ),
                    "rejects_bytes": self._rejects.size_bytes,
                    "truncated_bytes": self._truncated.size_bytes,
                }
            )
            writing.delete(stale)
            writing.upsert(rows.documents, rows.embeddings)
            writing.set_meta(PROGRESS, done.model_dump(mode="json"))
        self._progress = done

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Where others may write too, let them not, and take note of what they have written."""
        if not self._progress.plan.append:
            yield
            return
        with write_turn(self._site.folder):
            self._site.manifest = CollectionManifest.read(self._site.folder / MANIFEST_FILE)
            yield

    def _backlog_is_full(self) -> bool:
        with self._site.store.reading() as reading:
            return Backlog.of(self._site.folder, reading).full

    def _write_snapshot(self) -> Snapshot:
        with self._watch.stage("snapshot"):
            return write_snapshot(
                self._site.folder,
                self._site.store,
                factory=self._factory,
                threads=self._threads,
                progress=lambda done, total: self._on_progress(BuildStatus("index", done, total)),
            )

    def _widen_manifest(self) -> None:
        """Put new metadata fields into `collection.json` before a row that has them is stored."""
        if self._types.known != self._site.manifest.fields:
            fields = dict(self._types.known)
            self._site.manifest = self._site.manifest.model_copy(update={"fields": fields})
            self._site.manifest.write(self._site.folder / MANIFEST_FILE)

    def _check_complete(self, snapshot: Snapshot) -> None:
        made = snapshot.manifest
        with self._site.store.reading() as reading:
            documents, vectors = reading.count(), reading.vector_count()
            rows = len(reading.keys(made.last_key))
            _, buried = reading.tombstones_after(made.last_tombstone)
        gone = sum(key <= made.last_key for key in buried)  # by others, since the index was begun
        if documents != vectors or not rows <= snapshot.count <= rows + gone:
            raise DamagedError(
                f"{self._site.folder}: {documents} documents, {vectors} vectors and "
                f"{snapshot.count} rows in the index, {rows} expected; the numbers do not agree. "
                "This is a fault of Lamina's or of the disk; delete the folder and build again"
            )

    def _tell_rows(self) -> None:
        total = estimate_rows(self._progress.plan.inputs)
        self._on_progress(BuildStatus("rows", self._progress.rows, total))
