"""Where the queries, judgements and corpus of an evaluation come from."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from lamina_index.corpus import (
    CorpusOptions,
    Document,
    Rejected,
    beir_files,
    read_corpus,
    read_qrels,
    read_queries,
)
from lamina_index.corpus.inputs import LINE_IDS
from lamina_index.corpus.objects import read_objects
from lamina_index.corpus.sources import decode, label, read_lines
from lamina_index.errors import EvaluationError
from lamina_index.evaluate import JudgedQueries, judge_queries
from lamina_index.quora_split import QuoraSplit

BEIR_SPLIT = "test"
DISTRACTOR_PREFIX = "distractor:"

Records = Iterable[Document | Rejected]


@dataclass(frozen=True)
class EvaluationInputs:
    """What to ask, what is relevant, and what to search where no index is given.

    Attributes:
        corpus: The corpus as it is read, to be consumed once; None if the inputs name none.
        sources: Where all this was read, for the report.
    """

    judged: JudgedQueries
    corpus: Records | None
    sources: list[str]


def inputs_from_files(
    queries: Path,
    qrels: Path,
    corpus: Path | None,
    *,
    split: str | None = None,
    text_field: str | None = None,
    keep_self: bool = False,
) -> EvaluationInputs:
    """Read queries, judgements and, if given, a corpus.

    Args:
        queries: Id first and a `text` column.
        qrels: Query id, document id and, if numeric, a grade.
        corpus: Id first, or under `id` or `_id`; the text under `text_field`, or under `text`, or
            in the only other column.
        text_field: Named here, where the corpus has it.
        split: Which judgements count where the file has a `split` column; None for all.
        keep_self: See `judge_queries`.

    Raises:
        EvaluationError: If they do not fit together.
        CorpusError: If a file cannot be read.
    """
    judged = _judged(queries, qrels, split=split, keep_self=keep_self)
    if corpus is None:
        return EvaluationInputs(judged, None, [label(queries), label(qrels)])
    records = read_corpus([corpus], _corpus_options(corpus, text_field))
    return EvaluationInputs(judged, records, [label(queries), label(qrels), label(corpus)])


def inputs_from_beir(
    folder: Path, *, split: str | None = None, keep_self: bool = False
) -> EvaluationInputs:
    """Read a folder in BEIR's layout; the split is `test` unless another is named.

    Raises:
        EvaluationError: If its files do not fit together.
        CorpusError: If a file is missing or cannot be read.
    """
    split = split or BEIR_SPLIT
    files = beir_files(folder, split)
    judged = _judged(files.queries, files.qrels, split=None, keep_self=keep_self)
    records = read_corpus([folder], CorpusOptions(format="beir"))
    return EvaluationInputs(replace(judged, split=split), records, [label(folder)])


def inputs_from_quora(release: Path, split: QuoraSplit) -> EvaluationInputs:
    """Take the split that was built from Quora's release."""
    judged = judge_queries(split.queries, split.qrels)
    records = (Document(question, text) for question, text in split.corpus.items())
    return EvaluationInputs(judged, records, [label(release)])


def with_distractors(
    inputs: EvaluationInputs, files: Sequence[Path], *, text_field: str | None = None
) -> EvaluationInputs:
    """Add documents that are relevant to nothing, under ids of their own.

    Their text is found as that of the corpus in `inputs_from_files`. While the corpus is read,
    EvaluationError is raised if one of its ids looks like one of theirs.
    """
    if not files or inputs.corpus is None:
        return inputs
    parts = [_without_prefix(inputs.corpus)]
    for number, file in enumerate(files):
        options = replace(_corpus_options(file, text_field), id_field=LINE_IDS)
        parts.append(_with_prefix(read_corpus([file], options), f"{DISTRACTOR_PREFIX}{number}:"))
    sources = [*inputs.sources, *map(label, files)]
    return replace(inputs, corpus=chain.from_iterable(parts), sources=sources)


def _without_prefix(records: Records) -> Iterator[Document | Rejected]:
    for record in records:
        if isinstance(record, Document) and record.id.startswith(DISTRACTOR_PREFIX):
            raise EvaluationError(
                f"document {record.id!r} of the corpus has an id that is kept for distractors"
            )
        yield record


def _with_prefix(records: Records, prefix: str) -> Iterator[Document | Rejected]:
    for record in records:
        named = isinstance(record, Document)
        yield replace(record, id=f"{prefix}{record.id}") if named else record


def _judged(queries: Path, qrels: Path, *, split: str | None, keep_self: bool) -> JudgedQueries:
    """Join the files; the split of a judgement is its own or else that of its query."""
    asked = {query.id: query for query in read_queries(queries)}
    grades: dict[str, dict[str, float]] = {}
    splits: set[str] = set()
    for judgement in read_qrels(qrels):
        query = asked.get(judgement.query_id)
        found = judgement.split or (query and query.split)
        splits.add(found or "no split")
        if split is None or found == split:
            grades.setdefault(judgement.query_id, {})[judgement.document_id] = judgement.grade
    if not grades:
        known = f"no judgement of split {split!r}; it has {', '.join(sorted(splits))}"
        raise EvaluationError(f"{qrels}: {known if splits else 'no judgements'}")
    texts = {query.id: query.text for query in asked.values()}
    return judge_queries(texts, grades, split=split, keep_self=keep_self)


def _corpus_options(path: Path, text_field: str | None) -> CorpusOptions:
    """Find the id and the text by the rules of `inputs_from_files`."""
    columns = _columns(path)
    id_field = None if {"id", "_id"}.intersection(columns) else next(iter(columns), None)
    others = [column for column in columns if column not in {id_field, "id", "_id"}]
    if len(columns) == 1:
        return CorpusOptions(id_field=LINE_IDS, text_field=columns[0])
    if text_field not in columns:
        text_field = others[0] if len(others) == 1 else "text"
    return CorpusOptions(id_field=id_field, text_field=text_field)


def _columns(path: Path) -> list[str]:
    """Give the columns of a table or the keys of the first object; none for other formats."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        first = next(read_objects(path), (0, {}))[1]
        return list(first) if isinstance(first, dict) else []
    if name.endswith((".tsv", ".tab", ".csv")):
        header = [decode(line) for line in islice(read_lines(path), 1)]
        comma = name.endswith(".csv")
        dialect = {"delimiter": ","} if comma else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        return next(csv.reader(header, **dialect), [])
    return []
