"""Run the application with uvicorn, in this process or in several workers."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from lamina_service.access import check_host, check_origins
from lamina_service.errors import PortTakenError, SettingsError
from lamina_service.keys import opened
from lamina_service.settings import Settings

_APP = "lamina_service.app:create_app"
_WORKER_APP = "lamina_service.server:create_worker_app"
_MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_BACKLOG = 2048
_GRACE_SECONDS = 10
_START_SECONDS = 120


def bind(settings: Settings) -> socket.socket:
    """Take the address; it is listened on once all is loaded.

    Raises:
        PortTakenError: If another process listens there.
        SettingsError: If the address or an origin would open the service to others without a
            key, or the address is not this machine's.
    """
    with opened(settings.data) as keys:
        check_host(settings.host, keys)
        check_origins(settings.allowed_origins, keys)
    address = (settings.host, settings.port)
    try:
        with _bound(address) as alone:  # refused where another listens, shared or not
            if settings.workers == 1:
                return alone.dup()
            address = (settings.host, alone.getsockname()[1])
        return _bound(address, shared=True)
    except OSError as error:
        kind = PortTakenError if error.errno == errno.EADDRINUSE else SettingsError
        raise kind(
            f"{settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another --port or --host"
        ) from error


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


def run(settings: Settings, listener: socket.socket, on_ready: Callable[[], None]) -> bool:
    """Serve until interrupted or terminated.

    Args:
        settings: What to serve, and how.
        listener: From `bind`, with the same settings.
        on_ready: Called once requests are answered.

    Returns:
        Whether it got that far.
    """
    os.environ.update(settings.environment())
    config = uvicorn.Config(
        _APP if settings.workers == 1 else _WORKER_APP,
        factory=True,
        workers=settings.workers,
        loop="uvloop",
        http="lamina_service.connection:Connection",
        ws="none",
        lifespan="on",
        backlog=_BACKLOG,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=_log_config(settings.log_level.upper()),
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    if settings.workers > 1:
        return _run_workers(config, listener, on_ready)
    signal.signal(signal.SIGTERM, _end)  # uvicorn stops first, then raises the signal again
    server = _Server(config, on_ready)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        server.run([listener])
    return server.started


def create_worker_app() -> FastAPI:
    """Make a worker's application; the worker ends when the process that started it is gone.

    A supervisor that is killed outright tells its workers nothing: they would serve on, and keep
    the port, with nobody left to stop them.
    """
    from lamina_service.app import create_app  # the supervisor does without

    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    return create_app()


class _Server(uvicorn.Server):
    """Tells when it has started."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


class _Workers(Multiprocess):
    """Tells when all workers have started."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, on_ready: Callable[[], None]
    ) -> None:
        own = _OwnListener(listener.getsockname()[:2])
        super().__init__(config, [own])  # type: ignore[list-item] # a socket once it is there
        self._on_ready = on_ready
        self.started = False

    def init_processes(self) -> None:
        super().init_processes()
        self.started = all(
            process.wait_until_ready(_START_SECONDS, self.should_exit) for process in self.processes
        )
        if self.started:
            self._on_ready()


class _OwnListener:
    """Becomes, on its way to a worker, a socket of the worker's own on the shared address.

    The kernel then spreads connections over the workers. From one socket that all of them hold,
    whoever wakes first takes most.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def __reduce__(self) -> tuple[Callable[..., socket.socket], tuple[tuple[str, int], bool]]:
        return _bound, (self._address, True)


def _run_workers(
    config: uvicorn.Config, listener: socket.socket, on_ready: Callable[[], None]
) -> bool:
    with tempfile.TemporaryDirectory(prefix="lamina-metrics-") as folder:
        os.environ[_MULTIPROCESS_FOLDER] = folder
        workers = _Workers(config, listener, on_ready)
        workers.run()
    return workers.started


def _bound(address: tuple[str, int], shared: bool = False) -> socket.socket:
    """Bind a socket without listening; several may be bound to the address if all are shared."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # a worker was started by the supervisor
    parent.join()
    signal.raise_signal(signal.SIGTERM)


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
