"""What the operating system says about files, in words that help."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lamina_index.errors import LaminaError, ReadOnlyError, StorageFullError

_NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)


def shown_path(path: str | Path) -> str:
    r"""A path as it can be printed and stored: bytes that are not UTF-8 become escapes (`\xe9`)."""
    return os.fsencode(path).decode(errors="backslashreplace")


@contextmanager
def disk_errors_told(target: Path, *, when_full: str) -> Iterator[None]:
    """Turn errors of writing below `target` into errors that a user can mend.

    Args:
        target: Named where the error itself names no file.
        when_full: What is safe and what to do when no space is left.

    Raises:
        StorageFullError: If the disk, or the user's share of it, is full.
        ReadOnlyError: If the disk is read-only, or this user may not write there.
        LaminaError: If something cannot be written for another reason.
    """
    try:
        yield
    except StorageFullError as error:
        raise StorageFullError(f"{target}: no space left on the device; {when_full}") from error
    except OSError as error:
        raise disk_error(target, error, when_full=when_full) from error


def disk_error(target: Path, error: OSError, *, when_full: str) -> LaminaError:
    """Give an error of writing the class that a user can act on, as `disk_errors_told` does."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(f"{target}: no space left on the device; {when_full}")
    kind = ReadOnlyError if error.errno in _NOT_ALLOWED else LaminaError
    reason = error.strerror or error
    return kind(f"{error.filename or target}: cannot be written ({reason})")
