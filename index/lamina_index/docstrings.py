"""A real corpus that every machine has: the docstrings of Python's standard library.

Source files are parsed, never imported, so nothing of them runs.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from lamina_index.corpus import Document
from lamina_index.errors import CorpusError
from lamina_index.text import repair_text

MAX_CHARACTERS = 2000
"""A longer docstring ends at the last paragraph before this; the encoder reads less anyway."""

_LEFT_OUT = frozenset(
    {
        "config",
        "dist-packages",
        "distutils",  # gone since Python 3.12
        "encodings",  # one near-identical docstring for each of 120 code pages
        "ensurepip",
        "idlelib",
        "lib-dynload",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)
_PUBLIC_MODULES = {
    # Where the names of these are imported from: Python twins of modules in C, mostly.
    "_collections_abc": "collections.abc",
    "_pydatetime": "datetime",
    "_pydecimal": "decimal",
    "_pyio": "io",
    "pathlib._local": "pathlib",
}
_MIN_WORDS = 3


def read_docstrings(library: Path | None = None) -> Iterator[Document]:
    """Stream the docstrings of public modules, classes, functions and methods.

    The id is the qualified name, such as `json.decoder.JSONDecoder.decode`, and unique; the text
    is that name and the docstring. Metadata: kind (module, class, function, method), module,
    name, file (relative to the library) and line. The order is that of sorted paths, and within
    a file that of its lines.

    Args:
        library: Folder of the library; None means that of the running Python.

    Raises:
        CorpusError: If the folder holds no Python source, as in Pythons packed into one file.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    for path in _module_files(library):
        module = _module_name(path.relative_to(library))
        tree = _parse(path) if module else None
        if module is None or tree is None:
            continue
        for node, kind, name in _documented(tree, module):
            docstring = ast.get_docstring(node)
            if name not in seen and docstring and len(docstring.split()) >= _MIN_WORDS:
                seen.add(name)
                yield Document(
                    id=name,
                    text=f"{name}: {_shorten(repair_text(docstring))}",
                    metadata={
                        "kind": kind,
                        "module": module,
                        "name": name.rpartition(".")[2],
                        "file": path.relative_to(library).as_posix(),
                        "line": getattr(node, "lineno", 1),
                    },
                    file=str(path),
                    line=getattr(node, "lineno", 1),
                )
    if not seen:
        raise CorpusError(
            f"{library}: holds no documented Python source; this Python comes without the files "
            "of its standard library, so index a file of your own"
        )


def _module_files(folder: Path) -> Iterator[Path]:
    """Yield the source files of public modules, files before sub-packages, sorted."""
    if not folder.is_dir():
        return
    entries = sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name))
    for path in entries:
        if path.is_dir():
            if path.name.partition("-")[0] not in _LEFT_OUT and path.name not in _LEFT_OUT:
                yield from _module_files(path)
        elif path.suffix == ".py":
            yield path


def _module_name(path: Path) -> str | None:
    """Give the name that users import, or None for a private module."""
    parts = list(path.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    name = ".".join(parts)
    if name in _PUBLIC_MODULES:
        return _PUBLIC_MODULES[name]
    return None if not name or any(part.startswith("_") for part in parts) else name


def _parse(path: Path) -> ast.Module | None:
    """Parse a file; None for one that this Python cannot, such as a template."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the library's own escapes and literals
            return ast.parse(path.read_bytes(), filename=str(path))
    except (OSError, SyntaxError, ValueError):
        return None


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _documented(tree: ast.Module, module: str) -> Iterator[tuple[_Documented, str, str]]:
    """Yield node, kind and qualified name of a module and its public definitions."""
    yield tree, "module", module
    yield from _definitions(tree.body, module, "function")


def _definitions(
    body: list[ast.stmt], scope: str, function_kind: str
) -> Iterator[tuple[_Documented, str, str]]:
    for node in body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield node, "class", f"{scope}.{name}"
                yield from _definitions(node.body, f"{scope}.{name}", "method")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name == "__init__" or not name.startswith("_"):
                    yield node, function_kind, f"{scope}.{name}"
            case ast.If() | ast.Try():
                branches = [node.body, node.orelse]
                if isinstance(node, ast.Try):
                    branches += [handler.body for handler in node.handlers]
                for branch in branches:
                    yield from _definitions(branch, scope, function_kind)


def _shorten(docstring: str) -> str:
    """Cut a long docstring after its last whole paragraph, or line, or anywhere."""
    if len(docstring) <= MAX_CHARACTERS:
        return docstring
    head = docstring[:MAX_CHARACTERS]
    for end in ("\n\n", "\n"):
        if end in head:
            return head[: head.rindex(end)]
    return head
