"""What a build reports: counts that add up, time by stage, memory, and the index it chose."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lamina_index.errors import DamagedError
from lamina_index.manifest import EncoderReference, write_atomically

Stage = Literal["read", "encode", "store", "snapshot"]


class Truncation(BaseModel):
    """Texts that the encoder cut; `truncated.jsonl` names each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    texts: int = Field(default=0, description="texts cut at the encoder's longest input")
    longest_tokens: int = Field(default=0, description="the longest of them, before the cut")
    max_tokens: int = Field(description="the encoder's longest input; both with special tokens")


class BuildReport(BaseModel):
    """The outcome of one build; `build.json` in the collection.

    Counts are of the whole build, over all its interruptions: `read = indexed + rejected`.
    Seconds, speed and memory are of the run that finished it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    collection: str
    mode: Literal["new", "append", "replace"]
    rows_read: int
    rows_resumed: int = Field(description="of those, dealt with by earlier, interrupted runs")
    rows_indexed: int
    rows_replaced: int = Field(description="indexed rows that took the place of an equal id")
    rows_rejected: int = Field(description="rows in rejects.jsonl from this build")
    truncation: Truncation
    documents: int = Field(description="vectors in the whole collection; parts, where chunked")
    encoder: EncoderReference
    stage_seconds: dict[Stage, float] = Field(
        description="busy seconds; encode overlaps read and store, so they add up to more"
    )
    total_seconds: float
    rows_per_second: float
    peak_memory_bytes: int = Field(description="largest resident set of the whole process so far")
    index: dict[str, Any] = Field(description="the snapshot's choice and measured recall@10")

    @classmethod
    def read(cls, path: Path) -> BuildReport:
        """Read the report of the last finished build.

        Raises:
            DamagedError: If it is missing or no such report.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise DamagedError(
                f"{path}: the report cannot be read; the collection does not need it"
            ) from error

    def write(self, path: Path) -> None:
        """Write the report as JSON, atomically."""
        write_atomically(path, self.model_dump_json(indent=2).encode() + b"\n")


class Stopwatch:
    """Seconds spent in each stage; every stage belongs to one thread."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.seconds: dict[Stage, float] = {"read": 0, "encode": 0, "store": 0, "snapshot": 0}

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start


def peak_memory_bytes() -> int:
    """Largest resident set that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
