"""Run the application with uvicorn, in this process or in several workers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import tempfile
from typing import Any, NoReturn

import uvicorn
from uvicorn.supervisors import Multiprocess

from lamina_service.access import check_host
from lamina_service.errors import PortTakenError, SettingsError
from lamina_service.keys import opened
from lamina_service.settings import Settings

_APP = "lamina_service.app:create_app"
_MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_BACKLOG = 2048
_GRACE_SECONDS = 10


def bind(settings: Settings) -> socket.socket:
    """Take the address, so that whoever connects from now on is answered once all is loaded.

    Raises:
        SettingsError: If the address would open the service to others without a key, is in use,
            or is not this machine's.
    """
    with opened(settings.data) as keys:
        check_host(settings.host, keys)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        kind = PortTakenError if error.errno == errno.EADDRINUSE else SettingsError
        raise kind(
            f"{settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another --port or --host"
        ) from error
    listener.listen(_BACKLOG)
    return listener


def bind_or_free_port(settings: Settings) -> socket.socket:
    """Take the address, or any free port of the same host where the port is taken."""
    try:
        return bind(settings)
    except PortTakenError:
        return bind(settings.model_copy(update={"port": 0}))


def url_of(listener: socket.socket) -> str:
    """Write the address of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(settings: Settings, listener: socket.socket) -> bool:
    """Serve until interrupted or terminated; false if the start failed."""
    os.environ.update(settings.environment())
    config = uvicorn.Config(
        _APP,
        factory=True,
        workers=settings.workers,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        backlog=_BACKLOG,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=_log_config(settings.log_level.upper()),
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    if settings.workers == 1:
        return _run_here(config, listener)
    with tempfile.TemporaryDirectory(prefix="lamina-metrics-") as folder:
        os.environ[_MULTIPROCESS_FOLDER] = folder
        workers = Multiprocess(config, [listener])
        workers.run()
    return all(process.exitcode in (0, -signal.SIGTERM) for process in workers.processes)


def _run_here(config: uvicorn.Config, listener: socket.socket) -> bool:
    signal.signal(signal.SIGTERM, _end)  # uvicorn stops first, then raises the signal again
    server = uvicorn.Server(config)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        server.run([listener])
    return server.started


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


def _log_config(level: str) -> dict[str, Any]:
    """One line an event on stderr; of uvicorn and FAISS only what is wrong."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {"format": "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s"}
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {"uvicorn": {"level": "WARNING"}, "faiss": {"level": "WARNING"}},
    }
