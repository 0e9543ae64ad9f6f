"""Compresses LMCache's chunks to 1 to 8 bits a value on the CPU, with a serde named ``octaplex``.

A chunk is ``[2, layers, tokens, kv_heads · head_dim]``: keys, then values. A fused chunk is
``[1, layers, tokens, kv_heads · 2 · head_dim]``: for each head its key, then its value. The type is float32, float16 or bfloat16. The
serde stores a blob of :class:`octaplex.ChunkCodec`, whose bytes are the same on every machine.

Importing this module registers the serde. LMCache imports no modules for serdes, but it does for adapters. So a configuration names
:class:`L2Adapter`, which wraps another adapter (docs/gpu-engines.md has the lines).
"""

from __future__ import annotations

import hashlib
import inspect
import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Optional

from ._chunk import ChunkCodec, chunk_info
from ._octaplex import Error

#: The version of LMCache that this module supports.
KNOWN = "0.5.6"


def _moved(what: str, version: str) -> ImportError:
    return ImportError(
        f"octaplex.lmcache is written for LMCache {KNOWN}, and in version {version} {what}: pip install lmcache=={KNOWN}, or a newer octaplex"
    )


try:
    import lmcache as _lmcache  # type: ignore[import-not-found]
except ImportError as error:
    raise ImportError(f"octaplex.lmcache needs LMCache, which cannot be imported ({error}): pip install lmcache=={KNOWN}") from None
_VERSION = str(getattr(_lmcache, "__version__", "unknown"))
try:
    from lmcache.v1.distributed.api import ObjectKey  # type: ignore[import-not-found]
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter  # type: ignore[import-not-found]
    from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface  # type: ignore[import-not-found]
    from lmcache.v1.distributed.l2_adapters.config import PersistConfig, get_l2_adapter_config_class  # type: ignore[import-not-found]
    from lmcache.v1.distributed.serde import (  # type: ignore[import-not-found]
        AsyncSerdeProcessor,
        Deserializer,
        Serializer,
        get_registered_serde_types,
        register_serde_factory,
    )
except ImportError as error:
    raise _moved(f"something is elsewhere, or a package that it needs is missing ({error})", _VERSION) from None

for _method, _parameters in (
    (Serializer.serialize, ["self", "src", "dst", "key"]),
    (Serializer.estimate_serialized_size, ["self", "layout_desc"]),
    (Deserializer.deserialize, ["self", "src", "dst", "key"]),
    (AsyncSerdeProcessor.__init__, ["self", "serializer", "deserializer", "max_workers"]),
    (register_serde_factory, ["name", "factory"]),
    (create_l2_adapter, ["config", "l1_memory_desc"]),
):
    if (_found := list(inspect.signature(_method).parameters)) != _parameters:
        raise _moved(f"{_method.__qualname__} takes {_found}", _VERSION)
for _base, _abstract in ((Serializer, {"serialize", "estimate_serialized_size"}), (Deserializer, {"deserialize"})):
    if set(_base.__abstractmethods__) != _abstract:
        raise _moved(f"{_base.__name__} asks for {sorted(_base.__abstractmethods__)}", _VERSION)
if (_names := [field.name for field in fields(ObjectKey)]) != ["chunk_hash", "model_name", "kv_rank", "object_group_id", "cache_salt"]:
    raise _moved(f"ObjectKey has {_names}", _VERSION)

#: Length of the digest of a chunk's key, which follows the blob's bytes.
DIGEST = 16


def _digest(key: Any) -> list[int]:
    """Returns the BLAKE2b digest of a key's fields. LMCache keeps ``@`` out of names, so no two keys have the same string."""
    written = f"{key.model_name}@{key.kv_rank}@{key.object_group_id}@{key.cache_salt}@".encode() + key.chunk_hash
    return list(hashlib.blake2b(written, digest_size=DIGEST).digest())


@dataclass(frozen=True)
class Settings:
    """The options under ``"serde"`` in the configuration. They are those of :class:`octaplex.ChunkCodec`.

    ``head_dim`` has no default, because a chunk's width does not tell it. A wrong width would mix heads, or keys with values, and
    silently lose accuracy."""

    head_dim: int
    keys: Optional[str] = None
    values: Optional[str] = None
    page: int = 64
    center: str = "page"
    balance: bool = True

    def codec(self, shape: tuple[int, ...]) -> ChunkCodec:
        """Returns the codec of chunks of this shape."""
        if len(shape) == 4 and shape[0] in (1, 2):
            head = self.head_dim * (3 - shape[0])
            if shape[3] and shape[3] % head == 0:
                return _codec(self, shape[0] == 1, shape[1], shape[3] // head)
        raise Error(
            f"a chunk has the shape {list(shape)}: expected [2, layers, tokens, kv_heads · {self.head_dim}] or "
            f"[1, layers, tokens, kv_heads · {2 * self.head_dim}]: set head_dim to the model's, or leave out this serde"
        )


@lru_cache(maxsize=64)
def _codec(settings: Settings, fused: bool, layers: int, kv_heads: int) -> ChunkCodec:
    return ChunkCodec(
        layers,
        kv_heads,
        settings.head_dim,
        keys=settings.keys,
        values=settings.values,
        layout="fused" if fused else "split",
        page=settings.page,  # type: ignore[arg-type]
        center=settings.center,  # type: ignore[arg-type]
        balance=settings.balance,
    )


def _tensor(obj: Any, what: str) -> Any:
    tensor = obj.tensor
    if tensor is None:
        raise Error(f"LMCache's {what} has no tensor, because it was freed or is not in memory: use its DRAM tier")
    if tensor.device.type != "cpu":
        raise Error(f"LMCache's {what} is on {tensor.device}, and octaplex works on the CPU: use its DRAM tier")
    return tensor


class OctaplexSerializer(Serializer):  # type: ignore[misc]
    """Encodes chunks into blobs, each followed by its key's digest."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def serialize(self, src: Any, dst: Any, key: Any) -> int:
        """Encodes ``src`` into the front of ``dst``. Returns exactly the estimated size: the blob, zeros, and the key's digest.

        LMCache's stores read as many bytes as estimated, and treat fewer as a miss."""
        tensor, out = _tensor(src, "source"), _tensor(dst, "destination").flatten()
        codec = self._settings.codec(tuple(tensor.shape))
        size = codec.max_bytes(tensor.shape[2])
        written = codec.encode_into(tensor, out)
        if len(out) < size + DIGEST:
            raise Error(f"LMCache's destination has {len(out)} bytes, and this chunk takes {size + DIGEST}")
        out[written:size].zero_()
        out[size : size + DIGEST].copy_(out.new_tensor(_digest(key)))
        return size + DIGEST

    def estimate_serialized_size(self, layout_desc: Any) -> int:
        """Returns ``max_bytes`` of the layout plus a digest.

        For a layout that octaplex does not support, returns the uncompressed size. Not every caller in LMCache expects an
        exception here; ``serialize`` then raises the error."""
        shapes = [tuple(shape) for shape in layout_desc.shapes]
        if len(shapes) == 1:
            try:
                return self._settings.codec(shapes[0]).max_bytes(shapes[0][2]) + DIGEST
            except Error:
                pass
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, layout_desc.dtypes))


class OctaplexDeserializer(Deserializer):  # type: ignore[misc]
    """Decodes blobs into chunks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def deserialize(self, src: Any, dst: Any, key: Any) -> None:
        """Decodes ``src`` into ``dst``. Shape, settings and key must be those of the blob. LMCache treats an exception as a miss."""
        blob, out = _tensor(src, "source").flatten(), _tensor(dst, "destination")
        info, shape = chunk_info(blob), tuple(out.shape)
        if info.shape != shape:
            raise Error(f"the stored chunk has the shape {list(info.shape)}, expected {list(shape)}: it is of another model or setting")
        codec = self._settings.codec(shape)
        size = codec.max_bytes(shape[2])
        if blob[size : size + DIGEST].tolist() != _digest(key):
            raise Error("the stored chunk is another key's, or its end is damaged: the store mixed up two values")
        codec.decode(blob[: info.bytes], out)


def create_serde(kwargs: dict[str, Any]) -> Any:
    """Creates the serde from the options under ``"serde"`` in LMCache's configuration, without the type.

    The options are those of :class:`Settings`, and ``max_workers``, the number of chunks to work on at once. Its default is 1,
    because each chunk already uses all cores."""
    names = [field.name for field in fields(Settings)]
    if unknown := sorted(set(kwargs) - {*names, "max_workers"}):
        raise Error(f"serde octaplex has no {', '.join(unknown)}: it has {', '.join(names)} and max_workers")
    if "head_dim" not in kwargs:
        raise Error('serde octaplex needs the width of a head: add "head_dim", as in the model\'s config.json (often 128)')
    for name in ("head_dim", "page", "max_workers"):
        value = kwargs.get(name, 1)
        if type(value) is not int or value < 1:
            raise Error(f"serde octaplex: {name} is {value!r}: pass a number of 1 or more")
    settings = Settings(**{name: kwargs[name] for name in names if name in kwargs})
    settings.codec((2, 1, 1, settings.head_dim))  # raises for wrong settings now, not at the first chunk
    return AsyncSerdeProcessor(OctaplexSerializer(settings), OctaplexDeserializer(settings), max_workers=kwargs.get("max_workers", 1))


class L2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """Wraps another adapter, so that LMCache imports this module before it looks for the serde.

    Use it with ``"type": "plugin"``. ``adapter_params`` is the configuration of the other adapter, which the constructor returns."""

    def __new__(cls, params: dict[str, Any], l1_memory_desc: Any = None) -> Any:
        outside = sorted({"serde", "eviction", "affinity_tag", "shared"} & set(params))
        if outside:
            raise Error(f"{', '.join(outside)} in adapter_params is not read: write it beside adapter_params")
        name = params.get("type")
        if not isinstance(name, str) or name == "plugin":
            raise Error('adapter_params needs the "type" of the adapter that stores, and its settings: {"type": "fs", "base_path": "/cache"}')
        config = get_l2_adapter_config_class(name).from_dict(params)
        config.persist_config = PersistConfig(bool(params.get("persist_enabled", True)))
        return create_l2_adapter(config, l1_memory_desc)


if "octaplex" not in get_registered_serde_types():
    register_serde_factory("octaplex", create_serde)
