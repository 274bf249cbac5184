"""Request and response bodies of storing, giving and deleting documents."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Json, model_validator
from pydantic_core import PydanticCustomError

from lamina_index.listing import MAX_PAGE
from lamina_index.manifest import Metadata
from lamina_service.schemas import Reply, Request, check_range, from_digits, never_null

MAX_IDS = 10_000
MAX_TOLD = 100
"""Most documents that a reply names with what is wrong with them; all are counted."""


class NewDocument(Request):
    """A document to be stored."""

    id: str = Field(
        min_length=1, description="not blank, at most 512 bytes of UTF-8; a known id is replaced"
    )
    text: str = Field(min_length=1, description="not blank")
    metadata: Metadata = Field(
        {}, description="by field; each field keeps the type of its first value"
    )


class GetParameters(BaseModel):
    """What to give of a document beside text and metadata."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vector: bool = Field(False, description="give the embedding too")


class ListParameters(BaseModel):
    """Which documents to list, and from where on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Annotated[
        int,
        Field(ge=1, le=MAX_PAGE),
        BeforeValidator(partial(check_range, 1, MAX_PAGE)),
        BeforeValidator(from_digits),
    ] = Field(100, description="most documents to give; long ones are fewer")
    cursor: str | None = Field(
        None, description="`next_cursor` of the page before; without it the listing begins"
    )
    filter: Json[dict[str, Any]] | None = Field(
        None,
        description="as JSON: list only the documents that pass; docs/api.md has the operators",
    )


class Document(Reply):
    """A document as it is kept."""

    id: str
    text: str
    metadata: Metadata
    vector: list[float] | None = Field(None, description="a unit vector, if asked for")


class DocumentsReply(Reply):
    """A page of documents, in the order in which they were stored."""

    collection: str = Field(description="that was listed: where an alias led")
    documents: list[Document]
    next_cursor: str | None = Field(
        description="goes on after the last of these documents; null where there are no more now"
    )


class DocumentError(Reply):
    """Why a document was not stored."""

    position: int = Field(description="from 0, in the list or among the lines")
    id: str | None = Field(description="its beginning; null where none could be read")
    detail: str


class TruncatedDocument(Reply):
    """A document of whose text the encoder has read the beginning only; the text is kept whole."""

    id: str = Field(description="of a part, where texts are split")
    token_count: int = Field(description="tokens that were read, special ones included")
    full_token_count: int = Field(description="tokens that there are")


class WriteTook(Reply):
    """Milliseconds by stage; `total` also counts what lies between the stages."""

    queue: float = Field(description="waiting for a thread")
    write: float = Field(description="reading JSON, encoding, and storing durably")
    total: float


class UpsertReply(Reply):
    """What was stored; it lasts, and the next request on any worker sees it."""

    collection: str = Field(description="that was written to: where an alias led")
    inserted: int
    replaced: int
    error_count: int = Field(description="documents that were not stored")
    errors: list[DocumentError] = Field(description=f"the first {MAX_TOLD} of them")
    truncated_count: int = Field(description="documents longer than the encoder reads")
    truncated: list[TruncatedDocument] = Field(description=f"the first {MAX_TOLD} of them")
    generation: int = Field(description="number of the write, or of the last one of a stream")
    took: WriteTook


class DeleteRequest(Request):
    """Which documents to delete: either by id or by a filter."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["ids"]}, {"required": ["filter"]}],
            "examples": [{"ids": ["faq-17", "faq-18"]}, {"filter": {"year": {"$lt": 2000}}}],
        }
    )

    ids: Annotated[list[str], Field(min_length=1, max_length=MAX_IDS)] | None = Field(
        None,
        description="those that are not there do no harm",
        json_schema_extra=never_null,
    )
    filter: Annotated[dict[str, Any], Field(json_schema_extra={"minProperties": 1})] | None = Field(
        None,
        description="all documents that pass; `{}`, which passes all, is refused",
        json_schema_extra=never_null,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.model_fields_set) != 1 or (self.ids is None) == (self.filter is None):
            raise PydanticCustomError("one_of", "expected either ids or a filter")
        return self


class DeletedReply(Reply):
    """What is gone, for the next request on any worker too."""

    collection: str = Field(description="that was written to: where an alias led")
    deleted: int = Field(description="documents that were there")
