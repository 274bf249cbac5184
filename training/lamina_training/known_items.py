"""A retrieval task that every machine has: find a documentation string by its first line.

Read from the source of the running Python's standard library, never imported. It tells how much a
quantised encoder departs from its fp32 form on prose, names and code; it is no benchmark.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
_MAX_CHARACTERS = 300


@dataclass(frozen=True)
class KnownItems:
    """Query i is answered by document i alone; documents past the queries are distractors."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Digest of all texts, since they differ with the Python version."""
        joined = "\0".join((*self.queries, "\0", *self.documents))
        return hashlib.sha256(joined.encode()).hexdigest()


def read_known_items(*, queries: int = 300, documents: int = 1200) -> KnownItems:
    """Take the first documentation strings, by path, that have a first line and more below it."""
    root = Path(sysconfig.get_path("stdlib"))
    pairs: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED.isdisjoint(path.relative_to(root).parts):
            for heading, body in _documentation(path):
                pairs.setdefault(heading, body)
        if len(pairs) >= documents:
            break
    chosen = list(pairs.items())[:documents]
    return KnownItems(
        queries=tuple(heading for heading, _ in chosen[:queries]),
        documents=tuple(body for _, body in chosen),
    )


def _documentation(path: Path) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            heading, _, body = inspect.cleandoc(ast.get_docstring(node) or "").partition("\n")
            body = " ".join(body.split())[:_MAX_CHARACTERS]
            if len(heading) > 20 and len(body) > 40:
                yield heading, body
