"""Flower and peft: LoRA in Flower's simulation runtime, one ClientApp a core; what travels is the adapter.

    python with_flower_peft.py [loaded|kept] FOLDER

`loaded`: a ClientApp loads the pretrained model for every message, as Flower's own examples do. `kept`: an actor keeps
the model that it has loaded, which a ClientApp does not do by itself.
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
from lora import kept, trained, with_lora
from peft import get_peft_model_state_dict, set_peft_model_state_dict


def main(how, folder):
    job = protocol.Given.load(folder).settings
    model = with_lora(job["weights"])
    gate = protocol.Gate()
    server_app = ServerApp()

    @server_app.main()
    def rounds(grid, context):
        def round_ended(number, arrays):
            set_peft_model_state_dict(model, arrays.to_torch_state_dict())
            gate.wait(round_ended=number > 0)

        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=job["clients"])
        strategy.start(grid, ArrayRecord(get_peft_model_state_dict(model)), 10**6, evaluate_fn=round_ended)

    setting = f"Ray actors of one thread: {job['threads']}"
    protocol.serve_beside(gate.step, lambda: trained(model), version=flwr.__version__, setting=setting)
    backend = {
        "init_args": {"num_cpus": job["threads"], "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client(how, folder), job["clients"], backend_config=backend)


def client(how, folder):
    app = ClientApp()

    @app.train()
    def train(message, context):
        torch.set_num_threads(1)
        job = torch_models.given(folder).settings
        model = (kept if how == "kept" else with_lora)(job["weights"])
        x, y = torch_models.clients(folder)[context.node_config["partition-id"]]
        set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], job["lr"])
        mask = torch.ones(job["batch"], x.shape[1], dtype=torch.int64)
        for ids, labels in torch_models.Batches(x, y, job["steps"], job["batch"]):
            optimizer.zero_grad()
            outputs = model(input_ids=ids, attention_mask=mask)
            torch.nn.functional.cross_entropy(outputs.logits, labels).backward()
            optimizer.step()
        reply = RecordDict(
            {
                "arrays": ArrayRecord(get_peft_model_state_dict(model)),
                "metrics": MetricRecord({"num-examples": len(x)}),
            }
        )
        return Message(content=reply, reply_to=message)

    return app


if __name__ == "__main__":
    main(*sys.argv[1:])
