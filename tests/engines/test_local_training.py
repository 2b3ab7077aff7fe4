"""Engines agree on local training of every kind, also where clients keep their optimizer's state between rounds."""

import pytest

from personafl.settings import Local
from tests.archetypes import ARCHETYPES, some_quick
from tests.engines.test_agreement import assert_agree, everything, run

KINDS = {
    "adamw, kept": {"optimizer": "adamw", "weight_decay": 0.1, "eps": 1e-3, "optimizer_state": "kept"},
    "momentum, kept": {"momentum": 0.7, "optimizer_state": "kept", "clip_norm": 0.5},
    "cosine over steps by group": {
        "nesterov": True, "momentum": 0.5, "groups": {"head": 2.0, "*.bias": 0.5},
        "schedule": "cosine", "schedule_over": "steps", "warmup": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", some_quick(ARCHETYPES, {"fedavg", "selffl", "fedamp", "fedper"}))
def test_engines_agree(tmp_path, algorithm, kind):
    """Half of the clients are active, so that states are kept over rounds without them; numbers of steps differ."""
    local = Local(lr=0.02, batch_size=4, epochs=2, **KINDS[kind])
    settings = {"use_steps": False} if algorithm == "selffl" else {}
    one = everything(run("loop", algorithm, "mlp", tmp_path, local, activity=0.6, **settings))
    kept = [name for name in one if name.startswith("client optimizer.")]
    assert bool(kept) is (local.optimizer_state == "kept")
    for engine in ("stacked", "threaded") if algorithm == "fedavg" else ("stacked",):
        assert_agree(one, everything(run(engine, algorithm, "mlp", tmp_path, local, activity=0.6, **settings)))


def test_chunks_do_not_change_what_clients_keep(tmp_path):
    local = Local(lr=0.02, batch_size=4, epochs=1, **KINDS["adamw, kept"])
    whole = everything(run("stacked", "fedavg", "mlp", tmp_path, local, activity=1.0))
    assert_agree(whole, everything(run("stacked", "fedavg", "mlp", tmp_path, local, activity=1.0, memory=-1)))
