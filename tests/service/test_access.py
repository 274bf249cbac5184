import re
from pathlib import Path
from typing import Any

import pytest

from lamina_service.access import check_access, check_host, check_origins, is_loopback
from lamina_service.errors import KeyRequiredError, LocalOnlyError, ScopeError, SettingsError
from lamina_service.keys import KeyStore


def _request(address: str = "127.0.0.1", host: str = "127.0.0.1:7650", **headers: str) -> Any:
    named = {"host": host, **headers}
    return {
        "type": "http",
        "server": (address, 7650),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore.open(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1:7650", "localhost", "LOCALHOST:1", "[::1]:7650"])
def test_without_keys_a_local_request_is_answered(keys: KeyStore, host: str) -> None:
    check_access(_request(host=host), keys, "read")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.168.1.5", "127.0.0.1:7650"),
        ("127.0.0.1", "evil.example:7650"),  # a page elsewhere whose name was pointed here
        ("127.0.0.1", "127.0.0.1.evil.example"),
        ("127.0.0.1", ""),
    ],
)
def test_without_keys_anything_else_is_refused(keys: KeyStore, address: str, host: str) -> None:
    with pytest.raises(LocalOnlyError, match="lamina keys create"):
        check_access(_request(address, host), keys, "read")


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip"])
def test_without_keys_what_a_proxy_passes_on_is_refused(keys: KeyStore, name: str) -> None:
    passed_on = _request(**{name.lower(): "203.0.113.9"})
    with pytest.raises(LocalOnlyError, match=rf"\({name}\).*lamina keys create"):
        check_access(passed_on, keys, "read")
    _, token = keys.create("read")
    passed_on["headers"].append((b"authorization", f"Bearer {token}".encode()))
    check_access(passed_on, keys, "read")


def test_other_origins_may_ask_only_while_a_key_is_in_force(keys: KeyStore) -> None:
    check_origins([], keys)
    with pytest.raises(SettingsError, match=r"https://a\.example, \* ask.*lamina keys create"):
        check_origins(["https://a.example", "*"], keys)
    key_id, _ = keys.create("read")
    check_origins(["*"], keys)
    keys.revoke(key_id)
    with pytest.raises(SettingsError):
        check_origins(["*"], keys)


def test_with_a_key_every_request_needs_it_and_any_address_is_fine(keys: KeyStore) -> None:
    _, token = keys.create("read")
    check_access(_request("10.0.0.1", "any", authorization=f"Bearer {token}"), keys, "read")
    check_access(_request(authorization=f"bearer  {token}"), keys, "read")
    for authorization in ["", "Bearer", f"Basic {token}", f"Bearer {token}x"]:
        with pytest.raises(KeyRequiredError):
            check_access(_request(authorization=authorization), keys, "read")


def test_a_key_of_a_lower_scope_is_refused_by_name(keys: KeyStore) -> None:
    _, token = keys.create("read")
    with pytest.raises(ScopeError, match=re.escape("scope write, the key's is read")):
        check_access(_request(authorization=f"Bearer {token}"), keys, "write")


def test_an_open_address_is_bound_only_while_a_key_is_in_force(keys: KeyStore) -> None:
    check_host("127.0.0.1", keys)
    with pytest.raises(SettingsError, match="lamina keys create"):
        check_host("0.0.0.0", keys)
    key_id, _ = keys.create("read")
    check_host("0.0.0.0", keys)
    keys.revoke(key_id)
    with pytest.raises(SettingsError):
        check_host("0.0.0.0", keys)


def test_loopback_addresses_are_told_from_others() -> None:
    for name in ["localhost", "127.0.0.1", "127.8.8.8", "::1", "/run/lamina.sock"]:
        assert is_loopback(name)
    for name in ["0.0.0.0", "::", "10.0.0.1", "example.org", ""]:
        assert not is_loopback(name)
