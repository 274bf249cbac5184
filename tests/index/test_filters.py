"""Filters: what each operator means, by hand and against a slow reference, and what is refused."""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina_index.columns_file import read_columns, write_columns
from lamina_index.errors import FilterError
from lamina_index.field_columns import ColumnsBuilder, FieldColumns
from lamina_index.filters import Among, parse_filter
from lamina_index.instants import instant_of, instant_text
from lamina_index.manifest import FieldType, Metadata

TYPES: dict[str, FieldType] = {
    "kind": "string",
    "year": "number",
    "open": "boolean",
    "day": "date",
    "tags": "strings",
}

ROWS: list[Metadata] = [
    {"kind": "class", "year": 1999, "open": True, "day": "2024-01-31", "tags": ["a", "b"]},
    {"kind": "classic", "year": 2000, "open": False, "day": "2024-01-31T23:00:00-02:00"},
    {"kind": "Ä", "year": 2000.5, "tags": []},
    {"year": 2**53 + 1, "tags": ["b", "b", "ab"], "day": "2024-02-01T01:00:00.000001Z"},
    {},
]


def columns_of(rows: list[Metadata], types: dict[str, FieldType] = TYPES) -> FieldColumns:
    builder = ColumnsBuilder(types)
    for row in rows:
        builder.add(row)
    return builder.columns()


def passes(wanted: dict[str, Any], metadata: Metadata, types: dict[str, FieldType]) -> bool:
    """Tell slowly, from the JSON as it is written, whether one document passes a filter."""
    return all(_part(key, value, metadata, types) for key, value in wanted.items())


def _part(key: str, value: Any, metadata: Metadata, types: dict[str, FieldType]) -> bool:
    if key == "$and":
        return all(passes(each, metadata, types) for each in value)
    if key == "$or":
        return any(passes(each, metadata, types) for each in value)
    if key == "$not":
        return not passes(value, metadata, types)
    conditions = value if isinstance(value, dict) else {"$eq": value}
    return all(
        _holds(operator, operand, metadata.get(key), types[key])
        for operator, operand in conditions.items()
    )


def _holds(operator: str, operand: Any, stored: Any, kind: FieldType) -> bool:
    values = stored if kind == "strings" else [stored]
    if stored is None:
        values = []
    if kind == "date":
        values = [_moment(each) for each in values]
        if isinstance(operand, list):
            operand = [_moment(each) for each in operand]
        elif isinstance(operand, str):
            operand = _moment(operand)
    match operator:
        case "$eq":
            return operand in values
        case "$ne":
            return operand not in values
        case "$in":
            return any(each in operand for each in values)
        case "$nin":
            return not any(each in operand for each in values)
        case "$gt":
            return any(each > operand for each in values)
        case "$gte":
            return any(each >= operand for each in values)
        case "$lt":
            return any(each < operand for each in values)
        case "$lte":
            return any(each <= operand for each in values)
        case "$prefix":
            return any(each.startswith(operand) for each in values)
        case "$exists":
            return (stored is not None) == operand
    raise AssertionError(operator)


def _moment(text: str) -> datetime:
    read = datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def matched(wanted: dict[str, Any]) -> list[int]:
    return np.flatnonzero(columns_of(ROWS).matches(parse_filter(wanted, TYPES))).tolist()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"kind": "class"}, [0]),
        ({"kind": {"$prefix": "class"}}, [0, 1]),
        ({"kind": {"$prefix": ""}}, [0, 1, 2]),
        ({"kind": {"$prefix": "Ä"}}, [2]),
        ({"kind": {"$in": ["Ä", "class", "no"]}}, [0, 2]),
        ({"kind": {"$in": []}}, []),
        ({"kind": {"$ne": "class"}}, [1, 2, 3, 4]),
        ({"kind": {"$nin": ["class", "Ä"]}}, [1, 3, 4]),
        ({"kind": {"$exists": False}}, [3, 4]),
        ({"year": 2000}, [1]),
        ({"year": 2000.0}, [1]),
        ({"year": {"$gte": 2000, "$lt": 2001}}, [1, 2]),
        ({"year": {"$gt": 2000}}, [2, 3]),
        ({"year": {"$lte": 2000}}, [0, 1]),
        ({"year": 2**53}, []),
        ({"year": {"$gt": float(2**53)}}, [3]),
        ({"open": True}, [0]),
        ({"open": {"$ne": True}}, [1, 2, 3, 4]),
        ({"day": "2024-01-31T00:00:00Z"}, [0]),
        ({"day": {"$gte": "2024-02-01T01:00:00Z"}}, [1, 3]),
        ({"day": {"$gt": "2024-02-01T02:00:00+01:00"}}, [3]),
        ({"tags": "b"}, [0, 3]),
        ({"tags": {"$in": ["a", "ab"]}}, [0, 3]),
        ({"tags": {"$nin": ["a", "ab"]}}, [1, 2, 4]),
        ({"tags": {"$exists": True}}, [0, 2, 3]),
        ({"tags": {"$prefix": "a"}}, [0, 3]),
        ({"kind": "class", "year": 2000}, []),
        ({"$or": [{"kind": "class"}, {"year": 2000}]}, [0, 1]),
        ({"$and": [{"year": {"$gt": 1}}, {"$not": {"tags": "b"}}]}, [1, 2]),
        ({"$not": {}}, []),
    ],
)
def test_each_operator_means_what_is_documented(
    wanted: dict[str, Any], expected: list[int]
) -> None:
    assert matched(wanted) == expected
    assert [n for n, row in enumerate(ROWS) if passes(wanted, row, TYPES)] == expected


@pytest.mark.parametrize(
    ("wanted", "path", "found"),
    [
        ([], "filter", "an empty list, expected an object"),
        ({"size": 1}, "filter.size", "no such metadata; there is: day, kind, open, tags, year"),
        ({"$nor": []}, "filter.$nor", "no such operator"),
        ({"kind": {"$like": "x"}}, "filter.kind.$like", "no such operator; expected $eq"),
        ({"kind": {}}, "filter.kind", "an empty object"),
        ({"kind": 1}, "filter.kind", "1, expected a string: the field is a string"),
        ({"kind": None}, "filter.kind", "null.*ask for a missing field with \\$exists"),
        ({"kind": {"$gt": "a"}}, "filter.kind.$gt", "is a string; \\$gt is for number and date"),
        ({"year": "2000"}, "filter.year", "'2000', expected a finite number"),
        ({"year": True}, "filter.year", "true, expected a finite number"),
        ({"year": {"$gte": 2**63}}, "filter.year.$gte", "integers within 64 bits"),
        ({"year": float("nan")}, "filter.year", "nan, expected a finite number"),
        ({"year": {"$in": [1, "x"]}}, "filter.year.$in[1]", "'x', expected a finite number"),
        ({"year": {"$in": 1}}, "filter.year.$in", "1, expected a list of values"),
        ({"year": {"$prefix": "2"}}, "filter.year.$prefix", "is for string and strings"),
        ({"open": 1}, "filter.open", "1, expected true or false"),
        ({"day": "yesterday"}, "filter.day", "'yesterday', expected an ISO 8601 date"),
        ({"tags": ["a"]}, "filter.tags", "a list, expected a string"),
        ({"kind": {"$exists": 1}}, "filter.kind.$exists", "1, expected true or false"),
        ({"$or": []}, "filter.$or", "an empty list, expected a list of filters"),
        ({"$or": [{}, 3]}, "filter.$or[1]", "3, expected an object"),
        ({"$not": {"$and": [{"year": []}]}}, "filter.$not.$and[0].year", "an empty list"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_place(wanted: Any, path: str, found: str) -> None:
    with pytest.raises(FilterError, match=found.replace("$eq", r"\$eq")) as refused:
        parse_filter(wanted, TYPES)
    assert refused.value.path == path


def test_the_size_of_a_filter_is_bounded() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return {"$not": nested(depth - 1)} if depth else {"year": 1}

    parse_filter(nested(16), TYPES)
    with pytest.raises(FilterError, match="nested more than 16 deep"):
        parse_filter(nested(17), TYPES)
    parse_filter({"$or": [{"year": 1}] * 256}, TYPES)
    with pytest.raises(FilterError, match="one condition more than 256"):
        parse_filter({"$or": [{"year": 1}] * 257}, TYPES)
    parse_filter({"year": {"$in": list(range(10_000))}}, TYPES)
    half = {"year": {"$in": list(range(5001))}}
    with pytest.raises(FilterError, match="more than 10000 values in one filter"):
        parse_filter({"$or": [half, half]}, TYPES)


def test_a_field_whose_type_changed_meanwhile_is_refused() -> None:
    wanted = parse_filter({"kind": 3}, {"kind": "number"})
    with pytest.raises(FilterError, match="was a number and is a string by now"):
        columns_of(ROWS).matches(wanted)


def test_text_of_a_filter_is_repaired_as_that_of_documents_is() -> None:
    assert parse_filter({"kind": "a\0"}, TYPES) == Among("kind", "string", ("a\ufffd",))


@pytest.mark.parametrize(
    ("text", "microseconds", "written"),
    [
        ("1970-01-01", 0, "1970-01-01"),
        ("1970-01-01T00:00:01.5Z", 1_500_000, "1970-01-01T00:00:01.500000Z"),
        ("1970-01-01 01:00+01:00", 0, "1970-01-01"),
        ("1970-01-01T00:00:00.123456789Z", 123_456, "1970-01-01T00:00:00.123456Z"),
        ("0001-01-01T00:00:00+05:00", -62_135_614_800_000_000, "0001-01-01"),
    ],
)
def test_dates_are_instants(text: str, microseconds: int, written: str) -> None:
    assert instant_of(text) == microseconds
    assert instant_text(microseconds) == written


# Against the reference

_DAYS = st.builds(
    "2024-{:02}-{:02}{}".format,
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["", "T00:00Z", "T01:00:00+01:00", "T23:30:00.000001Z", " 12:00"]),
)
_NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.5, -0.0, 2.0, 1e300, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63)]),
    st.floats(allow_nan=False, allow_infinity=False),
)
_TEXTS = st.text("ab\U0001f600\uffffé", max_size=3)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "kind": _TEXTS,
    "year": _NUMBERS,
    "open": st.booleans(),
    "day": _DAYS,
    "tags": _TEXTS,
}
_METADATA = st.fixed_dictionaries({}, optional={**_VALUES, "tags": st.lists(_TEXTS, max_size=3)})


def _condition(field: str) -> st.SearchStrategy[dict[str, Any]]:
    value = _VALUES[field]
    operators: dict[str, st.SearchStrategy[Any]] = {
        "$eq": value,
        "$ne": value,
        "$in": st.lists(value, max_size=4),
        "$nin": st.lists(value, max_size=4),
        "$exists": st.booleans(),
    }
    if field in ("year", "day"):
        operators |= dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), value)
    if field in ("kind", "tags"):
        operators["$prefix"] = st.text("abé", max_size=2)
    several = st.fixed_dictionaries({}, optional=operators).filter(bool)
    return st.one_of(value, several).map(lambda asked: {field: asked})


FILTERS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.sampled_from(sorted(TYPES)).flatmap(_condition),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$and": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$or": parts}),
        inner.map(lambda part: {"$not": part}),
        st.tuples(inner, inner).map(lambda pair: {**pair[0], **pair[1]}),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(_METADATA, max_size=12), wanted=FILTERS)
def test_columns_agree_with_reading_each_document(
    rows: list[Metadata], wanted: dict[str, Any]
) -> None:
    found = columns_of(rows).matches(parse_filter(wanted, TYPES))
    assert found.tolist() == [passes(wanted, row, TYPES) for row in rows]


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(_METADATA, max_size=12), wanted=FILTERS)
def test_columns_are_the_same_from_their_file(rows: list[Metadata], wanted: dict[str, Any]) -> None:
    made = columns_of(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "columns.safetensors"
        write_columns(path, made)
        read = read_columns(path)
        assert read.count == len(rows)
        assert read.types == TYPES
        parsed = parse_filter(wanted, TYPES)
        assert read.matches(parsed).tolist() == made.matches(parsed).tolist()


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(_METADATA, max_size=12))
def test_values_are_counted_once_for_each_document_that_has_them(rows: list[Metadata]) -> None:
    columns = columns_of(rows)
    even = np.arange(len(rows)) % 2 == 0
    column = columns.columns["tags"]
    counts = column.value_counts(even).tolist()
    expected = Counter(tag for row in rows[::2] for tag in set(row.get("tags", [])))  # type: ignore[arg-type] # a list
    assert {
        column.values.value(code): count for code, count in enumerate(counts) if count
    } == expected


# The file


def test_the_file_is_one_that_safetensors_reads(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="comes with the training extra")
    path = tmp_path / "columns.safetensors"
    write_columns(path, columns_of(ROWS))
    arrays = library.load_file(path)
    assert arrays["1.codes"].tolist() == [0, 1, 2, 3, -1]
    assert arrays["1.nearest"].tolist() == [1999, 2000, 2000.5, 2.0**53]
    assert arrays["1.rest"].tolist() == [0, 0, 0, 1]
    assert arrays["0.utf8"].tobytes().decode() == "classclassicÄ"
    assert arrays["4.rows"].tolist() == [0, 0, 2, 3, 3]


@pytest.mark.parametrize("cut", [0, 4, 8, 40, 500, -1])
def test_a_cut_file_is_no_file_of_columns(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "columns.safetensors"
    write_columns(path, columns_of(ROWS))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"header|array|empty|truncated"):
        read_columns(path)
