"""Adding documents on the search page, in a real browser."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from lamina_index.corpus import Document, Rejected, read_corpus
from lamina_service.keys import opened

Choose = Callable[[str, str | bytes], None]


@pytest.fixture
def app(start: Any, folder: Path) -> Any:
    """A service whose collection may be written to."""
    return start(data=folder)


@pytest.fixture
def choose(page: Page, app: Any, tmp_path: Path) -> Choose:
    """Open the page and choose a file of this name and content."""

    def choose(name: str, content: str | bytes) -> None:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        page.goto(app.url)
        page.get_by_text("Add documents").click()
        page.get_by_label("A file of documents").set_input_files(path)

    return choose


def _add(page: Page, to: str | None = None) -> None:
    if to is not None:
        page.get_by_role("radio", name="to a new collection").check()
        page.get_by_role("textbox", name="Name of the new collection").fill(to)
    page.get_by_role("button", name="Add", exact=True).click()


def _said(page: Page) -> Any:
    return page.locator("#add-status")


def _refused(page: Page) -> list[str]:
    return page.get_by_role("list", name="Refused").get_by_role("listitem").all_text_contents()


def _stored(app: Any, collection: str) -> list[tuple[str, str, dict[str, Any]]]:
    listed = app.client.get(f"/v1/collections/{collection}/documents?limit=1000").json()
    return [(one["id"], one["text"], one["metadata"]) for one in listed["documents"]]


def test_lines_of_json_are_added_to_the_open_collection(
    page: Page, app: Any, choose: Choose
) -> None:
    big = 2**53 + 1  # which JavaScript reads as another number
    lines = [
        '{"id": "moon", "text": "The moon is no cheese.", "metadata": {"kind": "myth"}}',
        f'{{"id": 12345678901234567890, "text": "Mars is red.", "size": {big}, "odd": null}}',
        "",
        '{"id": "mute"}',
        "[1]",
        '{"id": "typed", "text": "x", "kind": 3}',
    ]
    choose("notes.jsonl", "\n".join(lines))
    expect(_said(page)).to_have_text(
        "The first document: “The moon is no cheese.”, id moon, kind: myth"
    )
    _add(page)
    expect(_said(page)).to_have_text("Stored 2 in small: 1 new, 1 replaced. Refused 3.")
    refused = _refused(page)
    assert [line.partition(":")[0] for line in refused] == ["line 4", "line 5", "line 6"]
    assert "text" in refused[0]
    assert refused[1] == "line 5: not a JSON object"
    assert "kind" in refused[2]
    mars = app.client.get("/v1/collections/small/documents/12345678901234567890").json()
    assert mars["metadata"]["size"] == big
    page.fill("#query", "cheese")
    expect(page.locator("#hits li").first).to_contain_text("The moon is no cheese.")
    expect(page.get_by_role("list", name="kind").get_by_role("button", name="myth")).to_be_visible()


NASTY = (
    "\ufeffid,text,year,open,code,note\r\n"
    'a,"Commas, ""quotes"" and\r\nlines.",2020,true,007,\r\n'
    'b,plain "quotes" stay,2021,false,8,x\r\n'
    "\r\n"
    'c,"a stray quote costs,2022,true,9,its own line\r\n'
    "d,but not this,2023,true,10,y\r\n"
    'e,"behind"it,2024,true,11,z\r\n'
    "f,too few,2025\r\n"
    'g,"the end",-1.50e2,true,12,"toString"'
)


def test_csv_is_read_as_lamina_index_build_reads_it(
    page: Page, app: Any, choose: Choose, tmp_path: Path
) -> None:
    choose("table.csv", NASTY)
    _add(page, to="made-here")
    expect(_said(page)).to_contain_text("Stored 4 in made-here: 4 new")
    found = list(read_corpus([tmp_path / "table.csv"]))
    assert _stored(app, "made-here") == [
        (one.id, one.text, one.metadata) for one in found if isinstance(one, Document)
    ]
    lines = [line.partition(":")[0] for line in _refused(page)]
    assert lines == [f"line {one.line}" for one in found if isinstance(one, Rejected)]
    fields = app.client.get("/v1/collections/made-here").json()["fields"]
    assert fields == {"year": "number", "open": "boolean", "code": "string", "note": "string"}
    expect(page.locator("#collection")).to_have_value("made-here")


def test_columns_for_text_and_id_are_chosen_and_cells_get_the_collections_types(
    page: Page, app: Any, choose: Choose
) -> None:
    choose("faq.csv", "key;kind;legs;question\nk1;7;4;Do cats, as a rule, sleep?\n")
    expect(page.get_by_label("text is in")).to_have_value("question")
    page.get_by_label("id is").select_option("key")
    expect(_said(page)).to_contain_text("id k1, kind: 7")
    _add(page)
    expect(_said(page)).to_contain_text("Stored 1 in small: 1 new")
    found = app.client.get("/v1/collections/small/documents/k1").json()
    assert found["text"] == "Do cats, as a rule, sleep?"
    assert found["metadata"] == {"kind": "7", "legs": 4}  # a string field, and one of numbers


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gaps.csv", "id,text,kind\n,,red\nb,hello there,green\n"),
        (
            "gaps.jsonl",
            '{"kind": "a long red"}\n{"id": "b", "text": "hello there", "kind": "green"}',
        ),
    ],
)
def test_columns_that_the_first_record_lacks_are_offered_and_chosen(
    page: Page, app: Any, choose: Choose, name: str, content: str
) -> None:
    choose(name, content)
    expect(page.get_by_label("text is in")).to_have_value("text")
    expect(page.get_by_label("id is")).to_have_value("id")
    _add(page, to="gaps")
    expect(_said(page)).to_contain_text("Stored 1 in gaps: 1 new, 0 replaced. Refused 1.")
    assert _stored(app, "gaps") == [("b", "hello there", {"kind": "green"})]


def test_lines_that_later_ones_replace_are_accounted_for(
    page: Page, app: Any, choose: Choose
) -> None:
    choose("twice.csv", "id,text\n" + "".join(f"{n % 2},line {n}\n" for n in range(100)))
    _add(page)
    expect(_said(page)).to_have_text(
        "Stored 2 in small: 2 new, 0 replaced, 98 replaced by later lines of the file. Refused 0."
    )


def test_plain_text_is_a_document_a_line_sent_in_parts(
    page: Page, app: Any, choose: Choose
) -> None:
    parts: list[int] = []
    page.on(
        "request",
        lambda sent: (
            parts.append(len((sent.post_data or "").split("\n")))
            if sent.url.endswith("/documents")
            else None
        ),
    )
    lines = [f"Line number {number}" for number in range(1, 301)]
    lines[1] = " "
    choose("poem.txt", "\r\n".join(lines))
    expect(page.get_by_label("text is in")).to_be_hidden()
    _add(page, to="poems")
    expect(_said(page)).to_have_text("Stored 299 in poems: 299 new, 0 replaced. Refused 0.")
    stored = _stored(app, "poems")
    assert [one[0] for one in stored[:2]] == ["poem.txt:1", "poem.txt:3"]
    assert stored[-1] == ("poem.txt:300", "Line number 300", {})
    assert parts == [128, 128, 43]


@pytest.mark.parametrize(
    ("name", "content"), [("old.txt", "One.\r\rTwo."), ("old.csv", "id,text\ra,One.\rb,Two.\r")]
)
def test_lines_may_end_with_cr_alone(
    page: Page, app: Any, choose: Choose, tmp_path: Path, name: str, content: str
) -> None:
    choose(name, content)
    _add(page, to="old")
    expect(_said(page)).to_contain_text("Stored 2 in old: 2 new, 0 replaced. Refused 0.")
    assert [one[1] for one in _stored(app, "old")] == ["One.", "Two."]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "long.jsonl",
            ['{"id": "a", "text": "One."}', '{"text": "%s"}', '{"id": "b", "text": "Two."}'],
        ),
        ("long.csv", ["id,text\na,One.", "c,%s", "b,Two."]),
        ("long.txt", ["One.", "%s", "Two."]),
    ],
)
def test_a_line_that_is_too_long_is_refused_alone(
    page: Page, app: Any, choose: Choose, name: str, lines: list[str]
) -> None:
    choose(name, "\n".join(lines).replace("%s", "x" * (17 * 2**20)))
    _add(page, to="long")
    expect(_said(page)).to_have_text("Stored 2 in long: 2 new, 0 replaced. Refused 1.")
    number = 3 if name.endswith("csv") else 2
    assert _refused(page) == [f"line {number}: longer than 16 MiB"]
    assert [one[1] for one in _stored(app, "long")] == ["One.", "Two."]


def test_a_packed_file_is_unpacked(page: Page, app: Any, choose: Choose) -> None:
    choose("two.txt.gz", gzip.compress("One é.\nTwo.".encode()))
    _add(page, to="packed")
    expect(_said(page)).to_contain_text("Stored 2 in packed")
    assert _stored(app, "packed")[0][1] == "One é."


def test_a_file_can_be_dropped_anywhere(page: Page, app: Any) -> None:
    page.goto(app.url)
    dropped = page.evaluate_handle(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(["A dropped line."], "dropped.txt"));
          return data;
        }"""
    )
    page.dispatch_event("body", "drop", {"dataTransfer": dropped})
    expect(_said(page)).to_contain_text("“A dropped line.”, id dropped.txt:1")
    _add(page)
    expect(_said(page)).to_contain_text("Stored 1 in small")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("latin.txt", "caf\xe9".encode("latin-1"), "latin.txt cannot be read as UTF-8 text"),
        ("wrong.txt.gz", b"no gzip", "cannot be read as gzip of UTF-8 text"),
        ("paper.pdf", b"%PDF", "paper.pdf is none of the files that can be read here"),
        ("twice.csv", b"id,text,id\n1,2,3\n", "twice.csv has two columns id"),
        ("empty.jsonl", b"\n", "empty.jsonl has no record that can be read: it is empty."),
        ("head.csv", b"id,text\n", "that can be read: it is empty or only a header."),
        ("list.jsonl", b"\n[1]\n2", "that can be read: line 2: not a JSON object."),
        ("few.csv", b"id,text\n1\n", "that can be read: line 2: 1 columns; the header has 2."),
    ],
)
def test_a_file_that_cannot_be_read_is_said_so(
    page: Page, choose: Choose, name: str, content: bytes, told: str
) -> None:
    choose(name, content)
    expect(page.get_by_role("alert").filter(has_text=told)).to_be_visible()
    expect(page.get_by_role("button", name="Add", exact=True)).to_be_disabled()


def test_a_new_name_that_is_taken_changes_nothing(page: Page, app: Any, choose: Choose) -> None:
    choose("a.txt", "something new")
    _add(page, to="small")
    expect(
        page.get_by_role("alert").filter(has_text="There is a collection small already")
    ).to_be_visible()
    assert len(_stored(app, "small")) == 14


def test_where_all_are_refused_the_reasons_are_told(page: Page, app: Any, choose: Choose) -> None:
    choose("a.jsonl", '{"id": "a", "text": " "}\n{"id": 1.5, "text": "b"}')
    _add(page)
    expect(_said(page)).to_have_text("Stored 0 in small: 0 new, 0 replaced. Refused 2.")
    first, second = _refused(page)
    assert first.startswith("line 1: ")
    assert second.startswith("line 2: id ")


def test_a_service_without_room_is_asked_again(page: Page, app: Any, choose: Choose) -> None:
    asked: list[str] = []

    def refuse_once(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 1:
            route.continue_()
            return
        problem = {"type": "urn:lamina:problem:queue-full", "detail": "full"}
        route.fulfill(status=429, headers={"Retry-After": "1"}, body=json.dumps(problem))

    page.route("**/documents", refuse_once)
    choose("a.txt", "something new")
    _add(page)
    expect(_said(page)).to_contain_text("The service is busy; this waits.")
    expect(_said(page)).to_have_text("Stored 1 in small: 1 new, 0 replaced. Refused 0.")
    assert len(asked) == 2


def test_it_can_be_stopped_and_tells_what_stays(page: Page, app: Any, choose: Choose) -> None:
    asked: list[Route] = []

    def hold_the_second(route: Route) -> None:
        asked.append(route)
        if len(asked) != 2:
            route.continue_()

    page.route("**/documents", hold_the_second)
    choose("many.txt", "\n".join(f"line {number}" for number in range(300)))
    page.get_by_role("button", name="Add", exact=True).focus()
    page.keyboard.press("Enter")
    expect(_said(page)).to_contain_text("Stored 128 in small")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    page.keyboard.press("Enter")
    expect(_said(page)).to_contain_text("This stops once the part on its way is stored.")
    asked[1].continue_()
    expect(
        page.get_by_role("alert").filter(has_text="Stopped; what was stored stays.")
    ).to_be_visible()
    expect(_said(page)).to_have_text("Stored 256 in small: 256 new, 0 replaced. Refused 0.")
    expect(page.get_by_role("button", name="Add", exact=True)).to_be_focused()
    assert len(_stored(app, "small")) == 14 + 256
    assert len(asked) == 2


def test_a_key_that_may_not_write_is_told_and_another_can_be_given(
    page: Page, app: Any, folder: Path, choose: Choose
) -> None:
    with opened(folder) as keys:
        reader, writer = (keys.create(scope)[1] for scope in ("read", "write"))
    choose("a.txt", "something new")
    key = page.get_by_label("This service needs a key")
    key.fill(reader)
    page.keyboard.press("Enter")
    expect(key).to_be_hidden()
    expect(page.get_by_text("This needs a key of scope write.")).to_be_visible()
    _add(page)
    told = "this needs a key of scope write, the key's is read"
    expect(page.get_by_role("alert").filter(has_text=told)).to_be_visible()
    expect(key).to_be_focused()
    page.keyboard.type(writer)
    page.keyboard.press("Enter")
    expect(page.locator("#add-error")).to_be_hidden()
    expect(_said(page)).to_be_empty()
    expect(page.get_by_role("button", name="Add", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(_said(page)).to_contain_text("Stored 1 in small: 1 new")


def test_the_first_collection_of_all_can_be_made_here(
    page: Page, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    app = start(data=tmp_path / "empty")
    page.goto(app.url)
    expect(page.get_by_role("radio", name="to a new collection")).to_be_checked()
    (tmp_path / "a.txt").write_text("The very first.")
    page.get_by_label("A file of documents").set_input_files(tmp_path / "a.txt")
    _add(page, to="first")
    expect(_said(page)).to_contain_text("Stored 1 in first")
    expect(page.locator("#error")).to_be_hidden()
    page.fill("#query", "first")
    expect(page.locator("#hits li")).to_have_count(1)
