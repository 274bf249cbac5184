"""A query and texts to scores, with ONNX Runtime: each pair is read together, by a cross-encoder.

A reranker folder (`reranker.json`, a tokenizer, ONNX graphs) is the form of an encoder folder. A
score is what the model was trained to give, mostly a log-odds: higher is better, and only the
scores of one query compare. What it depends on is the query, the text, the graph and the tokenizer;
batch mates change it by the rounding of another summation order (within 1e-4 of it in fp32).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from lamina_index.batching import BATCH_TOKENS, length_batches, padded, run_batches
from lamina_index.encoder_files import check_file, check_graph, load_tokenizer, reranker_folder
from lamina_index.errors import (
    DeviceError,
    EncoderLoadError,
    EncoderOutputError,
    EncoderProbeError,
)
from lamina_index.manifest import Precision, RerankerManifest
from lamina_index.onnx_session import Device, device_candidates, open_session
from lamina_index.runtime import available_threads
from lamina_index.text import TEXT_VERSION, normalize_text

if TYPE_CHECKING:
    from tokenizers import Encoding

MANIFEST = "reranker.json"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reranked:
    """Scores of N texts for one query, and what happened on the way.

    Attributes:
        scores: (N,) float32, higher is better.
        truncated: (N,) true where query and text together were longer than the reranker reads.
    """

    scores: NDArray[np.float32]
    truncated: NDArray[np.bool_]


class Reranker(Protocol):
    """What search and evaluation need of a reranker."""

    @property
    def name(self) -> str: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def max_tokens(self) -> int: ...
    def score(self, query: str, texts: Sequence[str]) -> Reranked: ...


class OnnxReranker:
    """A reranker folder, loaded; safe to use from many threads.

    Attributes:
        manifest: The folder's `reranker.json`.
        precision: The graph in use.
        provider: The ONNX Runtime provider that really runs it.
        threads: How many batches `score` runs at the same time.
    """

    def __init__(
        self,
        folder: Path,
        manifest: RerankerManifest,
        precision: Precision,
        device: Device,
        threads: int,
    ) -> None:
        """Use `OnnxReranker.load`, which checks what it is given."""
        self.folder = folder
        self.manifest = manifest
        self.precision: Precision = precision
        self.threads = threads
        self._file = manifest.precisions[precision]
        self._tokenizer = load_tokenizer(folder, max_tokens=manifest.max_tokens)
        self._session = open_session(folder / self._file.file, device)
        self.provider: str = self._session.get_providers()[0]
        self._pool = ThreadPoolExecutor(threads, "lamina-rerank") if threads > 1 else None

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        precision: Precision | None = None,
        device: Device = "auto",
        threads: int | None = None,
        check: bool = True,
    ) -> Self:
        """Load a reranker and prove on its probes that this machine runs it right.

        Args:
            folder: A reranker folder, from `lamina export --reranker`.
            precision: Which graph; by default what is fastest on the device of those shipped.
            device: `cuda` never falls back; `auto` takes CUDA where it runs a shipped graph.
            threads: Batches run at the same time; by default the CPUs available to the process.
            check: Whether to compare checksums and run the probes.

        Raises:
            EncoderLoadError: If the folder is incomplete or altered.
            EncoderProbeError: If a probe's score is off by more than the manifest allows.
            DeviceError: If the device does not run the graph.
        """
        root = reranker_folder(folder)
        manifest = RerankerManifest.read(root / MANIFEST)
        if manifest.text_version != TEXT_VERSION:
            raise EncoderLoadError(
                f"{root}: made for text normalisation {manifest.text_version}, this Lamina has "
                f"{TEXT_VERSION}; export the reranker again"
            )
        if check:
            check_file(root / "tokenizer.json", manifest.tokenizer_sha256)
        candidates = device_candidates(root, manifest.precisions, device, precision)
        threads = threads or available_threads()
        for candidate, following in pairwise(candidates):
            try:
                return cls._load_one(root, manifest, *candidate, threads, check=check)
            except (EncoderProbeError, DeviceError) as error:
                _logger.warning("%s; trying %s on %s", error, *reversed(following))
        return cls._load_one(root, manifest, *candidates[-1], threads, check=check)

    @classmethod
    def _load_one(
        cls,
        folder: Path,
        manifest: RerankerManifest,
        device: Device,
        precision: Precision,
        threads: int,
        *,
        check: bool,
    ) -> Self:
        if check:
            check_graph(folder / MANIFEST, manifest, precision)
        reranker = cls(folder, manifest, precision, device, threads)
        if check:
            reranker.check_probes()
        return reranker

    @property
    def name(self) -> str:
        """The manifest's name."""
        return self.manifest.name

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides a score."""
        return self._file.fingerprint

    @property
    def max_tokens(self) -> int:
        """Longest input: query, text and special tokens together."""
        return self.manifest.max_tokens

    @property
    def size_bytes(self) -> int:
        """Bytes of the graph in use."""
        return self._file.size_bytes

    def score(self, query: str, texts: Sequence[str]) -> Reranked:
        """Tell how well each text answers a query.

        Of a pair that is longer than `max_tokens` the longer of the two is cut, so a query of
        ordinary length stays whole.

        Args:
            query: Any text.
            texts: N texts; N may be 0.

        Raises:
            EncoderOutputError: If a score is not finite; `items` says of which texts.
        """
        asked = normalize_text(query)
        pairs = [self._tokenizer.encode(asked, normalize_text(text)) for text in texts]
        scores = np.empty(len(pairs), dtype=np.float32)

        def run(rows: list[int]) -> None:
            scores[rows] = self._run_graph([pairs[row] for row in rows])

        counts = np.array([len(pair) for pair in pairs], dtype=np.int32)
        batches = length_batches(counts, batch_tokens=BATCH_TOKENS[self.provider])
        run_batches(run, batches, self._pool, self.threads)
        broken = np.flatnonzero(~np.isfinite(scores))
        if broken.size:
            raise EncoderOutputError(
                f"reranker {self.name} ({self.precision}) returned a score that is not finite for "
                f"{broken.size} of {len(pairs)} texts, the first at position {broken[0]}",
                items=tuple(broken.tolist()),
            )
        return Reranked(scores, np.array([bool(pair.overflowing) for pair in pairs], dtype=bool))

    def check_probes(self) -> None:
        """Compare the probes' scores with those in the manifest.

        Raises:
            EncoderProbeError: If one differs by more than the manifest's bound.
        """
        found = [
            self.score(probe.query, [probe.document]).scores[0] for probe in self.manifest.probes
        ]
        differences = np.abs(np.array(found) - np.array(self._file.probe_scores))
        worst = int(np.argmax(differences))
        if not differences[worst] <= self._file.probe_tolerance:
            raise EncoderProbeError(
                f"{self.folder / self._file.file}: probe {worst} has score {found[worst]:.4f}, "
                f"expected {self._file.probe_scores[worst]:.4f} within "
                f"{self._file.probe_tolerance}: this machine does not run {self.precision} right "
                "(`lamina doctor` shows what it has)"
            )

    def close(self) -> None:
        """End the threads; the reranker is not usable for many texts afterwards."""
        if self._pool is not None:
            self._pool.shutdown()

    def _run_graph(self, batch: Sequence[Encoding]) -> NDArray[np.float32]:
        """Pad B pairs to their longest and score them in one call, (B,)."""
        width = max(len(pair) for pair in batch)
        columns = {
            "input_ids": [pair.ids for pair in batch],
            "attention_mask": [pair.attention_mask for pair in batch],
            "token_type_ids": [pair.type_ids for pair in batch],
        }
        feeds = {name: padded(columns[name], width) for name in self.manifest.inputs}
        scores: NDArray[np.float32] = self._session.run(["score"], feeds)[0]
        return scores
