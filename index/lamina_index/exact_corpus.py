"""A corpus embedded and searched exactly: the reference that no index can better."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lamina_index.corpus import Document, Rejected
from lamina_index.encoder import Encoder
from lamina_index.errors import EvaluationError, StorageFullError
from lamina_index.exact import NearestSoFar
from lamina_index.scoring import best_first

_ENCODE_BLOCK = 2048
_QUERY_BLOCK = 512
_ROW_BLOCK = 8192


def document_digest(document_id: str, text: str) -> int:
    """Digest one document; see `corpus_fingerprint`."""
    size = len(document_id.encode())
    return int.from_bytes(hashlib.sha256(f"{size}:{document_id}{text}".encode()).digest())


def corpus_fingerprint(digests: Iterable[int]) -> str:
    """Combine documents' digests to one that does not depend on their order; 64 hex digits.

    So a file and the collection built from it have the same fingerprint.
    """
    return f"{sum(digests) % 2**256:064x}"


class ExactCorpus:
    """Embeddings of a corpus, ranked by exact cosine, ties by id; a `Retriever`.

    The embeddings lie in a mapped, unnamed temporary file: held once, and given back by the system
    where memory is short.

    Attributes:
        ids: Of the N documents.
        embeddings: (N, D) unit rows.
        rejected: Records that could not be read, or had no text to embed.
    """

    def __init__(
        self,
        encoder: Encoder,
        records: Iterable[Document | Rejected],
        *,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Embed a corpus; of an id that comes twice the last document counts.

        Args:
            encoder: Embeds documents here, and queries in `retrieve`.
            records: The corpus as it is read.
            progress: Called with the number of records of each block that is done.

        Raises:
            EvaluationError: If not one document can be used.
            StorageFullError: If the temporary folder is full.
        """
        self.rejected = 0
        self._encoder = encoder
        self._digests: dict[str, int] = {}
        rows: dict[str, int] = {}
        count = 0
        with _scratch_file() as file:
            for block in _blocks(records, _ENCODE_BLOCK):
                documents = [record for record in block if isinstance(record, Document)]
                encoded = encoder.encode([document.text for document in documents], role="document")
                kept = np.flatnonzero(~encoded.blank).tolist()
                for document in (documents[row] for row in kept):
                    rows[document.id] = count
                    self._digests[document.id] = document_digest(document.id, document.text)
                    count += 1
                file.write(encoded.embeddings[kept].tobytes())
                self.rejected += len(block) - len(kept)
                progress(len(block))
            if not rows:
                raise EvaluationError(
                    f"the corpus has no usable document ({self.rejected} records were rejected); "
                    "every record needs an id and a text"
                )
            file.flush()
            everything = np.memmap(file, np.float32, "r", shape=(count, encoder.dimension))
        last = np.fromiter(rows.values(), np.int64)
        self.ids = list(rows)
        self.embeddings: NDArray[np.float32] = (
            everything if len(last) == count else everything[last]
        )

    def retrieve(self, queries: Sequence[str], *, top_k: int) -> list[list[str]]:
        """Rank documents for each query; none for a query without tokens."""
        encoded = self._encoder.encode(queries, role="query")
        found: list[list[str]] = []
        for start in range(0, len(queries), _QUERY_BLOCK):
            found += self._nearest(encoded.embeddings[start : start + _QUERY_BLOCK], top_k)
        return [[] if blank else hits for blank, hits in zip(encoded.blank, found, strict=True)]

    def absent(self, ids: Collection[str]) -> set[str]:
        """Tell which ids are not in the corpus."""
        return {document_id for document_id in ids if document_id not in self._digests}

    def facts(self) -> dict[str, Any]:
        """Describe the corpus and the encoder."""
        return {
            "kind": "corpus in memory",
            "documents": len(self.ids),
            "rejected": self.rejected,
            "corpus_fingerprint": corpus_fingerprint(self._digests.values()),
            "index": {"name": "exact float32", "size_bytes": self.embeddings.nbytes},
            "encoder": encoder_facts(self._encoder),
        }

    def _nearest(self, queries: NDArray[np.float32], top_k: int) -> list[list[str]]:
        """Rank the documents for (Q, D) queries."""
        nearest = NearestSoFar(queries, top_k)
        for start in range(0, len(self.ids), _ROW_BLOCK):
            rows = self.embeddings[start : start + _ROW_BLOCK]
            nearest.add(np.arange(start, start + len(rows)), rows)
        found = []
        for query in range(len(queries)):
            scores, labels = nearest.result(query)
            ids = [self.ids[label] for label in labels.tolist()]
            found.append([ids[place] for place in best_first(scores.tolist(), ids)[:top_k]])
        return found


def encoder_facts(encoder: Encoder) -> dict[str, Any]:
    """Describe an encoder for the report; a folder's manifest says more than the protocol does."""
    manifest = getattr(encoder, "manifest", None)
    return {
        "name": encoder.name,
        "precision": encoder.precision,
        "fingerprint": encoder.fingerprint,
        "dimension": encoder.dimension,
        "max_tokens": encoder.max_tokens,
        "size_bytes": getattr(encoder, "size_bytes", None),
        "provider": getattr(encoder, "provider", None),
        "pooling": manifest and manifest.pooling,
    }


@contextmanager
def _scratch_file() -> Iterator[IO[bytes]]:
    """Open an unnamed file in the system's temporary folder.

    Raises:
        StorageFullError: If that has no room for what is written.
    """
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFullError(
            f"{tempfile.gettempdir()}: no space left for the corpus's embeddings; set TMPDIR to a "
            "folder with more"
        ) from error


def _blocks(
    records: Iterable[Document | Rejected], size: int
) -> Iterator[list[Document | Rejected]]:
    iterator = iter(records)
    while block := list(islice(iterator, size)):
        yield block
