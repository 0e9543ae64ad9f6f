"""Views tensors of other libraries as NumPy arrays, without a copy."""

from __future__ import annotations

import sys
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ._octaplex import Error

#: A NumPy array, a PyTorch tensor, or any object with DLPack. It is contiguous, on the CPU, in float32, float16 or bfloat16
#: (in NumPy that of ml_dtypes). Calls read and write it in place.
Tensor = Any
#: Arguments of the extension: contiguous, of one dimension. 16-bit floats are their bits, and whether they are bfloat16.
Floats = Union[NDArray[np.float32], tuple[NDArray[np.uint16], bool]]
#: bytes, bytearray, memoryview, or a tensor of uint8.
Buffer = Any


def array(tensor: Tensor, what: str) -> tuple[NDArray[Any], str]:
    """Returns the tensor as an array (bfloat16 as its bits), and the name of its type."""
    if isinstance(tensor, np.ma.MaskedArray):
        raise Error(f"{what} is a masked array, and octaplex ignores masks: pass x.filled(0) or x.data")
    if isinstance(tensor, np.matrix):
        raise Error(f"{what} is a numpy.matrix, which always has two dimensions: pass numpy.asarray(x)")
    if isinstance(tensor, np.ndarray):
        found, name = np.asarray(tensor), tensor.dtype.name
        if name == "bfloat16":
            found = _contiguous(found, what).view(np.uint16)
    elif is_torch(tensor):
        try:
            found, name = _torch(tensor, what)
        except (NotImplementedError, RuntimeError, TypeError) as error:  # sparse, masked, conjugated and the like
            words = str(error).partition("\n")[0]
            raise Error(f"{what}: NumPy cannot view this tensor ({words}): pass a plain one") from None
    elif hasattr(tensor, "__dlpack__"):
        try:
            found = np.from_dlpack(tensor)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise Error(f"{what}: NumPy cannot view this tensor ({error}): move it to the CPU, as float32 or float16") from None
        name = found.dtype.name
    else:
        raise Error(f"{what} is a {type(tensor).__name__}: pass a NumPy array, a PyTorch tensor or one with DLPack")
    if not found.dtype.isnative:
        raise Error(f"{what} has swapped bytes: pass x.astype(x.dtype.newbyteorder('='))")
    return _contiguous(found, what), name


def is_torch(tensor: Tensor) -> bool:
    """Returns whether a tensor is PyTorch's."""
    return type(tensor).__module__.partition(".")[0] == "torch"


def like(result: NDArray[Any], tensor: Tensor) -> Any:
    """Returns a result as a PyTorch tensor if ``tensor`` is one, otherwise as an array."""
    return sys.modules["torch"].from_numpy(result) if is_torch(tensor) else result


def _contiguous(found: NDArray[Any], what: str) -> NDArray[Any]:
    if not found.flags.aligned:
        raise Error(f"{what}: the array is not aligned: pass x.copy()")
    if not found.flags.c_contiguous:
        raise Error(f"{what}: the tensor is not contiguous: pass x.contiguous() or numpy.ascontiguousarray(x)")
    return found


def _torch(tensor: Any, what: str) -> tuple[NDArray[Any], str]:
    if tensor.device.type != "cpu":
        raise Error(f"{what}: the tensor is on {tensor.device}: pass x.cpu(), or make the cache with device=\"{tensor.device}\"")
    if not tensor.is_contiguous():
        raise Error(f"{what}: the tensor is not contiguous: pass x.contiguous() or numpy.ascontiguousarray(x)")
    name, tensor = str(tensor.dtype).partition(".")[2], tensor.detach()
    if name == "bfloat16":
        bits = tensor.view(sys.modules["torch"].int16)  # NumPy has no bfloat16
        return bits.numpy().view(np.uint16), name
    found: NDArray[Any] = tensor.numpy()
    return found, name


def floats(tensor: Tensor, what: str, writable: bool = False) -> tuple[Floats, tuple[int, ...]]:
    """Returns a tensor as the extension takes it, and its shape."""
    found, name = array(tensor, what)
    if writable and not found.flags.writeable:
        raise Error(f"{what} cannot be written to: pass a tensor of your own")
    flat = found.reshape(-1)
    if name == "float32":
        return flat, found.shape
    if name == "float16":
        return (flat.view(np.uint16), False), found.shape
    if name == "bfloat16":
        return (flat, True), found.shape
    raise Error(f"{what} is of {name}: pass float32, float16 or bfloat16")


def shaped(tensor: Tensor, what: str, shape: tuple[Union[int, str], ...], writable: bool = False) -> Floats:
    """Returns a tensor as the extension takes it. Checks its shape, in which names mean any number."""
    found, actual = floats(tensor, what, writable)
    if len(actual) != len(shape) or any(isinstance(want, int) and want != have for want, have in zip(shape, actual)):
        wanted = ", ".join(str(want) for want in shape)
        raise Error(f"{what} has the shape {list(actual)}: pass [{wanted}]")
    return found


def queries_in(shape: tuple[int, ...], head_dim: int) -> int:
    """Returns the number of queries a head, from the shape of queries."""
    if len(shape) not in (2, 3) or shape[-1] != head_dim:
        wanted = f"[query_heads, {head_dim}] or [query_heads, queries, {head_dim}]"
        raise Error(f"queries has the shape {list(shape)}: pass {wanted}")
    return shape[1] if len(shape) == 3 else 1


def apart(out: Union[Floats, NDArray[Any]], **inputs: Union[Floats, NDArray[Any], None]) -> None:
    """Checks that ``out`` shares no memory with an input."""
    memory = [x[0] if isinstance(x, tuple) else x for x in (out, *inputs.values())]
    for what, read in zip(inputs, memory[1:]):
        if read is not None and np.may_share_memory(memory[0], read):
            raise Error(f"out shares memory with {what}: pass another tensor")


def buffer(data: Buffer, what: str, writable: bool = False) -> NDArray[np.uint8]:
    """Returns bytes as an array, without a copy."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        try:
            found: Optional[NDArray[Any]] = np.frombuffer(data, np.uint8)
        except ValueError as error:  # a view with gaps
            raise Error(f"{what}: {error}: pass bytes(x)") from None
    else:
        found, name = array(data, what)
        if name != "uint8":
            raise Error(f"{what} is of {name}: pass bytes, or a tensor of uint8")
    assert found is not None
    if writable and not found.flags.writeable:
        raise Error(f"{what} cannot be written to: pass a bytearray or an array of your own")
    return found.reshape(-1)
