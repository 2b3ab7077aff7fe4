"""`personafl demo`."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from personafl.cli.console import Json, say

if TYPE_CHECKING:
    from personafl.study.plan import Plan

Which = Literal["digits", "fit", "pretrained"]


def demo(
    which: Annotated[
        Which, typer.Argument(help="Digits, the same by fit, or sentences read by a pretrained model.")
    ] = "digits",
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 60,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds: federations and trainings.")] = 2,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Of pretrained: a folder with config.json, model.safetensors and tokenizer.json.", readable=False
        ),
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where the runs go. Default: the next free runs/demo-N.", readable=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Forty unlike clients, real handwritten digits: does the federation help them?

    Compares six methods and writes a report, in under a minute.

    With fit: two minutes are spent on finding the best model for each of them.

    With pretrained: forty people who answer differently to the same sentences,
    so that no single model can be right.

    Examples:

      personafl demo

      personafl demo fit

      personafl demo --rounds 20 --seeds 1 --out runs/first-look

      personafl demo pretrained --weights all-MiniLM-L6-v2
    """
    from personafl.cli.console import err, out
    from personafl.comparison import run_comparison
    from personafl.signals import exit_code, on_stop
    from personafl.study import demo as digits
    from personafl.study import demo_pretrained as pretrained

    if which == "fit":
        return _fit(rounds, seed, out_folder or _next_free(Path("runs")), as_json)
    planned = _plan(which, weights, rounds, seed, seeds)
    folder = out_folder or _next_free(Path("runs"))
    try:
        with on_stop():
            found = run_comparison(planned, folder, err)
    except KeyboardInterrupt as stop:
        words = ["--rounds", str(rounds), "--seed", str(seed), "--seeds", str(seeds), "--out", str(folder)]
        words = ["personafl", "demo", *([] if weights is None else [which, "--weights", str(weights)]), *words]
        say(err, f"Stopped; what is done is kept. Continue with: {shlex.join(words)}")
        raise typer.Exit(exit_code(stop)) from None
    page = found.report()
    if as_json:
        print((folder / "comparison.json").read_text(encoding="utf-8"), end="")
        return
    found.show(out)
    say(out, digits.sentence(found) if which == "digits" else pretrained.sentence(found))
    say(out, f"Report: {page}")


def _fit(rounds: int, seed: int, folder: Path, as_json: bool) -> None:
    """`fit` on the demo's federation, in two minutes."""
    begun = time.monotonic()
    from personafl.cli.console import err
    from personafl.cli.fit import tell
    from personafl.config import parse
    from personafl.fitting.config import config_job_to_fit
    from personafl.fitting.fit import fit_job
    from personafl.signals import exit_code, on_stop
    from personafl.study.demo import fit_tables

    try:
        with on_stop():
            job = config_job_to_fit(parse({**fit_tables(), "rounds": rounds, "seed": seed}))
            found = fit_job(job, folder, "2m", begun=begun)
    except KeyboardInterrupt as stop:
        say(err, f"Stopped; what was trained is in {folder}.")
        raise typer.Exit(exit_code(stop)) from None
    tell(found, as_json)
    if found.summary["stopped"]:
        raise typer.Exit(130)


def _plan(which: Which, weights: Path | None, rounds: int, seed: int, seeds: int) -> Plan:
    """What is compared, or what is wrong with the options."""
    from personafl.errors import ConfigError
    from personafl.pretrained import BackboneSettings
    from personafl.study import demo as digits
    from personafl.study import demo_pretrained as pretrained

    if which == "digits":
        if weights is not None:
            raise ConfigError("--weights is for the demo with a pretrained model: personafl demo pretrained")
        return digits.demo_plan(rounds, seed, seeds)
    if weights is None:
        raise ConfigError(f"demo pretrained needs --weights FOLDER: {pretrained.WEIGHTS}")
    return pretrained.demo_plan(BackboneSettings(path=str(weights)).load(), rounds, seed, seeds)


def _next_free(parent: Path) -> Path:
    number = 1
    while (parent / f"demo-{number}").exists():
        number += 1
    return parent / f"demo-{number}"
