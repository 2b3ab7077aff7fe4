"""Pickles of numbers, text and numpy arrays, read without executing anything.

A pickle is a program. `pickletools` takes it apart into its instructions, and of these only the harmless ones are
carried out here: numbers, text, lists, tuples, dicts, and what stands for a numpy array. Names of functions that a
pickle mentions stay names, and one that no array needs is refused. CIFAR's archives, PFLlib's data and FL-bench's
partitions are such pickles.
"""

import math
import pickletools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personafl.errors import DataError

_PROTOCOL = 5
_MOST_INSTRUCTIONS = 2_000_000  # the longest file of CIFAR has about 250,000; each may take some 100 bytes of memory
_MOST_SHOWN = 100  # characters of an error's text: a damaged file is quoted there

_NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT")
_TEXTS = (
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
)  # fmt: skip
_VALUES = frozenset((*_NUMBERS, *_TEXTS))
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NUMPY = ("numpy.core", "numpy._core")  # before and since numpy 2
_RECONSTRUCT = frozenset(f"{core}.multiarray._reconstruct" for core in _NUMPY)
_SCALAR = frozenset(f"{core}.multiarray.scalar" for core in _NUMPY)
_FROM_BUFFER = frozenset(f"{core}.numeric._frombuffer" for core in _NUMPY)
# _codecs.encode is how Python 3 writes bytes for Python 2.
_NAMES = _RECONSTRUCT | _SCALAR | _FROM_BUFFER | {"numpy.ndarray", "numpy.dtype", "_codecs.encode"}


def read_pickle(content: bytes, what: str, keys: Sequence[str]) -> dict[str, Any]:
    r"""These entries of a pickled dict: lists, numbers, text, and numpy arrays of numbers, at the top or in lists.

    Byte strings of Python 2 are text here: each byte is a character. Text in protocol 0 must be ASCII. Nothing is
    executed, and an array takes no more memory than its bytes take in the file.

    Parameters
    ----------
    content
        The pickle. A dict that numpy put into an array, as `np.savez(file, data={…})` does, is taken out of it.
    what
        What to call it in an error, such as its path.
    keys : sequence of str
        The entries that are wanted; the others are left alone.

    Examples
    --------
    >>> read_pickle(b"(dp1\nS'labels'\np2\n(lp3\nI6\naI9\nas.", "a batch", ["labels"])
    {'labels': [6, 9]}
    >>> read_pickle(b"cos\nsystem\n(S'id'\ntR.", "a batch", ["labels"])
    Traceback (most recent call last):
    ...
    personafl.errors.DataError: a batch asks for os.system, which no array needs; get the file again
    """
    try:
        entries = plain(_run(content, what))
        if not isinstance(entries, dict):
            raise ValueError("it holds no dict")
        if lacking := [key for key in keys if key not in entries]:
            found = _shown(", ".join(entries)) or "nothing"
            raise DataError(f"{what} has no {lacking[0]!r}; expected {', '.join(keys)}, found {found}")
        return {key: plain(entries[key]) for key in keys}
    except (IndexError, KeyError) as error:
        raise DataError(f"{what} is not a pickle: its instructions do not fit together; get the file again") from error
    except ValueError as error:
        raise DataError(f"{what} is not a pickle of arrays: {_shown(str(error))}; get the file again") from error


def plain(value: Any) -> Any:
    """The array that something in a pickle stands for; anything else as it is, what is inside of it too."""
    return value.values() if isinstance(value, PickledArray) else value


@dataclass(frozen=True)
class _Name:
    """A name that the pickle mentions, such as numpy.ndarray."""

    name: str


@dataclass
class _Dtype:
    """What an array holds: numbers such as f8, or objects, O."""

    kind: str
    order: str = "|"

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(("" if self.order == "|" else self.order) + self.kind)


@dataclass
class PickledArray:
    """What is known of an array: see `plain`."""

    shape: tuple[int, ...] = (0,)
    dtype: _Dtype | None = None
    columns_first: bool = False
    content: Any = b""

    def values(self) -> Any:
        """The array; of an array of one object without a shape, that object."""
        if self.dtype is not None and self.dtype.kind == "O":
            if self.shape != () or not isinstance(self.content, list) or len(self.content) != 1:
                raise ValueError("it holds an array of Python objects, not of numbers")
            return self.content[0]
        if self.dtype is None or not isinstance(self.content, str | bytes | bytearray):
            raise ValueError("it describes an array in a way that numpy does not")
        return _numbers(self.dtype, self.content, self.shape, self.columns_first)


def _numbers(
    dtype: _Dtype, content: str | bytes | bytearray, shape: tuple[int, ...], columns_first: bool
) -> NDArray[Any]:
    held = content.encode("latin-1") if isinstance(content, str) else bytes(content)
    if math.prod(shape) * dtype.numpy().itemsize != len(held):
        raise ValueError(f"an array of shape {shape} has {len(held)} bytes")
    return np.frombuffer(held, dtype.numpy()).reshape(shape, order="F" if columns_first else "C")


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
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
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
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            if not (isinstance(attribute, str) and isinstance(module, str)):
                raise ValueError("it asks for a name that is not text")
            stack.append(_allowed(name, f"{module}.{attribute}", what))
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
        elif name != "FRAME":
            raise ValueError(f"it uses the instruction {name}")
    raise ValueError("it has no end")


def _allowed(instruction: str, name: str, what: str) -> _Name:
    if instruction == "INST" or name not in _NAMES:
        raise DataError(f"{what} asks for {_shown(name)}, which no array needs; get the file again")
    return _Name(name)


def _called(function: Any, arguments: Any) -> Any:
    """What numpy's functions would have made, as far as it is needed."""
    name = function.name if isinstance(function, _Name) else ""
    match arguments:
        case (str() as text, "latin1") if name == "_codecs.encode":
            return text
        case (str() as kind, *_) if name == "numpy.dtype":
            if not re.fullmatch("b1|[iu][1248]|f[248]|O8?", kind):
                raise ValueError(f"it holds an array of {kind} values, not of numbers")
            return _Dtype("O" if kind == "O8" else kind)
        case (_Name("numpy.ndarray"), (0,), "b" | b"b") if name in _RECONSTRUCT:
            return PickledArray()
        case (_Dtype() as dtype, str() | bytes() as content) if name in _SCALAR and dtype.kind != "O":
            return _numbers(dtype, content, (), False).item()
        case (bytes() | bytearray() as content, _Dtype() as dtype, tuple() as shape, "C" | "F" as order) if (
            name in _FROM_BUFFER and dtype.kind != "O"
        ):
            return PickledArray(_checked(shape), dtype, order == "F", content)
    raise ValueError("it calls a function in a way that no array needs")


def _set(target: Any, state: Any) -> None:
    match target, state:
        case _Dtype(), (3, "<" | ">" | "|" | "=" as order, None, None, None, *_):
            target.order = order
        case PickledArray(), (
            1, tuple() as shape, _Dtype() as dtype, bool() as columns_first, str() | bytes() | list() as content
        ):  # fmt: skip
            target.shape, target.dtype = _checked(shape), dtype
            target.columns_first, target.content = columns_first, content
        case _:
            raise ValueError("it describes an array in a way that numpy does not")


def _checked(shape: tuple[Any, ...]) -> tuple[int, ...]:
    if len(shape) > 8 or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
        raise ValueError("an array has more than eight dimensions, or none that can be")
    return shape


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
