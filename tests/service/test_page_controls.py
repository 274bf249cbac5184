"""The search page's ways to search, its filter, and why a hit is there, in a real browser."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from lamina_index.build import build_collection
from lamina_index.encoder import OnnxEncoder
from lamina_index.store_file import STORE_FILE
from lamina_index.store_words import drop_words
from lamina_service.keys import opened

BIG = 2**53 + 1  # which JavaScript reads as another number


def _link(url: str, **parameters: Any) -> str:
    given = {k: v if isinstance(v, str) else json.dumps(v) for k, v in parameters.items()}
    return f"{url}/?{urlencode({'collection': 'small', **given})}"


def _value(page: Page, field: str, value: str) -> Any:
    values = page.get_by_role("list", name=field, exact=True)
    return values.get_by_role("button", name=re.compile(f"^{value}"))


def _marked(page: Page) -> list[str]:
    return page.locator("#hits li").first.locator("mark").all_text_contents()


# Ways to search


def test_words_alone_find_what_has_them_and_they_are_marked(page: Page, service: Any) -> None:
    page.goto(service.url)
    page.fill("#query", "is a star 😀 sun")
    expect(page.locator("#status")).to_contain_text("14 results in")
    page.get_by_role("radio", name="by words").check()
    expect(page.locator("#hits li").first).to_contain_text("The sun is a star.")
    expect(page.locator("#hits")).not_to_contain_text("birds")
    assert _marked(page) == ["sun", "is", "a", "star"]
    assert "mode=lexical" in page.url
    page.goto(page.url)
    expect(page.get_by_role("radio", name="by words")).to_be_checked()
    expect(page.locator("#hits")).not_to_contain_text("birds")


def test_marks_count_characters_as_the_service_does(page: Page, start: Any, folder: Path) -> None:
    app = start(data=folder)
    document = {"id": "smile", "text": "😀😀 then a zeppelin, <b>and</b> more."}
    app.client.post("/v1/collections/small/documents", json=[document])
    page.goto(_link(app.url, q="zeppelin then", mode="lexical"))
    expect(page.locator("#hits li")).to_have_count(1)
    assert _marked(page) == ["then", "zeppelin"]
    expect(page.locator("#hits .text")).to_have_text(document["text"])


def test_a_hit_tells_why_it_is_there(page: Page, service: Any) -> None:
    body = {"query": "the moon", "mode": "hybrid", "explain": True}
    found = service.client.post("/v1/collections/small/search", json=body).json()
    page.goto(_link(service.url, q="the moon", mode="hybrid"))
    first = page.locator("#hits li").first
    expect(first.get_by_role("table")).to_be_hidden()
    first.get_by_text("why", exact=True).click()
    hit = found["hits"][0]
    legs = hit["explanation"]
    expect(first.locator("tbody tr")).to_have_text(
        [
            f"by meaning, cosine{legs['dense']['score']:.3f}1",
            f"by words, BM25{legs['lexical']['score']:.3f}1",
            f"both together{hit['score']:.3f}1",
        ]
    )
    last = page.locator("#hits li").last
    last.get_by_text("why", exact=True).click()
    expect(last.locator("tbody tr").nth(1)).to_have_text(
        "by words, BM25no word of the querynot among its best"
    )


def test_modes_are_chosen_from_the_keyboard_without_leaving_them(page: Page, service: Any) -> None:
    page.goto(_link(service.url, q="moon"))
    expect(page.locator("#hits li")).to_have_count(14)
    page.get_by_role("radio", name="by meaning").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="by words")).to_be_checked()
    expect(page.get_by_role("radio", name="by words")).to_be_focused()
    expect(page.locator("#hits li")).to_have_count(1)


def test_where_words_are_not_indexed_they_cannot_be_chosen_and_it_is_said_why(
    page: Page, start: Any, folder: Path
) -> None:
    shutil.copytree(folder / "small", folder / "older")
    store = folder / "older" / STORE_FILE
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        drop_words(connection)
        connection.execute("PRAGMA user_version = 1")
    page.goto(_link(start(data=folder).url, q="moon", mode="hybrid"))
    expect(page.locator("#hits li").first).to_contain_text("moon")
    words = page.get_by_role("radio", name="by words")
    expect(words).to_be_enabled()
    page.select_option("#collection", "older")
    expect(words).to_be_disabled()
    expect(page.get_by_text("Words are not indexed here")).to_be_visible()
    expect(page.get_by_role("radio", name="by meaning")).to_be_checked()
    expect(page.locator("#hits li").first).to_contain_text("moon")
    page.goto(page.url + "&mode=lexical")  # never another search than the one that was asked for
    expect(page.get_by_role("alert")).to_contain_text("lamina index upgrade")
    expect(page.locator("#hits li")).to_have_count(0)


def test_a_mode_that_there_is_not_is_said_so(page: Page, service: Any) -> None:
    page.goto(_link(service.url, q="moon", mode="magic"))
    expect(page.get_by_role("alert")).to_have_text(
        "There is no mode magic: it is dense, lexical or hybrid."
    )
    expect(page.locator("#hits li")).to_have_count(0)


# The filter


def test_without_a_query_the_address_keeps_what_else_was_chosen(page: Page, service: Any) -> None:
    asked = _link(service.url, mode="lexical", filter='{"kind":"space"}')
    page.goto(asked)
    expect(page.locator("#conditions li")).to_have_text(["kind: space ✕"])
    assert page.url == asked
    page.fill("#query", "moon")
    expect(page.locator("#hits li .id")).to_have_text(["moon"])
    page.fill("#query", "")
    expect(page.locator("#hits li")).to_have_count(0)
    assert page.url == asked


def test_values_are_counted_and_one_that_is_chosen_narrows_the_search(
    page: Page, service: Any
) -> None:
    page.goto(service.url)
    page.fill("#query", "moon")
    animal = _value(page, "kind", "animal")
    expect(animal).to_have_text("animal 3")
    expect(animal).to_have_attribute("aria-pressed", "false")
    animal.click()
    expect(page.locator("#status")).to_contain_text("3 results in")
    expect(animal).to_have_attribute("aria-pressed", "true")
    _value(page, "legs", "2").click()
    expect(page.locator("#hits li .id")).to_have_text(["birds"])
    address = page.url
    assert "filter=" in address
    page.goto(address)
    expect(page.locator("#hits li .id")).to_have_text(["birds"])
    animal.click()
    expect(page.locator("#conditions li")).to_have_text(["legs: 2 ✕"])
    page.get_by_role("button", name="Remove legs: 2").click()
    expect(page.locator("#status")).to_contain_text("14 results in")
    assert "filter" not in page.url


def test_a_choice_keeps_the_focus_where_it_was(page: Page, service: Any) -> None:
    page.goto(_link(service.url, q="moon"))
    animal = _value(page, "kind", "animal")
    animal.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("3 results in")
    expect(animal).to_be_focused()
    remove = page.get_by_role("button", name="Remove kind: animal")
    remove.focus()
    page.keyboard.press("Enter")
    expect(remove).to_be_hidden()
    expect(page.locator("#query")).to_be_focused()


def test_a_filter_of_the_api_in_the_address_is_kept_and_can_be_taken_away(
    page: Page, service: Any
) -> None:
    wanted = {"legs": {"$gte": 3}, "$or": [{"kind": "animal"}, {"kind": "food"}]}
    page.goto(_link(service.url, q="moon", filter=wanted))
    expect(page.locator("#hits li .id")).to_have_text(["dogs", "cats"], use_inner_text=True)
    _value(page, "kind", "animal").click()
    page.get_by_role("button", name='Remove {"legs":{"$gte":3}}').click()
    expect(page.locator("#hits li")).to_have_count(3)
    expect(page.locator("#conditions li")).to_have_count(2)


def test_two_values_of_one_field_must_both_hold(
    page: Page, start: Any, tmp_path: Path, default_encoder: OnnxEncoder
) -> None:
    rows = [("a", ["io", "text"]), ("b", ["io"]), ("c", ["text"])]
    corpus = tmp_path / "corpus.jsonl"
    lines = [{"id": key, "text": f"text {key}", "tags": tags, "big": BIG} for key, tags in rows]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    build_collection([corpus], tmp_path / "tagged" / "small", default_encoder)
    page.goto(_link(start(data=tmp_path / "tagged").url, q="text"))
    expect(_value(page, "big", "9007199254740")).to_be_disabled()  # it would ask for a neighbour
    _value(page, "tags", "io").click()
    expect(page.locator("#hits li")).to_have_count(2)
    _value(page, "tags", "text").click()
    expect(page.locator("#hits li .id")).to_have_text(["a"])
    page.goto(page.url)
    expect(page.locator("#hits li .id")).to_have_text(["a"])
    expect(page.locator("#conditions li")).to_have_count(2)


@pytest.mark.parametrize("text", ['{"kind"', "[]", "3", "null"])
def test_a_filter_that_cannot_be_read_is_said_so_and_nothing_is_searched(
    page: Page, service: Any, text: str
) -> None:
    page.goto(_link(service.url, q="moon") + f"&{urlencode({'filter': text})}")
    expect(page.get_by_role("alert")).to_contain_text("The filter in the address cannot be read")
    expect(page.locator("#hits li")).to_have_count(0)


def test_a_filter_that_does_not_fit_is_told_and_can_be_taken_away(page: Page, service: Any) -> None:
    page.goto(_link(service.url, q="moon", filter={"colour": "red"}))
    expect(page.get_by_role("alert")).to_contain_text("colour")
    page.get_by_role("button", name="Remove colour: red").click()
    expect(page.locator("#hits li")).to_have_count(14)


def test_another_collection_is_not_asked_for_the_fields_of_the_first(
    page: Page, start: Any, folder: Path
) -> None:
    app = start(data=folder)
    assert app.client.put("/v1/collections/plain").status_code == 201
    app.client.post("/v1/collections/plain/documents", json=[{"id": "a", "text": "moon"}])
    page.goto(_link(app.url, q="moon", filter={"kind": "space"}))
    expect(page.locator("#hits li")).to_have_count(2)
    page.select_option("#collection", "plain")
    expect(page.locator("#hits li")).to_have_count(1)
    expect(page.locator("#conditions")).to_be_hidden()
    expect(page.locator("#facets")).to_be_hidden()  # it has no fields
    assert "filter" not in page.url


def test_what_is_like_a_document_can_be_narrowed_too(page: Page, service: Any) -> None:
    page.goto(_link(service.url, similar="cats"))
    _value(page, "kind", "animal").click()
    expect(page.locator("#status")).to_contain_text("2 like cats")
    assert "similar=cats" in page.url


def test_with_a_key_the_whole_link_is_followed(page: Page, start: Any, folder: Path) -> None:
    with opened(folder) as keys:
        _, token = keys.create("read")
    wanted = {"q": "moon", "mode": "lexical", "filter": '{"kind":"space"}'}
    asked = _link(start(data=folder).url, **wanted)
    page.goto(asked)
    key = page.get_by_label("This service needs a key")
    expect(key).to_be_focused()
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    expect(page.locator("#hits li .id")).to_have_text(["moon"])
    assert page.url == asked
