"""What is trained on: single texts, pairs, triplets and labelled texts, from the files people have.

Everything streams: no function keeps more than the row at hand, but for `to_dataset`, `read_names`
and `read_labels`, whose results are the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import datasets

from lamina_index.corpus.records import quote
from lamina_training.data_rows import Row, TrainingDataError, read_rows
from lamina_training.duplicates import Half, duplicate_keys, sha256_half, sha256_tenth

ROLES = ("anchor", "positive", "negative")
KEY_COLUMN = "label"
"""sentence-transformers hands this column to the loss and compares no texts in it."""

MAX_LABELS = 1000


@dataclass(frozen=True, slots=True)
class Example:
    """Texts of one row: one alone, an anchor and its positive, and perhaps hard negatives.

    Attributes:
        texts: Normalised and not blank.
        clusters: For each text the id of the texts that say the same, None where none is known.
    """

    texts: tuple[str, ...]
    clusters: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class LabelledExample:
    """One text or a pair of texts, and the place of its label among all labels."""

    texts: tuple[str, ...]
    label: int


def read_examples(
    path: Path | str,
    *,
    columns: Sequence[str],
    clusters: Sequence[str | None] = (),
    where: Mapping[str, Sequence[str]] | None = None,
    texts: Mapping[str, str] | None = None,
    cluster_of: Mapping[str, str] | None = None,
    half: Half | None = None,
) -> Iterator[Example]:
    """Stream single texts (one column), pairs (two) or tuples with hard negatives (more).

    A blank text is an error; code released for layer-wise attention pooling makes it one space.

    Args:
        path: `.tsv`, `.csv` or `.jsonl`, plain or gzip.
        columns: Of the texts: anchor, positive, hard negatives.
        clusters: For each text the column with its cluster's id; None or empty for none.
        where: See `read_rows`; `{"is_duplicate": ["1"]}` takes the duplicates of Quora's pairs.
        texts: If given, the columns hold ids, and this their texts; see `read_names`.
        cluster_of: If given, the clusters of those ids, instead of `clusters`.
        half: If given, only rows whose first text is in that half; see `sha256_half`.

    Raises:
        ValueError: If no column is named, one is named twice, or clusters do not fit the columns.
        TrainingDataError: If the file lacks a column or has a bad row or no rows.
        CorpusError: If it cannot be read at all.
    """
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns {list(columns)} must be one or more different names")
    if clusters and len(clusters) != len(columns):
        raise ValueError(f"{len(clusters)} cluster columns for {len(columns)} text columns")
    if cluster_of is not None and (clusters or texts is None):
        raise ValueError("cluster_of needs texts, and takes the place of clusters")
    named = [column for column in clusters if column]
    found = False
    for row in read_rows(path, [*columns, *named], where=where):
        if texts is None:
            read = tuple(row.text(column) for column in columns)
            groups = tuple(row.name(c) if c else None for c in clusters)
        else:
            read = tuple(_look_up(row, column, texts) for column in columns)
            groups = tuple(cluster_of.get(row.name(c)) for c in columns) if cluster_of else ()
        if half is None or sha256_half(read[0]) == half:
            found = True
            yield Example(read, groups or (None,) * len(read))
    if not found:
        raise TrainingDataError(f"{path}: no row has a text of the {half} half")


def read_names(path: Path | str, *, key: str, value: str) -> dict[str, str]:
    """Read what the ids of another file stand for: their texts or their clusters.

    Raises:
        TrainingDataError: If an id stands twice, and as `read_examples`.
    """
    names: dict[str, str] = {}
    for row in read_rows(path, [key, value]):
        name = row.name(key)
        if name in names:
            raise row.error(f'column "{key}": {quote(name)} stands twice; remove one')
        names[name] = row.text(value)
    return names


def read_labels(
    path: Path | str, *, label: str, where: Mapping[str, Sequence[str]] | None = None
) -> tuple[str, ...]:
    """Find all labels of a file: whole numbers in their order, other names in alphabetical order.

    Raises:
        TrainingDataError: If there are fewer than two or more than `MAX_LABELS`, and as
            `read_examples`.
    """
    labels: set[str] = set()
    for row in read_rows(path, [label], where=where):
        labels.add(row.name(label))
        if len(labels) > MAX_LABELS:
            raise row.error(
                f'column "{label}" has more than {MAX_LABELS} different values, so it holds no '
                "labels; name another column"
            )
    if len(labels) < 2:
        raise TrainingDataError(
            f'{path}: column "{label}" is {quote(labels.pop())} in every row; a classifier needs '
            "two labels or more"
        )
    if all(name.isdecimal() for name in labels):
        return tuple(sorted(labels, key=int))
    return tuple(sorted(labels))


def read_labelled(
    path: Path | str,
    *,
    columns: Sequence[str],
    label: str,
    labels: Sequence[str],
    where: Mapping[str, Sequence[str]] | None = None,
    tenths: Sequence[int] | None = None,
) -> Iterator[LabelledExample]:
    """Stream labelled texts or pairs of texts.

    Args:
        path: `.tsv`, `.csv` or `.jsonl`, plain or gzip.
        columns: Of the one or two texts.
        label: Column of the label.
        labels: All there are, from `read_labels` of the training file.
        where: See `read_rows`.
        tenths: If given, only rows whose first text is in one of them; see `sha256_tenth`.

    Raises:
        ValueError: If not one or two columns are named.
        TrainingDataError: If a label is none of `labels`, and as `read_examples`.
        CorpusError: If the file cannot be read at all.
    """
    if len(columns) not in (1, 2):
        raise ValueError(f"columns {list(columns)}: a classifier takes one text or two")
    places = {name: place for place, name in enumerate(labels)}
    found = False
    for row in read_rows(path, [*columns, label], where=where):
        name = row.name(label)
        if name not in places:
            known = ", ".join(quote(each) for each in islice(labels, 10))
            raise row.error(
                f'column "{label}" is {quote(name)}; expected one of the {len(labels)} labels '
                f"{known}{', ...' if len(labels) > 10 else ''}: mend the row or leave it out"
            )
        texts = tuple(row.text(column) for column in columns)
        if tenths is None or sha256_tenth(texts[0]) in tenths:
            found = True
            yield LabelledExample(texts, places[name])
    if not found:
        raise TrainingDataError(f"{path}: no row has its first text in the tenths {tenths}")


def to_dataset(examples: Iterable[Example], *, seed: int | None = None) -> datasets.Dataset:
    """Hold examples in memory, as sentence-transformers' trainer takes them.

    Columns: anchor, positive, negative, negative2, ... as far as there are texts, and `label`
    with each text's duplicate keys (columns, K), which `ContrastiveLoss` reads.

    Args:
        examples: At least one, all with the same number of texts.
        seed: Of the order; None keeps that of the file. The same seed gives the same order.

    Raises:
        ValueError: If there is none, or their numbers of texts differ.
    """
    rows = list(examples)
    counts = {len(example.texts) for example in rows}
    if len(counts) != 1:
        raise ValueError(f"examples must all have the same number of texts, found {sorted(counts)}")
    features = _features(counts.pop())
    columns: dict[str, list[object]] = {name: [] for name in features}
    for example in rows:
        for name, cell in _as_row(example).items():
            columns[name].append(cell)
    dataset = datasets.Dataset.from_dict(columns, features=features)
    return dataset if seed is None else dataset.shuffle(seed=seed)


def _as_row(example: Example) -> dict[str, object]:
    keys = list(map(duplicate_keys, example.texts, example.clusters))
    return {**dict(zip(_roles(len(keys)), example.texts, strict=True)), KEY_COLUMN: keys}


def _features(texts: int) -> datasets.Features:
    columns = {name: datasets.Value("string") for name in _roles(texts)}
    keys = datasets.List(datasets.List(datasets.Value("int64")))
    return datasets.Features({**columns, KEY_COLUMN: keys})


def _roles(texts: int) -> tuple[str, ...]:
    # No name begins with another and "_": by that the trainer tells the columns' tokens apart.
    more = (f"{ROLES[-1]}{number}" for number in range(2, texts))
    return (*ROLES[:texts], *islice(more, max(0, texts - len(ROLES))))


def _look_up(row: Row, column: str, texts: Mapping[str, str]) -> str:
    name = row.name(column)
    if name not in texts:
        raise row.error(f'column "{column}": no text has the id {quote(name)}')
    return texts[name]
