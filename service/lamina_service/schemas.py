"""Request and response bodies. Requests are strict: no unknown keys, no "10" for 10."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from lamina_index.encoder import Role
from lamina_index.manifest import Chunking, FieldType, Precision


def _check_texts(value: Any) -> Any:
    """Refuse all but a text or texts; of token arrays, which OpenAI allows, tell what to send."""
    if isinstance(value, list) and any(isinstance(item, int | list) for item in value):
        raise PydanticCustomError("tokens", "token arrays are not taken; send a text or texts")
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    if isinstance(value, str):
        return value
    raise PydanticCustomError("texts", "expected a text or a list of at least one text")


def check_range(low: int, high: int, value: Any) -> Any:
    """Refuse anything but an integer of the range, telling the whole range."""
    if type(value) is not int or not low <= value <= high:
        raise PydanticCustomError("range", f"expected an integer from {low} to {high}")
    return value


def from_digits(value: Any) -> Any:
    """Read an integer of a query string; what is none is left for the range check to refuse."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value


def never_null(schema: dict[str, Any]) -> None:
    """Document a field that may be left out but not be null."""
    schema |= schema.pop("anyOf")[0]
    del schema["default"]


Texts = Annotated[str | Annotated[list[str], Field(min_length=1)], BeforeValidator(_check_texts)]


class Request(BaseModel):
    """A body that is taken as it is or refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Reply(BaseModel):
    """A body that is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EmbeddingsRequest(Request):
    """Texts to embed, in the shape of OpenAI's API."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": ["first text", "second text"]}]}
    )

    input: Texts = Field(description="a text or texts; none may be blank")
    model: str | None = Field(None, description="the loaded encoder's name, or `default`")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="the encoder's own, if given")
    user: str | None = Field(None, description="taken for compatibility, not used")
    input_type: Role = Field("document", description="which of the encoder's prompts to apply")


class LayersRequest(Request):
    """Texts whose vectors are to be told apart by layers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["a text"]}]})

    input: Texts = Field(description="a text or texts")
    role: Role = Field("query", description="which of the encoder's prompts to apply")


class CollectionProblem(Reply):
    """Why a collection is not served; the same answers requests for it."""

    type: str
    detail: str


class CollectionEncoder(Reply):
    """The encoder that made a collection's vectors."""

    name: str
    precision: Precision
    fingerprint: str


class CollectionIndex(Reply):
    """The search index in use and how it was measured."""

    snapshot: int
    created: str
    rows: int
    deleted: int = Field(description="rows passed over, of which it still holds the vectors")
    appended: int = Field(description="rows added since it was built")
    factory: str = Field(description="FAISS factory string")
    reason: str = Field(description="why this one")
    parameters: dict[str, float]
    recall_at_10: float = Field(alias="recall@10", description="against exact search")
    recall_queries: int
    recall_method: str
    size_bytes: int


class CompactionFailure(Reply):
    """How compactions in the background fail."""

    failures: int = Field(description="one after another")
    error: str
    when: str = Field(description="of the last one, UTC, ISO 8601")


class CollectionReply(Reply):
    """A collection's state; of one that failed, only what tells why."""

    model_config = ConfigDict(title="Collection")

    name: str
    status: Literal["open", "failed"]
    aliases: list[str] = Field(description="names that lead to it")
    problem: CollectionProblem | None = None
    count: int | None = Field(None, description="documents")
    dimension: int | None = None
    metric: Literal["cosine"] | None = None
    encoder: CollectionEncoder | None = None
    accepted_cosine: float | None = Field(
        None,
        description="least cosine between its vectors and those of the precision that is loaded, "
        "where that is another one",
    )
    fields: dict[str, FieldType] | None = Field(None, description="metadata names and types")
    chunking: Chunking | None = Field(None, description="how texts were split, if they were")
    created: str | None = None
    generation: int | None = Field(None, description="number of the last committed write")
    delta_count: int | None = Field(None, description="rows newer than the index")
    deleted_count: int | None = Field(None, description="rows of the index that are gone")
    tombstone_count: int | None = Field(
        None, description="rows deleted or replaced since the index was made"
    )
    word_index: bool | None = Field(
        None, description="whether words can be searched; if not, `lamina index upgrade` helps"
    )
    store_bytes: int | None = None
    verified: bool | None = Field(
        None, description="whether every byte of the index was compared with its digests"
    )
    damage: list[str] | None = Field(None, description="newer indexes that could not be used")
    compaction_failure: CompactionFailure | None = Field(
        None, description="why the index is not brought up to date by itself, where that fails"
    )
    index: CollectionIndex | None = None


class CollectionsReply(Reply):
    """All collections, by name."""

    collections: list[CollectionReply]


class LiveReply(Reply):
    """The process is alive."""

    status: Literal["alive"]


class CollectionCounts(Reply):
    """How many collections are served and how many could not be opened."""

    open: int
    failed: int


class ReadyReply(Reply):
    """The service can answer."""

    status: Literal["ready", "degraded"]
    provider: str = Field(description="ONNX Runtime's, as it really runs")
    collections: CollectionCounts


class EncoderInfo(Reply):
    """The loaded encoder."""

    name: str
    precision: Precision
    fingerprint: str
    dimension: int
    max_tokens: int
    provider: str


class RerankerInfo(Reply):
    """The loaded reranker."""

    name: str
    precision: Precision
    fingerprint: str
    max_tokens: int = Field(description="of query and document together")
    max_rerank: int = Field(description="most candidates of a search")
    provider: str


class QueueInfo(Reply):
    """Texts waiting or running in this worker, and how many it admits."""

    depth: int
    capacity: int


class InfoReply(Reply):
    """What runs here."""

    encoder: EncoderInfo
    reranker: RerankerInfo | None
    threads: int = Field(description="texts that this worker encodes at once")
    workers: int
    queue: QueueInfo
    versions: dict[str, str]
    aliases: dict[str, str] = Field(description="the collection that each alias leads to")
    collections: list[CollectionReply]


class Embedding(Reply):
    """One embedding, a unit vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="numbers, or base64 of little-endian float32")
    token_count: int = Field(description="tokens that were read")
    truncated: bool = Field(description="whether the text was longer than the encoder reads")


class Usage(Reply):
    """Tokens that were read, over all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(Reply):
    """Embeddings in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class LayersReply(Reply):
    """How much of each layer the vectors of texts take."""

    model: str
    layers: int = Field(description="of the encoder, the embedding layer included")
    weights: list[list[float]] = Field(
        description="for each text, in their order, the shares of the layers, which add up to 1; "
        "the embedding layer's is the first"
    )


class Model(Reply):
    """An encoder."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    dimension: int
    max_tokens: int
    layers: int | None = Field(
        description="those that `/v1/layers` tells the weights of; null where the encoder keeps no "
        "attention over layers"
    )


class ModelsReply(Reply):
    """The loaded encoder, as a list of one."""

    object: Literal["list"]
    data: list[Model]


class FieldProblem(Reply):
    """What is wrong with one part of a request."""

    field: str = Field(description="such as `input[3]`; empty for the whole")
    message: str


class ProblemReply(BaseModel):
    """RFC 9457 problem details; further members depend on the type."""

    model_config = ConfigDict(title="Problem", extra="allow")

    type: str = Field(description="a stable URI, listed in docs/api.md")
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] | None = None
    items: list[int] | None = None
