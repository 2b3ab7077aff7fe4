"""What a server forgets when a client leaves for good."""

from __future__ import annotations

import torch
from torch import Tensor

from personafl.algorithms.base import Algorithm
from personafl.states import Ints, State


def without_clients(algorithm: Algorithm, server: State, theta0: Tensor, clients: int, ids: Ints) -> State:
    """A server's state as if some clients had never answered, in everything that it keeps by client.

    That is every axis that is as long as there are clients, and one longer with one more: models (FedAMP, MOCHA,
    FedFomo), heads (FedPAC), relationships, variances, losses. What went into a mean before cannot be taken out again.

    Examples
    --------
    >>> import numpy as np
    >>> from personafl.algorithms import FedAMP
    >>> server = {"models": torch.ones(3, 2), "round": torch.tensor(4)}
    >>> without_clients(FedAMP(), server, torch.zeros(2), 3, np.array([1]))["models"].tolist()
    [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    """
    fresh, longer = algorithm.new_server(theta0, clients), algorithm.new_server(theta0, clients + 1)
    gone = torch.from_numpy(ids)
    out = dict(server)
    for name, new in fresh.items():
        for axis in range(new.dim()):
            by_client = new.shape[axis] == clients and longer[name].shape[axis] == clients + 1
            if by_client and out[name].shape == new.shape:
                there = gone.to(new.device)
                out[name] = out[name].index_copy(axis, there, new.index_select(axis, there))
    return out
