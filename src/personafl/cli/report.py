"""`personafl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from personafl.cli.console import Json, print_json, say


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or the folder of a comparison.", metavar="RUN…", readable=False)
    ],
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="The page. Default: report.html in the folder that is named.", readable=False),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page; it follows runs that go on.")] = False,
    port: Annotated[int, typer.Option(help="Where to serve; 0 takes a free port.", min=0, max=65535)] = 0,
    host: Annotated[str, typer.Option(help="At which address; the default is this machine only.")] = "127.0.0.1",
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also draw the figures there, as PNG and PDF.", readable=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show runs on one page: a file that any browser opens, without a network.

    Examples:

      personafl report runs/mnist-compare

      personafl report runs/a runs/b --out both.html --figures paper

      personafl report runs/mnist-selffl-0 --serve
    """
    from personafl.cli.console import out
    from personafl.report.data import report_data
    from personafl.report.output import check_page, default_page, write_page

    target = out_file or (None if serve else default_page(runs))
    if target is not None:
        check_page(target)
    data = report_data(runs)
    made = []
    if figures is not None:
        from personafl.report.figures import write_figures

        made = write_figures(data, figures)
    if target is not None:
        write_page(target, data)
    if as_json:
        summary: dict[str, Any] = {
            "report": str(target) if target else None,
            "bytes": target.stat().st_size if target else None,
        }
        summary |= {"runs": len(data["runs"]), "methods": [m["name"] for m in data["methods"]], "notes": data["notes"]}
        print_json({**summary, "figures": [str(file) for file in made]})
    else:
        for note in data["notes"]:
            say(out, note)
        if made:
            say(
                out,
                f"Figures: {', '.join(file.name for file in made if file.suffix == '.pdf')} in {figures}, and as PNG",
            )
        if target is not None:
            say(out, f"Report: {target} ({target.stat().st_size / 1e6:.1f} MB)")
    if serve:
        _serve(runs, host, port)


def _serve(runs: list[Path], host: str, port: int) -> None:
    from personafl.cli.console import err
    from personafl.report.serve import make_server

    with make_server(runs, host, port) as server:
        shown = f"[{host}]" if ":" in host else host
        try:
            say(err, f"Serving at http://{shown}:{server.server_port}/ until Ctrl-C.")
            server.serve_forever()
        except KeyboardInterrupt:
            say(err, "Stopped.")
