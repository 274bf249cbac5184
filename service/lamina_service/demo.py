"""A corpus searchable at once: the machine's own Python documentation, or the user's file."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
from pydantic import ValidationError

from lamina_index.build import BuildStatus, build_collection
from lamina_index.build_plan import Progress
from lamina_index.build_report import BuildReport
from lamina_index.build_site import PROGRESS
from lamina_index.collection import is_collection
from lamina_index.corpus import CorpusOptions
from lamina_index.docstrings import read_docstrings
from lamina_index.encoder import Encoder
from lamina_index.errors import CollectionExistsError, ResumeError
from lamina_index.store import DocumentStore
from lamina_service.keys import opened

STDLIB = "stdlib"
_QUERY_WORDS = 8


def collection_name(corpus: Path | None) -> str:
    """Name the collection of a corpus after its file; `stdlib` without one."""
    if corpus is None:
        return STDLIB
    stem = corpus.name.partition(".")[0] or corpus.parent.name
    return re.sub(r"[^\w-]+", "-", stem).strip("-") or "corpus"


def stdlib_corpus(data: Path) -> Path:
    """Write the running Python's docstrings as JSONL, once for each version."""
    path = data / f"{STDLIB}-{platform.python_version()}.jsonl"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as stream:
            for document in read_docstrings():
                record = {"id": document.id, "text": document.text, **document.metadata}
                stream.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        os.replace(unfinished, path)
    return path


def ensure_collection(
    corpus: Path,
    folder: Path,
    encoder: Encoder,
    options: CorpusOptions,
    on_progress: Callable[[BuildStatus], None],
) -> BuildReport:
    """Build the corpus's collection, or finish it, or do nothing where it is there already.

    A collection of another state of the corpus or of other options is built anew.

    Raises:
        CollectionExistsError: If the folder's collection was made otherwise or of other texts.
        LaminaError: As `build_collection`.
    """
    exists = is_collection(folder)
    if exists and not _is_built_from(corpus, folder):
        raise CollectionExistsError(
            f"{folder}: there is a collection already that was not built from {corpus} alone; "
            "name another folder with --data (DATA=... for make)"
        )
    build = partial(
        build_collection,
        [corpus],
        folder,
        encoder,
        options=options,
        mode="replace" if exists else "new",
        on_progress=on_progress,
    )
    try:
        return build(resume=True)
    except ResumeError:  # what is left of a build is of something else
        return build()


def _is_built_from(corpus: Path, folder: Path) -> bool:
    """Tell whether a collection can be had again from the corpus, be it of an earlier state."""
    with DocumentStore.open(folder, read_only=True) as store:
        try:
            plan = Progress.model_validate(store.get_meta(PROGRESS)).plan
        except ValidationError:  # of another Lamina, or not of a build
            return False
    sources = [_source(Path(item.path)) for item in plan.inputs]
    return sources == [_source(corpus)] and not plan.append and plan.chunking is None


def _source(corpus: Path) -> Path:
    """Where a corpus comes from: its path, but one for the docstrings of all Pythons."""
    path = corpus.resolve()
    return path.with_name(STDLIB) if re.match(rf"{STDLIB}-\d", path.name) else path


def example_calls(url: str, name: str, data: Path) -> list[str]:
    """Write three calls that work on the collection, for a shell."""
    with DocumentStore.open(data / name, read_only=True) as store:
        document = next(store.documents(batch=1))
    query = "read a file line by line"
    if name != STDLIB:
        query = " ".join(document.text.split()[:_QUERY_WORDS])
    collection = f"{url}/v1/collections/{name}"
    curl = "curl -s"
    with opened(data) as keys:
        if keys.required:
            curl += ' -H "Authorization: Bearer $LAMINA_KEY"'
    body = shlex.quote(orjson.dumps({"query": query, "top_k": 3}).decode())
    embed = shlex.quote(orjson.dumps({"input": query}).decode())
    json = "-H 'Content-Type: application/json' -d"
    return [
        f"{curl} {collection}/search {json} {body}",
        f"{curl} -G {collection}/search --data-urlencode {shlex.quote(f'q={query}')} -d top_k=1",
        f"{curl} {url}/v1/embeddings {json} {embed}",
    ]
