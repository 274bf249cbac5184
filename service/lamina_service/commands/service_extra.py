"""What every command of the service does first: see that the `service` extra is installed."""

from __future__ import annotations

from importlib.util import find_spec

from lamina_index.errors import MissingExtraError

_PACKAGES = (
    "fastapi",
    "starlette",
    "uvicorn",
    "httptools",
    "uvloop",
    "pydantic_settings",
    "prometheus_client",
)


def check_service_extra() -> None:
    """Look for what the extra brings, without importing it.

    Raises:
        MissingExtraError: If a package is not installed, with the line that installs it.
    """
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(
                f"{package} is not installed; pip install 'lamina-search[service]'"
            )
