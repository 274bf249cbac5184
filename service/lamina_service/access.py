"""Who may ask: holders of a key; where no key was ever made, only programs on this machine."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope as AsgiScope

from lamina_service.errors import KeyRequiredError, LocalOnlyError, ScopeError, SettingsError
from lamina_service.keys import KeyStore, Scope, allows

_REMEDY = "make a key with `lamina keys create`"
_OF_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def check_access(scope: AsgiScope, keys: KeyStore, needed: Scope) -> None:
    """Refuse a request that may not have what it asks for.

    Without keys, a request must have come in on a loopback address *and* name one as its host:
    a web page elsewhere can make a browser call the former (DNS rebinding), not the latter. Nor may
    it say that a proxy passed it on: then it may come from anywhere.

    Raises:
        KeyRequiredError: If the bearer key is missing or not in force.
        ScopeError: If the key's scope does not include `needed`.
        LocalOnlyError: If there are no keys and the request is not local.
    """
    headers = Headers(scope=scope)
    if not keys.required:
        address = (scope.get("server") or ("", None))[0]
        if not (is_loopback(address) and is_loopback(_host_of(headers.get("host", "")))):
            raise LocalOnlyError(f"without keys only loopback addresses are answered; {_REMEDY}")
        if passed_on := next((name for name in _OF_PROXIES if name in headers), None):
            raise LocalOnlyError(
                f"a proxy passed this on ({passed_on.title()}), perhaps from elsewhere, and "
                f"without keys only programs on this machine are answered; {_REMEDY}"
            )
        return
    kind, _, token = headers.get("authorization", "").partition(" ")
    held = keys.find(token.strip()) if kind.lower() == "bearer" else None
    if held is None:
        found = "that key is not in force" if token else "no key"
        raise KeyRequiredError(f"{found}; send `Authorization: Bearer KEY`, {_REMEDY}")
    if not allows(held, needed):
        raise ScopeError(f"this needs a key of scope {needed}, the key's is {held}")


def check_host(host: str, keys: KeyStore) -> None:
    """Refuse to bind an address that other machines reach while no key is in force.

    Raises:
        SettingsError: If so.
    """
    if not is_loopback(host) and not keys.usable:
        raise SettingsError(
            f"{host} can be reached from other machines and there is no key; "
            f"{_REMEDY}, or serve on 127.0.0.1"
        )


def check_origins(origins: Sequence[str], keys: KeyStore) -> None:
    """Refuse to let pages of other origins ask while no key is in force.

    Any of them could write and delete from the browser of whoever opens it on this machine.

    Raises:
        SettingsError: If so.
    """
    if origins and not keys.usable:
        raise SettingsError(
            f"LAMINA_CORS_ORIGINS lets pages of {', '.join(origins)} ask, and there is no key in "
            f"force, so they could write and delete; {_REMEDY}, or unset LAMINA_CORS_ORIGINS"
        )


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Tell whether a host name or address means this machine alone; a socket's path does."""
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@functools.lru_cache(maxsize=256)
def _host_of(header: str) -> str:
    """Take the host from a Host header: `[::1]:7650` gives `::1`."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
