"""Request and response bodies of making, deleting, archiving and aliasing collections."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from lamina_index.corpus.fields import MAX_FIELDS
from lamina_index.manifest import FieldType
from lamina_service.schemas import Reply, Request

MAX_CANARY_QUERIES = 256
MAX_EXPECTED = 100


class ChunkingRequest(Request):
    """How long texts are split."""

    tokens: int = Field(ge=1, le=1_000_000, description="of a part, without special ones")
    overlap: int = Field(0, ge=0, le=500_000, description="tokens that neighbours share")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.overlap > self.tokens // 2:
            raise PydanticCustomError("overlap", "expected overlap to be at most half of tokens")
        return self


class CollectionRequest(Request):
    """What a new collection is to be like; its encoder is the service's."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"fields": {"year": "number", "tags": "strings"}}]}
    )

    fields: Annotated[dict[str, FieldType], Field(max_length=MAX_FIELDS)] = Field(
        {}, description="metadata types; fields that are not named get that of their first value"
    )
    chunking: ChunkingRequest | None = Field(None, description="by default texts are kept whole")


class CanaryQuery(Request):
    """A query that a collection has to answer before an alias leads to it."""

    query: str
    expected: Annotated[list[str], Field(max_length=MAX_EXPECTED)] = Field(
        [], description="ids that must be among the first `top_k` hits"
    )


class CanaryRequest(Request):
    """What to try on the new collection; the alias stays as it is unless all of it goes well."""

    queries: Annotated[list[CanaryQuery], Field(min_length=1, max_length=MAX_CANARY_QUERIES)]
    top_k: int = Field(10, ge=1, le=100)
    min_overlap: float | None = Field(
        None,
        gt=0,
        le=1,
        description="mean share of the first `top_k` hits that present and new collection must "
        "have in common; not asked where the alias is new",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_overlap is None and not any(query.expected for query in self.queries):
            raise PydanticCustomError(
                "canary", "expected min_overlap, or queries with expected ids"
            )
        return self


class AliasRequest(Request):
    """Where an alias is to lead."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"collection": "questions-2"}]})

    collection: str = Field(description="name of a collection, not of an alias")
    canary: CanaryRequest | None = None


class SnapshotRequest(Request):
    """Nothing can be chosen."""


class AliasReply(Reply):
    """An alias."""

    model_config = ConfigDict(title="Alias")

    name: str
    collection: str
    changed: str = Field(description="UTC, ISO 8601")


class AliasesReply(Reply):
    """All aliases, by name."""

    aliases: list[AliasReply]


class CanaryReply(Reply):
    """How the new collection did."""

    queries: int
    overlap: float | None = Field(description="mean over the queries; null where not asked for")


class AliasSwitchReply(Reply):
    """An alias after a switch."""

    name: str
    collection: str
    changed: str = Field(description="UTC, ISO 8601")
    previous: str | None = Field(description="where it led before; null if it is new")
    canary: CanaryReply | None


class CollectionDeletedReply(Reply):
    """What is gone."""

    deleted: str


class SnapshotReply(Reply):
    """An archive that was written."""

    file: str = Field(description="its name in the configured folder")
    collection: str
    documents: int
    generation: int = Field(description="number of the last write that is in it")
    size_bytes: int
    created: str = Field(description="UTC, ISO 8601")
