"""What a look at a site or at an operator's folder has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["good", "warning", "bad"]


@dataclass(frozen=True)
class Finding:
    """What was looked at, whether it is fit (`good`, `warning`, `bad`), and what was seen."""

    what: str
    state: Grade
    about: str
