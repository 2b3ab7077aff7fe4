"""Personal models for use outside of personafl: weights with a card, a `torch.export` program, ONNX."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

import torch
from torch import nn

from personafl.errors import ConfigError, DataError, RunError
from personafl.federation.missing import VALUE
from personafl.files import disk_errors, write_atomically, write_tensors, write_text
from personafl.inputs import Inputs
from personafl.pretrained.backbone import PretrainedModel
from personafl.pretrained.onnx import OnnxModule
from personafl.runs.backbones import example_of
from personafl.runs.run import NOT_FINISHED, Run
from personafl.storage.reading import checked
from personafl.storage.schemas import Exported
from personafl.tasks import TASKS, LearningTask

Format = Literal["safetensors", "torch", "onnx"]
"""safetensors: the weights; torch: a program that runs without the model's code; onnx: the same for other runtimes."""

LONGEST_NAME = 200
SUFFIX: dict[Format, str] = {"safetensors": ".safetensors", "torch": ".pt2", "onnx": ".onnx"}


def export(run: Run, clients: Sequence[str], folder: Path, formats: Sequence[Format] = ("safetensors",)) -> list[Path]:
    """Write the personal models of some clients, each with a card that says what it is.

    Files are named after the client, with %XX for characters that file names may not have. Nothing that exists is
    overwritten.

    Parameters
    ----------
    run
        A finished run.
    clients
        Whose models.
    folder
        Where the files go; made where it is not there.
    formats
        Any of "safetensors", "torch" and "onnx" (which needs the extra `onnx`).

    Returns
    -------
    The files of models that were written; beside each client's is its card, a .json file.
    """
    for wanted in formats:
        if wanted not in SUFFIX:
            raise ConfigError(f"--format {wanted!r} is unknown; known: {', '.join(get_args(Format))}")
    if "onnx" in formats and (lacking := [p for p in ("onnx", "onnxscript") if not importlib.util.find_spec(p)]):
        raise ConfigError(f"--format onnx needs the package {lacking[0]}: pip install 'personafl[onnx]'")
    if not run.complete:
        raise RunError(f"{run.path} has no models yet: {NOT_FINISHED}")
    checked(run.manifest, Exported, run.path / "run.toml")
    if run.pretrained is not None and {"torch", "onnx"} & set(formats) and isinstance(run.backbone.module, OnnxModule):
        raise ConfigError("a backbone that is an ONNX file cannot be exported with the head: use --format safetensors")
    rows = {row["client"]: row for row in run.clients().to_pylist()}
    clients = [str(client) for client in clients]
    if unknown := [client for client in clients if client not in rows]:
        raise DataError(f"{run.path} has no client {unknown[0]!r}; the first are {', '.join(list(rows)[:3])}")
    targets = {c: {f: folder / f"{file_name(c)}{SUFFIX[f]}" for f in formats} for c in clients}
    cards = {c: folder / f"{file_name(c)}.json" for c in clients}
    for path in (*cards.values(), *(p for each in targets.values() for p in each.values())):
        if path.exists():
            raise RunError(f"{path} exists already: name another folder with --out")
    with disk_errors(folder, "creating"):
        folder.mkdir(parents=True, exist_ok=True)
    example = example_of(run.taken)
    for client in clients:
        module = run.personal(client)
        for wanted, path in targets[client].items():
            _WRITERS[wanted](module, example, path)
        files = {str(wanted): path.name for wanted, path in targets[client].items()}
        text = json.dumps(card(run, client, rows[client], files), indent=1, ensure_ascii=False) + "\n"
        write_text(cards[client], text, private=False)
    return [path for each in targets.values() for path in each.values()]


def _output(resolved: dict[str, Any]) -> dict[str, Any]:
    """The shape of what a model puts out, and what it means; a run of an earlier version does not name its task."""
    usual = "classification" if resolved.get("classes") else "regression"
    name = resolved.get("task", {}).get("name", usual)
    kind = TASKS.get(name, LearningTask)
    axes = [resolved["outputs"] if axis == "outputs" else axis for axis in kind.output_axes]
    return {"shape": ["batch", *axes], "meaning": kind.gives}


def card(run: Run, client: str, row: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    """What a model is, what it expects and gives, how it was made and how good it was."""
    manifest, resolved = run.manifest, run.manifest["resolved"]
    measured = {k: v for k, v in row.items() if k not in ("client", "group", "round") and v is not None}
    return {
        "client": client,
        "group": row.get("group"),
        "files": files,
        "model": manifest["model"],
        **_backbone(run, files),
        "parameters": resolved["parameters"],
        "input": _input(run.taken),
        "normalization": _normalization(run),
        "output": _output(resolved),
        "classes": resolved.get("labels") or list(range(resolved.get("classes") or 0)) or None,
        "training": {
            "algorithm": manifest["algorithm"],
            "rounds": manifest["rounds"],
            "seed": manifest["seed"],
            "local": manifest["local"],
            "data": manifest.get("data"),
            "data_fingerprint": resolved["fingerprint"],
            "finished_round": row["round"],
            "versions": manifest["versions"],
        },
        "measured": {
            "on": "this client's own data; personal_loss and the personal values of metrics on its test samples",
            **measured,
        },
    }


def _backbone(run: Run, files: Mapping[str, str]) -> dict[str, Any]:
    """What the model's frozen part is, which a file of weights does not hold."""
    if run.pretrained is None:
        return {}
    found = {"backbone": dict(run.manifest["backbone"])}
    if "safetensors" in files:
        found["backbone"]["weights"] = f"not in {files['safetensors']}, which holds the head"
    if {"mean", "std"} <= run.constants.keys():
        found["backbone"]["features"] = {
            "how": "(features - mean) / std before the head",
            **{name: run.constants[name].tolist() for name in ("mean", "std")},
        }
    return found


def _normalization(run: Run) -> dict[str, Any] | None:
    """How raw features become the model's input: by numbers where the run keeps them, else by the data's setting."""
    constants = run.constants if run.pretrained is None else run.pretrained.constants
    shapes = run.taken["input_shape"]
    of = " of each input" if isinstance(shapes, Mapping) else ""
    if any(name.startswith(VALUE) for name in constants):
        how = (
            f"missing values become missing_value{of}; then for each feature in missing_indicator{of} comes one that "
            "is 1 where it was missing and else 0"
            + ("; then (x - mean) / std" + of if any(name.startswith("mean") for name in constants) else "")
        )
        return {"how": how, **{name: value.tolist() for name, value in constants.items()}}
    if {"mean", "std"} <= constants.keys():
        return {"how": "(x - mean) / std", **{name: constants[name].tolist() for name in ("mean", "std")}}
    if of and (scaled := [name for name in shapes if f"mean_{name}" in constants]):
        numbers = {what: {n: constants[f"{what}_{n}"].tolist() for n in scaled} for what in ("mean", "std")}
        return {"how": "(x - mean) / std of each of these inputs; padding stays 0", **numbers}
    how = run.manifest.get("data", {}).get("normalize")
    return None if how in (None, "none") else {"how": f"normalize = {how!r} of data {run.manifest['data']['name']!r}"}


def file_name(client: str) -> str:
    """A client's id as a file name: letters, digits, dot, dash, underline and blank stay, others become %XX.

    A long one is cut, and ends with the beginning of its SHA-256: a file's name may have 255 bytes.

    >>> file_name("ward 3/bed-7"), file_name("../up")
    ('ward 3%2Fbed-7', '%2E.%2Fup')
    """
    name = quote(client, safe=" ")
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 17]}-{sha256(client.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return f"%2E{name[1:]}" if name.startswith(".") else name


def _input(resolved: dict[str, Any]) -> dict[str, Any]:
    """Shape and type of the input, or of each input by its name."""
    shape, dtype = resolved["input_shape"], resolved["input_dtype"]
    if not isinstance(shape, Mapping):
        return {"shape": ["batch", *shape], "dtype": dtype}
    return {name: {"shape": ["batch", *each], "dtype": dtype[name]} for name, each in shape.items()}


def _called(example: Inputs) -> dict[str, Any]:
    """How torch's exporters are told what the module takes: by place, or by name; any number of samples."""
    batch = {0: torch.export.Dim("batch")}
    if isinstance(example, dict):
        return {"args": (), "kwargs": example, "dynamic_shapes": dict.fromkeys(example, batch)}
    return {"args": (example,), "dynamic_shapes": (batch,)}


def _write_safetensors(module: nn.Module, example: Inputs, path: Path) -> None:
    if isinstance(module, PretrainedModel):  # everybody's files would hold the same backbone
        module = module.head
    write_tensors(path, {name: value.clone() for name, value in module.state_dict().items()}, {"format": "pt"}, False)


class _ByName(nn.Module):
    """A module whose forward takes anything, with a signature that lists its inputs."""

    def __init__(self, module: nn.Module, names: Sequence[str], one: bool) -> None:
        super().__init__()
        self.module = module
        keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD

        def forward(*args: Any, **named: Any) -> Any:
            if one:
                return module(*args, *named.values())
            return module(**dict(zip(names, args, strict=False)), **named)

        forward.__signature__ = inspect.Signature([inspect.Parameter(n, keyword) for n in names])  # type: ignore[attr-defined]
        self.forward = forward


def _listed(module: nn.Module, example: Inputs) -> nn.Module:
    takes = {each.kind for each in inspect.signature(module.forward).parameters.values()}
    one = not isinstance(example, dict)
    anything = inspect.Parameter.VAR_POSITIONAL if one else inspect.Parameter.VAR_KEYWORD
    return _ByName(module, ["x"] if one else list(example), one) if anything in takes else module


def _program(module: nn.Module, example: Inputs) -> torch.export.ExportedProgram:
    return torch.export.export(_listed(module, example), **_called(example), strict=False)


def _write_torch(module: nn.Module, example: Inputs, path: Path) -> None:
    program = _program(module, example)

    def write(to: Path) -> None:
        with open(to, "wb") as file:  # a name that does not end with .pt2 makes torch complain
            torch.export.save(program, file)

    write_atomically(path, write, private=False)


def _write_onnx(module: nn.Module, example: Inputs, path: Path) -> None:
    names = list(example) if isinstance(example, dict) else ["x"]
    made = torch.onnx.export(
        _listed(module, example),
        **_called(example),
        dynamo=True,
        input_names=names,
        output_names=["outputs"],
        verbose=False,
    )
    if made is None:
        raise RunError(f"torch could not make an ONNX model for {path}")
    write_atomically(path, lambda to: made.save(str(to)), private=False)


_WRITERS = {"safetensors": _write_safetensors, "torch": _write_torch, "onnx": _write_onnx}
