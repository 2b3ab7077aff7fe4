"""The table and the picture of docs/performance.md, from what `personafl bench` wrote.

    personafl bench --peers --json > bench.json
    python benchmarks/performance_table.py bench.json [--picture docs/images/bench.svg]

Several files, of some jobs each, are put together: then machine speeds are those of the first.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from personafl_bench.report import ratio
from personafl_bench.run import draw

ROUNDS = "abcdghijk"


def table(results: dict[str, Any]) -> str:
    """Milliseconds a round, in brackets times personafl; a column for each job."""
    jobs = [job for job in results["jobs"] if job["job"] in ROUNDS]
    names = list(dict.fromkeys(name for job in jobs for name in job["contestants"]))
    lines = ["| | " + " | ".join(f"({job['job']}) {job['name']}" for job in jobs) + " |", "|-" * (len(jobs) + 1) + "|"]
    lines += [f"| {_label(name, jobs)} | " + " | ".join(_cell(name, job) for job in jobs) + " |" for name in names]
    lines.append("| what the machine allows | " + " | ".join(f"{job['limit_ms']:.1f}" for job in jobs) + " |")
    return "\n".join(lines)


def _label(name: str, jobs: list[dict[str, Any]]) -> str:
    versions = {job["contestants"][name]["version"] for job in jobs if name in job["contestants"]} - {None}
    label = " ".join([name, *sorted(versions)]) if name != "personafl" else "**personafl**"
    return label.replace("flower", "Flower").replace("fedlab", "FedLab")


def _cell(name: str, job: dict[str, Any]) -> str:
    entry = job["contestants"].get(name)
    if entry is None:
        return "–"
    odd = "" if entry.get("learns", True) else " !"
    return f"{entry['min_ms']:.1f}" + ("" if name == "personafl" else f" ({ratio(entry['ratio'])})") + odd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    parts = [json.loads(file.read_text()) for file in asked.files]
    results = parts[0] | {"jobs": sorted((job for part in parts for job in part["jobs"]), key=lambda job: job["job"])}
    print(table(results))
    for job in results["jobs"]:
        processor = "; ".join(f"{name} {entry['cpu_ms']:.1f}" for name, entry in job["contestants"].items())
        print(f"\n({job['job']}) {job['about']}. Processor ms: {processor}")
        print("; ".join(f"{name}: {entry['setting']}" for name, entry in job["contestants"].items()))
        for name, reason in job["left_out"].items():
            print(f"{name} left out: {reason}")
    if asked.picture:
        draw(results, asked.picture)


if __name__ == "__main__":
    main()
