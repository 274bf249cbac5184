"""What a build is of, and how far it got: the two things that let another process continue it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lamina_index import __version__
from lamina_index.corpus.folders import text_files
from lamina_index.corpus.inputs import Input
from lamina_index.corpus.sources import GZIP_MAGIC
from lamina_index.disk import shown_path
from lamina_index.errors import CorpusError
from lamina_index.manifest import Chunking, EncoderReference, FieldType

Mode = Literal["new", "append", "replace"]
_PIECE_BYTES = 2**20


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InputIdentity(_Record):
    """One input as it was when the build began; a pipe has no digest."""

    path: str
    size_bytes: int
    sha256: str
    lines: int = Field(description="line breaks in it; about its rows, unless it is packed")


class BuildPlan(_Record):
    """Everything that decides which rows and vectors a build makes.

    The snapshot's type is not among it: it can be made anew from the rows.
    """

    lamina: str = __version__
    append: bool
    inputs: list[InputIdentity]
    options: dict[str, Any]
    chunking: Chunking | None
    encoder: EncoderReference

    @property
    def repeatable(self) -> bool:
        """Whether the inputs can be read again."""
        return all(item.sha256 for item in self.inputs)

    def differences(self, other: BuildPlan) -> list[str]:
        """Say in words where another plan, the one at hand, departs from this one."""
        found = [
            f"{name} was {getattr(self, name)!r}, is {getattr(other, name)!r}"
            for name in ("lamina", "append", "options", "chunking", "encoder")
            if getattr(self, name) != getattr(other, name)
        ]
        was, now = [item.path for item in self.inputs], [item.path for item in other.inputs]
        if len(was) != len(now):
            found.append(f"inputs were {', '.join(was)}, are {', '.join(now)}")
        else:
            found += [
                f"{after.path} is not what was read before ({before.path}, "
                f"{before.size_bytes:,} bytes; now {after.size_bytes:,})"
                for before, after in zip(self.inputs, other.inputs, strict=True)
                if before.sha256 != after.sha256
            ]
        return found


class Progress(_Record):
    """How far a build got; committed in the transaction that stores the rows it counts."""

    plan: BuildPlan
    finished: bool = False
    rows: int = 0
    indexed: int = 0
    replaced: int = 0
    rejected: int = 0
    truncated: int = 0
    longest_tokens: int = 0
    rejects_bytes: int = 0
    truncated_bytes: int = 0
    fields_before: dict[str, FieldType] = Field(
        default={}, description="metadata types that were known before the first row"
    )


def identify_inputs(inputs: Sequence[Input]) -> list[InputIdentity]:
    """Digest the inputs, so that a later run can prove that it reads the same.

    Raises:
        CorpusError: If an input cannot be read.
    """
    return [_identify(item) for item in inputs]


def estimate_rows(inputs: Sequence[InputIdentity]) -> int | None:
    """About how many rows the inputs have; None if one is packed or not yet there."""
    known = all(item.lines for item in inputs)
    return sum(item.lines for item in inputs) if known else None


def _identify(item: Input) -> InputIdentity:
    path = Path(item.path)
    if item.piped:
        return InputIdentity(path=shown_path(path), size_bytes=0, sha256="", lines=0)
    files = list(text_files(path)) if item.format == "folder" else [path]
    digest = hashlib.sha256()
    size_bytes = lines = 0
    packed = item.format == "parquet"
    try:
        for file in files:
            digest.update(os.fsencode(f"{file.relative_to(path)}\0{file.stat().st_size}\0"))
            with file.open("rb") as stream:
                packed |= stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC
                stream.seek(0)
                while piece := stream.read(_PIECE_BYTES):
                    digest.update(piece)
                    size_bytes += len(piece)
                    lines += piece.count(b"\n")
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from error
    if item.format == "folder":
        lines = len(files)
    elif packed:
        lines = 0
    return InputIdentity(
        path=shown_path(path), size_bytes=size_bytes, sha256=digest.hexdigest(), lines=lines
    )
