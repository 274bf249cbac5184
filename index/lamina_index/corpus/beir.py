"""The folder layout of the BEIR benchmark: corpus.jsonl, queries.jsonl, qrels/<split>.tsv."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lamina_index.errors import CorpusError


@dataclass(frozen=True, slots=True)
class BeirFiles:
    """The three files that one split of a BEIR folder is evaluated with."""

    corpus: Path
    queries: Path
    qrels: Path


def beir_files(folder: Path | str, split: str = "test") -> BeirFiles:
    """Find the files of one split, plain or packed with gzip.

    Raises:
        CorpusError: If one is missing; the message lists the splits there are.
    """
    folder = Path(folder)
    qrels = _find(folder / "qrels" / f"{split}.tsv")
    if qrels is None:
        splits = sorted(path.name.split(".")[0] for path in folder.glob("qrels/*.tsv*"))
        raise CorpusError(
            f"{folder}: holds no qrels/{split}.tsv; splits found: {', '.join(splits) or 'none'}"
        )
    return BeirFiles(beir_corpus(folder), _existing(folder / "queries.jsonl"), qrels)


def beir_corpus(folder: Path) -> Path:
    """Give the corpus file of a BEIR folder.

    Raises:
        CorpusError: If there is none.
    """
    return _existing(folder / "corpus.jsonl")


def is_beir_folder(folder: Path) -> bool:
    """Tell whether a folder holds a BEIR corpus."""
    return _find(folder / "corpus.jsonl") is not None


def _find(path: Path) -> Path | None:
    packed = path.with_name(f"{path.name}.gz")
    return next((file for file in (path, packed) if file.is_file()), None)


def _existing(path: Path) -> Path:
    found = _find(path)
    if found is None:
        raise CorpusError(f"{path.parent}: holds no {path.name}; a BEIR folder needs one")
    return found
