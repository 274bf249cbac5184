"""Texts to unit embeddings, with ONNX Runtime.

An encoder folder (DESIGN: `encoder.json`, a tokenizer, ONNX graphs with pooling and L2
normalisation inside) is loaded once and shared by all threads. What an embedding depends on is
the text, the graph and the tokenizer alone, never its batch mates or the thread count:

- int8 graphs with constant input scales are exact in batches: they run without padding's rows (see
  `lamina_training.packing`), and their width is a multiple of 4, which keeps the order of all sums;
- int8 graphs with one input scale a call run each text alone;
- fp32 and fp16 run texts of like length together, with padding masked out (equal within 1e-5 and
  1e-2 respectively, the rounding of another summation order).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from lamina_index.batching import BATCH_TOKENS, length_batches, padded, run_batches
from lamina_index.encoder_files import check_file, check_graph, encoder_folder, load_tokenizer
from lamina_index.errors import (
    DeviceError,
    EncoderLoadError,
    EncoderOutputError,
    EncoderProbeError,
)
from lamina_index.manifest import EncoderManifest, Precision, decode_vector
from lamina_index.onnx_session import Device, device_candidates, open_session
from lamina_index.runtime import available_threads
from lamina_index.text import TEXT_VERSION, normalize_text

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Role = Literal["query", "document"]

_EXACT_WIDTH = 4
"""Kernels take four terms of a sum at a time, and what is left over in another order."""
_MANY_TEXTS = 64

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Embeddings of N texts and what happened on the way.

    Attributes:
        embeddings: (N, D) float32, unit rows.
        token_counts: (N,) tokens that the graph read, special ones included.
        full_token_counts: (N,) the same before the cut at the encoder's `max_tokens`.
        blank: (N,) true where a text has no token but special ones.
    """

    embeddings: NDArray[np.float32]
    token_counts: NDArray[np.int32]
    full_token_counts: NDArray[np.int32]
    blank: NDArray[np.bool_]

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """(N,) true where a text was cut."""
        return self.full_token_counts > self.token_counts


class Encoder(Protocol):
    """What indexing, search and evaluation need of an encoder."""

    @property
    def name(self) -> str: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    def encode(self, texts: Sequence[str], *, role: Role) -> Encoded: ...
    def whole_text_tokenizer(self) -> Tokenizer: ...


class OnnxEncoder:
    """An encoder folder, loaded; safe to use from many threads.

    Attributes:
        manifest: The folder's `encoder.json`.
        precision: The graph in use.
        provider: The ONNX Runtime provider that really runs it.
        threads: How many texts `encode` runs at the same time.
        accepted: Fingerprints of its other precisions whose collections it may search, with the
            least cosine between vectors of the two that was measured at export.
    """

    def __init__(
        self,
        folder: Path,
        manifest: EncoderManifest,
        precision: Precision,
        device: Device,
        threads: int,
    ) -> None:
        """Use `OnnxEncoder.load`, which checks what it is given."""
        self.folder = folder
        self.manifest = manifest
        self.precision: Precision = precision
        self.threads = threads
        self.accepted: Mapping[str, float] = {}
        self._file = manifest.precisions[precision]
        self._tokenizer = load_tokenizer(folder, max_tokens=manifest.max_tokens)
        self._specials = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        self._blank_counts = {
            role: len(self._tokenizer.encode(prompt))
            for role, prompt in manifest.prompts.model_dump().items()
        }
        self._session = open_session(folder / self._file.file, device)
        self.provider: str = self._session.get_providers()[0]
        self._alone = precision == "int8" and not self._file.batch_invariant
        self._width_step = _EXACT_WIDTH if precision == "int8" and not self._alone else 1
        self._pool = ThreadPoolExecutor(threads, "lamina-encode") if threads > 1 else None

    @classmethod
    def load(
        cls,
        folder: str | Path = "default",
        *,
        precision: Precision | None = None,
        device: Device = "auto",
        threads: int | None = None,
        check: bool = True,
        accept: float | None = None,
    ) -> Self:
        """Load an encoder and prove on its probes that this machine runs it right.

        Args:
            folder: An encoder folder or the name of a bundled encoder.
            precision: Which graph; by default int8 on the CPU and fp16 on CUDA where shipped.
                An int8 graph that was not asked for by name and fails its probes here is replaced
                by fp32, with a warning.
            device: `cuda` never falls back; `auto` takes CUDA where it runs a shipped graph.
            threads: Texts run at the same time; by default the CPUs available to the process.
            check: Whether to compare checksums and run the probes.
            accept: Let it search collections that another precision of this encoder built, if
                vectors of the two have no lower cosine than this by what the export measured.
                None, the default, refuses them; they are never written to.

        Raises:
            EncoderLoadError: If the folder is incomplete or altered.
            EncoderProbeError: If a probe's vector is off by more than the manifest allows.
            DeviceError: If the device does not run the graph.
        """
        root = encoder_folder(folder)
        manifest = EncoderManifest.read(root / "encoder.json")
        if manifest.text_version != TEXT_VERSION:
            raise EncoderLoadError(
                f"{root}: made for text normalisation {manifest.text_version}, this Lamina has "
                f"{TEXT_VERSION}; export the encoder again"
            )
        if check:
            check_file(root / "tokenizer.json", manifest.tokenizer_sha256)
        candidates = device_candidates(root, manifest.precisions, device, precision)
        threads = threads or available_threads()
        for candidate, following in pairwise(candidates):
            try:
                loaded = cls._load_one(root, manifest, *candidate, threads, check=check)
                break
            except (EncoderProbeError, DeviceError) as error:
                _logger.warning("%s; trying %s on %s", error, *reversed(following))
        else:
            loaded = cls._load_one(root, manifest, *candidates[-1], threads, check=check)
        if accept is not None:
            loaded.accepted = {
                other.fingerprint: other.cosine_min
                for other in manifest.compatible_with
                if other.fingerprint != loaded.fingerprint and other.cosine_min >= accept
            }
        return loaded

    @classmethod
    def _load_one(
        cls,
        folder: Path,
        manifest: EncoderManifest,
        device: Device,
        precision: Precision,
        threads: int,
        *,
        check: bool,
    ) -> Self:
        if check:
            check_graph(folder / "encoder.json", manifest, precision)
        encoder = cls(folder, manifest, precision, device, threads)
        if check:
            encoder.check_probes()
        return encoder

    @property
    def name(self) -> str:
        """The manifest's name."""
        return self.manifest.name

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides a vector."""
        return self._file.fingerprint

    @property
    def dimension(self) -> int:
        """D."""
        return self.manifest.dimension

    @property
    def max_tokens(self) -> int:
        """Longest input, special tokens included."""
        return self.manifest.max_tokens

    @property
    def keeps_attention(self) -> bool:
        """Whether it has `layer_weights`."""
        return self.manifest.attention == "kept"

    @property
    def size_bytes(self) -> int:
        """Bytes of the graph in use."""
        return self._file.size_bytes

    def whole_text_tokenizer(self) -> Tokenizer:
        """Make a tokenizer that does not cut, for chunking."""
        return load_tokenizer(self.folder, max_tokens=None)

    def encode(self, texts: Sequence[str], *, role: Role) -> Encoded:
        """Embed texts; any text has an embedding, also a blank one.

        One text runs in the calling thread; many are spread over the encoder's threads.

        Args:
            texts: N texts; N may be 0.
            role: Which of the encoder's prompts to put before them.

        Raises:
            EncoderOutputError: If the graph returns a non-finite vector; `items` says for which.
        """
        prompt: str = getattr(self.manifest.prompts, role)
        tokenized = self._tokenize([prompt + normalize_text(text) for text in texts])
        counts = np.array([len(item) for item in tokenized], dtype=np.int32)
        cut = [sum(len(rest) - self._specials for rest in item.overflowing) for item in tokenized]
        return Encoded(
            embeddings=self._embed(tokenized, counts),
            token_counts=counts,
            full_token_counts=counts + np.array(cut, dtype=np.int32),
            blank=counts <= self._blank_counts[role],
        )

    def layer_weights(self, texts: Sequence[str], *, role: Role) -> NDArray[np.float32]:
        """How much of each layer's value a text's embedding takes.

        Returns:
            (N, layers + 1) for N texts, each row a distribution; column 0 is the embedding layer.

        Raises:
            EncoderLoadError: If attention over layers is not in this encoder's graph.
        """
        if not self.keeps_attention:
            raise EncoderLoadError(
                f"{self.folder}: its graph has no layer_weights (attention over layers: "
                f"{self.manifest.attention}); export a run trained with layer attention by "
                "`lamina export --keep-attention`"
            )
        prompt: str = getattr(self.manifest.prompts, role)
        tokenized = self._tokenize([prompt + normalize_text(text) for text in texts])
        rows = [self._run_graph([item], "layer_weights") for item in tokenized]
        return np.concatenate(rows) if rows else np.empty((0, self.manifest.layers + 1), np.float32)

    def check_probes(self) -> None:
        """Compare the probes, encoded as documents, with the vectors in the manifest.

        Raises:
            EncoderProbeError: If a cosine is below the manifest's bound for this precision.
        """
        found = self.encode(self.manifest.probes, role="document").embeddings
        expected = np.stack([decode_vector(vector) for vector in self._file.probe_vectors])
        cosines = np.vecdot(found, expected)
        worst = int(np.argmin(cosines))
        if cosines[worst] < self._file.probe_min_cosine:
            remedy = "" if self.precision == "fp32" else "; use fp32"
            raise EncoderProbeError(
                f"{self.folder / self._file.file}: probe {worst} has cosine {cosines[worst]:.4f} "
                f"to its reference, expected at least {self._file.probe_min_cosine}: this machine "
                f"does not run {self.precision} right (`lamina doctor` shows what it has){remedy}"
            )

    def close(self) -> None:
        """End the threads; the encoder is not usable for many texts afterwards."""
        if self._pool is not None:
            self._pool.shutdown()

    def _tokenize(self, texts: list[str]) -> list[Encoding]:
        """Tokenise many over all CPUs, and few right here, without waiting for other threads."""
        if len(texts) < _MANY_TEXTS:
            return [self._tokenizer.encode(text) for text in texts]
        return self._tokenizer.encode_batch_fast(texts)

    def _embed(
        self, tokenized: Sequence[Encoding], counts: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Run the graph over all items, longest first, and check its output."""
        embeddings = np.empty((len(tokenized), self.dimension), dtype=np.float32)

        def run(rows: list[int]) -> None:
            embeddings[rows] = self._run_graph([tokenized[row] for row in rows])

        batch_tokens = 1 if self._alone else BATCH_TOKENS[self.provider]
        batches = length_batches(counts, batch_tokens=batch_tokens)
        run_batches(run, batches, self._pool, self.threads)
        broken = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
        if broken.size:
            raise EncoderOutputError(
                f"encoder {self.name} ({self.precision}) returned a non-finite vector for "
                f"{broken.size} of {len(tokenized)} texts, the first at position {broken[0]}",
                items=tuple(broken.tolist()),
            )
        return embeddings

    def _run_graph(
        self, batch: Sequence[Encoding], output: str = "sentence_embedding"
    ) -> NDArray[np.float32]:
        """Pad B items to their longest and run them in one call; one of the outputs, (B, ...)."""
        longest = max(len(item) for item in batch)
        width = min(self.max_tokens, -(-longest // self._width_step) * self._width_step)
        feeds = {
            "input_ids": padded([item.ids for item in batch], width),
            "attention_mask": padded([item.attention_mask for item in batch], width),
        }
        rows: NDArray[np.float32] = self._session.run([output], feeds)[0]
        return rows
