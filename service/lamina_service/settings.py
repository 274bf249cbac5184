"""Settings, read once at the edge: flags over `LAMINA_*` environment variables over defaults."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from lamina_index.compaction import MAX_AGE, MAX_DELTA
from lamina_index.manifest import Precision
from lamina_index.onnx_session import Device
from lamina_index.search_options import MAX_RERANK
from lamina_index.view import DELTA_LIMIT
from lamina_service.errors import SettingsError
from lamina_service.validation import message_of

PREFIX = "LAMINA_"
_ORIGIN = re.compile(r"https?://[a-z0-9.\[\]:-]+", re.IGNORECASE)
_OF_OTHER_COMMANDS = frozenset({"LAMINA_KEY", "LAMINA_WEIGHTS"})
"""Variables of `lamina evaluate` and `lamina export`, which a shell may hold too."""


class Settings(BaseSettings):
    """Everything that can be set; each name is also the variable `LAMINA_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    data: Path = Field(Path("data"), description="folder of the collections and service.sqlite")
    host: str = Field("127.0.0.1", description="address to bind; others than loopback need a key")
    port: int = Field(7650, ge=0, le=65535, description="port to bind; 0 takes a free one")
    workers: int = Field(1, ge=1, le=256, description="processes that answer")
    encoder: str = Field("default", description="bundled encoder's name, or an encoder folder")
    precision: Precision | None = Field(None, description="graph to run; by default the fastest")
    device: Device = Field("auto", description="cuda refuses to start where CUDA does not run it")
    accept_compatible: float | None = Field(
        None,
        ge=0,
        le=1,
        description="search what another precision of the encoder built, from this cosine on",
    )
    reranker: Path | None = Field(
        None, description="folder of a reranker; without one no search can ask for it"
    )
    max_rerank: int = Field(
        MAX_RERANK, ge=1, le=MAX_RERANK, description="most candidates of a search to be reranked"
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="texts encoded at once by a worker; CPUs / workers, for documents CPUs",
    )
    queue_size: int = Field(
        128, ge=1, description="texts waiting or running in a worker beyond which it answers 429"
    )
    write_queue_size: int = Field(
        32, ge=1, description="writes waiting or running in a worker beyond which it answers 429"
    )
    max_body_bytes: int = Field(2 * 1024 * 1024, ge=1024, description="longest request body")
    max_connections: int = Field(
        1000,
        ge=1,
        description="connections of a worker; at most half of the files that it may open",
    )
    client_seconds: float = Field(
        30,
        gt=0,
        le=86_400,
        description="how long a client may take for a head, or be silent within a body or reply",
    )
    max_text_chars: int = Field(32_768, ge=1, description="longest query or text to embed")
    max_batch: int = Field(256, ge=1, description="most searches or texts in one request")
    max_documents: int = Field(1000, ge=1, description="most documents in one list of JSON")
    max_line_bytes: int = Field(
        1024 * 1024, ge=1024, description="longest line of newline-delimited JSON"
    )
    snapshots: Path | None = Field(
        None, description="folder that archives are written to on request; without it none are"
    )
    compact: bool = Field(True, description="whether indexes are kept up to date by themselves")
    compact_rows: int = Field(
        MAX_DELTA, ge=1, le=DELTA_LIMIT, description="newer rows that are added without delay"
    )
    compact_seconds: float = Field(
        MAX_AGE, ge=0, description="how long some hundreds of newer rows wait for more"
    )
    metrics: Literal["key", "open", "off"] = Field(
        "key", description="/metrics needs a key like the rest, none, or does not exist"
    )
    docs: bool = Field(True, description="whether /docs and /openapi.json exist")
    cors_origins: str = Field(
        "", description="origins, by spaces, whose pages may ask from a browser; * for any"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = Field(False, description="whether each request is logged, without its query")

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        for origin in value.split():
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"found {origin!r}, expected origins such as https://search.example.org or "
                    "http://localhost:3000, without a path, with spaces between; or *"
                )
        return value

    @property
    def allowed_origins(self) -> list[str]:
        """Origins whose pages may ask from a browser."""
        return self.cors_origins.split()

    @classmethod
    def load(cls, **flags: Any) -> Settings:
        """Read the environment; flags that are not None override it.

        Args:
            flags: Every flag that the command has, None where it was not given.

        Raises:
            SettingsError: If a `LAMINA_*` variable is unknown or a value does not fit.
        """
        _refuse_unknown(os.environ)
        try:
            return cls(**{name: value for name, value in flags.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            flag = f" (--{name.replace('_', '-')})" if name in flags else ""
            raise SettingsError(f"{PREFIX}{name.upper()}{flag}: {message_of(first)}") from error

    def environment(self) -> dict[str, str]:
        """Write the settings as variables, for worker processes."""
        values = self.model_dump(mode="json", exclude_none=True)
        return {f"{PREFIX}{name.upper()}": str(value) for name, value in values.items()}


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    for name in sorted(environment.keys() - _OF_OTHER_COMMANDS):
        if not name.upper().startswith(PREFIX):
            continue
        if name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise SettingsError(f"{name}: no such setting; {hint}")
