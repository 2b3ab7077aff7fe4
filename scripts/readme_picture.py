"""Draw the README's picture: train the demo and show what each client gets, alone and together.

python scripts/readme_picture.py docs/images/demo.png
"""

import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from personafl.study.demo import chosen, demo_plan
from personafl.study.judgement import accuracy_of
from personafl.study.launch import run_plan

INK, GREY = "#1f2933", "#9aa5b1"
COLOURS = {
    "separate": "#d64545", "fedavg": "#9aa5b1", "ditto": "#2680c2", "fedamp": "#27ab83", "selffl": "#8719e0",
    "persfl": "#e07b39",
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = run_plan(demo_plan(60, 0, 1), Path(folder) / "demo")
        best, runs = chosen(found), {name: by_seed[0] for name, by_seed in found.methods.items()}
        alone, together = accuracy_of(runs["separate"]), accuracy_of(runs[best])
        assert alone is not None and together is not None
        curves = {
            name: [(r["round"], r["personal_accuracy"]) for r in runs[name].rounds() if "personal_accuracy" in r]
            for name in COLOURS
        }

    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "text.color": INK})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2))
    order = np.argsort(alone)
    place = np.arange(len(order))
    left.vlines(place, alone[order], together[order], color=GREY, linewidth=1.5, zorder=1)
    left.scatter(place, alone[order], s=26, color=COLOURS["separate"], label="training alone", zorder=2)
    left.scatter(place, together[order], s=26, color="#2680c2", label=f"together ({best})", zorder=3)
    left.set(title="40 clients, each with its own few digits", xlabel="client", ylabel="accuracy on its test digits")
    left.set_xticks([])
    left.legend(frameon=False, loc="lower right")
    for name, points in curves.items():
        rounds, values = zip(*points, strict=True)
        right.plot(rounds, values, color=COLOURS[name], label=name, linewidth=2)
    right.set(title="personalized accuracy", xlabel="round")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(sys.argv[1], dpi=110)


if __name__ == "__main__":
    main()
