from __future__ import annotations

import numpy as np
import pytest

from lamina_index.corpus import Document, Rejected
from lamina_index.encoder import Encoder
from lamina_index.errors import EvaluationError, StorageFullError
from lamina_index.exact_corpus import ExactCorpus, corpus_fingerprint, document_digest

WORDS = ["rice", "guitar", "earth", "flat", "cook", "play", "learn", "moon", "sun", "fire", "tree"]


def documents(count: int) -> list[Document]:
    rng = np.random.default_rng(0)
    return [Document(f"d{i:04}", " ".join(rng.choice(WORDS, 3))) for i in rng.permutation(count)]


def test_rankings_equal_a_sort_of_all_cosines(word_encoder: Encoder) -> None:
    corpus = documents(700)  # from 11 words: many equal texts, so many ties
    embeddings = word_encoder.encode([d.text for d in corpus], role="document").embeddings
    queries = ["learn guitar", "moon fire water", "cook"]
    rankings = ExactCorpus(word_encoder, corpus).retrieve(queries, top_k=100)
    for query, ranking in zip(queries, rankings, strict=True):
        vector = word_encoder.encode([query], role="query").embeddings[0]
        scores = np.vecdot(embeddings, vector).tolist()
        expected = sorted(range(700), key=lambda row: (-scores[row], corpus[row].id))
        assert ranking == [corpus[row].id for row in expected[:100]]


def test_a_ranking_ends_where_the_corpus_does(word_encoder: Encoder) -> None:
    ranking = ExactCorpus(word_encoder, documents(3)).retrieve(["rice"], top_k=101)[0]
    assert sorted(ranking) == ["d0000", "d0001", "d0002"]


def test_a_query_without_tokens_finds_nothing(word_encoder: Encoder) -> None:
    assert ExactCorpus(word_encoder, documents(3)).retrieve(["...", "rice"], top_k=1)[0] == []


def test_of_a_repeated_id_the_last_document_counts(word_encoder: Encoder) -> None:
    corpus = ExactCorpus(
        word_encoder, [Document("a", "rice"), Document("b", "moon"), Document("a", "guitar")]
    )
    assert corpus.facts()["documents"] == 2
    texts = {"a": "guitar", "b": "moon"}
    expected_rows = word_encoder.encode([texts[name] for name in corpus.ids], role="document")
    assert np.array_equal(corpus.embeddings, expected_rows.embeddings)
    expected = [document_digest("a", "guitar"), document_digest("b", "moon")]
    assert corpus.facts()["corpus_fingerprint"] == corpus_fingerprint(expected)


def test_rejected_and_blank_records_are_counted(word_encoder: Encoder) -> None:
    records = [Document("a", "rice"), Rejected("f", 2, "no id"), Document("b", "?!")]
    corpus = ExactCorpus(word_encoder, records)
    assert (corpus.rejected, corpus.ids) == (2, ["a"])
    assert corpus.absent({"a", "b"}) == {"b"}


def test_a_corpus_without_documents_is_refused(word_encoder: Encoder) -> None:
    with pytest.raises(EvaluationError, match=r"no usable document \(1 records were rejected\)"):
        ExactCorpus(word_encoder, [Rejected("f", 1, "no id")])


def test_a_full_temporary_folder_is_told_with_the_remedy(
    word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: open("/dev/full", "r+b", buffering=0))  # noqa: SIM115 - closed by its user
    with pytest.raises(StorageFullError, match="set TMPDIR"):
        ExactCorpus(word_encoder, documents(3))


def test_the_fingerprint_knows_ids_from_texts_but_no_order() -> None:
    one, other = document_digest("a", "bc"), document_digest("ab", "c")
    assert one != other
    assert corpus_fingerprint([one, other]) == corpus_fingerprint([other, one])
