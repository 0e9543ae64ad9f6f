"""Caches on a GPU. They read and write tensors in place, on the stream of the library that owns the
tensors."""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import operator
import re
import sys
import threading
from typing import Any, Callable, NamedTuple, Optional, TypeVar

import numpy as np

from . import _octaplex, _tensors
from ._octaplex import Error
from ._tensors import Buffer, Floats, Tensor

T = TypeVar("T")
#: Layers, key/value heads, width and capacity of a cache.
Size = tuple[int, int, int, int]
#: How `__cuda_array_interface__` names floats.
_TYPES = {"<f4": "float32", "<f2": "float16", "=f4": "float32", "=f2": "float16"}
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
#: CUDA's legacy default stream.
_DEFAULT_STREAM = 0


class Memory(NamedTuple):
    """Floats in a GPU's memory, as the extension takes them."""

    #: Kept alive.
    tensor: Any
    address: int
    #: Number of floats from the first to the last.
    extent: int
    dtype: str

    @property
    def span(self) -> tuple[int, int]:
        """Returns the addresses of the first float, and after the last one."""
        return self.address, self.address + self.extent * _WIDTHS[self.dtype]


class View(NamedTuple):
    """The place of a tensor in a GPU's memory."""

    memory: Memory
    shape: tuple[int, ...]
    #: In floats, not in bytes.
    strides: tuple[int, ...]
    #: Number of the GPU; None if the tensor does not tell.
    number: Optional[int]
    stream: int
    writable: bool

    @property
    def contiguous(self) -> bool:
        """Returns whether its floats lie without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


class Rows(NamedTuple):
    """Keys and values of tokens in a GPU's memory, as the extension takes them. Strides are in floats."""

    keys: Memory
    values: Memory
    tokens: int
    token_stride: int
    head_stride: int

    @staticmethod
    def of(
        keys: Memory,
        values: Memory,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        *,
        tokens: int,
        heads: int,
    ) -> Rows:
        """Returns keys and values of one shape. ``tokens`` and ``heads`` number the axes."""
        return Rows(keys, values, shape[tokens], strides[tokens], strides[heads])


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns the number of floats from the first to the last: 1 + the sum of (size - 1) * stride."""
    return 0 if 0 in shape else 1 + sum(map(operator.mul, shape, strides)) - sum(strides)


def of_torch(tensor: Any, extent: int) -> Memory:
    """Returns the memory of a PyTorch tensor. Does not check it."""
    return Memory(tensor, tensor.data_ptr(), extent, str(tensor.dtype)[6:])


def rows_of_torch(keys: Any, values: Any, *, tokens: int, heads: int) -> Rows:
    """Returns PyTorch's keys and values as the extension takes them. Does not check them.

    Copies them only if a row is not contiguous, or if keys and values have different strides."""
    if keys.stride() != values.stride() or keys.stride(-1) != 1:
        keys, values = keys.contiguous(), values.contiguous()
    shape, strides = keys.shape, keys.stride()
    extent = _extent(shape, strides)
    k, v = of_torch(keys, extent), of_torch(values, extent)
    return Rows.of(k, v, shape, strides, tokens=tokens, heads=heads)


def number_of(device: Any) -> Optional[int]:
    """Returns the GPU number of a device ("cuda", "cuda:1", a torch.device), or None for the CPU."""
    words = str(device)
    found = re.fullmatch(r"cuda(?::(\d+))?", words)
    if found is None:
        if words == "cpu":
            return None
        raise Error(f'device is "{words}": pass "cpu", "cuda", or a numbered GPU such as "cuda:1"')
    if found[1] is not None:
        return int(found[1])
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0


def is_on_gpu(tensor: Tensor) -> bool:
    """Returns whether a tensor is on a GPU."""
    if _tensors.is_torch(tensor):
        return bool(tensor.device.type == "cuda")
    return not isinstance(tensor, np.ndarray) and hasattr(tensor, "__cuda_array_interface__")


def view(tensor: Tensor, what: str, number: Optional[int], writable: bool = False) -> View:
    """Returns the place of a tensor of this GPU. Raises an :class:`Error` if it is elsewhere or of another
    type."""
    if not is_on_gpu(tensor):
        where = f"on {tensor.device}" if hasattr(tensor, "device") else f"a {type(tensor).__name__}"
        raise Error(f"{what} is {where}, and the cache is on cuda:{number}: pass a tensor of that GPU")
    found = _of_torch(tensor) if _tensors.is_torch(tensor) else _of_interface(tensor, what)
    if number is not None and found.number is not None and found.number != number:
        raise Error(
            f"{what} is on cuda:{found.number}, and the cache is on cuda:{number}: pass a tensor of that GPU"
        )
    if found.memory.dtype not in _WIDTHS:
        raise Error(f"{what} is of {found.memory.dtype}: pass float32, float16 or bfloat16")
    if writable and not found.writable:
        raise Error(f"{what} cannot be written to: pass a tensor of your own")
    return found


def _of_torch(tensor: Any) -> View:
    number, shape, strides = tensor.device.index, tensor.shape, tensor.stride()
    memory = of_torch(tensor, _extent(shape, strides))
    stream = sys.modules["torch"].cuda.current_stream(number).cuda_stream
    return View(memory, shape, strides, number, stream, True)


def _of_interface(tensor: Any, what: str) -> View:
    interface = tensor.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise Error(f"{what} is a masked array, and octaplex ignores masks: pass one without a mask")
    shape, dtype = tuple(interface["shape"]), _TYPES.get(interface["typestr"], interface["typestr"])
    address, read_only = interface["data"]
    width = _WIDTHS.get(dtype, 1)
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))
    elif any(stride < 0 or stride % width for stride in strides):
        raise Error(f"{what} has the strides {list(strides)} in bytes: pass a contiguous array")
    else:
        strides = tuple(stride // width for stride in strides)
    number = getattr(getattr(tensor, "device", None), "id", None)
    stream = interface.get("stream")
    stream = _DEFAULT_STREAM if stream is None else int(stream)
    memory = Memory(tensor, int(address), _extent(shape, strides), dtype)
    return View(memory, shape, strides, number, stream, not read_only)


def rows(keys: Tensor, values: Tensor, shape: tuple[int, int], number: int) -> tuple[Rows, int]:
    """Returns keys and values [kv_heads, tokens, head_dim] as the extension takes them, and their stream.

    Copies them only if a row is not contiguous, or if keys and values have different strides."""
    heads, dim = shape
    both = ("keys", keys), ("values", values)
    k, v = (view(tensor, what, number) for what, tensor in both)
    for what, seen in (("keys", k), ("values", v)):
        if len(seen.shape) != 3 or (seen.shape[0], seen.shape[2]) != (heads, dim):
            raise Error(f"{what} has the shape {list(seen.shape)}: pass [{heads}, tokens, {dim}]")
    if k.shape != v.shape:
        raise Error(f"keys has {k.shape[1]} tokens and values has {v.shape[1]}: pass as many of both")
    if k.memory.dtype != v.memory.dtype:
        types = f"keys is of {k.memory.dtype} and values of {v.memory.dtype}"
        raise Error(f"{types}: pass both of one type")
    if k.strides != v.strides or k.strides[2] != 1:
        k, v = (view(contiguous(tensor, what), what, number) for what, tensor in both)
    return Rows.of(k.memory, v.memory, k.shape, k.strides, tokens=1, heads=0), k.stream


def contiguous(tensor: Any, what: str) -> Any:
    """Returns a contiguous copy, by the tensor's own library."""
    if _tensors.is_torch(tensor):
        return tensor.contiguous()
    if hasattr(tensor, "copy"):
        return tensor.copy()
    raise Error(f"{what} is not contiguous: pass a contiguous array")


def ready(tensor: Tensor, what: str, number: int) -> View:
    """Returns a contiguous tensor that starts at a multiple of 16 bytes: the tensor itself, or a copy."""
    found = view(tensor, what, number)
    if not found.contiguous:
        found = view(contiguous(tensor, what), what, number)
    if found.memory.address % 16:
        if not _tensors.is_torch(tensor):
            raise Error(f"{what} does not start at a multiple of 16 bytes: pass a copy")
        found = view(found.memory.tensor.clone(), what, number)
    return found


def empty_like(shape: tuple[int, ...], tensor: Tensor) -> Any:
    """Creates a float32 tensor of this shape on the device of ``tensor``."""
    if _tensors.is_torch(tensor):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch.float32, device=tensor.device)
    package = sys.modules.get(type(tensor).__module__.partition(".")[0])
    if package is not None and hasattr(package, "empty") and hasattr(package, "float32"):
        return package.empty(shape, dtype=package.float32)
    raise Error(f"cannot allocate a result for a {type(tensor).__name__}: pass out")


def host(tensor: Tensor, what: str) -> Floats:
    """Returns floats on the host: sink logits, biases, or rows for the balance."""
    if _tensors.is_torch(tensor):
        tensor = tensor.detach().float().cpu().contiguous()
    elif is_on_gpu(tensor) and hasattr(tensor, "get"):  # CuPy's
        tensor = tensor.get()
    return _tensors.floats(tensor, what)[0]


def retried(call: Callable[[], T]) -> T:
    """Calls again if the GPU's memory was full, after PyTorch has released its unused memory."""
    try:
        return call()
    except _octaplex.OutOfMemory:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            raise
        torch.cuda.empty_cache()
    return call()


@functools.cache
def find_compiler() -> None:
    """Loads the NVRTC of PyTorch's wheels, unless the system has one. The loader does not search there."""
    if not sys.platform.startswith("linux"):
        return
    for name in ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            ctypes.CDLL(name)
            return
        except OSError:
            continue
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for path in sorted(glob.glob(f"{glob.escape(folder)}/*/lib/libnvrtc.so.1[23]"), reverse=True):
            try:
                ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
                return
            except OSError:
                continue


def made(
    number: int, size: Size, settings: dict[str, Any], sequences: int, only: Optional[int] = None
) -> _octaplex.DeviceCache:
    """Creates empty layers on a GPU: all of a model, or only layer ``only``."""
    find_compiler()
    return retried(lambda: _octaplex.DeviceCache(number, size, settings, sequences, only))


class Pool:
    """Layers on a GPU, and the list of their free sequences. Forks share a pool."""

    def __init__(self, cache: _octaplex.DeviceCache, number: int, sequences: int) -> None:
        self.cache, self.number, self.lock = cache, number, threading.Lock()
        self.free = list(range(sequences - 1, -1, -1))

    def take(self) -> int:
        """Takes a free sequence."""
        with self.lock:
            if not self.free:
                count = self.cache.sequences()
                advice = f"create it with forks={count} or more"
                raise Error(f"the cache and its {count - 1} forks are all in use: {advice}")
            return self.free.pop()

    def give(self, sequence: int) -> None:
        """Frees a sequence and its pages."""
        try:
            self.cache.clear(sequence)
        except Error:  # the GPU is lost, or the process ends
            return
        with self.lock:
            self.free.append(sequence)


class Sequence:
    """One sequence of a pool: the inner object of an :class:`octaplex.Cache` on a GPU."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.sequence = pool, pool.take()
        self.cache, self.number = pool.cache, pool.number
        _, self.kv_heads, self.head_dim = self.cache.shape()

    def __del__(self) -> None:
        if hasattr(self, "sequence"):
            self.pool.give(self.sequence)

    @staticmethod
    def empty(number: int, size: Size, settings: dict[str, Any], forks: int) -> Sequence:
        """Creates an empty sequence that can have ``forks`` forks."""
        return Sequence(Pool(made(number, size, settings, 1 + forks), number, 1 + forks))

    @staticmethod
    def upload(number: int, cache: _octaplex.Cache, forks: int) -> Sequence:
        """Creates a copy of a cache on the CPU."""
        find_compiler()
        made = retried(lambda: _octaplex.DeviceCache.like(number, cache, 1 + forks))
        copy = Sequence(Pool(made, number, 1 + forks))
        retried(lambda: copy.cache.upload(copy.sequence, cache))
        return copy

    def shape(self) -> tuple[int, int, int, int]:
        """Returns the shape. Values are as wide as keys, because a GPU has no other."""
        return (*self.cache.shape(), self.head_dim)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Appends tokens from the GPU or from the host."""
        if not is_on_gpu(keys) and not is_on_gpu(values):
            shape = (self.kv_heads, "tokens", self.head_dim)
            given = [_tensors.shaped(x, what, shape) for x, what in ((keys, "keys"), (values, "values"))]
            return retried(lambda: self.cache.append_host(layer, self.sequence, *given))
        found, stream = rows(keys, values, (self.kv_heads, self.head_dim), self.number)
        return retried(lambda: self.cache.append(layer, self.sequence, found, stream))

    def append_chunk(self, blob: Buffer) -> None:
        """Raises an :class:`Error`."""
        raise Error('chunks are appended on the CPU: create the cache there, append, and call to("cuda")')

    def calibrate(self, layer: int, keys: Tensor, queries: Tensor) -> None:
        """Decides the balance from rows, which go through the host."""
        for what, tensor in (("keys", keys), ("queries", queries)):
            if len(tensor.shape) != 3 or tensor.shape[2] != self.head_dim:
                raise Error(
                    f"{what} has the shape {list(tensor.shape)}: pass [heads, tokens, {self.head_dim}]"
                )
        self.cache.calibrate(layer, self.sequence, host(keys, "keys"), host(queries, "queries"))

    def attend(self, layer: int, queries: Tensor, out: Optional[Tensor], options: dict[str, Any]) -> Any:
        """Returns the output on the device of the queries."""
        found = ready(queries, "queries", self.number)
        shape = found.shape
        options = {**options, "queries": _tensors.queries_in(shape, self.head_dim)}
        if out is None:
            out = empty_like(shape, queries)
        target = view(out, "out", self.number, writable=True)
        if target.shape != shape:
            raise Error(f"out has the shape {list(target.shape)}: pass {list(shape)}")
        if not target.contiguous or target.memory.address % 16:
            raise Error(
                "out is not contiguous, or does not start at a multiple of 16 bytes: pass a new tensor"
            )
        (start, end), (first, last) = found.memory.span, target.memory.span
        if first < end and start < last:
            raise Error("out shares memory with queries: pass another tensor")
        more = ((options[what], what) for what in ("sink_logits", "bias"))
        logits, bias = (None if x is None else host(x, what) for x, what in more)
        at, attend = (self.sequence, 1), self.cache.attend
        retried(lambda: attend(layer, at, found.memory, options, logits, bias, target.memory, found.stream))
        return out

    def truncate(self, position: int) -> None:
        """As on the CPU."""
        self.cache.truncate(self.sequence, position)

    def evict(self, start: int, end: int) -> int:
        """As on the CPU."""
        return self.cache.evict(self.sequence, start, end)

    def clear(self) -> None:
        """As on the CPU."""
        self.cache.clear(self.sequence)

    def fork(self) -> Sequence:
        """Creates another sequence of the pool, which shares the pages."""
        fork = Sequence(self.pool)
        self.cache.fork(self.sequence, fork.sequence)
        return fork

    def download(self) -> _octaplex.Cache:
        """Returns a copy on the CPU."""
        return self.cache.download(self.sequence)

    def next_position(self, layer: int) -> int:
        """As on the CPU."""
        return self.cache.next_position(layer, self.sequence)

    def stats(self) -> list[int]:
        """As on the CPU; bytes are the GPU's."""
        return self.cache.stats(self.sequence)

    def specs(self) -> list[tuple[str, str]]:
        """As on the CPU."""
        return self.cache.specs()

    def page_bits(self) -> float:
        """As on the CPU."""
        return self.cache.page_bits()
