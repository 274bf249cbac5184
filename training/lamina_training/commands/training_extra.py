"""What commands that need the `training` extra do first: import it or say so, and keep it quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lamina_index.errors import MissingExtraError


@contextmanager
def training_extra() -> Iterator[None]:
    """Import inside what the extra brings.

    Raises:
        MissingExtraError: If a package is not installed, with the line that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise MissingExtraError(
            f"{package} is not installed; pip install 'lamina-search[training,cpu]'"
        ) from error


def quiet_transformers() -> None:
    """Leave the terminal to the command: no bars and no notes of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
