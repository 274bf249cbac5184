"""How much of the exact answer an index finds, and the least effort that finds enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lamina_index.exact import NearestSoFar
from lamina_index.manifest import Recall
from lamina_index.matching import among
from lamina_index.snapshot_files import Snapshot
from lamina_index.store import DocumentStore
from lamina_index.vectors import EFFORTS
from lamina_index.view import View

TARGET_RECALL = 0.99
SAMPLE_QUERIES = 256

_NEIGHBOURS = 10
_MARGIN = 0.003
"""About the standard error of a recall near 0.99 over 256 queries."""

_METHOD = (
    "stored documents as queries, seeded sample, the document itself left out; share of the exact "
    "10 nearest found, any row as near as the tenth counts; searched and rescored as served"
)


class Measurement:
    """Documents used as queries, and their exact neighbours as the rows stream by."""

    def __init__(self, keys: NDArray[np.int64], queries: NDArray[np.float32]) -> None:
        """Take the sample: keys (Q,) and their embeddings (Q, D)."""
        self._keys = keys
        self._queries = queries
        self._exact = NearestSoFar(queries, _NEIGHBOURS + 1)

    def add(self, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Take a block of the rows that the index holds."""
        self._exact.add(keys, rows)

    def tune(self, snapshot: Snapshot, store: DocumentStore) -> tuple[int, Recall]:
        """Find the least effort with enough recall, else the best there is; give both."""
        for effort in EFFORTS[snapshot.index.effort_name]:
            tried = snapshot.manifest.model_copy(update={"effort": effort})
            found = self._recall(replace(snapshot, manifest=tried), store)
            if found >= TARGET_RECALL + _MARGIN:
                break
        return effort, Recall(at_10=round(found, 4), queries=len(self._keys), method=_METHOD)

    def _recall(self, snapshot: Snapshot, store: DocumentStore) -> float:
        """Compare what a search finds with the exact neighbours, without rows deleted meanwhile."""
        view = View.over(snapshot, store.dimension)
        found = expected = 0
        for row, (own, query) in enumerate(zip(self._keys, self._queries, strict=True)):
            scores, keys = self._exact.result(row)
            with store.reading() as reading:
                view = view.buried(reading)
                alive = ~among(keys, snapshot.keys[view.dead]) & (keys != own)
                exact = scores[alive][:_NEIGHBOURS]
                if len(exact) == 0:
                    continue
                scores, keys = view.nearest(reading, query, _NEIGHBOURS + 1)
            served = scores[keys != own][: len(exact)]
            found += int((served >= exact[-1]).sum())
            expected += len(exact)
        return found / expected if expected else 1.0
