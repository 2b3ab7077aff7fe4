"""A report as one HTML file that needs nothing else: no network, no other file.

The data is one block of JSON, and the scripts insert it as text only. A content security policy allows exactly the
style and the script of this page, by their hashes, so that nothing in the data can be run or loaded.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any

from personafl.palette import DARK, LIGHT

MARK = '<meta name="generator" content="personafl report">'
SCRIPTS = ("elements", "draw", "readout", "figures", "spread", "special", "tables", "sections", "fit", "audit", "page")
_DARK = """--paper: #14171c; --ink: #e9ebee; --soft: #a1abb7; --rule: #2e343d; --tint: #1c2128; --accent: #85b8f7;
 --good: #7db4f5; --bad: #f0925f; --warn: #33290f; --warn-ink: #f1dca6;
 --ramp0: #1b2028; --ramp1: #214a78; --ramp2: #4f93d8; --ramp3: #d3e8ff; color-scheme: dark;"""


def page(data: Mapping[str, Any], live: bool = False) -> str:
    """The page of what `report_data` made.

    Parameters
    ----------
    data
        What the page shows.
    live
        The page asks the server it came from for newer data, every two seconds.
    """
    style, script = style_sheet(), "\n".join(_resource(f"{name}.js") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; style-src '{policy_hash(style)}'; script-src '{policy_hash(script)}'; img-src data:; "
        f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}; base-uri 'none'; form-action 'none'"
    )
    values = {
        "live": " data-live" if live else "",
        "policy": policy,
        "title": html.escape(f"{data['title']} – personafl report").encode("utf-8", "replace").decode(),
        "style": style,
        "data": json_block(data),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], _resource("page.html"))


def json_block(data: Any) -> str:
    r"""JSON that cannot end the element it stands in.

    >>> json_block("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def style_sheet() -> str:
    """The style of the page, both themes; tables' pages use it, too."""
    colours = {
        "light": " ".join(f"--m{i}: {c};" for i, c in enumerate(LIGHT)),
        "dark": f"{_DARK} {' '.join(f'--m{i}: {c};' for i, c in enumerate(DARK))}",
    }
    themes = (
        f":root {{ {colours['light']} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {colours['dark']} }} }}\n"
        f":root[data-theme=dark] {{ {colours['dark']} }}\n"
        f"@media print {{ :root, :root[data-theme] {{ {_light_only()} {colours['light']} }} }}"
    )
    return _resource("page.css").replace("/*dark*/", themes)


def _light_only() -> str:
    """Paper is white: the light theme's own values once more."""
    return re.search(r":root \{(.*?)\}", _resource("page.css"), re.S)[1].strip()  # type: ignore[index]


def policy_hash(text: str) -> str:
    """How a Content-Security-Policy names a style or script that is in the page."""
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def _resource(name: str) -> str:
    return (files("personafl.report") / name).read_text(encoding="utf-8")
