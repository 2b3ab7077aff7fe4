"""What a fit shows on a terminal: what is tried, what leads, how much time is left."""

import io
import time

import numpy as np
from rich.console import Console

from personafl.fitting.budget import Clock
from personafl.fitting.candidates import Candidate, Outcome
from personafl.fitting.progress import FitProgress
from personafl.fitting.search import Attempt
from personafl.metrics.measures import ACCURACY


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=200)


def test_it_says_what_is_tried_what_leads_and_goes_on_while_nobody_tells_it_anything():
    console = terminal()
    shown = FitProgress(ACCURACY, Clock(9.0), True, console)
    leader = Candidate(0, "ditto", {"local.lr": 0.2}, {4: Outcome(4, 0.875, np.nan, 1.0, "x")})
    shown.tried(Attempt(Candidate(1, "apfl", {}), 12), leader)
    time.sleep(1.0)  # a candidate in another process tells nothing
    shown.close()
    said = console.file.getvalue()
    assert "trying apfl, 12 rounds" in said and "leading: ditto lr=0.2, 87.50% on validation data" in said
    seconds = {float(word.removesuffix("s")) for word in said.split() if word.endswith("s") and word[0].isdigit()}
    assert len(seconds) > 3 and max(seconds) > min(seconds) + 0.5


def test_it_is_silent_where_the_output_is_piped():
    console = Console(file=io.StringIO(), force_terminal=False)
    shown = FitProgress(ACCURACY, Clock(9.0), True, console)
    shown.say("choosing")
    shown.close()
    assert not console.file.getvalue().strip()
