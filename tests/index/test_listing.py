"""All documents page by page, in the order of their keys, whatever happens to the collection."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina_index import listing
from lamina_index.compaction import compact
from lamina_index.errors import CursorError
from lamina_index.filters import Filter, parse_filter
from lamina_index.listing import Place
from lamina_index.searcher import Searcher
from lamina_index.store import StoredDocument
from vectors import unit

MakeCollection = Callable[..., Any]


def pages(
    searcher: Searcher, limit: int, filter: Filter | None = None
) -> Iterator[list[StoredDocument]]:
    """All pages, each asked for by the cursor of the one before."""
    place = None
    while True:
        page = searcher.page(place, limit=limit, filter=filter)
        yield page.documents
        if page.following is None:
            return
        assert place is None or place.key < page.following.key
        place = Place.read(page.following.cursor)


def ids(documents: list[StoredDocument]) -> str:
    return "".join(document.id for document in documents)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, ["a", "b", "c", "d", "e"]),
        (2, ["ab", "cd", "e"]),
        (4, ["abcd", "e"]),
        (5, ["abcde"]),
        (9, ["abcde"]),
    ],
)
def test_pages_are_cut_from_the_order_in_which_documents_were_stored(
    make_collection: MakeCollection, limit: int, expected: list[str]
) -> None:
    made = make_collection()
    made.put("abc", unit(3))
    made.snapshot()
    made.put("de", unit(2, seed=1))
    with Searcher.open(made.folder) as searcher:
        assert [ids(page) for page in pages(searcher, limit)] == expected


def test_an_empty_collection_has_one_empty_page(make_collection: MakeCollection) -> None:
    with Searcher.open(make_collection().folder) as searcher:
        assert list(pages(searcher, 10)) == [[]]


def test_a_replaced_document_moves_to_the_end_and_a_deleted_one_is_gone(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    made.put("abcd", unit(4))
    with Searcher.open(made.folder) as searcher:
        listed = pages(searcher, 2)
        assert ids(next(listed)) == "ab"
        made.put("ac", unit(2, seed=1))
        made.store.delete(["d"])
        assert [ids(page) for page in listed] == ["ac"]


def test_a_filter_leaves_out_what_does_not_pass(make_collection: MakeCollection) -> None:
    made = make_collection(fields={"even": "boolean"})
    names = string.ascii_lowercase[:20]
    metadata = [{"even": n % 2 == 0} for n in range(20)]
    made.put(names[:10], unit(10), metadata=metadata[:10])
    made.snapshot()
    made.put(names[10:], unit(10, seed=1), metadata=metadata[10:])
    made.store.delete(["c", "o"])
    with Searcher.open(made.folder) as searcher:
        even = parse_filter({"even": True}, searcher.fields)
        assert [ids(page) for page in pages(searcher, 3, even)] == ["aeg", "ikm", "qs"]


def test_a_page_of_long_texts_ends_early_and_the_next_goes_on(
    make_collection: MakeCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE_CHARACTERS", 100)
    made = make_collection(fields={"note": "string"})
    made.put("ab", unit(2), text="x" * 40)
    made.put("c", unit(1), text="x" * 400)
    made.put("de", unit(2), text="", metadata=[{"note": "x" * 90}, {}])
    with Searcher.open(made.folder) as searcher:
        assert [ids(page) for page in pages(searcher, 10)] == ["abc", "d", "e"]
        assert [ids(page) for page in pages(searcher, 2)] == ["ab", "c", "d", "e"]


# Cursors


@given(store=st.binary(min_size=8, max_size=8), key=st.integers(0, 2**63 - 1))
def test_a_cursor_gives_back_its_place_and_fits_an_address(store: bytes, key: int) -> None:
    cursor = Place(store, key).cursor
    assert Place.read(cursor) == Place(store, key)
    assert set(cursor) <= {*string.ascii_letters, *string.digits, "-", "_"}


@given(data=st.data(), key=st.integers(0, 2**63 - 1))
def test_a_cursor_that_was_cut_or_altered_is_refused(data: Any, key: int) -> None:
    cursor = Place(b"identity", key).cursor
    place = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.characters() | st.sampled_from("Ab1-_=+/ \n"))
    for wrong in (cursor[:place], cursor[:place] + other + cursor[place + 1 :], cursor + other):
        if wrong != cursor:
            with pytest.raises(CursorError, match="expected that of the page before"):
                Place.read(wrong)


def test_a_place_in_another_collection_or_a_newer_state_is_refused(
    make_collection: MakeCollection,
) -> None:
    one, other = make_collection("one"), make_collection("other")
    for made in (one, other):
        made.put("ab", unit(2))
    with Searcher.open(one.folder) as searcher:
        following = searcher.page(None, limit=1).following
    assert following is not None
    newer = Place(following.store, 3)
    for made, place in ((other, following), (one, newer)):
        with (
            Searcher.open(made.folder) as searcher,
            pytest.raises(CursorError, match="begin anew"),
        ):
            searcher.page(place, limit=1)


# While others write


@pytest.mark.parametrize("seed", range(25))
def test_pages_neither_repeat_nor_miss_what_is_there_all_the_time(
    make_collection: MakeCollection, seed: int
) -> None:
    chance = random.Random(seed)
    made = make_collection(fields={"odd": "boolean"})
    rows = unit(100, seed=seed)
    keys: dict[str, int] = {}  # as stored now
    names = [f"d{n}" for n in range(60)]

    def put(some: list[str]) -> None:
        metadata = [{"odd": int(name[1:]) % 2 == 1} for name in some]
        made.put(some, rows[: len(some)], metadata=metadata)
        last = made.store.last_key()
        keys.update(zip(some, range(last - len(some) + 1, last + 1), strict=True))

    def change() -> None:
        some = chance.sample(names[:40], chance.randrange(1, 8))
        what = chance.randrange(6)
        if what < 3:
            put(some)
        elif what < 5:
            made.store.delete(some)
            for name in some:
                keys.pop(name, None)
        else:
            compact(made.folder, threads=1)

    put(chance.sample(names, 50))
    with Searcher.open(made.folder) as searcher:
        filtered = seed % 2 == 1
        wanted = parse_filter({"odd": True}, searcher.fields) if filtered else None
        before = dict(keys)
        steady = set(keys)  # the documents that nobody has touched
        given: list[tuple[int, str]] = []
        for page in pages(searcher, chance.randrange(1, 9), wanted):
            given += [(document.key, document.id) for document in page]
            assert all(keys[document.id] == document.key for document in page)
            for _ in range(chance.randrange(3)) if len(given) < 100 else ():
                change()
            steady = {name for name in steady if keys.get(name) == before[name]}
    listed = [key for key, _ in given]
    assert listed == sorted(set(listed))
    expected = {(keys[n], n) for n in steady if not filtered or int(n[1:]) % 2 == 1}
    assert expected <= set(given)
    assert len(steady) >= 10
