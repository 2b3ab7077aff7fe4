"""Modules most of whose parameters are frozen, as users write them."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.modules.networks import small_bert


class LowRank(nn.Module):
    """A frozen linear layer and a product of low rank beside it, written by hand."""

    def __init__(self, base, rank=2, functional=False):
        super().__init__()
        self.base, self.functional = base.requires_grad_(False), functional
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / 4)
        self.B = nn.Parameter(torch.randn(base.out_features, rank) / 4)

    def forward(self, x):
        if self.functional:
            return self.base(x) + F.linear(F.linear(x, self.A), self.B)
        return self.base(x) + 0.5 * (x @ self.A.T) @ self.B.T


class InADict(nn.Module):
    """The same with its matrices in an `nn.ParameterDict`, as peft has them for embeddings."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 3).requires_grad_(False)
        self.adapter = nn.ParameterDict({"a": torch.randn(2, 8) / 4, "b": torch.randn(3, 2) / 4})

    def forward(self, x):
        return self.base(x) + x @ self.adapter["a"].T @ self.adapter["b"].T


class Bfloat16(nn.Module):
    """A frozen layer of bf16 and trained ones, one of bf16 too."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 6).requires_grad_(False).bfloat16()
        self.norm = nn.LayerNorm(6).bfloat16()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.base(x.bfloat16())).float())


def only_biases(net):
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return net


def low_rank_network(functional=False):
    return nn.Sequential(LowRank(nn.Linear(8, 6), 2, functional), nn.ReLU(), LowRank(nn.Linear(6, 3), 1, functional))


def biases_of_linear_layers():
    return only_biases(nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)))


def biases_of_convolutions():
    layers = nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    return only_biases(nn.Sequential(*layers))


WRITTEN_BY_HAND = {
    "low rank": low_rank_network,
    "low rank, F.linear": lambda: low_rank_network(True),
    "matrices in a dict": InADict,
    "biases": biases_of_linear_layers,
    "biases of convolutions": biases_of_convolutions,
}


def bert_with_lora(**settings):
    """A BERT of random weights with peft's LoRA in its attention, and a classifier that is trained whole."""
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["query", "value"], **settings
    )
    return get_peft_model(small_bert(), config).train()
