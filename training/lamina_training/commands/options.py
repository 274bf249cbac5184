"""Options that several commands on training share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the data, instead of that of the file or run."),
]
Cache = Annotated[
    Path,
    typer.Option(
        envvar="LAMINA_WEIGHTS", help="Folder that keeps fetched weights and teachers' vectors."
    ),
]
WEIGHTS = Path("weights")
"""Where that is by default."""
