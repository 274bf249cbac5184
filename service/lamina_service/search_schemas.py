"""Request and response bodies of searches."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Self

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

from lamina_index.manifest import Metadata, MetadataValue
from lamina_index.search_options import (
    DEFAULT_FUSION,
    DEFAULT_LEXICAL_WEIGHT,
    MAX_GROUP_SIZE,
    MAX_RERANK,
    Fusion,
    Mode,
)
from lamina_index.service_client import MAX_TOP_K
from lamina_service.schemas import Reply, Request, check_range, from_digits, never_null

MAX_WINDOW = 10_000
"""`offset + top_k` may not go beyond, nor may the `top_k` of a batch's searches together."""
MAX_BATCH_RERANK = 1000
"""Candidates of all searches of a batch that are reranked."""
MAX_DIMENSION = 16_384
MAX_FIELDS = 1000
MAX_FACETS = 16


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


TopK = Annotated[
    int, Field(ge=1, le=MAX_TOP_K), BeforeValidator(partial(check_range, 1, MAX_TOP_K))
]
Offset = Annotated[
    int, Field(ge=0, lt=MAX_WINDOW), BeforeValidator(partial(check_range, 0, MAX_WINDOW - 1))
]
Vector = Annotated[list[FiniteFloat], Field(min_length=1, max_length=MAX_DIMENSION)]
MinScore = Annotated[FiniteFloat, Field(ge=-1, le=1)]
GroupSize = Annotated[
    int, Field(ge=1, le=MAX_GROUP_SIZE), BeforeValidator(partial(check_range, 1, MAX_GROUP_SIZE))
]
Collapse = Annotated[FiniteFloat, Field(gt=0, le=1)]
LexicalWeight = Annotated[FiniteFloat, Field(ge=0, lt=1)]
Rerank = Annotated[
    int, Field(ge=1, le=MAX_RERANK), BeforeValidator(partial(check_range, 1, MAX_RERANK))
]
FieldNames = Annotated[list[str], Field(max_length=MAX_FIELDS)]
FacetNames = Annotated[list[str], Field(max_length=MAX_FACETS)]

_WINDOW = "how many hits, or groups, to pass over; offset + top_k may not exceed 10000"
_FIELDS = "metadata fields to return; by default all"
_MIN_SCORE = "leave out hits of a lower cosine; for mode `dense` only"
_FILTER = "search only among the documents that pass; docs/api.md has the operators"
_FACETS = "metadata fields whose values are counted over all documents that pass the filter"
_MODE = "by meaning (`dense`), by words (`lexical`) or by both (`hybrid`)"
_FUSION = "how a hybrid search joins the two: by their `ranks` or by their `scores`"
_LEXICAL_WEIGHT = "share that words have in a hybrid search; meaning has the rest"
_EXPLAIN = "tell each hit's score and rank in each leg of the search"
_HIGHLIGHT = "tell where words of the query stand in each hit's text"
_RERANK = "put so many of the best hits in the order of the service's reranker; none by default"
_GROUP_BY = "field with one value a document: hits are the best of each value, `top_k` of them"
_GROUP_SIZE = "hits of each group; with top_k at most 1000 together"
_COLLAPSE = "leave out a hit whose cosine with a better one is this or more"


class Wanted(Request):
    """What to return of what is found."""

    top_k: TopK = 10
    offset: Offset = Field(0, description=_WINDOW)
    fields: FieldNames | None = Field(None, description=_FIELDS)
    min_score: MinScore | None = Field(None, description=_MIN_SCORE)
    filter: dict[str, Any] | None = Field(
        None, description=_FILTER, examples=[{"kind": "class", "year": {"$gte": 2000}}]
    )
    facets: FacetNames | None = Field(None, description=_FACETS)
    group_by: str | None = Field(None, description=_GROUP_BY)
    group_size: GroupSize = Field(1, description=_GROUP_SIZE)
    collapse: Collapse | None = Field(None, description=_COLLAPSE)
    explain: bool = Field(False, description=_EXPLAIN)

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        if (last := self.offset + self.top_k) > MAX_WINDOW:
            raise PydanticCustomError("window", f"offset + top_k is {last}, expected at most 10000")
        if self.group_size > 1 and self.group_by is None:
            raise PydanticCustomError("group_size", "group_size goes with group_by")
        if self.hits > MAX_TOP_K:
            raise PydanticCustomError(
                "hits", f"top_k times group_size is {self.hits}, expected at most {MAX_TOP_K}"
            )
        return self

    @property
    def hits(self) -> int:
        """Most hits that the reply can have."""
        return self.top_k * self.group_size


class SimilarRequest(Wanted):
    """What to return of the documents that are near a stored one."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"top_k": 3}]})

    own_parts: bool = Field(
        False, description="where texts are split: whether parts of the same document may be found"
    )


class SearchRequest(Wanted):
    """What to search for, as a text or as a vector, and what to return of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["query"]}, {"required": ["vector"]}],
            "examples": [{"query": "how do I read a file line by line", "top_k": 3}],
        }
    )

    query: str | None = Field(None, description="text to search for", json_schema_extra=never_null)
    vector: Vector | None = Field(
        None,
        description="of the collection's dimension, not all zero; it is normalised",
        json_schema_extra=never_null,
    )
    mode: Mode = Field("dense", description=_MODE)
    fusion: Fusion = Field(DEFAULT_FUSION, description=_FUSION)
    lexical_weight: LexicalWeight = Field(DEFAULT_LEXICAL_WEIGHT, description=_LEXICAL_WEIGHT)
    highlight: bool = Field(False, description=_HIGHLIGHT)
    rerank: Rerank | None = Field(None, description=_RERANK)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.query is None) == (self.vector is None) or self._has_null:
            raise PydanticCustomError("one_of", "expected either a query or a vector")
        needs_words = self.mode != "dense" or self.highlight or self.rerank is not None
        if self.vector is not None and needs_words:
            raise PydanticCustomError("no_words", "a vector has no words; send a query")
        if self.rerank is not None and self.group_size > 1:
            raise PydanticCustomError("rerank", "rerank goes with a group_size of 1")
        if self.min_score is not None and self.mode != "dense":
            raise PydanticCustomError("min_score", "min_score goes with mode dense only")
        return self

    @property
    def _has_null(self) -> bool:
        return {"query", "vector"} <= self.model_fields_set


class SearchParameters(BaseModel):
    """The same for a query string, where every value arrives as text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    q: str = Field(description="text to search for", examples=["how do I reset my password"])
    top_k: Annotated[TopK, BeforeValidator(from_digits)] = 10
    offset: Annotated[Offset, BeforeValidator(from_digits)] = Field(0, description=_WINDOW)
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
    rerank: Annotated[Rerank, BeforeValidator(from_digits)] | None = Field(
        None, description=_RERANK
    )
    group_by: str | None = Field(None, description=_GROUP_BY)
    group_size: Annotated[GroupSize, BeforeValidator(from_digits)] = Field(
        1, description=_GROUP_SIZE
    )
    collapse: Collapse | None = Field(None, description=_COLLAPSE)

    def as_request(self) -> SearchRequest:
        """Give the body that asks the same."""
        return SearchRequest(query=self.q, **self.model_dump(exclude={"q"}))


def _check_total(searches: list[SearchRequest]) -> list[SearchRequest]:
    """Bound the reply, which is held in memory whole before it is sent, and the work."""
    if (total := sum(search.hits for search in searches)) > MAX_WINDOW:
        raise PydanticCustomError(
            "total", f"they ask for up to {total} hits, expected at most {MAX_WINDOW}"
        )
    if (total := sum(search.rerank or 0 for search in searches)) > MAX_BATCH_RERANK:
        raise PydanticCustomError(
            "total", f"their rerank add up to {total}, expected at most {MAX_BATCH_RERANK}"
        )
    return searches


class BatchRequest(Request):
    """Several searches; one that is refused refuses all."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"searches": [{"query": "refund"}, {"query": "lost parcel", "top_k": 3}]}]
        }
    )

    searches: Annotated[
        list[SearchRequest],
        Field(min_length=1, description="their hits may add up to 10000, their rerank to 1000"),
        AfterValidator(_check_total),
    ]


class Scores(Reply):
    """The score of each leg of the search that was made."""

    dense: float | None = Field(None, description="cosine")
    lexical: float | None = Field(
        None, description="BM25; null in a hybrid search where no word of the query was found"
    )
    hybrid: float | None = Field(None, description="both, fused; only beside `rerank`")
    rerank: float | None = Field(
        None, description="the reranker's; null behind the candidates that it put in order"
    )


class LegScore(Reply):
    """What one leg of a search says of a hit."""

    score: float | None
    rank: int | None = Field(
        description="from 1, equal scores sharing one; the hit's own where there is one leg; null "
        "where the hit is not among its best"
    )


class Explanation(Reply):
    """What each leg of the search that was made says of a hit."""

    dense: LegScore | None = None
    lexical: LegScore | None = None
    hybrid: LegScore | None = Field(None, description="before reranking; only beside `rerank`")
    rerank: LegScore | None = None


class Duplicates(Reply):
    """What was left out in favour of a hit, of what was looked at."""

    count: int
    ids: list[str] = Field(description="of the ten best of them")


class Hit(Reply):
    """One result."""

    id: str
    score: float = Field(
        description="orders the hits, higher is better: cosine, BM25 or both, fused; of hits that "
        "were reranked the reranker's, and the hits behind them keep their own"
    )
    scores: Scores
    rank: int = Field(
        description="1 for the best of all, so counting from before `offset`; that of the group"
    )
    text: str
    metadata: Metadata
    explanation: Explanation | None = Field(None, description="if asked for with `explain`")
    highlights: list[tuple[int, int]] | None = Field(
        None,
        description="if asked for with `highlight`: first character of each word of the query, "
        "and the one after its last, in code points of `text`",
    )
    group: MetadataValue | None = Field(
        None, description="with `group_by`: the field's value; null where the document has none"
    )
    duplicates: Duplicates | None = Field(None, description="with `collapse`")


class Took(Reply):
    """Milliseconds by stage; `total` also counts what lies between the stages."""

    queue: float = Field(description="waiting for a thread")
    encode: float = Field(description="text to vector")
    search: float = Field(description="vector to candidates, scored exactly")
    fetch: float = Field(description="texts and metadata of the hits")
    rerank: float | None = Field(None, description="query and texts to scores, if asked for")
    total: float


class Reranking(Reply):
    """What the reranker read."""

    candidates: int = Field(description="hits that it put in order; none for pages behind them")
    truncated: int = Field(description="how many of them it read in part, being too long")


class FacetValue(Reply):
    """A value of a field and how many documents have it."""

    value: str | float | bool
    count: int


class Facet(Reply):
    """The most frequent values of a field; equal numbers in the order of the values."""

    values: list[FacetValue]
    others: int = Field(description="how many more values there are")


class SearchReply(Reply):
    """Hits, best first; equal scores by id."""

    collection: str = Field(description="that was searched: where an alias led")
    hits: list[Hit]
    total: int = Field(description="documents that pass the filter; all where there is none")
    total_groups: int | None = Field(
        None, description="with `group_by`: groups that those documents make"
    )
    facets: dict[str, Facet] = Field(description="by field, those that were asked for")
    top_k: int
    offset: int
    token_count: int = Field(description="tokens of the query that were read; 0 for a vector")
    truncated: bool = Field(description="whether the query was longer than the encoder reads")
    reranking: Reranking | None = Field(None, description="if asked for with `rerank`")
    took: Took


class BatchReply(Reply):
    """A reply for each search, in order."""

    results: list[SearchReply]
