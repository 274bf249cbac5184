"""The data of quick_docstrings.toml, made from the documentation strings of this Python's library.

    python training/recipes/docstrings.py build/docstrings

Writes training pairs (first line, rest), and the rest of all of them as a corpus in which held-out
first lines have to find theirs. Nothing is downloaded, and nothing of the library is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import typer

from lamina_training.known_items import read_known_items

HELD_OUT = 8
"""Every eighth string is held out, by turns for dev and for test."""


def write_files(folder: Path) -> dict[str, int]:
    """Write pairs.tsv, corpus.tsv, queries.tsv and qrels.tsv.

    A text that is held out is in no training pair, under whichever first line.

    Returns:
        How many rows each has.
    """
    items = read_known_items(queries=sys.maxsize, documents=sys.maxsize)
    bodies = list(dict.fromkeys(items.documents))
    ids = {body: f"d{place}" for place, body in enumerate(bodies)}
    strings = [
        (_one_line(first), rest) for first, rest in zip(items.queries, items.documents, strict=True)
    ]
    held_out = strings[::HELD_OUT]
    unseen = {rest for _, rest in held_out}
    splits = ["dev" if place % 2 else "test" for place in range(len(held_out))]
    tables: dict[str, list[tuple[str, ...]]] = {
        "pairs": [("first", "rest"), *(row for row in strings if row[1] not in unseen)],
        "corpus": [("id", "text"), *((ids[body], body) for body in bodies)],
        "queries": [("id", "text", "split")],
        "qrels": [("query", "document", "split")],
    }
    for place, ((first, rest), split) in enumerate(zip(held_out, splits, strict=True)):
        tables["queries"].append((f"q{place}", first, split))
        tables["qrels"].append((f"q{place}", ids[rest], split))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        _write(folder / f"{name}.tsv", rows)
    return {f"{name}.tsv": len(rows) - 1 for name, rows in tables.items()}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _write(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python training/recipes/docstrings.py FOLDER")
    counts = write_files(Path(sys.argv[1]))
    for name, count in counts.items():
        typer.echo(f"{name}: {count:,} rows")
