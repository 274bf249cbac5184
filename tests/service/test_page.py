"""The search page in a real browser."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from lamina_service.keys import KeyStore


def test_typing_a_query_shows_its_hits(page: Page, service: Any) -> None:
    page.goto(service.url)
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.type("animals that bark")
    first = page.locator("#hits li").first
    expect(first).to_contain_text("Dogs like to run after a ball.")
    expect(first).to_contain_text("kind: animal")
    expect(page.locator("#status")).to_contain_text("14 results in")


def test_the_address_holds_the_search_and_brings_it_back(page: Page, service: Any) -> None:
    page.goto(service.url)
    page.fill("#query", "what bakers make")
    expect(page.locator("#hits li").first).to_contain_text("Bread")
    page.goto(page.url)
    expect(page.locator("#query")).to_have_value("what bakers make")
    expect(page.locator("#hits li").first).to_contain_text("Bread")


def test_everything_works_from_the_keyboard(page: Page, service: Any) -> None:
    page.goto(service.url)
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.type("moon")
    page.keyboard.press("Enter")
    hits = page.locator("#hits li")
    expect(hits.first).to_contain_text("moon")
    page.keyboard.press("ArrowDown")
    expect(hits.nth(0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(hits.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("/")
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.type("sun")
    expect(page.locator("#query")).to_have_value("sun")


def test_markup_in_a_text_is_shown_and_never_run(page: Page, service: Any) -> None:
    page.goto(service.url)
    page.fill("#query", "<img src=x onerror=\"document.title='owned'\"> <b>x</b>")
    expect(page.locator("#hits li").first).to_contain_text("<img src=x onerror=")
    assert page.locator("#hits img, #hits b").count() == 0
    assert page.title() == "Lamina search"


def test_a_refusal_is_shown_where_a_screen_reader_hears_it(page: Page, service: Any) -> None:
    page.goto(service.url)
    page.fill("#query", "\u200b")
    error = page.get_by_role("alert")
    expect(error).to_contain_text("blank")
    expect(page.locator("#hits li")).to_have_count(0)
    page.fill("#query", "moon")
    expect(error).to_be_hidden()
    expect(page.locator("#hits li").first).to_contain_text("moon")


def test_every_control_has_a_name(page: Page, service: Any) -> None:
    page.goto(service.url)
    for role, name in [
        ("searchbox", "Search for"),
        ("combobox", "Collection"),
        ("radio", "by meaning"),
        ("radio", "by words"),
        ("radio", "by both"),
        ("button", "Search"),
    ]:
        expect(page.get_by_role(role, name=name, exact=True)).to_be_visible()


def test_the_page_asks_for_a_key_where_one_is_needed(
    page: Page, start: Any, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data / "small", tmp_path / "data" / "small")
    _, token = KeyStore.open(tmp_path / "data").create("read")
    page.goto(start(data=tmp_path / "data").url)
    key = page.get_by_label("This service needs a key")
    expect(key).to_be_focused()
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    expect(key).to_be_hidden()
    page.fill("#query", "moon")
    expect(page.locator("#hits li").first).to_contain_text("moon")


@pytest.mark.parametrize("wrong", ["lamina_…", "clé", "two words", "zero\u200bwidth"])
def test_what_cannot_be_a_key_is_told_and_another_can_be_given(
    page: Page, start: Any, data: Path, tmp_path: Path, wrong: str
) -> None:
    shutil.copytree(data / "small", tmp_path / "data" / "small")
    _, token = KeyStore.open(tmp_path / "data").create("read")
    page.goto(start(data=tmp_path / "data").url)
    key = page.get_by_label("This service needs a key")
    told = page.get_by_text("That is no key")
    expect(key).to_be_focused()
    expect(told).to_be_hidden()
    key.fill(wrong)
    page.keyboard.press("Enter")
    expect(told).to_be_visible()
    expect(key).to_be_focused()
    page.evaluate("(wrong) => sessionStorage.setItem('lamina-key', wrong)", wrong)
    page.reload()  # nor does one that was kept before lock the page
    expect(key).to_be_focused()
    key.fill(token)
    page.keyboard.press("Enter")
    expect(key).to_be_hidden()
    page.fill("#query", "moon")
    expect(page.locator("#hits li").first).to_contain_text("moon")


def test_pages_allow_no_script_but_their_own(service: Any) -> None:
    for path in ("/", "/docs", "/page/search.js"):
        policy = service.client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
    for path in ("/page/nothing.js", "/page/..%2Fapp.py"):
        assert service.client.get(path).status_code == 404


def test_each_hit_leads_to_documents_like_it(page: Page, service: Any) -> None:
    page.goto(service.url)
    page.fill("#query", "every odd character")
    first = page.locator("#hits li").first
    expect(first).to_contain_text("holds every odd character")
    first.get_by_role("link", name="more like this").click()
    expect(page.locator("#status")).to_contain_text("13 like shelf/b 2?x=1#top%2F")
    expect(page.locator("#hits")).not_to_contain_text("holds every odd character")
    page.go_back()
    expect(page.locator("#query")).to_have_value("every odd character")
    expect(page.locator("#status")).to_contain_text("14 results in")


# Which collection is searched


@pytest.fixture
def app(start: Any, data: Path, tmp_path: Path) -> Any:
    """A service with `blue`, `green` without a document on the moon and its alias `live`, and
    `foreign`, which another encoder built."""
    for name in ("blue", "green", "foreign"):
        shutil.copytree(data / "small", tmp_path / "data" / name)
    manifest = tmp_path / "data" / "foreign" / "collection.json"
    content = json.loads(manifest.read_text())
    content["encoder"] |= {"name": "another", "fingerprint": "f" * 64}
    manifest.write_text(json.dumps(content))
    app = start(data=tmp_path / "data")
    assert app.client.delete("/v1/collections/green/documents/moon").status_code == 200
    assert app.client.put("/v1/aliases/live", json={"collection": "green"}).status_code == 200
    return app


def test_an_alias_in_the_address_is_searched_and_stays_there(page: Page, app: Any) -> None:
    page.goto(f"{app.url}/?collection=live&q=moon")
    expect(page.locator("#status")).to_contain_text("13 results in")
    expect(page.locator("#collection option:checked")).to_have_text("live → green")
    assert page.url == f"{app.url}/?collection=live&q=moon"
    page.select_option("#collection", "blue")
    expect(page.locator("#status")).to_contain_text("14 results in")
    assert page.url == f"{app.url}/?collection=blue&q=moon"
    page.select_option("#collection", "live")
    expect(page.locator("#status")).to_contain_text("13 results in")


def test_no_other_collection_is_searched_for_one_that_is_not_there(page: Page, app: Any) -> None:
    asked = f"{app.url}/?collection=gone&q=moon"
    searches: list[str] = []
    page.on("request", lambda sent: searches.append(sent.url) if "/search" in sent.url else None)
    page.goto(asked)
    error = page.get_by_role("alert")
    expect(error).to_have_text("There is no collection or alias gone here; choose one.")
    page.locator("#query").press("Enter")
    page.keyboard.type("light")
    page.wait_for_timeout(300)  # a search would be sent after 120 ms
    expect(error).to_be_visible()
    expect(page.locator("#hits li")).to_have_count(0)
    assert page.url == asked
    assert [url for url in searches if "/v1/" in url] == []
    page.select_option("#collection", "blue")
    expect(page.locator("#hits li")).to_have_count(14)
    expect(error).to_be_hidden()


def test_a_collection_that_failed_cannot_be_chosen_and_tells_why(page: Page, app: Any) -> None:
    reason = app.client.get("/v1/collections/foreign").json()["problem"]["detail"]
    page.goto(app.url)
    failed = page.locator("#collection option[value=foreign]")
    expect(failed).to_have_text(f"foreign: {reason}")
    expect(failed).to_be_disabled()
    expect(page.locator("#collection option:enabled")).to_have_text(
        ["blue", "green", "live → green"]
    )
    page.goto(f"{app.url}/?collection=foreign&q=moon")
    expect(page.get_by_role("alert")).to_have_text(f"foreign: {reason}")
    expect(page.locator("#hits li")).to_have_count(0)


def test_where_every_collection_failed_each_reason_is_told(
    page: Page, app: Any, start: Any, tmp_path: Path
) -> None:
    reason = app.client.get("/v1/collections/foreign").json()["problem"]["detail"]
    assert "another" in reason
    for name in ("one", "other"):
        shutil.copytree(tmp_path / "data" / "foreign", tmp_path / "failed" / name)
    page.goto(start(data=tmp_path / "failed").url)
    error = page.get_by_role("alert")
    expect(error).to_contain_text("one: ")
    expect(error).to_contain_text("other: ")
    expect(error).to_contain_text("another")
    expect(error).not_to_contain_text("lamina index build` makes one")


def test_without_a_collection_the_page_tells_how_to_make_one(
    page: Page, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    page.goto(start(data=tmp_path / "empty").url)
    expect(page.get_by_role("alert")).to_contain_text("`lamina index build` makes one")


def test_a_change_of_the_collection_ends_what_was_like_a_document_of_another(
    page: Page, app: Any
) -> None:
    page.goto(f"{app.url}/?collection=blue&similar=moon")
    expect(page.locator("#status")).to_contain_text("13 like moon")
    page.select_option("#collection", "green")  # which has no such document
    expect(page.locator("#hits li")).to_have_count(0)
    expect(page.get_by_role("alert")).to_be_hidden()
    page.fill("#query", "star")
    expect(page.locator("#hits li")).to_have_count(13)
    assert page.url == f"{app.url}/?collection=green&q=star"
