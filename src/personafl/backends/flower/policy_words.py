"""A site's policy in plain words, for whoever has to approve it."""

from __future__ import annotations

from personafl.backends.flower.pins import code_sha256
from personafl.backends.flower.policy import Policy


def in_words(policy: Policy) -> dict[str, str]:
    """Its sentences, each by what it is about.

    Examples
    --------
    >>> in_words(Policy(algorithms=("ditto",), outgoing={"theta": 8000}, most_rounds=50))["what leaves"]
    'theta (at most 8,000 bytes), and nothing else of training'
    """
    return {
        "what runs": "; ".join([
            _names("algorithms", policy.algorithms), _names("models", policy.models), _names("tasks", policy.tasks),
            "nothing of other packages" if not policy.plugins else "of other packages: " + ", ".join(
                f"{pin.kind} {pin.name} {pin.version} ({pin.sha256[:12]}…)" for pin in policy.plugins
            ),
        ]),
        "whose code": (
            f"personafl as installed (SHA-256 {code_sha256('personafl')})" if policy.code is None
            else f"personafl with the SHA-256 {policy.code} only"
        ),
        "weights": (
            "any" if policy.weights is None else "those that follow from the seed"
            + "".join(f", {digest[:12]}…" for digest in policy.weights)
        ),
        "what leaves": "whatever an allowed algorithm sends" if policy.outgoing is None else (
            ", ".join(f"{name} (at most {most:,} bytes)" for name, most in policy.outgoing.items()) or "nothing"
        ) + ", and nothing else of training",
        "how it is hidden": "; ".join([
            "secure aggregation is demanded" if policy.secure else "secure aggregation is not demanded",
            *(f"{key.replace('_', ' ')} {value:g}" for key, value in policy.limits.items()
              if key in ("least_noise", "most_epsilon", "delta")),
        ]),
        "when": ", ".join(policy.hours) + " (local time)" if policy.hours else "at any hour",
        "how often": "; ".join([
            _most(policy.most_rounds_per_run, "of a run"), _most(policy.most_rounds, "in all, over all runs"),
        ]),
    }  # fmt: skip


def _names(what: str, names: tuple[str, ...] | None) -> str:
    return f"all {what}" if names is None else f"{what} {', '.join(names) or 'none'}"


def _most(most: int | None, where: str) -> str:
    return f"any number of rounds {where}" if most is None else f"at most {most} rounds {where}"
