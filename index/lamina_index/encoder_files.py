"""The files of an encoder's or reranker's folder: found, whole, and as the manifest says.

A folder that is damaged or was edited is refused before anything of it runs.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from lamina_index.errors import EncoderLoadError
from lamina_index.manifest import EncoderManifest, Precision, RerankerManifest, sha256_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BUNDLED_ENCODERS = Path(__file__).parent / "encoders"


def bundled_encoders() -> list[str]:
    """Names of the encoders that come with Lamina."""
    return sorted(path.name for path in BUNDLED_ENCODERS.iterdir() if path.is_dir())


def bundled_name(fingerprint: str) -> str | None:
    """Tell which bundled encoder has a fingerprint, in any precision; None if none has."""
    for name in bundled_encoders():
        manifest = EncoderManifest.read(BUNDLED_ENCODERS / name / "encoder.json")
        if fingerprint in (each.fingerprint for each in manifest.precisions.values()):
            return name
    return None


def encoder_folder(name_or_path: str | Path) -> Path:
    """Find an encoder: the name of a bundled one, or a folder.

    Raises:
        EncoderLoadError: If neither exists.
    """
    bundled = BUNDLED_ENCODERS / name_or_path
    if isinstance(name_or_path, str) and name_or_path.isidentifier() and bundled.is_dir():
        return bundled
    folder = Path(name_or_path)
    if not (folder / "encoder.json").is_file():
        names = bundled_encoders()
        near = difflib.get_close_matches(str(name_or_path).casefold(), names, n=1)
        hint = f"did you mean {near[0]}?" if near else "make one with `lamina export`"
        raise EncoderLoadError(
            f"{name_or_path}: no encoder.json there and no bundled encoder of that name "
            f"(bundled: {', '.join(names) or 'none'}); {hint}"
        )
    return folder


def reranker_folder(path: str | Path) -> Path:
    """Find a reranker.

    Raises:
        EncoderLoadError: If there is none; says so where it is an encoder.
    """
    folder = Path(path)
    if not (folder / "reranker.json").is_file():
        other = ", which is an encoder's folder" if (folder / "encoder.json").is_file() else ""
        raise EncoderLoadError(
            f"{path}: no reranker.json there{other}; make one with `lamina export --reranker`"
        )
    return folder


def check_graph(
    path: Path, manifest: EncoderManifest | RerankerManifest, precision: Precision
) -> None:
    """Make sure that a graph is the one that its fingerprint stands for.

    Args:
        path: Of the manifest, beside which the graph lies.
        manifest: What is in it.
        precision: Which graph.

    Raises:
        EncoderLoadError: If the file is missing or altered, or the manifest was edited.
    """
    file = manifest.precisions[precision]
    check_file(path.parent / file.file, file.sha256)
    if file.fingerprint != manifest.fingerprint_of(file.sha256):
        raise EncoderLoadError(
            f"{path}: the fingerprint of {precision} does not fit the other fields, so one of "
            "them was edited; export it again"
        )


def check_file(path: Path, expected: str) -> None:
    """Compare a file with its sha256.

    Raises:
        EncoderLoadError: If it is missing or has another.
    """
    if not path.is_file():
        raise EncoderLoadError(f"{path}: missing; the folder is incomplete, copy it again")
    found = sha256_file(path)
    if found != expected:
        raise EncoderLoadError(
            f"{path}: sha256 {found[:12]}, expected {expected[:12]}; the file is cut or altered, "
            "copy or export it again"
        )


def load_tokenizer(folder: Path, *, max_tokens: int | None) -> Tokenizer:
    """Load a folder's tokenizer, which pads nothing and cuts at `max_tokens`, if given.

    Raises:
        EncoderLoadError: If its file cannot be read.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception for any unreadable file
        raise EncoderLoadError(f"{path}: not a tokenizer file ({error})") from error
    tokenizer.no_padding()
    if max_tokens is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(max_tokens)
    return tokenizer
