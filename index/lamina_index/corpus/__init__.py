"""Streaming readers: documents, queries and relevance judgements from the files people have.

Dialects, limits and the rules for ids and field types are in `docs/formats.md`.
"""

from lamina_index.corpus.beir import BeirFiles, beir_files
from lamina_index.corpus.fields import FieldTypes
from lamina_index.corpus.judgements import read_qrels, read_queries
from lamina_index.corpus.reader import read_corpus, read_values
from lamina_index.corpus.records import (
    MAX_RECORD_BYTES,
    Check,
    CorpusOptions,
    Document,
    Format,
    Judgement,
    Query,
    Rejected,
    RowError,
)

__all__ = [
    "MAX_RECORD_BYTES",
    "BeirFiles",
    "Check",
    "CorpusOptions",
    "Document",
    "FieldTypes",
    "Format",
    "Judgement",
    "Query",
    "Rejected",
    "RowError",
    "beir_files",
    "read_corpus",
    "read_qrels",
    "read_queries",
    "read_values",
]
