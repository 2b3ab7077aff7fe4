"""`personafl deploy`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from personafl.cli.console import Json, print_json, say
from personafl.cli.membership import Folder, accept, deploy_check, deploy_log, need_flower, revoke, rotate

if TYPE_CHECKING:
    from personafl.backends.deploy import Deployment

deploy = typer.Typer(help="Set up a real federation, and rehearse it on this machine.", rich_markup_mode="rich")


@deploy.command()
def init(
    folder: Folder,
    sites: Annotated[str, typer.Option(metavar="A,B,…", help="The sites' names.")] = "site-1,site-2,site-3",
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the sites will reach the operator's machine.")
    ] = "127.0.0.1:9092",
    by_request: Annotated[
        bool, typer.Option("--by-request", help="Sites make their own keys: site request, then deploy accept.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What is trained, such as chosen.toml of a fit. Default: an example.", readable=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a federation that is ready to start: app, config, scripts, certificates, keys.

    operator/ stays here. For a rehearsal the sites' keys are made here too,
    in sites/. In a real federation sites make their own (--by-request), and
    no private key travels.

    Examples:

      personafl deploy init federation

      personafl deploy init clinics --address fl.example.org:9092 --by-request

      personafl deploy init clinics --config runs/best/chosen.toml
    """
    from personafl.cli.console import out

    need_flower()
    from personafl.backends.deploy import init_federation

    names = [name.strip() for name in sites.split(",") if name.strip()]
    layout = init_federation(folder, names, address, by_request, config)
    if as_json:
        print_json({"folder": str(folder), "sites": list(layout.sites), "address": address})
        return
    say(out, f"Federation: {folder} ({len(layout.sites)} sites: {', '.join(layout.sites)})")
    if by_request:
        say(
            out,
            f"Each site: personafl site request FOLDER NAME; then here: personafl deploy accept {folder} NAME.request",
        )
    else:
        say(out, f"Rehearse it on this machine: personafl deploy up {folder}")
    say(out, f"Then read {layout.operator / 'OPERATOR.md'}")


@deploy.command()
def up(
    folder: Folder,
    sites: Annotated[int | None, typer.Option(help="How many of its sites take part. Default: all.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder of .npz files, a site each. Default: digits.", readable=False),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of those in federation.toml.")] = None,
    no_proxy: Annotated[bool, typer.Option("--no-proxy", help="Leave out nginx.")] = False,
    as_json: Json = False,
) -> None:
    """Rehearse a federation on this machine: real servers, sites, keys and TLS, on loopback.

    Runs in DIR/rehearsal-N with the files of DIR, shows the rounds, and ends
    with each site's own model in its folder and a report. Ctrl-C stops all.

    Examples:

      personafl deploy up federation --sites 3

      personafl deploy up federation --data hospitals --rounds 2
    """
    from rich.table import Table

    from personafl.cli.console import err, out

    need_flower()
    from personafl.backends.deploy import Deployment
    from personafl.backends.deploy.rehearsal import stopping_signals
    from personafl.backends.deploy.rehearsal_policy import protection, write_policies
    from personafl.report.data import report_data
    from personafl.report.output import write_page
    from personafl.storage.folder import RunFolder

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in stopping_signals()[1:]:
        signal.signal(number, stop)
    settings = {} if rounds is None else {"rounds": rounds}
    deployment = Deployment(folder, sites, data=data, proxy=not no_proxy, settings=settings)
    write_policies(deployment.layout)

    def tell(text: str) -> None:
        if not as_json:
            say(err, text)

    try:
        with deployment:
            tell(f"Starting {len(deployment.sites)} sites in {deployment.layout.folder}; logs are in logs/")
            deployment.start()
            tell(f"All sites have joined at {deployment.layout.address}")
            tell(f"Protected by {protection(deployment.layout.folder / 'federation.toml')}")
            deployment.start_run()
            deployment.wait(lambda record: tell(_line(record, RunFolder(deployment.run_folder).manifest())))
    except KeyboardInterrupt:
        say(err, f"Stopped; every process has ended. What was made is in {deployment.layout.folder}")
        raise typer.Exit(130) from None
    page = deployment.run_folder / "report.html"
    write_page(page, report_data([deployment.run_folder]))
    rows = _rows(deployment)
    if as_json:
        print_json({"run": str(deployment.run_folder), "report": str(page), "sites": rows})
        return
    table = Table(*rows[0], caption="each model is on its site's disk and nowhere else", caption_justify="left")
    for row in rows:
        table.add_row(*("–" if v is None else f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()))
    out.print(table)
    say(out, f"Report: {page}")


for command in (accept, revoke, rotate, deploy_check, deploy_log):
    deploy.command(command.__name__.removeprefix("deploy_"))(command)


def _rows(deployment: Deployment) -> list[dict[str, Any]]:
    """What each site has in the end."""
    from personafl.runs.run import load

    run = load(deployment.run_folder)
    measured = {row["client"]: row for row in run.clients().to_pylist()}
    rows = []
    for name in deployment.sites:
        row, model = measured.get(name, {}), deployment.model(name)
        metric = f"personal_{run.primary.name}" if f"personal_{run.primary.name}" in row else "personal_loss"
        row = {key: row.get(key) for key in ("n_train", "n_test", metric)}
        where = model.relative_to(deployment.layout.folder)
        rows.append({"site": name, **row, "model": str(where) if model.is_file() else None})
    return rows


def _line(record: dict[str, Any], manifest: dict[str, Any]) -> str:
    """A round in plain text.

    >>> _line({"round": 2, "active": 3, "failed": [], "dropped": {"north": "no answer"}, "round_seconds": 8.51}, {})
    'round 2, 8.5 s, 3 sites asked, without north (no answer)'
    """
    from personafl.metrics.measures import score_in

    parts = [f"round {record['round']}"]
    if "round_seconds" in record:
        parts.append(f"{record['round_seconds']:.1f} s")
    parts.append(f"{record['active']} sites asked")
    if (found := score_in(manifest, record)) is not None:
        parts.append(f"personalized {found[0].label} {found[1]:.4f}")
    parts += [f"without {site} ({why})" for site, why in (record.get("dropped") or {}).items()]
    parts += [f"{site} diverged" for site in record["failed"]]
    return ", ".join(parts)
