"""A run folder as commands open it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from personafl.runs.run import Run


def open_run(folder: Path, module: str | None, backbone: Path | None = None) -> Run:
    """The run, with the module and the backbone that the user names; nothing that the folder names is imported."""
    from personafl.fitting.result import is_fit, load_fit
    from personafl.runs.modules import named_module
    from personafl.runs.run import load_run

    if is_fit(folder):
        fit = load_fit(folder, backbone=backbone)
        return fit if module is None else load_fit(folder, named_module(module, fit.manifest, fit.constants), backbone)
    run = load_run(folder, backbone=backbone)
    if module is None:
        return run
    return load_run(folder, module=named_module(module, run.manifest, run.constants), backbone=backbone)
