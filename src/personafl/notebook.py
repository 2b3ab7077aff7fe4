"""HTML by which objects show themselves in a notebook.

Every text is escaped. Colours are those of the page around it, so that light and dark themes can both be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

LINE = "rgba(128,128,128,.35)"
CELL = "text-align:left;vertical-align:top;padding:2px 14px 2px 0;background:transparent;color:inherit"
WIDTH, HEIGHT, MOST, BAR = 420, 46, 140, 16


def card(title: str, facts: Mapping[str, str], *parts: str) -> str:
    """A box with a title, a line for each fact, and parts that are HTML already.

    >>> "&lt;b&gt;" in card("<b>", {"clients": "3"})
    True
    """
    rows = "".join(
        f'<tr style="background:transparent"><td style="{CELL};opacity:.65;white-space:nowrap">{escape(name)}</td>'
        f'<td style="{CELL};overflow-wrap:anywhere">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    body = f'<table style="border-collapse:collapse;border:0;margin:4px 0;font-size:inherit">{rows}</table>'
    return (
        f'<div style="border:1px solid {LINE};border-radius:6px;padding:8px 12px;max-width:62em;overflow-x:auto;'
        f'color:inherit;line-height:1.45"><div style="font-weight:600">{escape(title)}</div>'
        f"{body if rows else ''}{''.join(parts)}</div>"
    )


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header; columns after the first are numbers, at the right."""
    above = "".join(
        f"<th {_style(c, f'border-bottom:1px solid {LINE}')}>{escape(h)}</th>" for c, h in enumerate(header)
    )
    below = "".join(
        '<tr style="background:transparent">'
        + "".join(f"<td {_style(c)}>{escape(text)}</td>" for c, text in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return (
        '<table style="border-collapse:collapse;border:0;margin:6px 0;font-size:inherit">'
        f"<thead><tr>{above}</tr></thead><tbody>{below}</tbody></table>"
    )


def lines(texts: Iterable[str]) -> str:
    """Sentences, a line each."""
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def bars(values: Sequence[float], caption: str) -> str:
    """A bar for each value, the largest first; of very many, some at equal distances."""
    found = sorted(values, reverse=True)
    shown = found if len(found) <= MOST else [found[round(i * (len(found) - 1) / (MOST - 1))] for i in range(MOST)]
    top, step = max(shown[0], 1e-12), min(WIDTH / len(shown), BAR)
    drawn = "".join(
        f'<rect x="{i * step:.2f}" y="{HEIGHT - HEIGHT * v / top:.2f}" width="{max(step * 0.8, 0.6):.2f}" '
        f'height="{HEIGHT * v / top:.2f}"/>'
        for i, v in enumerate(shown)
    )
    return _picture(f'<g fill="currentColor" opacity=".6">{drawn}</g>', caption)


def curve(values: Sequence[float], caption: str) -> str:
    """A line through values at equal distances."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    points = " ".join(
        f"{WIDTH * i / max(len(values) - 1, 1):.1f},{2 + (HEIGHT - 4) * (1 - (v - low) / span):.1f}"
        for i, v in enumerate(values)
    )
    return _picture(
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.6" opacity=".8"/>', caption
    )


def _picture(inside: str, caption: str) -> str:
    """An SVG with its caption below."""
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return (
        f'<svg {size} role="img" aria-label="{escape(caption)}" '
        f'style="display:block;max-width:100%;margin-top:4px">{inside}</svg>'
        f'<div style="opacity:.65;font-size:smaller">{escape(caption)}</div>'
    )


def _style(column: int, more: str = "") -> str:
    side = "left" if column == 0 else "right"
    return f'style="text-align:{side};padding:2px 14px 2px 0;background:transparent;color:inherit;{more}"'
