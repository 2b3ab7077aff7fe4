"""`personafl audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from personafl.cli.console import Json, Module, print_json, say

if TYPE_CHECKING:
    from personafl.metrics.membership import Estimate


def audit(
    run_folder: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN", readable=False)],
    shadows: Annotated[int, typer.Option(help="Trainings with other samples in and out; 0 for none.")] = 16,
    seed: Annotated[int, typer.Option(help="What the samples of these trainings follow from.")] = 0,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Try to tell who was in the training data, as an attacker would, and say how well that works.

    The run is trained again, as it was and with other samples of its clients
    in and out. The result is written to audit.json in the run folder, and the
    report shows it. Nothing else in the folder changes.

    Examples:

      personafl audit runs/mnist-ditto-0

      personafl audit runs/mnist-ditto-0 --shadows 64
    """
    from rich.table import Table

    from personafl.cli.console import err, out
    from personafl.cli.opened import open_run
    from personafl.errors import RunError
    from personafl.fitting.result import is_fit
    from personafl.study.audit import FILE, words
    from personafl.study.audit import audit as make

    if is_fit(run_folder):
        raise RunError(f"{run_folder} is a fit, which is made of several runs: audit one in {run_folder}/candidates")
    run = open_run(run_folder, module)
    with err.status("training the run again") as status:
        done = f"of {shadows + 1} trained"
        found = make(run, shadows=shadows, seed=seed, tell=lambda many: status.update(f"{many} {done}"))
    if as_json:
        print_json(found.table() | {"words": words(found)})
        return
    table = Table("model", "attack", "AUC", "found at 1 % false alarms", "proven ε", "promised ε")
    for attack in found.attacks:
        rate = attack.rates.get("0.01")
        found_at = "too few samples" if rate is None else _percent(rate)
        promised = "none" if attack.epsilon is None else f"{attack.epsilon:.3g}"
        shown = _with_interval(attack.auc), found_at, f"{attack.proven:.2g}", promised
        table.add_row(attack.target, attack.attack, *shown)
    out.print(table)
    for line in words(found):
        say(out, line)
    say(out, f"Written: {run_folder / FILE}")


def _with_interval(found: Estimate) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _percent(found: Estimate) -> str:
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"
