"""`lamina keys`: make, list and revoke the service's API keys."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lamina_service.commands.service_extra import check_service_extra

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, list and revoke the service's API keys.",
)

Data = Annotated[
    Path, typer.Option(envvar="LAMINA_DATA", help="Folder of the collections and service.sqlite.")
]


class KeyScope(StrEnum):
    """What a key allows; each includes those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@app.command()
def create(
    data: Data = Path("data"),
    scope: Annotated[KeyScope, typer.Option(help="What the key allows.")] = KeyScope.READ,
    name: Annotated[str, typer.Option(help="A note on who has it.")] = "",
) -> None:
    """Make a key and print it: on stdout, this once. From then on the service demands one."""
    check_service_extra()
    from lamina_service.database import make_data_folder
    from lamina_service.keys import opened

    make_data_folder(data)
    with opened(data) as keys:
        key_id, token = keys.create(scope.value, name)
    typer.echo(token)
    typer.echo(f"Key {key_id} ({scope.value}); only its hash is kept. Send it as", err=True)
    typer.echo("  Authorization: Bearer KEY", err=True)


@app.command("list")
def list_keys(data: Data = Path("data")) -> None:
    """List all keys ever made, without the keys themselves."""
    check_service_extra()
    from lamina_service.keys import opened

    with opened(data, make=False) as keys:
        for key in keys.list():
            state = f"revoked {key.revoked}" if key.revoked else "in force"
            typer.echo(f"{key.id}\t{key.scope}\t{key.created}\t{state}\t{key.name}")


@app.command()
def revoke(
    key_id: Annotated[int, typer.Argument(help="Its number in `lamina keys list`.")],
    data: Data = Path("data"),
) -> None:
    """End a key; running services refuse it from their next request on."""
    check_service_extra()
    from lamina_service.errors import SettingsError
    from lamina_service.keys import opened

    with opened(data, make=False) as keys:
        if not keys.revoke(key_id):
            raise SettingsError(f"{data}: no key {key_id} in force; see `lamina keys list`")
    typer.echo(f"Key {key_id} is revoked.", err=True)
