"""The word index inside `documents.sqlite`: its tables, its making, and the proof that it is right.

SQLite's FTS5 over the texts of `documents`, which it does not store a second time. Triggers keep
it in step within the transaction of every write, whoever makes it. Stores of format 1 have none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from lamina_index.errors import DamagedError

TOKENIZER = "porter unicode61 remove_diacritics 2"
"""How FTS5 takes a text apart: letters and digits, lower case, without diacritics, English endings
cut off (Porter 1980). Part of the store's format, since every row is indexed with it."""

WORDS_STATEMENTS = (
    (
        "CREATE VIRTUAL TABLE words USING fts5"
        f" (text, content = 'documents', content_rowid = 'key', tokenize = '{TOKENIZER}')"
    ),
    "CREATE VIRTUAL TABLE word_frequencies USING fts5vocab (words, 'row')",
    "CREATE VIRTUAL TABLE word_places USING fts5vocab (words, 'instance')",
    (
        "CREATE TRIGGER words_added AFTER INSERT ON documents BEGIN"
        " INSERT INTO words (rowid, text) VALUES (new.key, new.text); END"
    ),
    (
        "CREATE TRIGGER words_removed AFTER DELETE ON documents BEGIN"
        " INSERT INTO words (words, rowid, text) VALUES ('delete', old.key, old.text); END"
    ),
)

_TEXTS_TOGETHER = 10_000
_OFFSET_BITS = 31  # FTS5 counts a text's words in as many
_PLACES = (
    "SELECT term, COUNT(*), SUM((doc % 1000003) * (offset + 1) % 1000003) FROM {} GROUP BY term"
)


def words_in_memory() -> sqlite3.Connection:
    """An empty word index of the same kind in memory: tables `words` and `word_places`."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute(
        f"CREATE VIRTUAL TABLE words USING fts5 (text, content = '', tokenize = '{TOKENIZER}')"
    )
    connection.execute("CREATE VIRTUAL TABLE word_places USING fts5vocab (words, 'instance')")
    return connection


def add_words(connection: sqlite3.Connection) -> None:
    """Make the word index from the texts that are there, inside the caller's transaction."""
    for statement in WORDS_STATEMENTS:
        connection.execute(statement)
    connection.execute("INSERT INTO words (words) VALUES ('rebuild')")


def drop_words(connection: sqlite3.Connection) -> None:
    """Remove the word index, damaged or not, inside the caller's transaction."""
    connection.execute("DROP TRIGGER IF EXISTS words_added")
    connection.execute("DROP TRIGGER IF EXISTS words_removed")
    for table in ("word_frequencies", "word_places", "words"):
        connection.execute(f"DROP TABLE IF EXISTS {table}")


def words_damaged(path: Path, found: object) -> DamagedError:
    """The error for a word index that is not right; the texts that it is made from may be sound."""
    return DamagedError(
        f"{path}: the word index is damaged ({found}); "
        f"`lamina index upgrade {path.parent}` makes it again from the texts"
    )


def words_damage(connection: sqlite3.Connection, path: Path) -> list[str]:
    """Compare the word index with all texts, and say what is wrong in one line, if anything.

    Every text is taken apart again and each word's places are compared by number and checksum.
    FTS5's own check would need to write.
    """
    try:
        rows = connection.execute(
            "SELECT COUNT(*) FROM words_docsize WHERE id NOT IN (SELECT key FROM documents)"
            " UNION ALL"
            " SELECT COUNT(*) FROM documents WHERE key NOT IN (SELECT id FROM words_docsize)"
        ).fetchall()
        if rows != [(0,), (0,)]:
            found = f"{rows[0][0]} rows of it have no document, {rows[1][0]} documents no row"
            return [str(words_damaged(path, found))]
        expected: dict[str, tuple[int, int]] = {}
        for places in _places_of_texts(connection):
            for term, count, checksum in places:
                before = expected.get(term, (0, 0))
                expected[term] = before[0] + count, before[1] + checksum
        indexed = {
            term: (count, checksum)
            for term, count, checksum in connection.execute(_PLACES.format("word_places"))
        }
    except sqlite3.DatabaseError as error:
        return [str(words_damaged(path, error))]
    wrong = [term for term in expected.keys() | indexed if expected.get(term) != indexed.get(term)]
    if not wrong:
        return []
    named = f"{len(wrong)} words are not where the texts have them, such as {min(wrong)!r}"
    return [str(words_damaged(path, named))]


def _places_of_texts(connection: sqlite3.Connection) -> Iterator[list[tuple[str, int, int]]]:
    """Take the texts apart, some thousand at a time; yield terms, counts and checksums."""
    texts = connection.execute("SELECT key, text FROM documents ORDER BY key")
    while rows := texts.fetchmany(_TEXTS_TOGETHER):
        scratch = words_in_memory()
        try:
            scratch.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
            yield scratch.execute(_PLACES.format("word_places")).fetchall()
        finally:
            scratch.close()


class WordReading:
    """What can be asked of the word index inside one transaction; `StoreReading.words` makes it.

    Raises:
        DamagedError: From any method, if SQLite finds the word index damaged.
    """

    __slots__ = ("_connection", "_path")

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def totals(self) -> tuple[int, int]:
        """Numbers of documents and of all their words.

        FTS5 keeps both as varints in the first row of its data, and tells them to nobody else
        without reading everything (fts5_index.c, "averages record").
        """
        rows = self._ask("SELECT block FROM words_data WHERE id = 1")
        numbers = _varints(rows[0][0]) if rows else []
        return (numbers[0], numbers[1]) if len(numbers) > 1 else (0, 0)

    def frequency(self, term: str) -> int:
        """Number of documents that have a term; the time it takes grows with the answer."""
        rows = self._ask("SELECT doc FROM word_frequencies WHERE term = ?", term)
        return int(rows[0][0]) if rows else 0

    def places(self, term: str) -> NDArray[np.int64]:
        """Keys (n,) of the documents that have a term, ascending, once for each time they have it.

        As JSON, since making a Python object for each row would take most of the time.
        """
        rows = self._ask("SELECT json_group_array(doc) FROM word_places WHERE term = ?", term)
        return np.array(orjson.loads(rows[0][0]), np.int64)

    def phrase_places(self, terms: Sequence[str]) -> NDArray[np.int64]:
        """As `places`, for terms that follow each other."""
        found: NDArray[np.int64] | None = None
        for position, term in enumerate(terms):
            rows = self._ask("SELECT doc, offset FROM word_places WHERE term = ?", term)
            docs, offsets = np.array(rows, np.int64).reshape(-1, 2).T
            starts = (docs << _OFFSET_BITS) + offsets - position
            found = starts if found is None else np.intersect1d(found, starts)
        return np.empty(0, np.int64) if found is None else np.sort(found) >> _OFFSET_BITS

    def lengths(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Keys and numbers of words of those rows that the index has."""
        marks = ",".join("?" * len(keys))
        rows = self._ask(f"SELECT id, sz FROM words_docsize WHERE id IN ({marks})", *keys)  # noqa: S608 - only marks
        return [(key, _length(size)) for key, size in rows]

    def lengths_after(self, key: int) -> Iterator[tuple[list[int], list[int]]]:
        """Yield keys and numbers of words of the rows with higher keys, in order, by thousands."""
        while rows := self._ask(
            "SELECT id, sz FROM words_docsize WHERE id > ? ORDER BY id LIMIT ?",
            key,
            _TEXTS_TOGETHER,
        ):
            yield [row[0] for row in rows], [_length(row[1]) for row in rows]
            key = rows[-1][0]

    def texts(self, keys: Sequence[int]) -> dict[int, str]:
        """Texts of the keys that have a row, not compared with their checksums."""
        marks = ",".join("?" * len(keys))
        return dict(self._ask(f"SELECT key, text FROM documents WHERE key IN ({marks})", *keys))  # noqa: S608 - only marks

    def damage(self) -> list[str]:
        """Compare the index with all texts; say what is wrong in one line, if anything."""
        return words_damage(self._connection, self._path)

    def _ask(self, statement: str, *values: object) -> list[Any]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CORRUPT_VTAB:
                raise words_damaged(self._path, error) from error
            raise


def _length(size: bytes) -> int:
    """Number of words, from what FTS5 keeps of a row: a varint for its only column."""
    return size[0] if len(size) == 1 else _varints(size)[0]


def _varints(blob: bytes) -> list[int]:
    """Read SQLite's variable-length integers: 7 bits a byte, the high ones first, 8 in a ninth."""
    numbers, value, length = [], 0, 0
    for byte in blob:
        length += 1
        if length == 9:
            numbers.append(value << 8 | byte)
        else:
            value = value << 7 | byte & 0x7F
            if byte & 0x80:
                continue
            numbers.append(value)
        value = length = 0
    return numbers
