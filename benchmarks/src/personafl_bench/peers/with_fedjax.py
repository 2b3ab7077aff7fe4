"""fedjax: its `federated_averaging` with the jit backend, clients from `InMemoryFederatedData`.

The models are plain functions of parameters in torch's layout, which is as fast as haiku's after compilation. The first
rounds compile and are not timed.
"""

import importlib.metadata
import math
import sys
from itertools import pairwise

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import protocol
from fedjax.algorithms import fed_avg

jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 still calls it so; JAX has dropped the name


def main(folder):
    given = protocol.Given.load(folder)
    job = given.settings
    shapes, apply = model(**job["model"])

    def loss(params, batch, rng):
        scores = jax.nn.log_softmax(apply(params, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(job["lr"]),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=job["batch"], num_epochs=None, num_steps=job["steps"]),
    )
    data = fedjax.InMemoryFederatedData(
        {f"{k:07d}".encode(): {"x": given.x[a:b], "y": given.y[a:b]} for k, (a, b) in enumerate(given.train)}
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, job["active"], seed=0)
    state = algorithm.init(unflatten(given.theta0, shapes))

    def step():
        nonlocal state
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)

    def flat():
        return np.concatenate([np.asarray(part).ravel() for part in state.params])

    protocol.serve(step, flat, version=importlib.metadata.version("fedjax"), setting=f"jit, jax {jax.__version__}")


def unflatten(vector, shapes):
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    return [jnp.asarray(part).reshape(shape) for part, shape in zip(np.split(vector, ends), shapes, strict=True)]


def model(kind, **sizes):
    """The shapes of a model's parameters, and the function that applies it."""
    known = {"mlp": mlp, "cnn": cnn, "lstm": lstm}
    if kind not in known:
        raise SystemExit(f"the network {kind!r} is written in torch")
    return known[kind](**sizes)


def mlp(widths):
    shapes = [s for a, b in pairwise(widths) for s in ((b, a), (b,))]
    return shapes, dense


def dense(params, x):
    for i in range(0, len(params), 2):
        x = x @ params[i].T + params[i + 1]
        x = jax.nn.relu(x) if i + 2 < len(params) else x
    return x


def cnn(channels, side, outputs):
    rest = 16 * (((side - 4) // 2 - 4) // 2) ** 2
    shapes = [(6, channels, 5, 5), (6,), (16, 6, 5, 5), (16,)]
    shapes += [(120, rest), (120,), (84, 120), (84,), (outputs, 84), (outputs,)]

    def apply(params, x):
        for i in (0, 2):
            x = jax.lax.conv_general_dilated(x, params[i], (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = jax.nn.relu(x + params[i + 1][:, None, None])
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return dense(params[4:], x.reshape(len(x), -1))

    return shapes, apply


def lstm(features, hidden, layers, outputs):
    shapes = []
    for layer in range(layers):
        shapes += [(4 * hidden, hidden if layer else features), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    shapes += [(outputs, hidden), (outputs,)]

    def apply(params, x):
        x = jnp.swapaxes(x, 0, 1)
        for layer in range(layers):
            w_in, w_on, b_in, b_on = params[4 * layer : 4 * layer + 4]

            def cell(carry, z, w_on=w_on):
                h, c = carry
                i, f, g, o = jnp.split(z + h @ w_on.T, 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zero = jnp.zeros((x.shape[1], hidden))
            _, x = jax.lax.scan(cell, (zero, zero), x @ w_in.T + (b_in + b_on))
        return dense(params[-2:], x[-1])

    return shapes, apply


if __name__ == "__main__":
    main(sys.argv[1])
