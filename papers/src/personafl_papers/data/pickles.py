"""Pickles of CIFAR's python archives, read without executing anything.

A pickle is a program. `pickletools` takes it apart into its instructions, and of these only the harmless ones are
carried out here: numbers, text, lists, tuples, dicts, and what stands for a numpy array of bytes. Names of functions
that a pickle mentions stay names, and one that no array needs is refused.
"""

import math
import pickletools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from personafl.data.readers import Bytes
from personafl.errors import DataError

_PROTOCOL = 2  # the newest that Python 2 wrote
_MOST_INSTRUCTIONS = 2_000_000  # the longest file of CIFAR has about 250,000; each may take some 100 bytes of memory
_MOST_SHOWN = 100  # characters of an error's text: a damaged file is quoted there

_NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1")
_TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE")
_VALUES = frozenset((*_NUMBERS, *_TEXTS))
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NAMES = frozenset(
    (
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",  # since numpy 2
        "numpy.ndarray",
        "numpy.dtype",
        "_codecs.encode",  # how Python 3 writes bytes for Python 2
    )
)


def read_pickle(content: bytes, what: str, keys: Sequence[str]) -> dict[str, Any]:
    """These entries of a pickled dict, of protocol 0 to 2: lists, numbers, text, and numpy arrays of uint8.

    Bytes and text are the same here, as in the Python 2 that wrote CIFAR: each byte is a character. Text in protocol 0
    must be ASCII. Nothing is executed, and an array takes no more memory than its bytes take in the file.

    Parameters
    ----------
    content
        The pickle.
    what
        What to call it in an error, such as its path.
    keys : sequence of str
        The entries that are wanted; the others are left alone.

    Examples
    --------
    >>> read_pickle(b"(dp1\\nS'labels'\\np2\\n(lp3\\nI6\\naI9\\nas.", "a batch", ["labels"])
    {'labels': [6, 9]}
    >>> read_pickle(b"cos\\nsystem\\n(S'id'\\ntR.", "a batch", ["labels"])
    Traceback (most recent call last):
    ...
    personafl.errors.DataError: a batch asks for os.system, which CIFAR's files never do; get the file again
    """
    try:
        entries = _run(content, what)
        if not isinstance(entries, dict):
            raise ValueError("it holds no dict")
        if lacking := [key for key in keys if key not in entries]:
            found = _shown(", ".join(entries)) or "nothing"
            raise DataError(f"{what} has no {lacking[0]!r}; expected {', '.join(keys)}, found {found}")
        return {key: entries[key].values() if isinstance(entries[key], _Array) else entries[key] for key in keys}
    except (IndexError, KeyError) as error:
        raise DataError(f"{what} is not a pickle: its instructions do not fit together; get the file again") from error
    except ValueError as error:
        raise DataError(f"{what} is not a pickle as CIFAR's are: {_shown(str(error))}; get the file again") from error


@dataclass(frozen=True)
class _Name:
    """A name that the pickle mentions, such as numpy.ndarray."""

    name: str


class _Uint8:
    """The dtype of an array."""


@dataclass
class _Array:
    """What is known of an array."""

    shape: tuple[int, ...] = (0,)
    columns_first: bool = False
    text: str = ""

    def values(self) -> Bytes:
        if math.prod(self.shape) != len(self.text):
            raise ValueError(f"an array of shape {self.shape} has {len(self.text)} bytes")
        return np.frombuffer(self.text.encode("latin-1"), np.uint8).reshape(
            self.shape, order="F" if self.columns_first else "C"
        )


def _run(content: bytes, what: str) -> Any:
    """Carry out the instructions. Errors of a pickle are ValueError, IndexError and KeyError, as in `pickletools`."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks under each mark
    memo: dict[Any, Any] = {}
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if count >= _MOST_INSTRUCTIONS:
            raise ValueError(f"it has more than {_MOST_INSTRUCTIONS} instructions")
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"):
            items, stack = stack, below.pop()
            if name == "TUPLE":
                stack.append(tuple(items))
            elif name == "LIST":
                stack.append(items)
            elif name == "DICT":
                stack.append(_filled({}, items))
            elif name == "APPENDS":
                _extended(stack[-1], items)
            else:
                _filled(stack[-1], items)
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "APPEND":
            item = stack.pop()
            _extended(stack[-1], [item])
        elif name == "SETITEM":
            items = [stack.pop(), stack.pop()][::-1]
            _filled(stack[-1], items)
        elif name in ("GLOBAL", "INST"):
            stack.append(_allowed(name, argument.replace(" ", "."), what))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_called(stack.pop(), arguments))
        elif name == "BUILD":
            state = stack.pop()
            _set(stack[-1], state)
        elif name == "PROTO":
            if argument > _PROTOCOL:
                raise ValueError(f"it is of protocol {argument}, newer than {_PROTOCOL}")
        elif name == "STOP":
            return stack.pop()
        else:
            raise ValueError(f"it uses the instruction {name}")
    raise ValueError("it has no end")


def _allowed(instruction: str, name: str, what: str) -> _Name:
    if instruction == "INST" or name not in _NAMES:
        raise DataError(f"{what} asks for {_shown(name)}, which CIFAR's files never do; get the file again")
    return _Name(name)


def _called(function: Any, arguments: Any) -> Any:
    """What numpy's functions would have made, as far as it is needed."""
    match function, arguments:
        case _Name("_codecs.encode"), (str() as text, "latin1"):
            return text
        case _Name("numpy.dtype"), ("u1", *_):
            return _Uint8()
        case _Name("numpy.dtype"), (str() as kind, *_):
            raise ValueError(f"it holds an array of {kind} values, expected u1")
        case _Name("numpy.core.multiarray._reconstruct" | "numpy._core.multiarray._reconstruct"), (
            _Name("numpy.ndarray"),
            (0,),
            "b",
        ):
            return _Array()
    raise ValueError("it calls a function in a way that no array needs")


def _set(target: Any, state: Any) -> None:
    match target, state:
        case _Uint8(), tuple():
            pass  # byte order, fields and alignment, of which single bytes have none
        case _Array(), (1, (int(), *_) as shape, _Uint8(), bool() as columns_first, str() as text):
            if len(shape) > 2 or not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError("an array has more than two dimensions, or none that can be")
            target.shape, target.columns_first, target.text = tuple(shape), columns_first, text
        case _:
            raise ValueError("it describes an array in a way that numpy does not")


def _extended(target: Any, items: list[Any]) -> None:
    if not isinstance(target, list):
        raise ValueError("it appends to what is not a list")
    target.extend(items)


def _filled(target: Any, items: list[Any]) -> dict[str, Any]:
    # Only text: Python's hash of deeply nested tuples overflows the stack of the process.
    if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
        raise ValueError("it has a dict with keys that are not text")
    target.update(zip(items[::2], items[1::2], strict=True))
    return target


def _shown(text: str) -> str:
    """Text from a file, fit for one line of a message."""
    escaped = ascii(text[: _MOST_SHOWN + 1])[1:-1]
    return escaped if len(escaped) <= _MOST_SHOWN else f"{escaped[:_MOST_SHOWN]}…"
