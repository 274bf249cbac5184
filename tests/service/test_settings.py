import os
from pathlib import Path

import pytest

from lamina_service.errors import SettingsError
from lamina_service.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of whoever runs the suite stay outside."""
    for name in [name for name in os.environ if name.startswith("LAMINA_")]:
        monkeypatch.delenv(name)


def test_a_flag_overrides_the_environment_and_the_environment_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAMINA_PORT", "7000")
    monkeypatch.setenv("LAMINA_WORKERS", "3")
    settings = Settings.load(port=8000, workers=None)
    assert (settings.port, settings.workers, settings.host) == (8000, 3, "127.0.0.1")


def test_an_unknown_variable_is_an_error_that_names_the_near_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAMINA_WORKER", "3")
    with pytest.raises(SettingsError, match=r"LAMINA_WORKER: .* did you mean LAMINA_WORKERS"):
        Settings.load()


def test_variables_of_other_commands_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_KEY", "lamina_x")
    monkeypatch.setenv("LAMINA_WEIGHTS", "weights")
    assert Settings.load().port == 7650


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", 70_000), ("workers", 0), ("device", "tpu"), ("precision", "int4"), ("threads", -1)],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_it(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=rf"LAMINA_{name.upper()} \(--{name}\)"):
        Settings.load(**{name: value})


def test_an_error_names_a_flag_only_where_the_command_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAMINA_MAX_BATCH", "0")
    with pytest.raises(SettingsError, match=r"^LAMINA_MAX_BATCH: expected at least 1, found"):
        Settings.load(port=None)
    monkeypatch.setenv("LAMINA_MAX_BATCH", "1")
    monkeypatch.setenv("LAMINA_PORT", "-1")
    with pytest.raises(SettingsError, match=r"^LAMINA_PORT \(--port\): expected at least 0, found"):
        Settings.load(port=None)


def test_the_error_tells_what_was_expected_and_found() -> None:
    with pytest.raises(SettingsError, match="expected at most 65535, found the number 70000"):
        Settings.load(port=70_000)


def test_settings_written_as_environment_read_back_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings.load(
        data=Path("some where"), precision="fp32", threads=2, docs=False, metrics="off"
    )
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == settings


def test_the_key_that_a_client_sends_may_stand_in_the_same_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAMINA_KEY", "secret")
    assert Settings.load().port == 7650


@pytest.mark.parametrize(
    "origins", ["search.example.org", "https://a.example/x", "https://a,http://b"]
)
def test_what_is_no_origin_is_told(origins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CORS_ORIGINS", origins)
    with pytest.raises(SettingsError, match=r"LAMINA_CORS_ORIGINS: .*found .*, expected origins"):
        Settings.load()
    assert Settings.load(cors_origins="* http://[::1]:3000").allowed_origins == [
        "*",
        "http://[::1]:3000",
    ]
