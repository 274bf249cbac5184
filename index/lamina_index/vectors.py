"""FAISS behind one way of searching: inner product, -1 never leaks, rows can be excluded.

Nothing is ever added to an index that is being searched (FAISS crashes). Searches run in the
calling thread alone; a service's parallelism comes from many requests. After a process has
searched, do not fork it (OpenMP's threads do not survive); use the spawn start method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from lamina_index.errors import DamagedError, IndexFactoryError, LaminaError, StorageFullError

EffortName = Literal["none", "efSearch", "nprobe"]

EFFORTS: dict[EffortName, tuple[int, ...]] = {
    "none": (0,),
    "efSearch": (64, 128, 256),
    "nprobe": (8, 16, 32, 64, 128, 256, 512, 1024),
}
"""Values to try, in order, of each kind of index's search parameter.

A graph search looks at 64 rows at least, so that the first pages of a listing, up to the 56th hit,
come from the same candidates whatever the page."""

EF_CONSTRUCTION = 120
_REFINE_FACTOR = 8

_ROWS_PER_EF = 35
"""Rows of a selection that a scan compares in the time that a graph search takes for one of its
efSearch: 2.1 microseconds against 60 nanoseconds, with 8-bit components, D = 384 and a tenth to a
half of the rows selected."""

_TABLE_ROWS = int(faiss.cvar.visited_table_hashset_threshold)
"""From so many rows on FAISS notes which of a graph it has visited in a hash set, since a single
search would have to clear a table of all of them first."""

_ALWAYS_TABLE = 1 << 62
"""Where thousands of rows are added with one table, a set costs a fifth to a third more time."""

_TRAINING_ROWS = 20_000
_TRAINING_ROWS_PER_LIST = 64


class Exclusion:
    """Rows of an index that no search may return.

    Holds the memory that FAISS's selector points into.
    """

    def __init__(self, positions: NDArray[np.int64], total: int) -> None:
        mask = np.zeros(total, dtype=np.bool_)
        mask[positions] = True
        self.count = int(mask.sum())
        self._bits = np.packbits(mask, bitorder="little")
        self._inner = faiss.IDSelectorBitmap(self._bits)
        self.selector = faiss.IDSelectorNot(self._inner)


class VectorIndex:
    """An index over N unit vectors, addressed by position 0..N-1.

    Attributes:
        effort_name: Which search parameter trades time for recall.
        exact: Whether every vector is compared at full precision.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        core = _core(self._index)
        self.effort_name: EffortName = (
            "efSearch"
            if isinstance(core, faiss.IndexHNSW)
            else "nprobe"
            if isinstance(core, faiss.IndexIVF)
            else "none"
        )
        self.exact = isinstance(self._index, faiss.IndexFlat)
        self._plain: dict[int, Any] = {}

    @property
    def count(self) -> int:
        """N, the number of vectors."""
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """D of the vectors."""
        return int(self._index.d)

    @property
    def build_parameters(self) -> dict[str, int]:
        """What shaped the index beyond its factory string."""
        core = _core(self._index)
        if isinstance(core, faiss.IndexHNSW):
            return {"efConstruction": core.hnsw.efConstruction}
        return {}

    def search(
        self,
        query: NDArray[np.float32],
        width: int,
        *,
        effort: int,
        exclusion: Exclusion | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the `width` nearest vectors, or as many as can be reached.

        Args:
            query: (D,) unit vector.
            width: How many are wanted, at least 1.
            effort: The search parameter; raised to a power of two >= width where it bounds how
                many can be found, so that pages of one listing see the same candidates.
            exclusion: Rows to pass over.

        Returns:
            Scores (n,) as the index stores the vectors, descending, and positions (n,),
            n <= width.
        """
        if self.effort_name == "efSearch":
            effort = max(effort, 1 << (width - 1).bit_length())
        if exclusion is not None:
            parameters = _parameters(self._index, effort, exclusion.selector)
        elif (parameters := self._plain.get(effort)) is None:
            parameters = self._plain[effort] = _parameters(self._index, effort, None)
        faiss.omp_set_num_threads(1)  # OpenMP keeps this for each thread apart
        scores, positions = self._index.search(query[np.newaxis], width, params=parameters)
        if positions[0, -1] >= 0:
            return scores[0], positions[0]
        found = positions[0] >= 0
        return scores[0][found], positions[0][found]

    def visits(self, effort: int) -> int:
        """About how many compared rows a search with an effort costs as much as."""
        if self.effort_name == "efSearch":
            return effort * _ROWS_PER_EF
        if self.effort_name == "nprobe":
            return -(-self.count * effort // int(_core(self._index).nlist))
        return self.count

    def scan(
        self, query: NDArray[np.float32], width: int, mask: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Compare every row of a selection as the index stores it: nothing is out of reach.

        Args:
            query: (D,) unit vector.
            width: How many of the nearest are wanted, at least 1.
            mask: (N,) the selection.

        Returns:
            As `search`; exactly min(width, selected) rows, or more of an index with a refinement,
            whose scores are then rougher than a search's.
        """
        bits = np.packbits(mask, bitorder="little")  # the selector points into it
        selector = faiss.IDSelectorBitmap(bits)
        faiss.omp_set_num_threads(1)
        if self.effort_name == "efSearch":
            scores, positions = _scan_storage(self._index, query[np.newaxis], width, selector)
        else:
            every = int(_core(self._index).nlist) if self.effort_name == "nprobe" else 0
            parameters = _parameters(self._index, every, selector)
            scores, positions = self._index.search(query[np.newaxis], width, params=parameters)
        found = positions[0] >= 0
        return scores[0][found], positions[0][found]

    def save(self, path: Path) -> None:
        """Write the index to a file.

        Raises:
            StorageFullError: If the disk is full.
        """
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            if "No space left" in str(error) or "quota" in str(error):
                raise StorageFullError(
                    f"{path}: no space left on the device; the snapshots there were are untouched"
                ) from error
            raise LaminaError(f"{path}: the index cannot be written ({error})") from error

    @classmethod
    def load(cls, path: Path) -> VectorIndex:
        """Map an index file into memory; processes that map the same file share its pages.

        The file must have passed its checks before: FAISS believes what it reads.

        Raises:
            DamagedError: If FAISS cannot make sense of it.
        """
        try:
            return cls(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC))
        except (RuntimeError, MemoryError) as error:
            raise DamagedError(f"{path}: FAISS cannot read it ({error})") from error

    @classmethod
    def copied(cls, path: Path, *, room: int) -> VectorIndex:
        """Read an index file into memory of one's own, to add to it; every byte must be right.

        Args:
            path: The file.
            room: How many vectors it is to hold; memory for them is set aside at once.

        Raises:
            DamagedError: If FAISS cannot make sense of it.
        """
        try:
            index = faiss.read_index(str(path))
            mapped = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except (RuntimeError, MemoryError) as error:
            raise DamagedError(f"{path}: FAISS cannot read it ({error})") from error
        for (vector, size), (source, _) in zip(
            _growing(index, room), _growing(mapped, room), strict=True
        ):
            _refill(vector, source, size)
        return cls(index)

    def add(self, batches: Iterable[NDArray[np.float32]], *, count: int, threads: int) -> None:
        """Add vectors at the positions that follow; nobody may be searching meanwhile.

        Args:
            batches: The vectors, (n, D) each.
            count: About how many will come; memory for them is set aside at once.
            threads: Threads to add with.
        """
        faiss.omp_set_num_threads(threads)
        faiss.cvar.visited_table_hashset_threshold = _ALWAYS_TABLE
        try:
            _reserve(self._index, self.count + count)
            for batch in batches:
                self._index.add(batch)
        finally:
            faiss.cvar.visited_table_hashset_threshold = _TABLE_ROWS
            faiss.omp_set_num_threads(1)

    @classmethod
    def build(
        cls,
        factory: str,
        *,
        dimension: int,
        count: int,
        training: Callable[[int], NDArray[np.float32]],
        batches: Iterable[NDArray[np.float32]],
        threads: int,
    ) -> VectorIndex:
        """Train an index and add vectors to it, batch by batch.

        Args:
            factory: FAISS factory string.
            dimension: D.
            count: About how many vectors will come; memory for them is set aside at once.
            training: Gives up to so many vectors (M, D) to learn lists and quantisers from.
            batches: The vectors, (n, D) each.
            threads: Threads to build with.

        Raises:
            IndexFactoryError: If the string is not one of FAISS's, or its index cannot use the
                inner product or pass over deleted rows.
            TooFewVectorsError: If they are too few to train it.
        """
        index = make_index(factory, dimension)
        faiss.omp_set_num_threads(threads)
        try:
            if not index.is_trained:
                _train(index, factory, training(_training_rows(index)))
        finally:
            faiss.omp_set_num_threads(1)
        built = cls(index)
        built.add(batches, count=count, threads=threads)
        return built


class TooFewVectorsError(ValueError):
    """An index could not be trained on so few vectors."""


def make_index(factory: str, dimension: int) -> Any:
    """Make an empty FAISS index of a kind that Lamina can search.

    That is Flat, SQ, HNSW and IVF, under any transform and refinement: the kinds that compare by
    inner product and can pass over deleted rows.

    Raises:
        IndexFactoryError: If FAISS does not know the string, or makes another kind.
    """
    advice = "use auto, Flat, SQ8, HNSW32,SQ8, IVF1024,SQ8 or the like"
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise IndexFactoryError(
            f"factory {factory!r}: FAISS makes no such index for dimension {dimension}; {advice}"
        ) from error
    core = _core(index)
    kinds = (faiss.IndexFlat, faiss.IndexScalarQuantizer, faiss.IndexHNSW, faiss.IndexIVF)
    if not isinstance(core, kinds) or core.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise IndexFactoryError(
            f"factory {factory!r} makes a {type(core).__name__}, which cannot compare by inner "
            f"product or pass over deleted rows; {advice}"
        )
    if isinstance(core, faiss.IndexHNSW):
        core.hnsw.efConstruction = EF_CONSTRUCTION
    if isinstance(core, faiss.IndexIVF):
        core.cp.min_points_per_centroid = 1  # small corpora are no cause for a warning on stderr
    if hasattr(core, "pq"):
        core.pq.cp.min_points_per_centroid = 1
    return index


def _train(index: Any, factory: str, vectors: NDArray[np.float32]) -> None:
    try:
        index.train(vectors)
    except RuntimeError as error:
        raise TooFewVectorsError(
            f"{len(vectors)} vectors are too few to train {factory}"
        ) from error


def _training_rows(index: Any) -> int:
    core = _core(index)
    if isinstance(core, faiss.IndexIVF):
        return max(_TRAINING_ROWS, _TRAINING_ROWS_PER_LIST * int(core.nlist))
    return _TRAINING_ROWS


def _reserve(index: Any, count: int) -> None:
    """Set memory aside for `count` vectors, so that growing never holds two copies of the index."""
    for vector, size in _growing(index, count):
        held = vector.size()
        if size > held:
            vector.resize(size)
            vector.resize(held)


def _refill(vector: Any, source: Any, size: int) -> None:
    """Fill a vector from a mapped one with the same items, with memory for `size`.

    Setting it aside in a vector that has items would hold them twice for a moment.
    """
    held = source.size()
    vector.owned_data.swap(type(vector.owned_data)())  # what was swapped out is freed
    vector.resize(max(size, held))
    vector.resize(held)
    if held:
        faiss.memcpy(vector.data(), source.data(), source.byte_size())


def _growing(index: Any, count: int) -> Iterator[tuple[Any, int]]:
    """The large vectors of an index, and how many items each has once `count` rows are added."""
    if isinstance(index, faiss.IndexPreTransform):
        yield from _growing(faiss.downcast_index(index.index), count)
    elif isinstance(index, faiss.IndexRefine):
        for part in (index.base_index, index.refine_index):
            yield from _growing(faiss.downcast_index(part), count)
    store = _storage(index)
    if isinstance(store, faiss.IndexFlatCodes):
        yield store.codes, count * store.code_size
    if isinstance(index, faiss.IndexHNSW):
        bottom = index.hnsw.cum_nneighbor_per_level.at(1)  # links of a vertex on the lowest level
        yield index.hnsw.neighbors, int(count * (bottom + 1.2)) + 1000


def _core(index: Any) -> Any:
    """The index inside refinements and transforms that does the searching."""
    if isinstance(index, faiss.IndexPreTransform):
        return _core(faiss.downcast_index(index.index))
    if isinstance(index, faiss.IndexRefine):
        return _core(faiss.downcast_index(index.base_index))
    return index


def _storage(core: Any) -> Any:
    """What holds the vectors: a graph's flat storage, or the index itself."""
    return faiss.downcast_index(core.storage) if isinstance(core, faiss.IndexHNSW) else core


def _scan_storage(
    index: Any, queries: NDArray[np.float32], width: int, selector: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Search the flat storage under a graph, through the layers above it."""
    if isinstance(index, faiss.IndexPreTransform):
        for place in range(index.chain.size()):
            queries = faiss.downcast_VectorTransform(index.chain.at(place)).apply(queries)
        return _scan_storage(faiss.downcast_index(index.index), queries, width, selector)
    if isinstance(index, faiss.IndexRefine):
        base = faiss.downcast_index(index.base_index)
        return _scan_storage(base, queries, width * _REFINE_FACTOR, selector)
    parameters = faiss.SearchParameters(sel=selector)
    scores, positions = _storage(index).search(queries, width, params=parameters)
    return scores, positions


def _parameters(index: Any, effort: int, selector: Any) -> Any:
    """FAISS search parameters for each layer of an index."""
    if isinstance(index, faiss.IndexPreTransform):
        inner = _parameters(faiss.downcast_index(index.index), effort, selector)
        return faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(faiss.downcast_index(index.base_index), effort, selector)
        return faiss.IndexRefineSearchParameters(k_factor=_REFINE_FACTOR, base_index_params=inner)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=effort, sel=selector)
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=effort, sel=selector)
    return faiss.SearchParameters(sel=selector)
