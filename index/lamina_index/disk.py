"""What the operating system says about files, in words that help."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lamina_index.errors import LaminaError, StorageFullError


@contextmanager
def disk_errors_told(target: Path, *, when_full: str) -> Iterator[None]:
    """Turn errors of writing below `target` into errors that a user can mend.

    Args:
        target: Named where the error itself names no file.
        when_full: What is safe and what to do when no space is left.

    Raises:
        StorageFullError: If the disk, or the user's share of it, is full.
        LaminaError: If something cannot be written for another reason.
    """
    try:
        yield
    except StorageFullError as error:
        raise StorageFullError(f"{target}: no space left on the device; {when_full}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(f"{target}: no space left on the device; {when_full}") from error
        raise LaminaError(
            f"{error.filename or target}: cannot be written ({error.strerror or error})"
        ) from error
