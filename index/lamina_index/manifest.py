"""The on-disk formats, versioned: `encoder.json`, `collection.json`, `snapshot.json` and others.

Manifests are read strictly (unknown keys are errors) so that a typing error or a newer format
never passes unnoticed, and written atomically.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lamina_index.errors import FormatError

ENCODER_FORMAT = 2
"""2 added `batch_invariant`; version 1 is read as not having it."""
RERANKER_FORMAT = 1
COLLECTION_FORMAT = 1
SNAPSHOT_FORMAT = 3
"""2 added the columns of metadata, 3 rows that were added or deleted since the index was built;
older versions are read as not having them."""
ARCHIVE_FORMAT = 1

MAX_ID_BYTES = 512
"""Longest document id, in bytes of UTF-8."""

Precision = Literal["fp32", "fp16", "int8"]
FieldType = Literal["string", "number", "boolean", "date", "strings"]
MetadataValue: TypeAlias = str | float | int | bool | list[str]
Metadata: TypeAlias = dict[str, MetadataValue]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Manifest(_Strict):
    """A strict model that lies in one JSON file."""

    older_formats: ClassVar[tuple[int, ...]] = ()
    """Versions that are read as they are: what was added since has defaults."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and validate the file.

        Raises:
            FormatError: If it is missing, not JSON, of another format version, or has a key
                that this version does not know.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise FormatError(f"{path}: no such file; the folder is incomplete") from error
        except OSError as error:
            raise FormatError(f"{path}: cannot be read ({error})") from error
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: bytes, path: str) -> Self:
        """Validate a file's content; errors name `path`.

        Raises:
            FormatError: As `read`.
        """
        try:
            raw = json.loads(content)
        except ValueError as error:
            raise FormatError(f"{path}: cannot be read as JSON ({error})") from error
        known = cls.model_fields["format_version"].default
        found = raw.get("format_version") if isinstance(raw, dict) else None
        if found not in (known, *cls.older_formats):
            raise FormatError(
                f"{path}: format version {found!r}, expected {known}; use the Lamina that wrote "
                "it, or make the folder again with this one"
            )
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise FormatError(f"{path}: {where}: {first['msg']}") from error

    def write(self, path: Path) -> None:
        """Write the file atomically and durably."""
        write_atomically(path, self.model_dump_json(indent=2).encode() + b"\n")


class PrecisionFile(_Strict):
    """One ONNX graph of an encoder folder."""

    file: str = Field(description="path inside the folder, such as onnx/model_int8.onnx")
    sha256: str
    size_bytes: int
    fingerprint: str = Field(description="sha256 over all that decides the vector")
    probe_vectors: list[str] = Field(description="base64 of D little-endian float32, one a probe")
    probe_min_cosine: float = Field(description="below this on any probe the graph is refused")
    batch_invariant: bool = Field(
        default=False, description="int8: batch mates leave a vector as it is; else it runs alone"
    )


class Prompts(_Strict):
    """Text put before a query or document; empty for symmetric encoders."""

    query: str = ""
    document: str = ""


class Compatible(_Strict):
    """Another fingerprint of the same encoder and how near its vectors are."""

    fingerprint: str
    precision: Precision
    cosine_mean: float
    cosine_min: float


class EncoderManifest(_Manifest):
    """`encoder.json`: everything about an encoder but its weights and tokenizer."""

    older_formats = (1,)

    format_version: int = ENCODER_FORMAT
    name: str
    dimension: int = Field(gt=0)
    max_tokens: int = Field(gt=2, description="special tokens included; longer texts are cut")
    pooling: str
    normalized: bool = True
    attention: Literal["none", "kept", "stripped"] = Field(
        default="none", description="over layers: never trained with, in the graph, or taken off"
    )
    stripped_to: Literal["cls", "mean"] | None = Field(
        default=None, description="plain pooling in place of the one that was trained"
    )
    layers: int
    text_version: int
    language: str = "en"
    license: str
    prompts: Prompts = Prompts()
    tokenizer_sha256: str
    precisions: dict[Precision, PrecisionFile] = Field(min_length=1)
    compatible_with: list[Compatible] = []
    probes: list[str] = Field(
        min_length=1, description="texts whose vectors are re-checked at start"
    )
    parity: dict[str, Any] = Field(description="the export's measurements")
    provenance: dict[str, Any] = Field(description="base, its hash, data, seed, command")

    def fingerprint_of(self, graph_sha256: str) -> str:
        """Digest all that decides a vector: graph, tokenizer and the fields used around them."""
        decisive = {
            "graph": graph_sha256,
            "tokenizer": self.tokenizer_sha256,
            "dimension": self.dimension,
            "max_tokens": self.max_tokens,
            "pooling": self.pooling,
            "normalized": self.normalized,
            "text_version": self.text_version,
            "prompts": self.prompts.model_dump(),
        }
        return _sha256_of(decisive)


class QueryAndDocument(_Strict):
    """A pair that a reranker scores."""

    query: str
    document: str


class RerankerFile(_Strict):
    """One ONNX graph of a reranker folder; its output `score` is (B,), higher is better."""

    file: str = Field(description="path inside the folder, such as onnx/model.onnx")
    sha256: str
    size_bytes: int
    fingerprint: str = Field(description="sha256 over all that decides the score")
    probe_scores: list[float] = Field(min_length=1, description="of the manifest's probes")
    probe_tolerance: float = Field(gt=0, description="a score further off refuses the graph")


class RerankerManifest(_Manifest):
    """`reranker.json`: everything about a cross-encoder but its weights and tokenizer."""

    format_version: int = RERANKER_FORMAT
    name: str
    max_tokens: int = Field(gt=4, description="of query, document and special tokens together")
    truncation: Literal["longest_first"] = Field(
        default="longest_first", description="of a pair that is too long the longer text is cut"
    )
    inputs: list[Literal["input_ids", "attention_mask", "token_type_ids"]] = Field(
        min_length=2, description="of the graph, int64 (B, T)"
    )
    relevant_label: str | None = Field(
        default=None,
        description="class whose log-odds against all others are the score; null where the model "
        "has one output, which is the score as it is",
    )
    layers: int
    text_version: int
    language: str = "en"
    license: str
    tokenizer_sha256: str
    precisions: dict[Precision, RerankerFile] = Field(min_length=1)
    probes: list[QueryAndDocument] = Field(
        min_length=1, description="pairs whose scores are re-checked at start"
    )
    parity: dict[str, Any] = Field(description="the export's measurements")
    provenance: dict[str, Any] = Field(description="base, its hash, data, seed, command")

    @model_validator(mode="after")
    def _has_a_score_for_each_probe(self) -> Self:
        for precision, file in self.precisions.items():
            if len(file.probe_scores) != len(self.probes):
                raise ValueError(
                    f"{precision}: {len(file.probe_scores)} probe_scores, "
                    f"expected one for each of {len(self.probes)} probes"
                )
        return self

    def fingerprint_of(self, graph_sha256: str) -> str:
        """Digest all that decides a score: graph, tokenizer and the fields used around them."""
        return _sha256_of(
            {
                "graph": graph_sha256,
                "tokenizer": self.tokenizer_sha256,
                "max_tokens": self.max_tokens,
                "truncation": self.truncation,
                "inputs": self.inputs,
                "text_version": self.text_version,
            }
        )


class EncoderReference(_Strict):
    """Which encoder a collection's vectors come from."""

    name: str
    precision: Precision
    fingerprint: str


PARENT_FIELD = "parent"
"""Metadata field of a part of a split text: the id of the whole document."""


class Chunking(_Strict):
    """How long texts were split; both counts are tokens without special ones."""

    tokens: int = Field(gt=0)
    overlap: int = Field(ge=0)


class CollectionManifest(_Manifest):
    """`collection.json`: what must hold for every row of a collection."""

    format_version: int = COLLECTION_FORMAT
    encoder: EncoderReference
    dimension: int = Field(gt=0)
    metric: Literal["cosine"] = "cosine"
    text_version: int
    fields: dict[str, FieldType] = {}
    chunking: Chunking | None = None
    created: str = Field(description="UTC, ISO 8601")


class SnapshotFile(_Strict):
    """One file of a snapshot, with a digest for each piece of `chunk_bytes`."""

    size_bytes: int = Field(ge=0)
    chunk_bytes: int = Field(gt=0)
    sha256: list[str] = Field(description="of each chunk, in order; the last one may be shorter")


class Recall(_Strict):
    """How much of the exact answer an index finds, measured as it is served."""

    at_10: float = Field(ge=0, le=1)
    queries: int = Field(ge=0)
    method: str


class SnapshotManifest(_Manifest):
    """`snapshot.json`: what a search index holds and how to tell that it is unaltered."""

    older_formats = (1, 2)

    format_version: int = SNAPSHOT_FORMAT
    created: str = Field(description="UTC, ISO 8601")
    last_key: int = Field(ge=0, description="every row up to this key, and none after, was seen")
    last_tombstone: int = Field(ge=0, description="deletions after this one are not yet applied")
    count: int = Field(ge=0, description="positions of the index, deleted ones included")
    deleted: int = Field(default=0, ge=0, description="positions that hold a deleted row")
    appended: int = Field(default=0, ge=0, description="rows added since the index was built")
    dimension: int = Field(gt=0)
    factory: str = Field(description="the FAISS factory string that was built")
    requested: str = Field(description="what was asked for: auto or a factory string")
    reason: str = Field(description="why this factory")
    fourcc: str = Field(min_length=4, max_length=4, description="first four bytes of the index")
    effort_name: Literal["none", "efSearch", "nprobe"]
    effort: int = Field(ge=0, description="the tuned search parameter of that name")
    build: dict[str, int] = Field(description="construction parameters")
    recall: Recall
    recall_floor: float = Field(
        default=0.0, ge=0, le=1, description="recall@10 below which it is built anew"
    )
    files: dict[str, SnapshotFile]
    checksum: str = Field(description="sha256 over all other fields, see `digest`")

    def digest(self) -> str:
        """Digest every field but `checksum`, so that an altered number is noticed."""
        later = {"deleted", "appended", "recall_floor"} if self.format_version < 3 else set()
        return _sha256_of(self.model_dump(exclude={"checksum", *later}))


class ArchiveMember(_Strict):
    """One file of an archive."""

    name: str = Field(description="path inside the collection's folder")
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class ArchiveManifest(_Manifest):
    """`archive.json`, an archive's first file: what a collection held and the files that follow."""

    format_version: int = ARCHIVE_FORMAT
    lamina: str = Field(description="version that wrote it")
    created: str = Field(description="UTC, ISO 8601")
    collection: str = Field(description="the folder's name")
    documents: int = Field(ge=0)
    generation: int = Field(ge=0, description="number of the last write that is in it")
    snapshot: int | None = Field(description="number of the search index, if there is one")
    members: list[ArchiveMember]
    checksum: str = Field(description="sha256 over all other fields, see `digest`")

    def digest(self) -> str:
        """Digest every field but `checksum`."""
        content = self.model_dump_json(exclude={"checksum"})
        return hashlib.sha256(content.encode()).hexdigest()


def _sha256_of(fields: dict[str, Any]) -> str:
    """Digest JSON values, whatever the order of their keys."""
    canonical = json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def encode_vector(vector: NDArray[np.float32]) -> str:
    """Write a (D,) vector as base64 of little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode("ascii")


def decode_vector(text: str) -> NDArray[np.float32]:
    """Read what `encode_vector` wrote."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees the old or the new one, whole."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or unlink inside the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
