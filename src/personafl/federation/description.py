"""A federation in a few lines: what one wants to know before one trains."""

from __future__ import annotations

from collections import Counter

import numpy as np

from personafl.federation.arrays import SPLITS, Stored
from personafl.federation.checks import listing, many
from personafl.inputs import dtype_of, parts, shape_of
from personafl.notebook import bars, card, lines


def federation_lines(fed: Stored) -> list[str]:
    """Clients, samples, splits, features and labels, and the notes."""
    title, facts = federation_facts(fed)
    return [title, *(f"  {name:9} {fact}" for name, fact in facts.items()), *(f"  note: {note}" for note in fed.notes)]


def federation_html(fed: Stored) -> str:
    """The same for a notebook, with how the samples are spread."""
    title, facts = federation_facts(fed)
    sizes = (fed.bounds[:, 3] - fed.bounds[:, 0]).tolist()
    drawn = bars(sizes, "samples of each client, the largest first") if len(sizes) > 1 else ""
    return card(title, facts, drawn, lines(f"note: {note}" for note in fed.notes))


def federation_facts(fed: Stored) -> tuple[str, dict[str, str]]:
    """A title, and what there is to know by name."""
    sizes = fed.bounds[:, 3] - fed.bounds[:, 0]
    samples = f"{len(fed.y):,} samples, {_from_to(sizes)} a client"
    counts = {split: fed.sizes(split) for split in SPLITS}
    shares = ", ".join(f"{split} {int(count.sum()):,}" for split, count in counts.items())
    without = int((counts["test"] == 0).sum())
    nobody = "; nobody has test samples" if without == len(fed) else f"; {many(without, 'client')} without test samples"
    facts = {
        "splits": f"{shares}{nobody if without else ''}",
        "features": _features(fed),
        "labels": _labels(fed),
    }
    if fed.groups is not None:
        facts["groups"] = listing([f"{group} ({n})" for group, n in Counter(fed.groups).most_common()])
    if fed.constants:
        facts["constants"] = ", ".join(fed.constants)
    return f"Federation {fed.name!r}: {many(len(fed), 'client')} ({listing(fed.ids, 3)}), {samples}", facts


def _features(fed: Stored) -> str:
    shapes, types = parts(shape_of(fed.x)), parts(dtype_of(fed.x))
    return "; ".join(f"{name} shape {shapes[name]}, {types[name]}".lstrip() for name in shapes)


def _labels(fed: Stored) -> str:
    shape = "" if fed.y.ndim == 1 else f" of shape {tuple(fed.y.shape[1:])}"
    if fed.classes is None:
        low, high = fed.y.min().item(), fed.y.max().item()
        return f"numbers{shape} from {low:.4g} to {high:.4g} (regression)"
    if fed.multi_label:
        return f"{fed.y.shape[1]} labels of 0 and 1 a sample (multilabel)"
    names = f" ({listing(fed.class_names, 5)})" if fed.class_names else ""
    return f"{many(fed.classes, 'class') if fed.classes == 1 else f'{fed.classes} classes'}{names}{shape}"


def _from_to(sizes: np.ndarray) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
