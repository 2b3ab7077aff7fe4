"""Where a report goes, and what it may replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from personafl.errors import RunError
from personafl.files import write_text
from personafl.report.page import MARK, page


def default_page(runs: Sequence[Path]) -> Path:
    """report.html in the folder that is named; for several folders, in the one where the command is given."""
    return runs[0] / "report.html" if len(runs) == 1 else Path("report.html")


def check_page(path: Path) -> None:
    """The folder exists, and the file, if it does, is an older report."""
    if not path.parent.is_dir():
        raise RunError(f"there is no folder {path.parent} for the report: name a run folder, or a file with --out")
    if not path.exists():
        return
    try:
        ours = path.is_file() and MARK.encode() in path.read_bytes()[:4096]
    except OSError:
        ours = False
    if not ours:
        raise RunError(f"{path} exists and is not a report of personafl: name another file with --out")


def write_page(path: Path, data: Mapping[str, Any]) -> None:
    """Write the page, whole or not at all."""
    check_page(path)
    write_text(path, page(data))
