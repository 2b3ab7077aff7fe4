"""Adapters: only what is trained is sent, kept and saved, and what is frozen is there once."""

import copy
import importlib.util
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import personafl as pf
from personafl.errors import ModelError, RunError
from personafl.kernels.modes import frozen_hashes
from personafl.kernels.task import Batch, Task
from personafl.runs.export import export
from tests.archetypes import FOR_TWO_LAYERS, some_quick
from tests.modules.adapters import WRITTEN_BY_HAND, Bfloat16, bert_with_lora, low_rank_network
from tests.modules.cases import CASES

needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
LOCAL = pf.Local(lr=0.1, batch_size=4, steps=2)


def numbers(clients=3, samples=14):
    draws = np.random.default_rng(2)
    x = draws.normal(size=(clients * samples, 8)).astype(np.float32)
    y = draws.permutation(np.arange(clients * samples) % 3)
    each = {f"c{k}": (x[k::clients], y[k::clients]) for k in range(clients)}
    return pf.Federation.from_clients(each, splits=(0.6, 0.2, 0.2))


def made(make):
    torch.manual_seed(1)
    return make()


def trained(federation, make, algorithm="fedavg", engine="stacked", **settings):
    settings = {"rounds": 2, "local": LOCAL, "progress": False} | settings
    return pf.train(federation, made(make), algorithm, engine=engine, **settings)


def engines_agree(federation, make, algorithm, tolerance=1e-5):
    loop, stacked = (trained(federation, make, algorithm, engine) for engine in ("loop", "stacked"))
    for client in federation.ids:
        ours, theirs = (run.personal(client).state_dict() for run in (loop, stacked))
        for name, value in ours.items():
            torch.testing.assert_close(theirs[name], value, rtol=10 * tolerance, atol=tolerance, msg=name)
    return stacked


def ways(make, federation):
    found = pf.explain(made(make), federation)
    assert found.way == "stacked", found.reason
    return {layer.name: layer.way for layer in found.layers}


# --- every algorithm, on every engine -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", some_quick(FOR_TWO_LAYERS, quick=("fedavg", "selffl", "fedper")))
def test_engines_agree_on_adapters_written_by_hand(algorithm):
    engines_agree(numbers(), low_rank_network, algorithm)


@pytest.mark.parametrize("name", WRITTEN_BY_HAND)
def test_what_is_frozen_is_one_product_and_what_is_trained_is_stacked(name):
    found = ways(WRITTEN_BY_HAND[name], numbers())
    assert set(found.values()) <= {"frozen", "stacked"}
    assert ("frozen" in found.values()) == ("biases" not in name)
    engines_agree(numbers(), WRITTEN_BY_HAND[name], "ditto")


@needs_peft
@pytest.mark.parametrize("algorithm", some_quick(["fedavg", "ditto", "fedper", "fedrep", "selffl"], quick=("fedper",)))
def test_engines_agree_on_lora_by_peft(algorithm):
    run = engines_agree(CASES["bert"].federation(), bert_with_lora, algorithm)
    size = sum(p.numel() for p in run.task.template.parameters() if p.requires_grad)
    head = 3 * 16 + 3 if algorithm in ("fedper", "fedrep") else 0  # the classifier stays with its client
    assert run.rounds()[0]["bytes_up"] == pytest.approx(3 * 4 * (size - head), rel=0.02)


@needs_peft
def test_layers_of_peft_are_frozen_or_stacked():
    found = ways(bert_with_lora, CASES["bert"].federation())
    assert {way for name, way in found.items() if "lora_" in name or "modules_to_save" in name} == {"stacked"}
    assert {way for name, way in found.items() if "lora_" not in name and "modules_to_save" not in name} == {"frozen"}


def test_a_frozen_part_of_bf16_stays_so_and_what_is_trained_is_float32_in_between():
    federation = numbers()
    assert set(ways(Bfloat16, federation).values()) == {"frozen", "stacked"}
    run = engines_agree(federation, Bfloat16, "fedavg", tolerance=5e-3)
    net = run.personal("c1")
    assert net.base.weight.dtype == net.norm.weight.dtype == torch.bfloat16 and net.head.weight.dtype == torch.float32
    assert run.task.theta0.dtype == torch.float32
    assert not torch.equal(net.norm.bias, torch.zeros(6)), "the layer of bf16 was trained"


# --- the frozen part is there once ----------------------------------------------------------------------------------


class Wide(nn.Module):
    """A frozen table that is much larger than all else."""

    def __init__(self, rows=300_000):
        super().__init__()
        self.table = nn.Embedding(rows, 8).requires_grad_(False)
        self.adapter = nn.Linear(8, 3)

    def forward(self, x):
        return self.adapter(self.table(x).mean(1))


def largest_allocation(function):
    with torch.profiler.profile(profile_memory=True) as seen:
        function()
    return max((event.cpu_memory_usage for event in seen.events()), default=0)


@pytest.mark.parametrize("way", ["gradient", "gradient_stacked", "copy", "by vmap", "check", "module"])
def test_no_way_of_computing_copies_a_large_frozen_table(way):
    net = Wide()
    task = Task(net)
    size = net.table.weight.nbytes
    clients, samples = 4, 3
    x = torch.randint(0, 300_000, (clients, samples, 5))
    y = torch.zeros(clients, samples, dtype=torch.int64)
    batch = Batch(x, y, torch.ones(clients, samples), torch.arange(clients))
    thetas = task.theta0.repeat(clients, 1)
    if way == "by vmap":
        task.way(x[0]).way = "mapped"
    elif way != "check":
        task.gradient_stacked(thetas, batch)
    run = {
        "gradient": lambda: task.gradient(task.theta0, Batch(x[0], y[0], batch.weight[0], batch.key[0])),
        "gradient_stacked": lambda: task.gradient_stacked(thetas, batch),
        "by vmap": lambda: task.gradient_stacked(thetas, batch),
        "copy": lambda: task.copy().gradient_stacked(thetas, batch),
        "check": lambda: task.check(x[0], y[0]),
        "module": lambda: task.module(task.theta0),
    }[way]
    assert largest_allocation(run) < size / 20


def test_constants_that_go_to_a_device_are_there_once():
    task = Task(Wide(rows=10))
    x = torch.zeros(2, 5, dtype=torch.int64)
    task.way(torch.cat([x, x, x]))
    task._bring_constants(x.to("meta"))
    held = [task._constants["table.weight"], *(m.table.weight for m in (task._training, task._inference))]
    held += [model.module.table.weight for model in task._together.models.values()]
    assert {value.device.type for value in held} == {"meta"}
    assert len({value.untyped_storage()._cdata for value in held}) == 1


def test_personal_models_share_the_users_frozen_part_and_nothing_else():
    federation, net = numbers(), made(low_rank_network)
    run = pf.train(federation, net, "ditto", rounds=1, local=LOCAL, progress=False)
    first, second = run.personal("c0"), run.personal("c1")
    assert first[0].base.weight.data_ptr() == second[0].base.weight.data_ptr() == net[0].base.weight.data_ptr()
    assert len({m[0].A.data_ptr() for m in (first, second, net)}) == 3
    first.requires_grad_(True)
    assert not net[0].base.weight.requires_grad and not second[0].base.weight.requires_grad


# --- what is sent, kept and saved -----------------------------------------------------------------------------------


def test_messages_checkpoints_and_models_have_the_size_of_the_adapter(tmp_path):
    federation = numbers()

    def make():
        return nn.Sequential(nn.Linear(8, 5000).requires_grad_(False), nn.Linear(5000, 8).requires_grad_(False),
                             *low_rank_network())  # fmt: skip

    run = trained(federation, make, "ditto", out=tmp_path / "run")
    size = sum(p.numel() for p in run.task.template.parameters() if p.requires_grad)
    assert size == 2 * (8 + 6) + 1 * (6 + 3) == run.manifest["resolved"]["parameters"]
    assert [record["bytes_up"] for record in run.rounds()] == [3 * 4 * size, 2 * 3 * 4 * size]  # so far
    with safe_open(run.path / "models" / "personal.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["2.A", "2.B", "4.A", "4.B"]
    written = sum(path.stat().st_size for path in run.path.rglob("*.*") if "parquet" not in path.name)
    assert written < 40_000 < 85_000 * 4  # 85,000 numbers are frozen


def test_an_adapter_with_another_backbone_is_refused_with_the_parameter_that_differs(tmp_path):
    run = trained(numbers(), low_rank_network, out=tmp_path / "run")
    assert len(run.manifest["resolved"]["frozen_sha256"]) == 64
    outputs = run.personal("c1")(torch.ones(1, 8))
    again = pf.load_run(run.path, module=made(low_rank_network))
    torch.testing.assert_close(again.personal("c1")(torch.ones(1, 8)), outputs)
    other = made(low_rank_network)
    with torch.no_grad():
        other[2].base.bias[0] += 1e-3
    with pytest.raises(ModelError, match=r"another backbone .* '2\.base\.bias' differs \(1 of 4 do\)"):
        pf.load_run(run.path, module=other)
    with pytest.raises(RunError, match="frozen part is not the same"):
        pf.train(numbers(), other, rounds=3, local=LOCAL, progress=False, out=run.path, resume=True)
    other[2].base.bias.requires_grad_(True)
    with pytest.raises(ModelError, match=r"'2\.base\.bias'"):
        pf.load_run(run.path, module=other)


def test_a_run_of_an_earlier_version_has_no_hashes_and_opens(tmp_path):
    run = trained(numbers(), low_rank_network, out=tmp_path / "run")
    (run.path / "models" / "frozen.json").unlink()
    assert pf.load_run(run.path, module=made(low_rank_network)).personal("c0") is not None


def test_a_resumed_run_of_adapters_is_the_run_that_was_not_interrupted(tmp_path):
    whole = trained(numbers(), low_rank_network, "ditto", rounds=4)
    trained(numbers(), low_rank_network, "ditto", rounds=2, out=tmp_path / "run")
    resumed = trained(numbers(), low_rank_network, "ditto", rounds=4, out=tmp_path / "run", resume=True)
    for name, value in whole.personal("c2").state_dict().items():
        assert torch.equal(resumed.personal("c2").state_dict()[name], value)


@needs_peft
def test_newcomers_and_exports_of_lora_are_whole_models(tmp_path):
    federation = CASES["bert"].federation()
    run = trained(federation, bert_with_lora, "ditto", out=tmp_path / "run")
    x, y = federation.client(federation.ids[0])["train"]
    net = run.personalize(x, y)
    template = run.task.template
    frozen = "base_model.model.bert.embeddings.word_embeddings.weight"
    assert net.get_parameter(frozen).data_ptr() == template.get_parameter(frozen).data_ptr()
    assert net(**x).logits.shape == (len(y), 3)
    (path,) = export(run, [federation.ids[0]], tmp_path / "out")
    with safe_open(path, "pt") as file:
        assert frozen in file.keys()  # noqa: SIM118
    kept = json.loads((run.path / "models" / "frozen.json").read_text())
    assert frozen in kept and not any("lora" in name for name in kept)


@needs_peft
def test_merging_a_copy_leaves_the_shared_backbone_alone():
    run = trained(CASES["bert"].federation(), bert_with_lora, rounds=1)
    net, before = run.personal("c0"), frozen_hashes(run.task.template)
    merged = copy.deepcopy(net).merge_and_unload()
    assert frozen_hashes(run.task.template) == before
    x, _ = CASES["bert"].federation().client("c0")["test"]
    torch.testing.assert_close(merged(**x).logits, net(**x).logits, rtol=1e-4, atol=1e-5)
