"""The search page in a real browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from lamina_service.keys import KeyStore

FLAGS = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, service: Any) -> Iterator[Page]:
    """A page whose scripts must not fail and which loads nothing from elsewhere."""
    context = browser.new_context()
    page: Page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None if "//127.0.0.1:" in request.url else failures.append(f"foreign {request.url}")
        ),
    )
    yield page
    context.close()
    assert failures == []


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
        ("searchbox", "Search by meaning"),
        ("combobox", "Collection"),
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


def test_the_documentation_shows_every_route(page: Page, service: Any) -> None:
    page.goto(f"{service.url}/docs")
    expect(page.locator("article").first).to_be_visible()
    document = service.client.get("/openapi.json").json()
    routes = [
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method in operations
    ]
    assert page.locator("article h2").all_inner_texts() == routes


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
