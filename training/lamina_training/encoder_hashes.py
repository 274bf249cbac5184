"""Hashes of the files that decide what an encoder computes."""

from __future__ import annotations

from lamina_index.manifest import sha256_file
from lamina_training.encoder_folder import READABLE_FILES, EncoderFolder, EncoderFolderError
from lamina_training.run_folder import RESULT_FILE, RUN_FILE

_CARD = "README.md"
_RECORDS = (RUN_FILE, RESULT_FILE, "encoder.json")
"""Tell how a folder came about. No vector depends on them, and some hold times."""


def hash_encoder(folder: EncoderFolder) -> dict[str, str]:
    """Hash weights, configuration and tokenizer, and so pooling, prompts and maximum length.

    Read are the root and each module's folder, not what lies below, such as a run's checkpoints.

    Returns:
        Hex sha256 by the file's path inside the root, in its order.

    Raises:
        EncoderFolderError: If a file cannot be read.
    """
    parts = [folder.root, *(folder.root / path for _, path in folder.modules)]
    patterns = [pattern for pattern in READABLE_FILES if pattern != _CARD]
    files = {path for part in parts for pattern in patterns for path in part.glob(pattern)}
    hashes = {}
    for path in sorted(files):
        if not path.is_file() or path.name in _RECORDS:
            continue
        try:
            hashes[path.relative_to(folder.root).as_posix()] = sha256_file(path)
        except OSError as error:
            raise EncoderFolderError(
                f"{path}: cannot be read ({error.strerror}); make it readable or fetch it again"
            ) from error
    return hashes
