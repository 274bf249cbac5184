"""Corpus to collection: streaming, resumable, and never harming what was there.

Records are read in blocks; while the encoder works on one block, the next is read and the one
before is stored. A block's rows, vectors and the count of records they came from are one
transaction, so whenever a build is killed, another process goes on after the last stored block and
ends with the same rows under the same keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from lamina_index.build_blocks import check_for
from lamina_index.build_plan import BuildPlan, Mode, identify_inputs
from lamina_index.build_report import BuildReport, Stopwatch
from lamina_index.build_run import REPORT_FILE, BuildRun, BuildStatus, OnProgress
from lamina_index.build_site import check_target, claim_site, is_finished
from lamina_index.collection import (
    MANIFEST_FILE,
    building_folder,
    check_path,
    drop_replaced,
    is_collection,
    recover_swap,
)
from lamina_index.collection_changes import new_manifest
from lamina_index.corpus import CorpusOptions, FieldTypes, read_corpus
from lamina_index.corpus.inputs import check_stable_ids, resolve_inputs
from lamina_index.disk import disk_errors_told
from lamina_index.encoder import Encoder
from lamina_index.errors import CollectionExistsError
from lamina_index.manifest import Chunking, CollectionManifest
from lamina_index.query_encoding import check_encoder
from lamina_index.vectors import make_index

__all__ = ["BuildStatus", "build_collection"]


def build_collection(
    inputs: Sequence[str | Path],
    folder: str | Path,
    encoder: Encoder,
    *,
    options: CorpusOptions | None = None,
    chunking: Chunking | None = None,
    factory: str = "auto",
    threads: int | None = None,
    mode: Mode = "new",
    resume: bool = False,
    on_progress: OnProgress = lambda status: None,
) -> BuildReport:
    """Read a corpus, embed it and make a collection that can be searched.

    Rows that cannot be indexed go to `rejects.jsonl`, texts that the encoder cut to
    `truncated.jsonl`, the report to `build.json`, all in the collection. Of rows with the same id
    the last one counts.

    Args:
        inputs: Files, folders, or `-` for standard input.
        folder: The collection's folder.
        encoder: Embeds the documents; the collection is bound to its fingerprint.
        options: How to read the inputs.
        chunking: Split texts into parts. Appending takes the collection's own setting for None.
        factory: FAISS factory string, or `auto`.
        threads: To build the index with; by default the CPUs available to the process.
        mode: `new` refuses an existing collection; `append` adds to it; `replace` builds a new
            one beside it and then puts that in its place.
        resume: Insist on continuing an interrupted build, which is refused if the one found is of
            other inputs or options. If this very build is complete already, its report is given.
            Without it an equal build is continued and any other dropped.
        on_progress: Called after each block of rows, while the index is built, and before a wait.

    Raises:
        CollectionExistsError: If the folder holds something that the mode does not allow for, or
            a collection to append to that splits texts otherwise.
        CollectionNotFoundError: If there is no collection to append to.
        CollectionBusyError: If another process builds or writes there; one that compacts what is
            to be replaced is awaited for ten minutes.
        CorpusError: If an input cannot be read, a replacement would hold nothing, all rows of a
            new collection are rejected, or lines of a pipe are to be appended that have no ids.
        DamagedError: If the collection to append to is damaged.
        EncoderMismatchError: If the collection to append to was built by another encoder.
        EncoderOutputError: If the encoder fails on every text.
        ResumeError: See `resume`.
        StorageFullError: If the disk is full; what was there before is untouched.
        LaminaError: If the path of the folder is not UTF-8.
        ValueError: If parts are longer than the encoder reads.
    """
    watch = Stopwatch()
    target = Path(os.path.realpath(folder))  # a link's folder is what gets replaced, not the link
    options = options or CorpusOptions()
    types = FieldTypes()
    check_path(target)
    recover_swap(target)
    manifest = _manifest(target, mode, encoder, chunking)
    check = check_for(encoder, chunked=manifest.chunking is not None)
    records = read_corpus(inputs, options, fields=types, check=check)
    if factory != "auto":
        make_index(factory, encoder.dimension)  # a bad factory shows now, not after hours
    resolved = resolve_inputs(inputs, options)
    if mode == "append":
        check_stable_ids(resolved)
    plan = BuildPlan(
        append=mode == "append",
        inputs=identify_inputs(resolved),
        options=asdict(options),
        chunking=manifest.chunking,
        encoder=manifest.encoder,
    )
    if resume and mode != "append" and is_finished(target, plan):
        drop_replaced(target)
        return BuildReport.read(target / REPORT_FILE)
    check_target(target, mode)
    safe = "it holds the rows of the finished blocks" if mode == "append" else "it is as it was"
    if mode != "append" and plan.repeatable:
        safe += f", what this build has stored is in {building_folder(target)}"
    then = "to go on" if plan.repeatable else "to start over; a pipe cannot be read again"
    when_full = f"{safe}. Free some space and run the same command again {then}"
    with (
        disk_errors_told(target, when_full=when_full),
        claim_site(target, mode, plan, manifest, resume=resume) as site,
    ):
        if not site.progress.finished:
            types.known.update(site.progress.fields_before)
            run = BuildRun(site, encoder, types, watch, on_progress, factory, threads)
            run.store_rows(islice(records, site.progress.rows, None))
            run.finish(mode)
        site.publish(on_wait=lambda: on_progress(BuildStatus("place", 0, None)))
    return BuildReport.read(target / REPORT_FILE)


def _manifest(
    target: Path, mode: Mode, encoder: Encoder, chunking: Chunking | None
) -> CollectionManifest:
    """Describe the collection: what a new one starts with, or what one to append to has.

    Raises:
        CollectionExistsError: If the one to append to splits texts otherwise.
        EncoderMismatchError: If it was built by another encoder.
    """
    if mode != "append" or not is_collection(target):
        return new_manifest(encoder, chunking=chunking)
    manifest = CollectionManifest.read(target / MANIFEST_FILE)
    check_encoder(target, manifest, encoder)
    if chunking not in (None, manifest.chunking):
        raise CollectionExistsError(
            f"{target}: its texts are split as {manifest.chunking}, not {chunking}; append with "
            "the same, or build it anew with --replace"
        )
    return manifest
