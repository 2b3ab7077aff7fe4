"""What objects from Python are made of, as text that is the same in every process.

Weights and settings count, and so does the code of functions and of classes that are neither torch's nor personafl's:
whoever changes the `forward` of a module, or a step of an algorithm, has another one. Code that these call in turn is
known by its name only.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import is_dataclass
from hashlib import sha256
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from personafl.registry import not_later

KNOWN_BY_VERSION = ("torch", "personafl", "builtins", "typing", "abc", "numpy")
_PLAIN = (bool, int, float, str, bytes, type(None))


def description(value: Any) -> Any:
    """What a value is made of, for JSON.

    >>> (
    ...     description(0.5),
    ...     description(nn.Linear(2, 1)) == description(nn.Linear(2, 1)),
    ...     description(nn.Tanh()) == description(nn.Tanh()),
    ... )
    ('0.5', False, True)
    """
    if isinstance(value, nn.Module):
        tensors = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        attributes = {name: _plain(vars(module)) for name, module in value.named_modules()}
        kinds = {type(module) for module in value.modules()}
        return [repr(value), description(tensors), attributes, sorted(repr(_class(kind)) for kind in kinds)]
    if isinstance(value, functools.partial):
        return [description(value.func), description(value.args), description(value.keywords)]
    if isinstance(value, MethodType):
        return [description(value.__func__), description(value.__self__)]
    if isinstance(value, FunctionType):
        # Of objects that it has caught only the class counts: they may lead back to the function.
        caught = [_shallow(cell.cell_contents) for cell in value.__closure__ or () if _filled(cell)]
        return [_function(value), caught]
    if isinstance(value, type):
        return _class(value)
    if is_dataclass(value):
        return [_class(type(value)), {name: description(getattr(value, name)) for name in not_later(value)}]
    if isinstance(value, Mapping):
        return {str(key): description(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [description(inner) for inner in value]
    return _shallow(value)


def _shallow(value: Any) -> Any:
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().flatten()
        digest = sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()
        return [str(value.dtype), list(value.shape), value.requires_grad, digest]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), sha256(value.tobytes()).hexdigest()]
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple):
        return [_shallow(inner) for inner in value]
    if isinstance(value, FunctionType):
        return _function(value)
    kind = value if isinstance(value, type) else type(value)
    return [kind.__module__, kind.__qualname__, _plain(getattr(value, "__dict__", {}))]


def _class(kind: type) -> list[Any]:
    """Its name, its constants and the code of its methods, with those that it inherits."""
    members: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in KNOWN_BY_VERSION:
            functions = {name: _inside(member) for name, member in vars(base).items()}
            members[base.__qualname__] = _plain(vars(base)) | {n: _function(f) for n, f in functions.items() if f}
    return [kind.__module__, kind.__qualname__, members]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is said in plain values, such as a factor that a module keeps."""
    known = {k: v for k, v in values.items() if not k.startswith("_") and k != "training"}
    return {k: repr(v) for k, v in known.items() if isinstance(v, (*_PLAIN, tuple)) and " at 0x" not in repr(v)}


def _inside(member: Any) -> FunctionType | None:
    """The function of a method, also of a class method or a property."""
    member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return member if isinstance(member, FunctionType) else None


def _function(function: FunctionType) -> list[Any]:
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [function.__module__, function.__qualname__, _code(function.__code__), [_shallow(d) for d in defaults]]


def _code(code: CodeType) -> list[Any]:
    constants = [
        _code(c) if isinstance(c, CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]
    return [sha256(code.co_code).hexdigest(), list(code.co_names), list(code.co_varnames), constants]


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
