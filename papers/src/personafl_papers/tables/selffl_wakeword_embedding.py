"""The wake-word study of Self-FL with a pretrained model: heads on Google's speech embedding, which is frozen.

People, device types, states and splits of `selffl_wakeword.py` with the same seeds; in place of a CNN that begins with
nothing, a linear head on what the embedding says of the first and the last 76 frames of a clip (2 × 96 features). The
embedding was trained on millions of recordings of keywords that are not public; the clips are resampled from 8 kHz to
the 16 kHz that it expects, see `data/speech_windows.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from personafl_papers.tables import selffl_wakeword
from personafl_papers.tables.availability import EMBEDDING, weights_or_names
from personafl_papers.tables.claims import Claim, below
from personafl_papers.tables.selffl_wakeword import GN, PN
from personafl_papers.tables.table import Note, Part, Table
from personafl_papers.tables.wakeword_study import BEGINNING, MEAN, POOLED, ROUNDS, ROWS, Study

SEEDS, SAMPLED_SEEDS = 10, 10
RATE = 0.001
"""The embedding's features are about 16 in size, so that rates are a hundredth of those from scratch."""


def config(quick: bool, clients: int, rounds: int) -> dict[str, Any]:
    """The tables of a config, without method, seed and first weights: those from scratch, with a backbone."""
    tables = selffl_wakeword.config(quick, clients, rounds)
    embedding, front = weights_or_names(*EMBEDDING)
    del tables["data"]["mels"]
    tables["data"] |= {"melspectrogram": front}
    tables["local"] |= {"lr": RATE}
    return {**tables, "model": {"name": "mclr"}, "backbone": {"path": embedding, "pooling": "none"}}


STUDY = Study(config, SEEDS, SAMPLED_SEEDS, RATE)
OTHER = "Speech Commands heard by simulated devices, features of Google's speech embedding"

TABLE = Table(
    about="Wake-word detection by five device types with a pretrained model: heads on a frozen speech embedding",
    paper="Ours, beside selffl-wakeword (Self-FL, NeurIPS 2022, Table 2)",
    cost="not timed",
    data=("wakeword", "speech-embedding"),
    parts={name: Part(part.title, "ours", {}, OTHER) for name, part in selffl_wakeword.TABLE.parts.items()},
    stages=STUDY.stages,
    measure=STUDY.measure,
    claims=(
        *(
            replace(claim, text=f"On the speech embedding: {claim.text}", should_hold=False)
            for claim in selffl_wakeword.TABLE.claims
        ),
        *(
            Claim(
                f"{row}'s {kind} {have} fewer false alarms than the pooled model it began with, normal state", "ours",
                (part,), below(part, MEAN, row, [BEGINNING]), False,
            )
            for part, kind, have in ((GN, "global model", "has"), (PN, "personalized models", "have"))
            for row in ROWS.values()
            if (part, row) != (GN, "Self-FL")
        ),
    ),
    notes=(
        Note(
            "protocol difference",
            "Clips of 8 kHz are resampled to 16 kHz, so that there is nothing above 4 kHz, where the embedding's "
            "training data had sound. Its melspectrogram.onnx is given each clip alone, from −1 to 1: it cuts off what "
            "is 80 dB below the loudest place of all that it is given.",
            "`data/speech_windows.py`.",
        ),
        Note(
            "unstated choice",
            "Two windows, the first and the last of a clip, and not the one in the middle: so nothing of a clip is "
            "left out. Before the runs a linear probe on clean clips of a quarter of all people, test people of some "
            "seeds among them, had 2.5% equal errors with two windows and 5.2% with the middle one.",
            "A probe by hand, of 2,200 clips; no number of it is in this table.",
        ),
        Note(
            "unstated choice",
            f"As in selffl-wakeword, but for η, whose searches begin at {RATE}; {POOLED} and heads are linear.",
            "The config of the runs.",
        ),
    ),
    cut=f"{SEEDS} seeds; batches of 20 instead of 500; {ROUNDS} rounds with five "
    "clients, 40 with 20; Algorithm 2 has 40 more steps.",
)  # fmt: skip
