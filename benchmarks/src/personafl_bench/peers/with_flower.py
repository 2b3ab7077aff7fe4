"""Flower: its simulation runtime with the message API, one ClientApp a core, FedAvg of flwr.serverapp.

`evaluate_fn`, which the strategy calls after every round, is where the next round is waited for; it evaluates nothing.
"""

import sys

import flwr
import protocol
import torch
import torch_models
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def main(folder):
    given = protocol.Given.load(folder)
    job, model = given.settings, torch_models.build(given)
    gate = protocol.Gate()
    server_app = ServerApp()

    @server_app.main()
    def rounds(grid, context):
        def round_ended(number, arrays):
            model.load_state_dict(arrays.to_torch_state_dict())
            gate.wait(round_ended=number > 0)

        share = job["active"] / job["clients"]
        strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=job["clients"])
        strategy.start(grid, ArrayRecord(model.state_dict()), 10**6, evaluate_fn=round_ended)

    protocol.serve_beside(
        gate.step, lambda: torch_models.vector(model),
        version=flwr.__version__, setting=f"Ray actors of one thread: {job['threads']}",
    )  # fmt: skip
    backend = {
        "init_args": {"num_cpus": job["threads"], "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client(folder), job["clients"], backend_config=backend)


def client(folder):
    """What the actors run. It knows the folder and nothing more: all of it is sent along with every message."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        torch.set_num_threads(1)
        given = torch_models.given(folder)
        job, model = given.settings, torch_models.build(given)
        x, y = torch_models.clients(folder)[context.node_config["partition-id"]]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), job["lr"])
        for features, labels in torch_models.Batches(x, y, job["steps"], job["batch"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
        reply = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        )
        return Message(content=reply, reply_to=message)

    return app


if __name__ == "__main__":
    main(sys.argv[1])
