"""`personafl site`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from personafl.cli.console import Json, print_json
from personafl.cli.deploy import need_flower

site = typer.Typer(help="For a site: is everything ready to join a federation?", rich_markup_mode="rich")

STYLES = {"good": "green", "warning": "yellow", "bad": "red"}


@site.callback()
def _group() -> None:
    """For a site: is everything ready to join a federation?"""


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
    """Look at data, keys, certificate, programs, disk and clock, without sending anything.

    Exit code 0 when the site can join, 1 when something keeps it from joining.

    Examples:

      personafl site check

      personafl site check sites/north/site.toml --connect --json
    """
    from rich.table import Table

    from personafl.cli.console import out

    need_flower()
    from personafl.backends.deploy import check_site

    findings = check_site(config, connect)
    fit = all(finding.state != "bad" for finding in findings)
    if as_json:
        shown = [{"what": f.what, "state": f.state, "about": f.about} for f in findings]
        print_json({"fit": fit, "findings": shown})
    else:
        table = Table("what", "state", "seen")
        for finding in findings:
            table.add_row(finding.what, f"[{STYLES[finding.state]}]{finding.state}[/]", _plain(finding.about))
        out.print(table)
    if not fit:
        raise typer.Exit(1)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
