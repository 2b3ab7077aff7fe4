"""FedLab: `StandalonePipeline` with its FedAvg handler and serial trainer.

They average clients with equal weights; `Trainer` and `Handler` have FedLab's aggregator weight them by samples.
"""
# ruff: noqa: E402

import sys
import types

import protocol
import torch
import torch_models

# FedLab imports torchvision for data sets that are not used here; its usual build does not load beside torch for CPUs.
torchvision = types.ModuleType("torchvision")
torchvision.transforms = types.ModuleType("torchvision.transforms")
sys.modules.update({"torchvision": torchvision, "torchvision.transforms": torchvision.transforms})

import fedlab
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators


class Clients(FedDataset):
    def __init__(self, folder, steps):
        self.samples, self.steps = torch_models.clients(folder), steps

    def get_dataloader(self, id, batch_size, type="train"):
        return torch_models.Batches(*self.samples[id], self.steps, batch_size)


class Trainer(FedAvgSerialClientTrainer):
    def train(self, model_parameters, train_loader):
        return [*super().train(model_parameters, train_loader), len(train_loader.x)]


class Handler(SyncServerHandler):
    def global_update(self, buffer):
        parameters, samples = zip(*buffer, strict=True)
        self.set_model(Aggregators.fedavg_aggregate(parameters, torch.tensor(samples)))


class Pipeline(StandalonePipeline):
    """One round for each call of `main`."""

    def main(self):
        self.handler.global_round = self.handler.round + 1
        super().main()

    def evaluate(self):
        pass


def main(folder):
    given = protocol.Given.load(folder)
    job = given.settings
    trainer = Trainer(torch_models.build(given), job["clients"])
    trainer.setup_dataset(Clients(folder, job["steps"]))
    trainer.setup_optim(1, job["batch"], job["lr"])
    handler = Handler(torch_models.build(given), 1, job["active"] / job["clients"])
    pipeline = Pipeline(handler, trainer)
    threads = protocol.faster(pipeline.main, torch.set_num_threads, [1, job["threads"]])
    handler.set_model(torch.from_numpy(given.theta0.copy()))
    protocol.serve(
        pipeline.main, lambda: torch_models.vector(handler.model),
        version=fedlab.__version__, setting=f"threads: {threads}",
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
