"""Word search against a slow BM25 by hand, and query text that a query language would choke on."""

from __future__ import annotations

import math
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import vectors
from lamina_index import text_lengths
from lamina_index import words as words_module
from lamina_index.cli import main
from lamina_index.corpus import Document
from lamina_index.errors import BlankTextError, DamagedError, NoWordIndexError
from lamina_index.filters import parse_filter
from lamina_index.search_options import Mode, SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import STORE_FILE, DocumentStore
from lamina_index.store_words import drop_words
from lamina_index.word_tokens import FOLDING, MAX_HIGHLIGHTS, Folding, highlights
from lamina_index.words import MAX_WORDS, WordSearch

D = 8
unit = partial(vectors.unit, dimension=D)
LEXICAL = SearchOptions(mode="lexical")


def put(store: DocumentStore, texts: Mapping[str, str]) -> None:
    store.upsert([Document(name, text, {}) for name, text in texts.items()], unit(len(texts)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    with DocumentStore.create(tmp_path, dimension=D) as made:
        yield made


def found(
    store: DocumentStore, query: str, wanted: int = 10, search: WordSearch | None = None, **how: Any
) -> list[tuple[str, float]]:
    """Ids and scores, best first, ties by id."""
    search = search or WordSearch()
    with store.reading() as reading:
        matches = search.best(reading, search.query(reading, query), wanted, **how)
        ids = reading.ids(matches.keys.tolist())
    scored = zip(matches.keys.tolist(), matches.scores.tolist(), strict=True)
    return sorted(
        ((ids[key], score) for key, score in scored), key=lambda pair: (-pair[1], pair[0])
    )


def by_hand(texts: Mapping[str, str], query: str) -> dict[str, float]:
    """BM25 of every text that has a word of the query; words are plain lower-case ones."""
    split = {name: re.findall(r"[a-z0-9]+", text.lower()) for name, text in texts.items()}
    mean = sum(map(len, split.values())) / len(split)
    scores: dict[str, float] = {}
    for word in set(re.findall(r"[a-z0-9]+", query.lower())):
        having = [name for name, words in split.items() if word in words]
        if not having:
            continue
        weight = max(1e-6, math.log((len(split) - len(having) + 0.5) / (len(having) + 0.5)))
        for name in having:
            count = split[name].count(word)
            norm = 1.2 * (0.25 + 0.75 * len(split[name]) / mean)
            scores[name] = scores.get(name, 0.0) + weight * count * 2.2 / (count + norm)
    return scores


def test_a_score_is_bm25(store: DocumentStore) -> None:
    texts = {"a": "red fox", "b": "red red dog barks", "c": "blue cat", "d": "grey cat sits there"}
    put(store, texts)
    # 4 texts of 3 words on average; "red" is in 2 of them, so its weight is log(2.5 / 2.5) = 0,
    # raised to 1e-6; "fox" is in 1: log(3.5 / 1.5), and text a is 2 words long
    fox = math.log(3.5 / 1.5) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3))
    assert found(store, "fox") == [("a", pytest.approx(fox, rel=1e-9))]
    for query in ("fox", "cat", "red dog", "the grey cat there", "nothing"):
        expected = by_hand(texts, query)
        assert dict(found(store, query)) == pytest.approx(expected, rel=1e-9)


def turns_by_hand(
    texts: Mapping[str, str], query: str, *, budget: int, allowed: set[str]
) -> list[dict[str, float]]:
    """The documents that each turn's words bring first, by BM25 of these and all commoner words."""
    having = {
        word: {name for name, text in texts.items() if word in text.split()}
        for word in set(query.split())
    }
    words = sorted((len(names), word) for word, names in having.items() if names)
    leading = 1
    while sum(count for count, _ in words[: leading + 1]) <= budget and leading < len(words):
        leading += 1
    turns: list[dict[str, float]] = []
    known: set[str] = set()
    for start, end in [(0, leading), *((n, n + 1) for n in range(leading, len(words)))]:
        new = set().union(*(having[word] for _, word in words[start:end])) & allowed - known
        scores = by_hand(texts, " ".join(word for _, word in words[start:]))
        turns.append({name: scores[name] for name in new})
        known |= new
    return turns


WORDS = st.sampled_from(["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op"])


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=30),
    query=st.lists(WORDS, min_size=1, max_size=5),
    left_out=st.sets(st.integers(0, 29)),
    budget=st.sampled_from([1, 3, 1000]),
    window=st.sampled_from([1, 4, 1000]),
)
def test_all_that_have_a_word_are_found_turn_by_turn_and_by_all_words_within_the_window(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[list[str]],
    query: list[str],
    left_out: set[int],
    budget: int,
    window: int,
) -> None:
    named = {f"d{number:02}": " ".join(text) for number, text in enumerate(texts)}
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch, DocumentStore.create(folder, dimension=D) as store:
        patch.setattr(words_module, "BUDGET_ROWS", (budget, budget))
        patch.setattr(words_module, "WINDOW", window)
        put(store, named)
        kept = [number for number in range(len(texts)) if number not in left_out]
        allowed = np.array(kept, np.int64) + 1 if left_out else None  # keys count from 1
        everything = found(store, " ".join(query), 100, allowed=allowed)
        rest = everything
        for exact in turns_by_hand(
            named, " ".join(query), budget=budget, allowed={f"d{number:02}" for number in kept}
        ):
            turn, rest = rest[: len(exact)], rest[len(exact) :]
            assert dict(turn).keys() == exact.keys()
            shares = [score / exact[name] for name, score in turn]
            assert all(0 < share <= 1 + 1e-9 for share in shares)
            if window == 1000:  # one share, since a turn is lowered as a whole
                assert shares == pytest.approx(shares[:1] * len(turn))
        assert rest == []
        scores = [score for _, score in everything]
        assert scores == sorted(scores, reverse=True)
        if budget == 1000:
            exact = by_hand(named, " ".join(query))
            assert dict(everything) == pytest.approx({name: exact[name] for name, _ in everything})
        for wanted in (1, 2, 5, 12):  # pages are parts of one listing, ties included
            part = found(store, " ".join(query), wanted, allowed=allowed)
            assert part == everything[: len(part)]
            assert len(part) >= min(wanted, len(everything))


def test_common_words_count_in_the_order_and_bring_what_is_lacking(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "BUDGET_ROWS", (3, 3))
    texts = {f"n{number}": "what of it" for number in range(8)}
    texts |= {"a": "guitar made of wood", "b": "guitar for what now", "c": "drums"}
    put(store, texts)
    with store.reading() as reading:
        query = WordSearch().query(reading, "what guitar")
    assert [word.spelling for word in query.leading] == ["guitar"]
    assert [word.spelling for word in query.common] == ["what"]
    assert [name for name, _ in found(store, "what guitar", 2)] == ["b", "a"]
    # only what the rarer word does not bring comes by the commoner one
    others = [f"n{number}" for number in range(8)]
    assert [name for name, _ in found(store, "what guitar")] == ["b", "a", *others]
    # a query of common words alone is answered by the rarest of them
    assert [name for name, _ in found(store, "what")] == [*others, "b"]


def test_more_than_the_window_is_found_in_the_same_order_on_every_page(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "WINDOW", 4)
    monkeypatch.setattr(words_module, "BUDGET_ROWS", (40, 40))
    texts = {f"d{number:02}": "guitar " + "now " * (number % 7) for number in range(30)}
    texts |= {f"e{number:02}": "now then" for number in range(30)}
    put(store, texts)
    everything = found(store, "guitar now", 100)
    assert [name[0] for name, _ in everything] == ["d"] * 30 + ["e"] * 30
    for wanted in range(1, 61):
        part = found(store, "guitar now", wanted)
        assert part == everything[: len(part)]


def test_only_allowed_rows_are_found(store: DocumentStore) -> None:
    put(store, {f"d{number}": "guitar " * (number + 1) for number in range(9)})
    keys = np.array([2, 5, 7])
    everything = dict(found(store, "guitar", 100))
    assert found(store, "guitar", 100, allowed=keys) == sorted(
        ((name, everything[name]) for name in ("d1", "d4", "d6")), key=lambda pair: -pair[1]
    )
    assert len(found(store, "guitar", 1, allowed=keys)) == 1
    assert found(store, "guitar", allowed=np.empty(0, np.int64)) == []


def test_replaced_and_deleted_texts_are_never_found(store: DocumentStore) -> None:
    put(store, {"a": "guitar", "b": "guitar", "c": "guitar"})
    search = WordSearch()
    assert len(found(store, "guitar", search=search)) == 3
    put(store, {"a": "drums"})
    store.delete(["b"])
    assert [name for name, _ in found(store, "guitar", search=search)] == ["c"]
    assert [name for name, _ in found(store, "drums", search=search)] == ["a"]
    assert store.verify() == []


def test_a_remembered_frequency_gives_what_a_fresh_count_gives(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "BUDGET_ROWS", (4, 4))
    monkeypatch.setattr(words_module, "_COMMON", 4)
    put(store, {f"d{number:03}": "common rare" if number < 3 else "common" for number in range(80)})
    old = WordSearch()
    for turn in range(60):
        if turn % 3:
            store.delete([f"d{turn:03}"])
        else:
            put(store, {f"e{turn}": "common" * (turn % 2) or "other"})
        with store.reading() as reading:
            assert old.query(reading, "common rare") == WordSearch().query(reading, "common rare")


@pytest.mark.parametrize(
    "query",
    ['"', "don't", "a AND", "NEAR(", "-a", "text:what", "a OR", "NOT b", "^a", "a*", "{text}: a"],
)
def test_no_user_text_is_query_syntax(store: DocumentStore, query: str) -> None:
    put(store, {"a": "a don t near and", "b": "what b text", "c": "or not"})
    texts = {row.id: row.text for row in store.documents()}
    words = set(re.findall(r"[a-z]+", query.lower()))
    expected = {name for name, text in texts.items() if words & set(text.split())}
    assert set(dict(found(store, query))) == expected


@settings(max_examples=150, deadline=None)
@given(query=st.text(max_size=60))
def test_any_text_can_be_searched(query: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("any")
    with DocumentStore.create(folder, dimension=D) as store:
        put(store, {"own": query.replace("\0", ""), "other": "something else"})
        names = dict(found(store, query))
        with store.reading() as reading:
            words = WordSearch().query(reading, query)
        assert ("own" in names) == bool(words.leading)
        assert store.verify() == []


def test_case_accents_and_english_endings_do_not_matter(store: DocumentStore) -> None:
    put(store, {"a": "Études of RUNNING water", "b": "e\u0301tude", "c": "nothing of the kind"})
    assert {name for name, _ in found(store, "étude")} == {"a", "b"}
    assert {name for name, _ in found(store, "etudes")} == {"a", "b"}
    assert {name for name, _ in found(store, "runs")} == {"a"}


def test_texts_in_other_scripts_and_emoji_find_what_is_there(store: DocumentStore) -> None:
    put(store, {"a": "中文 字", "b": "поиск слов 🎸", "c": "\U0001f3b8"})
    assert [name for name, _ in found(store, "中文")] == ["a"]
    assert [name for name, _ in found(store, "ПОИСК")] == ["b"]
    assert found(store, "🎸") == []


def test_very_long_queries_and_words_are_bounded(store: DocumentStore) -> None:
    put(store, {"a": "x" * 50_000, "b": " ".join(f"w{n}" for n in range(2000))})
    with store.reading() as reading:
        query = WordSearch().query(reading, " ".join(f"w{n}" for n in range(2000)))
    assert len(query.leading) + len(query.common) == MAX_WORDS
    assert [name for name, _ in found(store, "x" * 50_000)] == ["a"]


def test_an_empty_store_has_nothing_to_find(store: DocumentStore) -> None:
    assert found(store, "anything") == []


def test_words_are_folded_as_the_index_folds_them(store: DocumentStore) -> None:
    texts = ["Don't run, naïve e\u0301tudes! x_y 3.14 中文字 ﬁne", "RUNNING universities; a-b"]
    put(store, {f"d{number}": text for number, text in enumerate(texts)})
    with closing(sqlite3.connect(store.path)) as other:
        rows = other.execute("SELECT doc, term FROM word_places ORDER BY doc, offset").fetchall()
    folding = Folding()
    for turn in range(2):  # the second time from memory
        folded = folding.texts(texts)
        assert [(key, term) for key in (1, 2) for term in folded[key - 1]] == rows, turn


def test_highlights_are_the_ranges_of_query_words() -> None:
    text = "The universities were running; don't RUN the étude"
    ranges = highlights(text, "university runs don etude")
    assert [text[start:end] for start, end in ranges] == [
        "universities",
        "running",
        "don",
        "RUN",
        "étude",
    ]
    assert highlights("🎸🎸 guitar", "guitar") == [(3, 9)]  # code points, not bytes
    assert highlights("guitar", "🎸 !?") == []
    assert highlights("", "guitar") == highlights("guitar", "") == []
    assert len(highlights("a b " * 5000, "a")) == MAX_HIGHLIGHTS


def test_a_word_forgotten_by_the_folding_is_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina_index.word_tokens._KEPT_WORDS", 3)
    folding = Folding()
    text = "Seven different words in running texts here"
    assert folding.texts([text]) == folding.texts([text]) == FOLDING.texts([text])


# In a collection

MakeCollection = Callable[..., Any]


def make(make_collection: MakeCollection, word_encoder: Any, texts: Mapping[str, str]) -> Any:
    made = make_collection()
    encoded = word_encoder.encode(list(texts.values()), role="document")
    made.store.upsert([Document(n, t, {}) for n, t in texts.items()], encoded.embeddings)
    made.snapshot()
    return made


def test_a_lexical_search_needs_no_encoder_and_sees_every_write(
    make_collection: MakeCollection, word_encoder: Any
) -> None:
    made = make(make_collection, word_encoder, {"a": "guitar song", "b": "guitar", "c": "drums"})
    with Searcher.open(made.folder) as searcher:
        hits = searcher.search("Guitars", LEXICAL).hits
        assert [(hit.id, hit.rank) for hit in hits] == [("b", 1), ("a", 2)]
        assert hits[0].scores == {"lexical": hits[0].score}
        made.put(["d"], unit_rows(word_encoder), text="guitar {}")
        made.store.delete(["b"])
        assert {hit.id for hit in searcher.search("guitar", LEXICAL).hits} == {"a", "d"}
        many = searcher.search_many(["guitar", "drums"], LEXICAL)
        assert [len(result.hits) for result in many] == [2, 1]
        with pytest.raises(BlankTextError):
            searcher.search(" \u3000 ", LEXICAL)
        assert searcher.search("🎸", LEXICAL).hits == []


def unit_rows(word_encoder: Any) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = word_encoder.encode(["guitar d"], role="document").embeddings
    return rows


@pytest.mark.parametrize("window", [1, 4, 100])
def test_equal_scores_come_by_id_and_pages_join(
    make_collection: MakeCollection,
    word_encoder: Any,
    monkeypatch: pytest.MonkeyPatch,
    window: int,
) -> None:
    monkeypatch.setattr(words_module, "WINDOW", window)
    texts = {f"{number:02}": "guitar" for number in reversed(range(30))} | {"x": "drums"}
    made = make(make_collection, word_encoder, texts)
    with Searcher.open(made.folder) as searcher:
        pages = [
            [
                hit.id
                for hit in searcher.search(
                    "guitar", SearchOptions(mode="lexical", top_k=7, offset=offset)
                ).hits
            ]
            for offset in range(0, 42, 7)
        ]
    assert [each for page in pages for each in page] == [f"{number:02}" for number in range(30)]


def test_no_page_lacks_a_hit_that_the_rarest_words_do_not_bring(
    make_collection: MakeCollection,
) -> None:
    made = make_collection(dimension=D, fields={"kind": "string", "shelf": "number"})
    texts = ["bread"] * 1500 + ["recipe"] * 1800  # together more than may lead
    rows = [
        Document(f"d{number}", f"{text} {number}", {"kind": text, "shelf": number % 7})
        for number, text in enumerate(texts)
    ]
    made.store.upsert(rows[:3000], unit(3000))
    made.snapshot()
    made.store.upsert(rows[3000:], unit(300, seed=1))  # newer than the snapshot
    made.store.delete(["d0", "d1600", "d3299"])
    by_word = {"bread": 1499, "recipe": 1798}
    with Searcher.open(made.folder) as searcher:

        def listing(page: int, options: SearchOptions) -> list[str]:
            hits = []
            for offset in range(0, 3400, page):
                wanted = replace(options, top_k=page, offset=offset)
                hits += searcher.search("bread recipe", wanted).hits
            assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
            assert len({hit.id for hit in hits}) == len(hits)
            return [hit.text.split()[0] for hit in hits]

        whole = ["bread"] * by_word["bread"] + ["recipe"] * by_word["recipe"]
        assert listing(1000, LEXICAL) == listing(299, LEXICAL) == whole
        for kind, count in by_word.items():
            passing = parse_filter({"kind": kind}, searcher.fields, path="filter")
            assert listing(299, replace(LEXICAL, filter=passing)) == [kind] * count
        grouped = searcher.search("bread recipe", replace(LEXICAL, group_by="kind"))
        assert [hit.group for hit in grouped.hits] == ["bread", "recipe"]
        small = parse_filter({"kind": "recipe", "shelf": 3}, searcher.fields, path="filter")
        grouped = searcher.search(
            "bread recipe", replace(LEXICAL, filter=small, group_by="shelf", group_size=100)
        )
        assert len(grouped.hits) == 100


# Stores of the format without words, and damage


def as_format_1(folder: Path) -> None:
    with closing(sqlite3.connect(folder / STORE_FILE, isolation_level=None)) as connection:
        drop_words(connection)
        connection.execute("PRAGMA user_version = 1")


def test_a_store_of_format_1_is_searched_and_written_and_upgraded_in_place(
    make_collection: MakeCollection, word_encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(make_collection, word_encoder, {"a": "guitar", "b": "drums"})
    made.store.close()
    as_format_1(made.folder)
    with (
        Searcher.open(made.folder, word_encoder) as searcher,
        DocumentStore.open(made.folder) as store,
    ):
        assert searcher.search("guitar").hits[0].id == "a"
        with pytest.raises(NoWordIndexError, match="lamina index upgrade"):
            searcher.search("guitar", LEXICAL)
        with pytest.raises(NoWordIndexError):
            searcher.search("guitar", SearchOptions(mode="hybrid"))
        store.upsert([Document("c", "guitar too", {})], unit_rows(word_encoder))
        assert store.verify() == []
        assert main(["index", "upgrade", str(made.folder)]) == 0
        assert "added the word index" in capsys.readouterr().out
        # the searcher and the store that were open go on with it
        assert {hit.id for hit in searcher.search("guitar", LEXICAL).hits} == {"a", "c"}
        store.upsert([Document("d", "guitar again", {})], unit_rows(word_encoder))
        assert len(searcher.search("guitar", LEXICAL).hits) == 3
        assert store.verify() == []
    assert main(["index", "upgrade", str(made.folder), "--json"]) == 0
    assert '"done": null' in capsys.readouterr().out


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM words_docsize WHERE id = 1",
        "DELETE FROM words_data WHERE id > 10",
        "INSERT INTO words (words, rowid, text) VALUES ('delete', 1, 'guitar')",
        "UPDATE words_data SET block = x'0102' WHERE id > 10",
        "DROP TABLE words_idx",
    ],
)
def test_damage_to_the_word_index_is_found_named_and_mended(
    store: DocumentStore, damage: str
) -> None:
    put(store, {"a": "guitar song", "b": "guitar"})
    folder = store.path.parent
    store.close()
    with closing(sqlite3.connect(folder / STORE_FILE)) as connection:
        connection.execute(damage)
        connection.commit()
    with DocumentStore.open(folder) as opened:
        assert ["word index" in line or "malformed" in line for line in opened.verify()] == [True]
        assert opened.upgrade() == "made the word index again"
        assert opened.verify() == []
        assert len(found(opened, "guitar")) == 2


def test_a_search_that_meets_damage_says_what_mends_it(store: DocumentStore) -> None:
    put(store, {"a": "guitar song", "b": "guitar"})
    folder = store.path.parent
    store.close()
    with closing(sqlite3.connect(folder / STORE_FILE)) as connection:
        connection.execute("UPDATE words_data SET block = x'0102' WHERE id > 10")
        connection.commit()
    with (
        DocumentStore.open(folder, read_only=True) as opened,
        pytest.raises(DamagedError, match="lamina index upgrade"),
    ):
        found(opened, "guitar")


_UPGRADE = """
import sys
from pathlib import Path
from lamina_index.store import DocumentStore
with DocumentStore.open(Path(sys.argv[1])) as store:
    print("open", flush=True)
    store.upgrade()
"""


def test_a_killed_upgrade_leaves_the_old_format_or_the_new_one_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = tmp_path / "made"
    made.mkdir()
    texts = {f"d{n}": " ".join(f"w{w}" for w in rng.integers(0, 3000, 12)) for n in range(8000)}
    with DocumentStore.create(made, dimension=D) as store:
        put(store, texts)
    as_format_1(made)
    formats = set()
    for turn in range(8):
        folder = tmp_path / f"copy{turn}"
        shutil.copytree(made, folder)
        process = subprocess.Popen(
            [sys.executable, "-c", _UPGRADE, str(folder)], stdout=subprocess.PIPE
        )
        assert process.stdout
        with process.stdout as stream:
            stream.readline()
            time.sleep(turn * 0.03)
            process.send_signal(signal.SIGKILL)
        process.wait()
        with DocumentStore.open(folder) as store:
            with store.reading() as reading:
                formats.add(reading.format()[1])
                if reading.has_words:
                    assert reading.words().totals() == (8000, 96_000)
            store.upgrade()
            assert store.verify() == []
            assert store.count() == 8000
    assert 1 in formats


def test_each_reply_is_of_one_committed_state_while_another_process_writes(
    make_collection: MakeCollection, word_encoder: Any
) -> None:
    texts = {f"d{number}": "alpha" for number in range(20)}
    made = make(make_collection, word_encoder, texts)
    rows = word_encoder.encode(["alpha"] * 20, role="document").embeddings
    stop = threading.Event()
    failures: list[str] = []

    def write() -> None:
        with DocumentStore.open(made.folder) as store:
            for turn in range(10**6):
                if stop.is_set():
                    return
                word = ("alpha", "beta")[turn % 2]
                store.upsert([Document(name, f"{word} {turn}", {}) for name in texts], rows)

    def read(mode: Mode) -> None:
        try:
            while not stop.is_set():
                hits = searcher.search("alpha beta", SearchOptions(mode=mode, top_k=50)).hits
                if len(hits) != 20 or len({hit.text for hit in hits}) != 1:
                    failures.append(f"{mode}: {sorted({hit.text for hit in hits})}")
                    return
        except Exception as error:
            failures.append(repr(error))
            raise

    with Searcher.open(made.folder, word_encoder) as searcher:
        threads = [threading.Thread(target=write)]
        threads += [threading.Thread(target=read, args=(mode,)) for mode in ("lexical", "hybrid")]
        for thread in threads:
            thread.start()
        time.sleep(3)
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    with DocumentStore.open(made.folder, read_only=True) as store:
        assert store.verify() == []


def test_words_are_searched_in_a_folder_that_cannot_be_written(
    make_collection: MakeCollection, word_encoder: Any, read_only: Callable[[Path], Path]
) -> None:
    made = make(make_collection, word_encoder, {"a": "guitar", "b": "drums"})
    made.store.close()
    folder = read_only(made.folder)
    with Searcher.open(folder) as searcher:
        assert [hit.id for hit in searcher.search("guitar", LEXICAL).hits] == ["a"]
    with DocumentStore.open(folder, read_only=True) as store:
        assert store.verify() == []


def test_the_write_path_stores_no_text_twice(tmp_path: Path) -> None:
    sizes = []
    for name in ("with", "without"):
        folder = tmp_path / name
        folder.mkdir()
        DocumentStore.create(folder, dimension=D).close()
        if name == "without":
            as_format_1(folder)
        with DocumentStore.open(folder) as store:
            put(store, {f"d{n}": f"{n} " + "the very same words again " * 80 for n in range(500)})
        with closing(sqlite3.connect(folder / STORE_FILE)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append((folder / STORE_FILE).stat().st_size)
    text_bytes = 500 * 80 * 26
    assert sizes[1] > text_bytes
    assert sizes[0] - sizes[1] < text_bytes / 2


def test_a_word_in_which_the_index_sees_several_is_found_where_they_follow_each_other(
    store: DocumentStore,
) -> None:
    # FTS5 ends a word at this mark, a line above a letter
    put(store, {"a": "x\u0305y", "b": "x y and x y", "c": "y x", "d": "x", "e": "no", "f": "-"})
    assert FOLDING.words(["x\u0305y"]) == {"x\u0305y": "x y"}
    with closing(sqlite3.connect(store.path)) as raw:
        rows = raw.execute(
            "SELECT id, -bm25(words) FROM words JOIN documents ON key = words.rowid"
            " WHERE words MATCH '\"x y\"'"
        ).fetchall()
    assert sorted(name for name, _ in rows) == ["a", "b"]
    assert dict(found(store, "x\u0305y")) == pytest.approx(dict(rows), rel=1e-9)


def test_lengths_are_right_for_a_transaction_that_is_older_than_what_is_remembered(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lengths, "_TAIL_ROWS", 2)
    search = WordSearch()
    put(store, {"a": "red fox", "b": "blue"})
    assert found(store, "fox", search=search)
    put(store, {"c": "red fox jumps high", "d": "blue sky"})
    with store.reading() as older:
        expected = WordSearch().best(older, search.query(older, "fox"), 10)
        store.delete(["c"])
        put(store, {name: f"red hen {name}" for name in "efghijkl"})
        assert [name for name, _ in found(store, "fox", search=search)] == ["a"]
        again = search.best(older, search.query(older, "fox"), 10)
        assert again.keys.tolist() == expected.keys.tolist()
        assert again.scores.tolist() == expected.scores.tolist()
    for name in "efghijkl":  # most of what is remembered is gone: read anew
        store.delete([name])
    put(store, dict.fromkeys("mnopqr", "fox again"))
    assert found(store, "fox", search=search) == found(store, "fox")
