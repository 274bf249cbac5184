"""Request and response bodies. Requests are strict: no unknown keys, no "10" for 10."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    Json,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lamina_index.encoder import Role
from lamina_index.manifest import Chunking, FieldType, Metadata, Precision
from lamina_index.search_options import DEFAULT_FUSION, DEFAULT_LEXICAL_WEIGHT, Fusion, Mode
from lamina_index.service_client import MAX_TOP_K

MAX_WINDOW = 10_000
"""`offset + top_k` may not go beyond, nor may the `top_k` of a batch's searches together."""
MAX_DIMENSION = 16_384
MAX_FIELDS = 1000
MAX_FACETS = 16


def _check_range(low: int, high: int, value: Any) -> Any:
    """Refuse anything but an integer of the range, telling the whole range."""
    if type(value) is not int or not low <= value <= high:
        raise PydanticCustomError("range", f"expected an integer from {low} to {high}")
    return value


def _from_digits(value: Any) -> Any:
    """Read an integer of a query string; what is none is left for the range check to refuse."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value


def _check_texts(value: Any) -> Any:
    """Refuse all but a text or texts; of token arrays, which OpenAI allows, tell what to send."""
    if isinstance(value, list) and any(isinstance(item, int | list) for item in value):
        raise PydanticCustomError("tokens", "token arrays are not taken; send a text or texts")
    if isinstance(value, str) or (isinstance(value, list) and value):
        return value
    raise PydanticCustomError("texts", "expected a text or a list of at least one text")


def _never_null(schema: dict[str, Any]) -> None:
    """Document a field that may be left out but not be null."""
    schema |= schema.pop("anyOf")[0]
    del schema["default"]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


TopK = Annotated[
    int, Field(ge=1, le=MAX_TOP_K), BeforeValidator(partial(_check_range, 1, MAX_TOP_K))
]
Offset = Annotated[
    int, Field(ge=0, lt=MAX_WINDOW), BeforeValidator(partial(_check_range, 0, MAX_WINDOW - 1))
]
Vector = Annotated[list[FiniteFloat], Field(min_length=1, max_length=MAX_DIMENSION)]
MinScore = Annotated[FiniteFloat, Field(ge=-1, le=1)]
LexicalWeight = Annotated[FiniteFloat, Field(ge=0, lt=1)]
FieldNames = Annotated[list[str], Field(max_length=MAX_FIELDS)]
FacetNames = Annotated[list[str], Field(max_length=MAX_FACETS)]

_WINDOW = "how many hits to pass over; offset + top_k may not exceed 10000"
_FIELDS = "metadata fields to return; by default all"
_MIN_SCORE = "leave out hits of a lower cosine; for mode `dense` only"
_FILTER = "search only among the documents that pass; docs/api.md has the operators"
_FACETS = "metadata fields whose values are counted over all documents that pass the filter"
_MODE = "by meaning (`dense`), by words (`lexical`) or by both (`hybrid`)"
_FUSION = "how a hybrid search joins the two: by their `ranks` or by their `scores`"
_LEXICAL_WEIGHT = "share that words have in a hybrid search; meaning has the rest"
_EXPLAIN = "tell each hit's score and rank in each leg of the search"
_HIGHLIGHT = "tell where words of the query stand in each hit's text"


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SearchRequest(_Request):
    """What to search for, as a text or as a vector, and what to return of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["query"]}, {"required": ["vector"]}],
            "examples": [{"query": "how do I read a file line by line", "top_k": 3}],
        }
    )

    query: str | None = Field(None, description="text to search for", json_schema_extra=_never_null)
    vector: Vector | None = Field(
        None,
        description="of the collection's dimension, not all zero; it is normalised",
        json_schema_extra=_never_null,
    )
    top_k: TopK = 10
    offset: Offset = Field(0, description=_WINDOW)
    fields: FieldNames | None = Field(None, description=_FIELDS)
    min_score: MinScore | None = Field(None, description=_MIN_SCORE)
    filter: dict[str, Any] | None = Field(
        None, description=_FILTER, examples=[{"kind": "class", "year": {"$gte": 2000}}]
    )
    facets: FacetNames | None = Field(None, description=_FACETS)
    mode: Mode = Field("dense", description=_MODE)
    fusion: Fusion = Field(DEFAULT_FUSION, description=_FUSION)
    lexical_weight: LexicalWeight = Field(DEFAULT_LEXICAL_WEIGHT, description=_LEXICAL_WEIGHT)
    explain: bool = Field(False, description=_EXPLAIN)
    highlight: bool = Field(False, description=_HIGHLIGHT)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.query is None) == (self.vector is None) or self._has_null:
            raise PydanticCustomError("one_of", "expected either a query or a vector")
        if (last := self.offset + self.top_k) > MAX_WINDOW:
            raise PydanticCustomError("window", f"offset + top_k is {last}, expected at most 10000")
        if self.vector is not None and (self.mode != "dense" or self.highlight):
            raise PydanticCustomError("no_words", "a vector has no words; send a query")
        if self.min_score is not None and self.mode != "dense":
            raise PydanticCustomError("min_score", "min_score goes with mode dense only")
        return self

    @property
    def _has_null(self) -> bool:
        return {"query", "vector"} <= self.model_fields_set


class SearchParameters(BaseModel):
    """The same for a query string, where every value arrives as text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    q: str = Field(description="text to search for")
    top_k: Annotated[TopK, BeforeValidator(_from_digits)] = 10
    offset: Annotated[Offset, BeforeValidator(_from_digits)] = Field(0, description=_WINDOW)
    fields: Annotated[FieldNames, BeforeValidator(_as_list)] | None = Field(
        None, description=_FIELDS
    )
    min_score: MinScore | None = Field(None, description=_MIN_SCORE)
    filter: Json[dict[str, Any]] | None = Field(None, description=f"as JSON: {_FILTER}")
    facets: Annotated[FacetNames, BeforeValidator(_as_list)] | None = Field(
        None, description=_FACETS
    )
    mode: Mode = Field("dense", description=_MODE)
    fusion: Fusion = Field(DEFAULT_FUSION, description=_FUSION)
    lexical_weight: LexicalWeight = Field(DEFAULT_LEXICAL_WEIGHT, description=_LEXICAL_WEIGHT)
    explain: bool = Field(False, description=_EXPLAIN)
    highlight: bool = Field(False, description=_HIGHLIGHT)

    def as_request(self) -> SearchRequest:
        """Give the body that asks the same."""
        return SearchRequest(query=self.q, **self.model_dump(exclude={"q"}))


def _check_total(searches: list[SearchRequest]) -> list[SearchRequest]:
    """Bound the reply, which is held in memory whole before it is sent."""
    if (total := sum(search.top_k for search in searches)) > MAX_WINDOW:
        raise PydanticCustomError(
            "total", f"their top_k add up to {total}, expected at most {MAX_WINDOW}"
        )
    return searches


class BatchRequest(_Request):
    """Several searches; one that is refused refuses all."""

    searches: Annotated[
        list[SearchRequest],
        Field(min_length=1, description="their top_k may add up to 10000"),
        AfterValidator(_check_total),
    ]


class EmbeddingsRequest(_Request):
    """Texts to embed, in the shape of OpenAI's API."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": ["first text", "second text"]}]}
    )

    input: Annotated[
        str | Annotated[list[str], Field(min_length=1)], BeforeValidator(_check_texts)
    ] = Field(description="a text or texts; none may be blank")
    model: str | None = Field(None, description="the loaded encoder's name, or `default`")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="the encoder's own, if given")
    user: str | None = Field(None, description="taken for compatibility, not used")
    input_type: Role = Field("document", description="which of the encoder's prompts to apply")


class Scores(_Reply):
    """The score of each leg of the search that was made."""

    dense: float | None = Field(None, description="cosine")
    lexical: float | None = Field(
        None, description="BM25; null in a hybrid search where no word of the query was found"
    )


class LegScore(_Reply):
    """What one leg of a search says of a hit."""

    score: float | None
    rank: int | None = Field(
        description="from 1, equal scores sharing one; null where the hit is not among its best"
    )


class Explanation(_Reply):
    """What each leg of the search that was made says of a hit."""

    dense: LegScore | None = None
    lexical: LegScore | None = None


class Hit(_Reply):
    """One result."""

    id: str
    score: float = Field(
        description="orders the hits, higher is better: cosine, BM25 or both, fused"
    )
    scores: Scores
    rank: int = Field(description="1 for the best of all, so counting from before `offset`")
    text: str
    metadata: Metadata
    explanation: Explanation | None = Field(None, description="if asked for with `explain`")
    highlights: list[tuple[int, int]] | None = Field(
        None,
        description="if asked for with `highlight`: first character of each word of the query, "
        "and the one after its last, in code points of `text`",
    )


class Took(_Reply):
    """Milliseconds by stage; `total` also counts what lies between the stages."""

    queue: float = Field(description="waiting for a thread")
    encode: float = Field(description="text to vector")
    search: float = Field(description="vector to candidates, scored exactly")
    fetch: float = Field(description="texts and metadata of the hits")
    total: float


class FacetValue(_Reply):
    """A value of a field and how many documents have it."""

    value: str | float | bool
    count: int


class Facet(_Reply):
    """The most frequent values of a field; equal numbers in the order of the values."""

    values: list[FacetValue]
    others: int = Field(description="how many more values there are")


class SearchReply(_Reply):
    """Hits, best first; equal scores by id."""

    collection: str = Field(description="that was searched: where an alias led")
    hits: list[Hit]
    total: int = Field(description="documents that pass the filter; all where there is none")
    facets: dict[str, Facet] = Field(description="by field, those that were asked for")
    top_k: int
    offset: int
    token_count: int = Field(description="tokens of the query that were read; 0 for a vector")
    truncated: bool = Field(description="whether the query was longer than the encoder reads")
    took: Took


class BatchReply(_Reply):
    """A reply for each search, in order."""

    results: list[SearchReply]


class CollectionProblem(_Reply):
    """Why a collection is not served; the same answers requests for it."""

    type: str
    detail: str


class CollectionEncoder(_Reply):
    """The encoder that made a collection's vectors."""

    name: str
    precision: Precision
    fingerprint: str


class CollectionIndex(_Reply):
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


class CompactionFailure(_Reply):
    """How compactions in the background fail."""

    failures: int = Field(description="one after another")
    error: str
    when: str = Field(description="of the last one, UTC, ISO 8601")


class CollectionReply(_Reply):
    """A collection's state; of one that failed only the name, the status and the problem."""

    model_config = ConfigDict(title="Collection")

    name: str
    status: Literal["open", "failed"]
    aliases: list[str] = Field(description="names that lead to it")
    problem: CollectionProblem | None = None
    count: int | None = Field(None, description="documents")
    dimension: int | None = None
    metric: Literal["cosine"] | None = None
    encoder: CollectionEncoder | None = None
    fields: dict[str, FieldType] | None = Field(None, description="metadata names and types")
    chunking: Chunking | None = Field(None, description="how texts were split, if they were")
    created: str | None = None
    generation: int | None = Field(None, description="number of the last committed write")
    delta_count: int | None = Field(None, description="rows newer than the index")
    deleted_count: int | None = Field(None, description="rows of the index that are gone")
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


class CollectionsReply(_Reply):
    """All collections, by name."""

    collections: list[CollectionReply]


class LiveReply(_Reply):
    """The process is alive."""

    status: Literal["alive"]


class CollectionCounts(_Reply):
    """How many collections are served and how many could not be opened."""

    open: int
    failed: int


class ReadyReply(_Reply):
    """The service can answer."""

    status: Literal["ready", "degraded"]
    provider: str = Field(description="ONNX Runtime's, as it really runs")
    collections: CollectionCounts


class EncoderInfo(_Reply):
    """The loaded encoder."""

    name: str
    precision: Precision
    fingerprint: str
    dimension: int
    max_tokens: int
    provider: str


class QueueInfo(_Reply):
    """Texts waiting or running in this worker, and how many it admits."""

    depth: int
    capacity: int


class InfoReply(_Reply):
    """What runs here."""

    encoder: EncoderInfo
    threads: int = Field(description="texts that this worker encodes at once")
    workers: int
    queue: QueueInfo
    versions: dict[str, str]
    aliases: dict[str, str] = Field(description="the collection that each alias leads to")
    collections: list[CollectionReply]


class Embedding(_Reply):
    """One embedding, a unit vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="numbers, or base64 of little-endian float32")
    token_count: int = Field(description="tokens that were read")
    truncated: bool = Field(description="whether the text was longer than the encoder reads")


class Usage(_Reply):
    """Tokens that were read, over all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(_Reply):
    """Embeddings in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Model(_Reply):
    """An encoder."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    dimension: int
    max_tokens: int


class ModelsReply(_Reply):
    """The loaded encoder, as a list of one."""

    object: Literal["list"]
    data: list[Model]


class FieldProblem(_Reply):
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
