"""A pretrained BERT with LoRA, as peft's documentation makes it, for all contestants of benchmarks/adapters.py."""

import os
from functools import lru_cache
from typing import Any

import torch
from torch import nn

RANK, ALPHA, CLASSES = 8, 16, 2


def with_lora(folder: str) -> Any:
    """The model in a folder with adapters in its attention and a classifier."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    quiet: Any = logging
    quiet.disable_progress_bar()
    torch.manual_seed(0)
    net = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=CLASSES, local_files_only=True)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=["query", "value"]
    )
    return get_peft_model(net, config).train()


@lru_cache
def kept(folder: str) -> Any:
    """The same, loaded once by a process."""
    return with_lora(folder)


def trained(net: nn.Module) -> Any:
    """The vector of what is trained."""
    return nn.utils.parameters_to_vector(p for p in net.parameters() if p.requires_grad).detach().numpy()
