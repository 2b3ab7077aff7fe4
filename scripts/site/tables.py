"""Tables of Markdown pages, read: what docs/ says about an algorithm is said once, and shown on its page."""

from __future__ import annotations

import re


def table(text: str, *headings: str) -> list[dict[str, str]]:
    """The rows of the first table whose header begins with `headings`.

    >>> table("| a | b |\\n|---|---|\\n| 1 | 2 |\\n", "a", "b")
    [{'a': '1', 'b': '2'}]
    """
    lines = iter(text.splitlines())
    for line in lines:
        header = _cells(line)
        if tuple(header[: len(headings)]) == headings:
            next(lines)  # |---|---|
            rows = []
            for row in lines:
                if not row.startswith("|"):
                    break
                rows.append(dict(zip(header, _cells(row), strict=True)))
            return rows
    raise LookupError(f"no table begins with {headings}")


def rows_of(rows: list[dict[str, str]], name: str) -> list[dict[str, str]]:
    """The rows whose first column names an algorithm, alone or among others; `both -ft` are fedavg-ft and fedprox-ft.

    >>> rows_of([{"algorithm": "`fedavg`, `fedprox`", "up": "1"}], "fedprox")
    [{'algorithm': '`fedavg`, `fedprox`', 'up': '1'}]
    """
    return [row for row in rows if name in names_in(next(iter(row.values())))]


def names_in(cell: str) -> list[str]:
    """The names in backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell.replace("both `-ft`", "`fedavg-ft`, `fedprox-ft`"))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
