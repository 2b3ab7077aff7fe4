"""What MkDocs does besides: a docstring that names docs/tasks.md is, on its page, a link to that page."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, page: Any, files: Any, **_: Any) -> str:
    """MkDocs calls this for each page, after Markdown."""
    if not page.url.startswith(("api/", "algorithms/")):
        return html

    def linked(found: re.Match[str]) -> str:
        target = files.get_file_from_path(f"{found[1]}.md")
        return f'<a href="{target.url_relative_to(page.file)}">{found[1]}</a>' if target else found[0]

    return re.sub(r"\bdocs/([\w-]+)\.md\b", linked, html)
