"""`personafl site`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from personafl.cli.console import Json
from personafl.cli.membership import need_flower, request, show_findings, site_log, verify

site = typer.Typer(
    help="For a site: join a federation, see whether all is ready, and what is on record.", rich_markup_mode="rich"
)


@site.callback()
def _group() -> None:
    """For a site: join a federation, see whether all is ready, and what is on record."""


@site.command()
def check(
    config: Annotated[
        Path, typer.Argument(help="The site's site.toml, or its folder.", metavar="[SITE.toml]", readable=False)
    ] = Path("site.toml"),
    connect: Annotated[
        bool, typer.Option("--connect", help="Also make a TLS connection to the federation, and close it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Look at policy, data, keys, certificates, programs, disk and clock, without sending anything.

    Exit code 0 when the site can join, 1 when something keeps it from joining.

    Examples:

      personafl site check

      personafl site check sites/north/site.toml --connect --json
    """
    need_flower()
    from personafl.backends.deploy import check_site

    show_findings(check_site(config, connect), as_json)


for command in (request, site_log, verify):
    site.command(command.__name__.removeprefix("site_"))(command)
