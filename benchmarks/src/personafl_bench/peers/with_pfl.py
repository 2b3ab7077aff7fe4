"""pfl-research: its simulated backend and FederatedAveraging, weighted by data points, one process a core.

The processes share the users of a cohort by `torch.distributed`, as pfl does under torchrun. A callback at the end of
every central iteration holds them all until the next round is asked for.
"""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import protocol
import torch
import torch_models


def main(folder):
    given = protocol.Given.load(folder)
    job = given.settings
    rank = join(job["threads"])

    # pfl joins the other processes when it is imported.
    import pfl
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    gate = protocol.Gate()

    class User(Dataset):
        def iter(self, batch_size):
            return iter(torch_models.Batches(*self.raw_data, job["steps"], batch_size))

    class Hold(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            self.hold(round_ended=False)
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            self.hold(round_ended=True)
            return False, Metrics()

        def hold(self, round_ended):
            if rank == 0:
                gate.wait(round_ended)
            if job["threads"] > 1:
                torch.distributed.barrier()

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    np.random.seed(0)  # the same for all processes, so that they agree on the cohort
    net = torch_models.build(given)
    net.loss = lambda x, y: torch.nn.functional.cross_entropy(net(x), y)
    net.metrics = lambda x, y: {}
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    samples = torch_models.clients(folder)
    users = FederatedDataset(
        lambda user: User(samples[user], user), get_user_sampler("minimize_reuse", list(range(job["clients"])))
    )
    backend = SimulatedBackend(users, users, [WeightByDatapoints()])
    if rank == 0:
        protocol.serve_beside(
            gate.step, lambda: torch_models.vector(net),
            version=pfl.__version__, setting=f"processes of one thread: {job['threads']}",
        )  # fmt: skip
    rounds = NNAlgorithmParams(10**6, 10**6, job["active"], None)
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=job["lr"], local_batch_size=job["batch"])
    FederatedAveraging().run(rounds, backend, model, local, callbacks=[Hold()], send_metrics_to_platform=False)


def join(processes):
    """Start the other processes, and say what torchrun would say to each; the rank of this one."""
    if processes == 1:
        return 0
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "TORCHELASTIC_RUN_ID": "bench", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
    }  # fmt: skip
    others = []
    for rank in range(processes):
        environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        if rank == 0:
            os.environ.update(environment)
        else:
            others.append(
                subprocess.Popen(
                    [sys.executable, *sys.argv], stdin=subprocess.DEVNULL, env={**os.environ, **environment}
                )
            )

    def end(number, frame):
        for other in others:
            other.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    return 0


if __name__ == "__main__":
    main(sys.argv[1])
