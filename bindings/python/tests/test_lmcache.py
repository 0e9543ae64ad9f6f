"""octaplex.lmcache: its serde alone, and in the real LMCache with its file store and a Redis server; ci/lmcache.sh runs this."""

import dataclasses
import hashlib
import importlib
import json
import math
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run ci/lmcache.sh")
pytest.importorskip("lmcache", reason="LMCache is not installed: run ci/lmcache.sh")

import octaplex
import octaplex.lmcache as ours
from lmcache.v1.distributed.api import ObjectKey

SHAPES = {"split": (2, 2, 100, 4 * 64), "fused": (1, 2, 100, 4 * 2 * 64)}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


KEY = ObjectKey(chunk_hash=b"12345678", model_name="model", kv_rank=0)


def obj(tensor):
    return SimpleNamespace(tensor=tensor)


def chunk(layout="split", dtype=torch.bfloat16, seed=0):
    return torch.randn(SHAPES[layout], generator=torch.Generator().manual_seed(seed)).to(dtype)


def layout_of(tensor):
    return SimpleNamespace(shapes=[tensor.shape], dtypes=[tensor.dtype])


def serialized(settings, tensor):
    serializer = ours.OctaplexSerializer(settings)
    out = torch.full((serializer.estimate_serialized_size(layout_of(tensor)),), 255, dtype=torch.uint8)
    return out[: serializer.serialize(obj(tensor), obj(out), KEY)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("keys", ["turboquant", "trellis", "int:bits=4,med=4"])
def test_a_round_trip_is_that_of_the_chunk_codec(layout, dtype, keys):
    tensor = chunk(layout, dtype)
    codec = octaplex.ChunkCodec(2, 4, 64, keys=keys, layout=layout)
    blob = codec.encode(tensor)
    stored = serialized(ours.Settings(head_dim=64, keys=keys), tensor)
    assert len(stored) == codec.max_bytes(100) + 16  # one size for all chunks of a layout
    assert bytes(stored[: len(blob)]) == blob and not stored[len(blob) : -16].any()
    found, expected = torch.empty_like(tensor), torch.empty_like(tensor)
    ours.OctaplexDeserializer(ours.Settings(head_dim=64, keys=keys)).deserialize(obj(stored), obj(found), KEY)
    codec.decode(blob, expected)
    assert torch.equal(found, expected)
    assert 0 < (found.float() - tensor.float()).norm() / tensor.float().norm() < 0.2


def test_what_the_serde_does_not_take_is_said():
    settings = ours.Settings(head_dim=64)
    out = torch.zeros(10**6, dtype=torch.uint8)
    for tensor, words in [
        (torch.zeros(2, 2, 10, 100), "kv_heads · 64"),
        (torch.zeros(1, 2, 10, 64), "kv_heads · 128"),
        (torch.zeros(3, 2, 10, 128), "kv_heads · 64"),
        (torch.zeros(2, 10, 128), "kv_heads · 64"),
        (torch.zeros(2, 2, 10, 128, dtype=torch.uint8), "pass float32"),
        (torch.zeros(2, 2, 10, 128, device="meta"), "works on the CPU"),
        (torch.zeros(2, 2, 256, 64).transpose(2, 3)[:, :, :, :64], "contiguous"),
        (None, "no tensor"),
    ]:
        with pytest.raises(octaplex.Error, match=words):
            ours.OctaplexSerializer(settings).serialize(obj(tensor), obj(out), KEY)
    for size in (100, ours.OctaplexSerializer(settings).estimate_serialized_size(layout_of(chunk())) - 1):
        with pytest.raises(octaplex.Error):  # a destination that is too short
            ours.OctaplexSerializer(settings).serialize(obj(chunk()), obj(out[:size]), KEY)
    # An estimate of such a layout does not raise: LMCache asks outside of its tasks.
    shapes, dtypes = [torch.Size([2, 3, 5]), torch.Size([7])], [torch.float16, torch.float32]
    estimate = ours.OctaplexSerializer(settings).estimate_serialized_size(SimpleNamespace(shapes=shapes, dtypes=dtypes))
    assert estimate == 2 * math.prod(shapes[0]) + 4 * 7


def test_a_wrong_value_is_refused():
    settings, tensor = ours.Settings(head_dim=64), chunk()
    stored = serialized(settings, tensor)
    flipped, version = stored.clone(), stored.clone()
    flipped[len(stored) // 2] ^= 1
    version[4:8] = 255
    wrong = [stored[:-1], stored[:20], stored[:0], flipped, version, torch.zeros_like(stored), tensor.view(torch.uint8).flatten()]
    wrong += [serialized(settings, chunk("fused")), serialized(settings, tensor[:, :, :99].contiguous())]
    with pytest.raises(octaplex.Error, match="of another model"):
        ours.OctaplexDeserializer(settings).deserialize(obj(stored), obj(chunk("fused")), KEY)
    wrong += [serialized(ours.Settings(head_dim=128), tensor), serialized(ours.Settings(head_dim=64, keys="trellis"), tensor)]
    for number, value in enumerate(wrong):
        with pytest.raises(octaplex.Error):
            ours.OctaplexDeserializer(settings).deserialize(obj(value), obj(torch.empty_like(tensor)), KEY)
            pytest.fail(f"value {number} was taken")


def test_another_key_s_chunk_is_refused():
    settings, tensor = ours.Settings(head_dim=64), chunk()
    stored = serialized(settings, tensor)
    for field, other in dict(chunk_hash=b"12345679", model_name="models", kv_rank=1, object_group_id=1, cache_salt="salt").items():
        with pytest.raises(octaplex.Error, match="another key's"):
            ours.OctaplexDeserializer(settings).deserialize(obj(stored), obj(torch.empty_like(tensor)), dataclasses.replace(KEY, **{field: other}))
    ours.OctaplexDeserializer(settings).deserialize(obj(stored), obj(torch.empty_like(tensor)), dataclasses.replace(KEY))


def test_a_wrong_configuration_is_refused():
    for kwargs, words in [
        ({}, "head_dim"),
        ({"head_dim": "64"}, "head_dim"),
        ({"head_dim": 64, "bits": 4}, "no bits"),
        ({"head_dim": 64, "keys": "nothing"}, "nothing"),
        ({"head_dim": 64, "page": 100}, "page"),
        ({"head_dim": 64, "max_workers": 0}, "max_workers"),
    ]:
        with pytest.raises(octaplex.Error, match=words):
            ours.create_serde(kwargs)
    for params, words in [({}, "type"), ({"type": "plugin"}, "type"), ({"type": "fs", "base_path": "/x", "serde": {}}, "beside")]:
        with pytest.raises(octaplex.Error, match=words):
            ours.L2Adapter(params)


def test_an_lmcache_whose_interface_moved_is_named(monkeypatch):
    serde = sys.modules["lmcache.v1.distributed.serde"]
    with monkeypatch.context() as patch:
        patch.setattr(serde.Serializer, "serialize", lambda self, source: 0)
        with pytest.raises(ImportError, match=rf"written for LMCache {ours.KNOWN}, .* takes \['self', 'source'\]"):
            importlib.reload(ours)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["lmcache.v1.distributed.api"], "ObjectKey", ours.Settings)
        with pytest.raises(ImportError, match=r"ObjectKey has \['head_dim'"):
            importlib.reload(ours)
    with monkeypatch.context() as patch:
        patch.delattr(serde, "AsyncSerdeProcessor")
        with pytest.raises(ImportError, match="elsewhere"):
            importlib.reload(ours)
    importlib.reload(ours)


def test_the_package_alone_imports_neither():
    program = "import sys, octaplex; sys.exit(bool({'torch', 'lmcache'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# A process of LMCache: it stores three chunks and stays until its input ends, or asks for those that its input names, a line
# at a time. It knows of octaplex by its configuration alone.
PROCESS = """
import argparse, hashlib, json, sys
import torch
from lmcache.v1.distributed import api, config
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager
role, adapter, shape = sys.argv[1], sys.argv[2], torch.Size(json.loads(sys.argv[3]))
adapters = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[adapter]))
memory = config.L1MemoryManagerConfig(size_in_bytes=16 << 20, use_lazy=False)
manager = StorageManager(config.StorageManagerConfig(config.L1ManagerConfig(memory), config.EvictionConfig("LRU"), adapters))
layout = api.MemoryLayoutDesc(shapes=[shape], dtypes=[torch.bfloat16])
keys = [api.ObjectKey(chunk_hash=bytes([i] * 8), model_name="model", kv_rank=0) for i in range(4)]  # the last one is never stored
if role == "store":
    objects = manager.reserve_write(keys[:3], layout)
    for i, key in enumerate(keys[:3]):
        objects[key].tensor.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(torch.bfloat16))
    manager.finish_write(keys[:3])
    sys.stdin.read()
else:
    for line in sys.stdin:
        asked = json.loads(line)
        spec = api.PrefetchTaskSpec([api.GroupedObjectKeys([keys[i] for i in asked], 0, layout)], fetching_policy="full")
        task = manager.submit_prefetch_task(spec)
        assert manager.wait_prefetch_status(task, 60), "no answer"
        result = manager.query_prefetch_status(task)
        found = {}
        if (hits := [asked[hit] for hit in result.l2_hit_cells[0].get_indices_list()]):
            with manager.read_prefetched_results([keys[i] for i in hits], result.l1_owners) as objects:
                for i, found_object in zip(hits, objects):
                    found[i] = hashlib.sha256(found_object.tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        print("FOUND", json.dumps(found), flush=True)
manager.close()
"""


def command(role, store, layout):
    serde = {"type": "octaplex", "head_dim": 64}
    adapter = {"type": "plugin", "module_path": "octaplex.lmcache", "class_name": "L2Adapter", "adapter_params": store, "serde": serde}
    return [sys.executable, "-c", PROCESS, role, json.dumps(adapter), json.dumps(SHAPES[layout])]


def store_three(store, layout, stored):
    """Another process stores three chunks; returns when `stored()` counts them."""
    process = subprocess.Popen(command("store", store, layout), stdin=subprocess.PIPE)
    until = time.monotonic() + 120
    while stored() < 3:
        assert process.poll() is None and time.monotonic() < until, "nothing was stored"
        time.sleep(0.1)
    process.communicate(timeout=180)
    assert process.returncode == 0


def ask(process, chunks):
    """Returns the chunks that the process finds, and their bytes' checksums."""
    process.stdin.write(json.dumps(chunks) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("FOUND "):
            return {int(i): checksum for i, checksum in json.loads(line[6:]).items()}
    pytest.fail("the process ended")


def loader(store, layout):
    return subprocess.Popen(command("load", store, layout), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def load_three(store, layout):
    """Returns the chunks that another process finds."""
    process = loader(store, layout)
    found = ask(process, [0, 1, 2])
    process.communicate(timeout=180)
    assert process.returncode == 0
    return found


def three(layout):
    """The checksums of what the codec makes of the three chunks."""
    codec, found = octaplex.ChunkCodec(2, 4, 64, layout=layout), {}
    for i in range(3):
        out = torch.empty(SHAPES[layout], dtype=torch.bfloat16)
        codec.decode(codec.encode(chunk(layout, seed=i)), out)
        found[i] = hashlib.sha256(out.view(torch.uint8).numpy().tobytes()).hexdigest()
    return found


@pytest.mark.parametrize("layout", SHAPES)
def test_two_processes_share_a_folder(tmp_path, layout):
    store = {"type": "fs", "base_path": str(tmp_path)}
    store_three(store, layout, lambda: len(list(tmp_path.glob("*.data"))))
    files = sorted(tmp_path.glob("*.data"))
    assert {len(file.read_bytes()) for file in files} == {octaplex.ChunkCodec(2, 4, 64, layout=layout).max_bytes(100) + 16}
    assert load_three(store, layout) == three(layout)
    if layout == "split":
        # One that is cut is a miss of its own; one that is damaged, of all that LMCache asked for with it.
        whole = files[1].read_bytes()
        files[1].write_bytes(whole[:-10])
        expected = three(layout)
        del expected[1]
        assert load_three(store, layout) == expected
        files[1].write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
        assert load_three(store, layout) == {}
        files[1].write_bytes(files[2].read_bytes())  # a value of other tokens
        assert load_three(store, layout) == {}
        files[1].write_bytes(whole)
        assert load_three(store, layout) == three(layout)


@pytest.mark.skipif(not (shutil.which("valkey-server") or shutil.which("redis-server")), reason="no valkey-server, no redis-server")
def test_two_processes_share_a_server(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = shutil.which("valkey-server") or shutil.which("redis-server")
    store = {"type": "resp", "host": "127.0.0.1", "port": port}
    running = subprocess.Popen([server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)])

    def stored():
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(b"DBSIZE\r\n")
                return int(client.recv(100)[1:])
        except ConnectionError:
            return 0

    try:
        store_three(store, "fused", stored)
        expected = three("fused")
        assert load_three(store, "fused") == expected
        # A key that nobody stored is a miss. If the server is killed, its keys are misses, loaded ones stay, and the process goes on.
        process = loader(store, "fused")
        assert ask(process, [1, 3]) == {1: expected[1]}
        running.kill()
        running.wait()
        assert ask(process, [0, 2]) == {}
        process.communicate(timeout=180)
        assert process.returncode == 0
    finally:
        running.kill()
        running.wait()
