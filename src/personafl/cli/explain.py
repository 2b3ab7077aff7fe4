"""`personafl explain`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from personafl.cli.console import DataDir, Json, Overrides, print_json, say


def explain(
    config: Annotated[Path, typer.Argument(help="The config, a TOML file.", metavar="CONFIG.toml", readable=False)],
    set_: Overrides = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Say how a config's model is computed for many clients, and what a round costs, without training.

    Of each layer whether it is frozen, stacked, mapped or looped, and why;
    memory and traffic of a round.

    Examples:

      personafl explain mnist.toml

      personafl explain mnist.toml -s algorithm.name=ditto --json
    """
    from personafl.cli.console import out
    from personafl.config import read_config
    from personafl.jobs import config_job
    from personafl.training.explain import explain_task

    settings = read_config(config, set_ or [])
    job = config_job(settings, settings.federation())
    found = explain_task(job.task, job.federation, job.algorithm, job.local, job.schedule, job.engine)
    if as_json:
        print_json(asdict(found))
    else:
        say(out, repr(found))
