"""`personafl export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from personafl.cli.console import Backbone, Json, Module, print_json, say


def export(
    run_folder: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN", readable=False)],
    client: Annotated[list[str] | None, typer.Option(metavar="ID", help="Whose model; may be repeated.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Everybody's models.")] = False,
    formats: Annotated[
        str, typer.Option("--format", metavar="F,…", help="safetensors, torch and onnx, separated by commas.")
    ] = "safetensors",
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where the files go. Default: export/ in the run folder.", readable=False),
    ] = None,
    module: Module = None,
    backbone: Backbone = None,
    as_json: Json = False,
) -> None:
    r"""Write personal models for use elsewhere, each with a card (JSON) that says what it is.

    safetensors holds the weights; torch is a program that torch.export.load
    runs without the model's code; onnx needs the extra packages of
    personafl\[onnx].

    Examples:

      personafl export runs/mnist-selffl-0 --client client-7

      personafl export runs/mnist-selffl-0 --all --format torch --out models

      personafl export runs/texts --client ann --module mymodels.text:Net
    """
    from personafl.cli.console import out
    from personafl.cli.opened import open_run
    from personafl.errors import ConfigError
    from personafl.runs.export import export as write

    found = open_run(run_folder, module, backbone)
    if bool(client) == everybody:
        raise ConfigError("name clients with --client ID, or take everybody with --all")
    ids = found.clients().column("client").to_pylist() if everybody else list(client or [])
    wanted = [name.strip() for name in formats.split(",") if name.strip()]
    files = write(found, ids, out_folder or run_folder / "export", wanted)  # type: ignore[arg-type]
    if as_json:
        print_json({"files": [str(file) for file in files]})
        return
    for file in files[:5]:
        say(out, str(file))
    if len(files) > 5:
        say(out, f"… and {len(files) - 5} more in {files[0].parent}")
