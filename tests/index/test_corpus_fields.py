"""Metadata types are found once, then kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina_index.corpus import (
    CorpusOptions,
    Document,
    FieldTypes,
    Rejected,
    RowError,
    read_corpus,
)
from lamina_index.corpus.fields import MAX_FIELDS
from lamina_index.corpus.reader import WINDOW_ROWS


def types_of_column(*cells: str) -> str:
    fields = FieldTypes()
    fields.infer([{"f": cell} for cell in cells], textual=True)
    return fields.known["f"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2", "0"], "number"),
        (["1.5", "1e5", "-0.25E-3"], "number"),
        (["01"], "string"),
        (["+1"], "string"),
        (["1,000"], "string"),
        ([".5"], "string"),
        (["5."], "string"),
        (["nan", "inf"], "string"),
        (["1e999"], "string"),
        (["9223372036854775807"], "number"),
        (["9223372036854775808"], "string"),
        (["-9223372036854775808"], "number"),
        (["12345678901234567890123"], "string"),
        (["٣"], "string"),
        (["true", "False", "TRUE"], "boolean"),
        (["yes"], "string"),
        (["tRue"], "string"),
        (["1", "true"], "string"),
        (["2024-02-29"], "date"),
        (["2023-02-29"], "string"),
        (["2024-01-01", "2024-01-01T10:00Z", "2024-01-01 10:00:00.5+02:00"], "date"),
        (["20240101"], "number"),
        (["2024-W01-1"], "string"),
        (["2024-01-01", "soon"], "string"),
        (["2024-01-01", "7"], "string"),
    ],
)
def test_columns_of_text_get_the_type_that_all_their_cells_have(cells: list[str], expected: str):
    assert types_of_column(*cells) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5], "number"),
        ([True], "boolean"),
        (["a"], "string"),
        (["1"], "string"),
        (["true"], "string"),
        (["2024-01-01"], "date"),
        (["2024-01-01", "soon"], "string"),
        (["soon", "2024-01-01"], "string"),
        ([["a"]], "strings"),
        ([[]], "strings"),
        ([1, "a"], "number"),
        ([{"nested": 1}, "a"], "string"),
    ],
)
def test_json_values_have_the_type_of_the_first(values: list[object], expected: str):
    fields = FieldTypes()
    fields.infer([{"f": value} for value in values])
    assert fields.known == {"f": expected}


@pytest.mark.parametrize(
    ("known", "value", "message"),
    [
        ("number", "7", 'field "f" is the string "7"; earlier rows made it a finite number'),
        ("number", True, "is a boolean; earlier rows made it a finite number"),
        ("number", float("inf"), "is the number inf; earlier"),
        ("number", 2**63, "is the number 9223372036854775808; earlier"),
        ("boolean", 1, "is the number 1; earlier rows made it true or false"),
        ("string", 1, "is the number 1; earlier rows made it a string"),
        ("date", "soon", 'is the string "soon"; earlier rows made it an ISO 8601 date'),
        ("strings", "a", 'is the string "a"; earlier rows made it a list of strings'),
        ("string", ["a"], "is a list of strings; earlier rows made it a string"),
        ("strings", ["a", None], "is a list with other than strings; earlier"),
    ],
)
def test_a_value_of_another_type_is_refused(known: str, value: object, message: str):
    fields = FieldTypes({"f": known})
    with pytest.raises(RowError) as caught:
        fields.check({"f": value})
    assert message in str(caught.value)
    assert fields.known == {"f": known}


def test_values_stay_as_they_were_written():
    values = {"n": 2**53 + 1, "m": -(2**63), "d": "2024-01-01 10:00", "s": "01", "l": ["b", "a"]}
    assert FieldTypes().check({**values, "none": None}) == values


def test_cells_are_converted_to_the_type_of_their_column():
    fields = FieldTypes({"n": "number", "b": "boolean", "d": "date", "s": "string"})
    row = {"n": "9007199254740993", "b": "FALSE", "d": "2024-01-01", "s": "1"}
    assert fields.check(row, textual=True) == {
        "n": 9007199254740993,
        "b": False,
        "d": "2024-01-01",
        "s": "1",
    }
    for name in ("n", "b", "d"):
        with pytest.raises(RowError, match=f'field "{name}" is the string "x"'):
            fields.check({name: "x"}, textual=True)


def test_a_collection_has_a_bounded_number_of_fields():
    fields = FieldTypes()
    fields.check({f"f{number}": 1 for number in range(MAX_FIELDS)})
    with pytest.raises(RowError, match='field "more" would be one more than 256'):
        fields.check({"more": 1})
    fields.check({"f0": 2})


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1))
def test_written_numbers_are_read_back_exactly(number: float):
    text = str(number)
    if "e+" in text or "inf" in text:
        text = text.replace("e+", "e")
    fields = FieldTypes({"n": "number"})
    assert fields.check({"n": text}, textual=True) == {"n": number}


def read(path: Path, fields: FieldTypes) -> list[Document | Rejected]:
    return list(read_corpus([path], CorpusOptions(), fields=fields))


def test_a_column_is_judged_by_a_window_of_rows(tmp_path: Path):
    path = tmp_path / "a.csv"
    numbers = "".join(f"{n},x,{n},{n}\n" for n in range(WINDOW_ROWS - 1))
    path.write_text(f"id,text,late,early\n{numbers}last,x,1,word\nafter,x,word,word\n")
    fields = FieldTypes()
    *_, last, after = read(path, fields)
    assert fields.known == {"late": "number", "early": "string"}
    assert last == Document("last", "x", {"late": 1, "early": "word"})
    assert after == Rejected(
        str(path),
        WINDOW_ROWS + 2,
        'field "late" is the string "word"; earlier rows made it a finite number '
        "(integers within 64 bits)",
        "after",
    )


def test_a_rejected_row_decides_no_type(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id":"a","text":"","f":1}\n{"id":"b","text":"x","f":"word"}\n')
    fields = FieldTypes()
    bad, good = read(path, fields)
    assert isinstance(bad, Rejected)
    assert good == Document("b", "x", {"f": "word"})
    assert fields.known == {"f": "string"}


ROW = st.dictionaries(
    st.sampled_from(["f", "g", "year", ""]),
    st.sampled_from([1, True, "word", "2024-01-01", "7", ["a"], [], {"deep": 1}, None, 2**70]),
    max_size=3,
)


def passing(fields: FieldTypes, rows: list[dict[str, object]], *, textual: bool) -> list[int]:
    """Positions of the rows that are good, once types are found in all of them."""
    fields.infer(rows, textual=textual)
    passed = []
    for position, row in enumerate(rows):
        with suppress(RowError):
            fields.check(row, textual=textual)
            passed.append(position)
    return passed


@given(rows=st.lists(ROW, max_size=8), textual=st.booleans())
def test_types_are_those_of_the_good_rows_alone(rows: list[dict[str, object]], textual: bool):
    if textual:
        rows = [{name: str(value) for name, value in row.items()} for row in rows]
    fields, again = FieldTypes({"year": "number"}), FieldTypes({"year": "number"})
    good = [rows[position] for position in passing(fields, rows, textual=textual)]
    assert passing(again, good, textual=textual) == list(range(len(good)))
    assert fields.known == again.known
    assert fields.known.keys() == {"year"}.union(
        name for row in good for name, value in row.items() if value is not None
    )


@pytest.mark.parametrize(
    "bad",
    [
        '{"id":"a","text":"x","f":1,"deep":{"a":1}}',
        '{"id":"a","text":"x","f":1,"":"no name"}',
        '{"id":"a","text":"x","f":1,"year":"soon"}',
        '{"id":"a","text":"x","f":1,"huge":18446744073709551616}',
    ],
)
def test_metadata_that_is_refused_in_part_decides_nothing(tmp_path: Path, bad: str):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{bad}\n{{"id":"b","text":"x","f":"word"}}\n')
    fields = FieldTypes({"year": "number"})
    refused, good = read(path, fields)
    assert isinstance(refused, Rejected)
    assert good == Document("b", "x", {"f": "word"})
    assert fields.known == {"year": "number", "f": "string"}


def test_a_cell_of_a_refused_row_does_not_make_its_column_text(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("id,text,n,year\na,x,word,soon\nb,x,1,1999\n")
    fields = FieldTypes({"year": "number"})
    refused, good = read(path, fields)
    assert isinstance(refused, Rejected)
    assert good == Document("b", "x", {"n": 1, "year": 1999})
    assert fields.known == {"year": "number", "n": "number"}


def test_a_row_with_more_new_fields_than_there_is_room_for_takes_none_of_it():
    fields = FieldTypes({f"f{number}": "number" for number in range(MAX_FIELDS - 1)})
    rows = [{"one": 1, "more": 1}, {"other": 1}]
    assert passing(fields, rows, textual=False) == [1]
    assert "one" not in fields.known


def test_known_types_hold_for_later_files(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("id,text,year\na,x,1999\nb,x,soon\n")
    good, bad = read(path, FieldTypes({"year": "number"}))
    assert good == Document("a", "x", {"year": 1999})
    assert isinstance(bad, Rejected)
    good, other = read(path, FieldTypes({"year": "string"}))
    assert (good, other) == (
        Document("a", "x", {"year": "1999"}),
        Document("b", "x", {"year": "soon"}),
    )


def test_reading_again_gives_the_same_items_and_types(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text(
        "id,text,f\n" + "".join(f"{n},x,{n if n < 2500 else 'w'}\n" for n in range(3000))
    )
    first, second = FieldTypes(), FieldTypes()
    assert read(path, first) == read(path, second)
    assert first.known == second.known == {"f": "number"}
