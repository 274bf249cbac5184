"""The text files of a configuration, read into the data sets that a run draws its batches from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lamina_training.train_config import LabelledData, LabelledFile, Names, TextData, TextFile
from lamina_training.training_data import (
    Example,
    LabelledExample,
    read_examples,
    read_labelled,
    read_labels,
    read_names,
    to_dataset,
)


def text_files(data: TextData) -> list[Path]:
    """List the files that `[data]` names, relative to its folder."""
    named = [f for s in data.train for f in (s, s.texts, s.cluster_of) if f is not None]
    return [each.file for each in named]


def read_sources(data: TextData) -> list[Any]:
    """Read each source into a `datasets.Dataset`, as `training_data.to_dataset` makes it.

    Raises:
        LaminaError: If a file cannot be read, lacks a column or has no rows.
    """
    return [to_dataset(_examples(source, data.folder)) for source in data.train]


def read_texts(data: TextData) -> list[str]:
    """Read the distinct texts of all columns of all sources, in their order.

    Raises:
        LaminaError: As `read_sources`.
    """
    examples = (row for source in data.train for row in _examples(source, data.folder))
    return list(dict.fromkeys(text for example in examples for text in example.texts))


def read_labelled_data(
    data: LabelledData,
) -> tuple[tuple[str, ...], list[LabelledExample], list[LabelledExample]]:
    """Read labels, rows to train on and rows to measure with.

    Raises:
        LaminaError: If a file cannot be read, lacks a column, has no rows or an unknown label.
    """
    train = data.train
    labels = read_labels(data.folder / train.file, label=train.label, where=train.where or None)
    trained, measured = (_labelled(part, data.folder, labels) for part in (train, data.dev))
    return labels, trained, measured


def _labelled(part: LabelledFile, folder: Path, labels: Sequence[str]) -> list[LabelledExample]:
    rows = read_labelled(
        folder / part.file,
        columns=part.columns,
        label=part.label,
        labels=labels,
        where=part.where or None,
        tenths=part.tenths,
    )
    return list(islice(rows, part.limit))


def _examples(source: TextFile, folder: Path) -> Iterator[Example]:
    rows = read_examples(
        folder / source.file,
        columns=source.columns,
        clusters=source.clusters,
        where=source.where or None,
        texts=_names(source.texts, folder),
        cluster_of=_names(source.cluster_of, folder),
        half=source.half,
    )
    return islice(rows, source.limit)


def _names(names: Names | None, folder: Path) -> dict[str, str] | None:
    if names is None:
        return None
    return read_names(folder / names.file, key=names.key, value=names.value)
