"""The collections of a data folder: each is open, or is known by the reason why it is not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lamina_index.encoder import Encoder
from lamina_index.errors import CollectionNotFoundError, LaminaError
from lamina_index.searcher import Searcher
from lamina_service.errors import PROBLEM_URI, problem_of
from lamina_service.metrics import Metrics

_logger = logging.getLogger(__name__)


class Catalog:
    """Finds collections by name.

    One that is damaged or was built by another encoder does not keep the others from being
    served: asking for it raises the error that opening it gave.
    """

    def __init__(self, data: Path, encoder: Encoder, metrics: Metrics) -> None:
        self._data = data
        self._encoder = encoder
        self._metrics = metrics
        self._found: dict[str, Searcher | LaminaError] = {}

    def open_all(self) -> None:
        """Open every collection of the folder."""
        for manifest in sorted(self._data.glob("*/collection.json")):
            if not manifest.parent.name.startswith("."):  # those are unfinished builds
                self._open(manifest.parent)

    def names(self) -> list[str]:
        """All collections, also those that could not be opened, in order."""
        return list(self._found)

    def failed(self) -> int:
        """How many could not be opened."""
        return sum(isinstance(found, LaminaError) for found in self._found.values())

    def get(self, name: str) -> Searcher:
        """Give an open collection.

        Raises:
            CollectionNotFoundError: If there is none of that name.
            LaminaError: Why it could not be opened.
        """
        found = self._found.get(name)
        if found is None:
            known = ", ".join(self._found) or "none"
            raise CollectionNotFoundError(f"no collection {name!r}; there is: {known}")
        if isinstance(found, LaminaError):
            raise found.with_traceback(None)
        return found

    def describe(self, name: str) -> dict[str, Any]:
        """Tell a collection's state and size, or why it failed.

        Raises:
            CollectionNotFoundError: If there is none of that name.
        """
        try:
            searcher = self.get(name)
        except CollectionNotFoundError:
            raise
        except LaminaError as error:
            problem = {"type": PROBLEM_URI + problem_of(error).slug, "detail": str(error)}
            return {"name": name, "status": "failed", "problem": problem}
        return {"name": name, "status": "open", **searcher.info()}

    def close(self) -> None:
        """Close all collections."""
        for found in self._found.values():
            if isinstance(found, Searcher):
                found.close()

    def _open(self, folder: Path) -> None:
        try:
            searcher = Searcher.open(folder, self._encoder)
        except LaminaError as error:
            _logger.error("%s is not served: %s", folder.name, error)
            self._found[folder.name] = error
        else:
            self._found[folder.name] = searcher
