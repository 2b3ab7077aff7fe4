"""What clients keep: their rows of the store, and what those who are seen for the first time begin with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms.base import Algorithm, Sent
from personafl.algorithms.dry_run import kept_optimizer_state
from personafl.engines.base import Engine
from personafl.settings import Local
from personafl.states import Ints, State
from personafl.storage.client_store import ClientStore


def first_state(algorithm: Algorithm, theta0: Tensor, local: Local) -> State:
    """Something with the names, types and shapes of what a client keeps: what it begins with under a new server."""
    sent = algorithm.send(algorithm.new_server(theta0, 1), torch.zeros(1, dtype=torch.int64)).one(0)
    own = algorithm.new_client(theta0, sent)
    return own | kept_optimizer_state(algorithm, local, own, sent)


def states(algorithm: Algorithm, engine: Engine, store: ClientStore, theta0: Tensor, ids: Ints, sent: Sent) -> State:
    """What these clients keep, stacked; who has no row is seen for the first time, and begins from what is sent."""
    new = np.flatnonzero(~store.known(ids))
    if not len(new):
        return store.get(ids)
    begun = engine.map(lambda own, sent: algorithm.new_client(theta0, sent), {}, sent.rows(new), len(new))
    if len(new) == len(ids) and begun.keys() == store.like.keys():
        return begun
    out, at = store.rows(ids), torch.from_numpy(new)
    for name, value in begun.items():
        out[name].index_copy_(0, at.to(out[name].device), value.to(out[name].device))
    return out
