"""The package as a user has it: results against plain NumPy, every type that tensors may have, and every mistake an Error."""

import copy
import os
import pickle
import re
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import octaplex
import pytest

try:
    import torch
except ImportError:  # a large package, which the tests do not ask for
    torch = None

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def gaussian(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def relative(exact, found):
    return float(np.linalg.norm(exact - found) / np.linalg.norm(exact))


def exact_attention(keys, values, queries):
    """Causal for the newest token: every query sees all."""
    group = len(queries) // len(keys)
    scores = np.einsum("hgd,htd->hgt", queries.reshape(len(keys), group, -1), keys) / np.sqrt(keys.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hgt,htd->hgd", weights, values).reshape(len(queries), -1)


def test_verify_gives_the_checksum_of_the_tool():
    table = (ROOT / "src/verify/expected.txt").read_text().splitlines()
    found = [line.split()[0] for line in table if line.strip() and not line.startswith("#")]
    assert set(octaplex.codecs()) <= set(found)
    assert octaplex.verify() == "cc0571c1"


@pytest.mark.parametrize("spec", octaplex.codecs())
def test_every_codec(spec):
    codec = octaplex.Codec(spec, 64)
    rows, queries = gaussian(100, 64), gaussian(3, 64, seed=2)
    blocks = codec.encode(rows)
    decoded = codec.decode(blocks)
    assert decoded.shape == rows.shape and decoded.dtype == np.float32
    assert relative(rows, decoded) < (0.9 if spec == "qjl" else 0.6)
    if spec not in ("qjl", "turboquant-qjl", "octopus-qjl"):  # those score with a sketch
        assert relative(queries @ decoded.T, codec.score(queries, blocks)) < 0.01
        weights = np.abs(gaussian(2, 100))
        assert relative(weights @ decoded, codec.accumulate(weights, blocks)) < 0.01
    assert codec.score(queries, blocks).shape == (3, 100)
    assert codec.score(queries, b"").shape == (3, 0)
    assert codec.spec.split(":")[0] == spec and codec.bits_per_value == 8 * codec.block_bytes / 64


def test_the_golden_bytes_of_a_codec():
    """Those of tests/golden: one library, whatever calls it."""
    case = None
    state, found = 2463534242, []
    for line in (ROOT / "tests/golden/turboquant.hex").read_text().splitlines():
        if line.startswith("case "):
            case = line.split()[1:]
        elif line.startswith("block ") and case == ["turboquant", "64"]:
            found.append(bytes.fromhex(line.split()[1]))
    rows = np.empty((2, 64), np.float32)
    for i in range(128):
        state = (state * 1664525 + 1013904223) % 2**32
        rows.flat[i] = ((state >> 16) - 32768) / 8192
    assert octaplex.Codec("turboquant", 64).encode(rows).tobytes() == found[0] + found[1]


def test_attention_of_a_cache():
    cache = octaplex.Cache(2, 4, 64, 2048, keys="turboquant:bits=6", values="turboquant:bits=6")
    keys, values, queries = gaussian(4, 500, 64), gaussian(4, 500, 64, seed=2), gaussian(8, 64, seed=3)
    cache.append(1, keys[:, :300].copy(), values[:, :300].copy())
    cache.append(1, keys[:, 300:].copy(), values[:, 300:].copy())
    output = cache.attend(1, queries)
    assert relative(exact_attention(keys, values, queries), output) < 0.05
    ours = np.empty_like(output)
    assert cache.attend(1, queries, out=ours) is ours and np.array_equal(ours, output)
    block = np.stack([queries, queries], axis=1)  # the last one is at the newest token
    assert np.allclose(cache.attend(1, block)[:, 1], output, atol=1e-6)
    # Options reach the library.
    for options in (
        {"scale": 0.5},
        {"soft_cap": 1.0},
        {"window": 10},
        {"sink_logits": np.full(8, 3.0, np.float32)},
        {"bias": np.linspace(0, 5, 500, dtype=np.float32)},
    ):
        assert relative(output, cache.attend(1, queries, **options)) > 0.02, options
    assert cache.attend(1, block, position=100).shape == (8, 2, 64)
    stats = cache.stats()
    assert (stats.tokens, stats.next_position, cache.next_position(1), cache.next_position()) == (500, 500, 500, 0)
    assert 6 < stats.bits_per_value < 16
    assert 2 < cache.page_bits < stats.bits_per_value and f"{stats.bits_per_value:.2f} bits a value, {cache.page_bits:.2f} in pages" in repr(cache)


def test_values_of_another_width():
    keys, values, queries = gaussian(2, 400, 192), gaussian(2, 400, 128, seed=2), gaussian(4, 192, seed=3)
    exact = exact_attention(keys, values, queries)
    cache = octaplex.Cache(1, 2, 192, 1000, value_dim=128, keys="turboquant:bits=8", values="turboquant:bits=6")
    cache.append(0, keys, values)
    output = cache.attend(0, queries)
    assert output.shape == (4, 128) and relative(exact, output) < 0.05
    assert cache.attend(0, np.stack([queries] * 3, axis=1)).shape == (4, 3, 128)
    assert cache.stats().values == 2 * 400 * (192 + 128)
    loaded = octaplex.Cache.load(cache.save())
    assert (loaded.head_dim, loaded.value_dim) == (192, 128) and np.array_equal(loaded.attend(0, queries), output)
    with pytest.raises(octaplex.Error, match=r"values has the shape \[2, 400, 192\]: pass \[2, tokens, 128\]"):
        cache.append(0, keys, keys)
    with pytest.raises(octaplex.Error, match=r"out has the shape \[4, 192\]: pass \[4, 128\]"):
        cache.attend(0, queries, out=np.empty((4, 192), np.float32))
    fewer = octaplex.Cache(1, 2, 192, 1000, value_dim=128, bits=3.2)
    fewer.append(0, keys, values)
    assert fewer.specs[0][0] != "f16" and 8 * fewer.stats().paged_bytes <= 3.2 * 2 * fewer.stats().paged_tokens * 320


PROFILE = ROOT / "profiles" / "smollm2-135m.octaprofile"


def test_what_is_no_profile_is_refused_in_a_line(tmp_path):
    (tmp_path / "model").write_bytes(b"\xff\x00" * 9)
    (tmp_path / "long").write_text("x" * ((1 << 24) + 1))
    forms = ["{\n" + '"layers": 30,\n' * 9999 + "}", "x" * 5000, "a\0b", os.devnull, tmp_path / "model", tmp_path / "long"]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")  # which nobody writes
        forms.append(tmp_path / "pipe")
    for form in forms:
        with pytest.raises(octaplex.Error, match="profile") as raised:
            octaplex.Cache(30, 3, 64, 1000, profile=form, bits=2.2)
        assert len(str(raised.value)) < 250 + len(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        octaplex.Cache(30, 3, 64, 1000, profile=tmp_path / "nope", bits=2.2)


def test_a_profile_spends_the_bits():
    caches = [octaplex.Cache(30, 3, 64, 1000, profile=form, bits=2.2) for form in (PROFILE, str(PROFILE), PROFILE.read_text())]
    assert caches[0].specs == caches[1].specs == caches[2].specs
    assert len(set(caches[0].specs)) > 3  # layers have codecs of their own
    rows = gaussian(3, 600, 64)
    for layer in range(30):
        caches[0].append(layer, rows, rows)
    stats = caches[0].stats()
    assert 2.1 < 8 * stats.paged_bytes / (30 * 3 * 128 * stats.paged_tokens) <= 2.2
    assert np.isfinite(caches[0].attend(7, gaussian(9, 64))).all()


def test_a_cache_goes_back_forks_and_is_saved(tmp_path):
    cache = octaplex.Cache(1, 2, 64, 1000, bits=3.2, sink_tokens=8)
    assert cache.specs == [("graded", "trellis")]
    rows, queries = gaussian(2, 400, 64), gaussian(4, 64, seed=4)
    cache.calibrate(0, rows, gaussian(4, 50, 64))
    cache.append(0, rows, rows)
    before = cache.attend(0, queries)
    fork = cache.fork()
    fork.append(0, rows[:, :30].copy(), rows[:, :30].copy())
    assert not np.array_equal(fork.attend(0, queries), before)
    fork.truncate(400)
    assert np.array_equal(fork.attend(0, queries), before)
    assert fork.stats().shared_bytes > 0
    snapshot = cache.save()
    path = tmp_path / "cache"
    cache.save(path)
    assert path.read_bytes() == snapshot
    for loaded in (octaplex.Cache.load(snapshot), octaplex.Cache.load(path), octaplex.Cache.load(bytearray(snapshot))):
        assert np.array_equal(loaded.attend(0, queries), before)
        assert (loaded.layers, loaded.kv_heads, loaded.head_dim) == (1, 2, 64)
    assert cache.evict(0, 200) > 0 and cache.stats().evicted_tokens > 0
    cache.clear()
    assert cache.stats().tokens == 0
    for damaged in (snapshot[:-1], b"", snapshot[:100] + b"?" + snapshot[101:]):
        with pytest.raises(octaplex.Error):
            octaplex.Cache.load(damaged)
        path.write_bytes(damaged)
        with pytest.raises(octaplex.Error):
            octaplex.Cache.load(path)
    with pytest.raises(FileNotFoundError):
        octaplex.Cache.load(tmp_path / "nowhere")


def kinds():
    """Ways to hand over the same numbers, and what they become."""
    yield "float32", lambda x: x
    yield "float16", lambda x: x.astype(np.float16)
    yield "bfloat16", lambda x: x.astype(ml_dtypes.bfloat16)
    if torch is not None:
        for name in ("float32", "float16", "bfloat16"):
            yield f"torch.{name}", lambda x, name=name: torch.from_numpy(x.copy()).to(getattr(torch, name))


class Dlpack:
    """Somebody else's tensor."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("name,make", list(kinds()) + [("dlpack", Dlpack)])
@pytest.mark.parametrize("layout", ["split", "fused"])
def test_chunks_of_every_type(name, make, layout):
    codec = octaplex.ChunkCodec(2, 2, 64, keys="turboquant:bits=8", values="turboquant:bits=8", layout=layout)
    shape = (2, 2, 70, 128) if layout == "split" else (1, 2, 70, 256)
    floats = gaussian(*shape).astype(ml_dtypes.bfloat16).astype(np.float32)  # exact in every type
    tensor = make(floats)
    blob = codec.encode(tensor)
    assert len(blob) == codec.max_bytes(70)
    info = octaplex.chunk_info(blob)
    assert (info.shape, info.tokens, info.bytes) == (shape, 70, len(blob))
    assert info.dtype == ("float32" if name == "dlpack" else name.rpartition(".")[2])
    decoded = octaplex.ChunkCodec.of(blob).decode(blob)
    assert relative(floats, decoded.astype(np.float32)) < 0.01
    same = codec.decode(codec.encode(floats))
    if info.dtype != "float16":
        assert np.array_equal(same, decoded)
    # Into tensors of the caller's, which are written where they lie.
    if name != "dlpack":
        out = make(np.zeros(shape, np.float32))
        assert codec.decode(blob, out=out) is out
        back = out.float().numpy() if name.startswith("torch") else out.astype(np.float32)
        expected = make(same)
        expected = expected.float().numpy() if name.startswith("torch") else expected.astype(np.float32)
        assert np.array_equal(back, expected)
    buffer = np.zeros(len(blob) + 10, np.uint8)
    assert codec.encode_into(tensor, buffer) == len(blob) and buffer[: len(blob)].tobytes() == blob
    assert octaplex.chunk_info(buffer).bytes == len(blob)  # what follows is not the blob's


@pytest.mark.parametrize("name,make", list(kinds()))
def test_caches_and_codecs_of_every_type(name, make):
    rows = gaussian(2, 200, 64).astype(ml_dtypes.bfloat16).astype(np.float32)
    outputs = []
    for tensor in (rows, make(rows)):
        cache = octaplex.Cache(1, 2, 64, 1000)
        cache.append(0, tensor, tensor)
        outputs.append(cache.attend(0, tensor[:, -1].contiguous() if name[0] == "t" and tensor is not rows else tensor[:, -1].copy()))
    assert np.array_equal(*outputs)
    codec = octaplex.Codec("trellis", 64)
    assert np.array_equal(codec.encode(make(rows)), codec.encode(rows))


def test_golden_chunks():
    """The library's own: the same bytes from here."""
    for name, dtype in (("split", "float32"), ("fused", "bfloat16")):
        golden = (ROOT / f"tests/snapshots/{name}.chunk").read_bytes()
        info = octaplex.chunk_info(golden)
        assert (info.layout, info.dtype) == (name, dtype)
        state, numbers = 2463534242, np.empty(int(np.prod(info.shape)), np.float32)
        for i in range(numbers.size):
            state = (state * 1664525 + 1013904223) % 2**32
            numbers[i] = ((state >> 24) - 128) / 32
        tensor = numbers.reshape(info.shape)
        tensor = tensor.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else tensor
        assert octaplex.ChunkCodec.of(golden).encode(tensor) == golden


def test_a_chunk_becomes_pages():
    codec = octaplex.ChunkCodec(2, 2, 64)
    blob = codec.encode(gaussian(2, 2, 130, 128))
    cache = octaplex.Cache(2, 2, 64, 1000, sink_tokens=0)
    cache.append_chunk(blob)
    assert (cache.stats().tokens, cache.stats().paged_tokens) == (130, 128)
    with pytest.raises(octaplex.Error, match="decode"):
        cache.append_chunk(blob)


def test_threads_work_at_once_and_wait_for_nobody():
    """The interpreter's lock is free during work: this thread wakes up again and again meanwhile."""
    codec = octaplex.ChunkCodec(4, 8, 128, keys="trellis:m=16,states=64", values="trellis:m=16,states=64")
    tensor = np.resize(gaussian(2, 4, 32, 1024), (2, 4, 1024, 1024)).astype(np.float16)
    blobs, woken = [], 0
    worker = threading.Thread(target=lambda: blobs.append(codec.encode(tensor)))
    worker.start()
    while not blobs:
        time.sleep(0.005)
        woken += 1
    worker.join()
    assert woken > 5 and blobs[0] == codec.encode(tensor)
    # One cache, changed and read by several: every result is of a whole append.
    cache, rows = octaplex.Cache(1, 1, 64, 4096, keys="f16", values="f16"), np.ones((1, 10, 64), np.float32)
    cache.append(0, rows, rows)

    def change():
        for _ in range(50):
            cache.append(0, rows, rows)

    threads = [threading.Thread(target=change) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert np.allclose(cache.attend(0, np.ones((1, 64), np.float32)), 1.0, atol=1e-3)
    assert cache.next_position() == 1510


ROWS = np.ones((2, 10, 64), np.float32)
CHUNK = np.ones((2, 2, 10, 128), np.float32)


def attend_in_place(cache):
    queries = np.ones((4, 64), np.float32)
    cache.append(0, np.ones((2, 3, 64), np.float32), np.ones((2, 3, 64), np.float32))
    cache.attend(0, queries, out=queries)


def transposed_weights():
    codec = octaplex.Codec("trellis", 64)
    codec.accumulate(np.ones((4, 2), np.float32), codec.encode(np.ones((4, 64), np.float32)))


@pytest.mark.parametrize(
    "words,call",
    [
        ("no such codec", lambda c, k: octaplex.Codec("nonsense", 64)),
        ("width 65", lambda c, k: octaplex.Codec("trellis", 65)),
        ("role is", lambda c, k: octaplex.Codec("trellis", 64, role="k")),
        (r"\[rows, 64\]", lambda c, k: octaplex.Codec("trellis", 64).encode(np.ones((2, 32), np.float32))),
        ("float64: pass float32", lambda c, k: c.append(0, ROWS.astype(np.float64), ROWS)),
        ("int32: pass", lambda c, k: c.append(0, ROWS.astype(np.int32), ROWS)),
        (r"shape \[1, 10, 64\]: pass \[2, tokens, 64\]", lambda c, k: c.append(0, ROWS[:1], ROWS)),
        ("values", lambda c, k: c.append(0, ROWS, ROWS[:, :5].copy())),
        ("contiguous", lambda c, k: c.append(0, ROWS[:, ::2], ROWS[:, ::2])),
        ("is a list", lambda c, k: c.append(0, ROWS.tolist(), ROWS)),
        ("NaN", lambda c, k: c.append(0, ROWS * np.float32("nan"), ROWS)),
        ("too large", lambda c, k: c.append(0, ROWS * np.float32(1e6), ROWS)),
        ("layer 7 is out of range", lambda c, k: c.append(7, ROWS, ROWS)),
        ("full", lambda c, k: [c.append(0, ROWS, ROWS) for _ in range(40)]),
        ("no tokens", lambda c, k: c.attend(0, ROWS[:, 0].copy())),
        ("query heads", lambda c, k: (c.append(0, ROWS, ROWS), c.attend(0, np.ones((3, 64), np.float32)))),
        ("out has the shape", lambda c, k: c.attend(0, ROWS[:, 0].copy(), out=np.empty((2, 65), np.float32))),
        ("pass float32", lambda c, k: c.attend(0, ROWS[:, 0].copy(), out=np.empty((2, 64), np.float16))),
        ("center is", lambda c, k: octaplex.Cache(1, 1, 64, 1000, center="middle")),
        ("bits is too small", lambda c, k: octaplex.Cache(1, 1, 64, 1000, bits=1.0)),
        ("64, 128 or 256", lambda c, k: octaplex.Cache(1, 1, 64, 1000, page=100)),
        ("snapshot", lambda c, k: octaplex.Cache.load(b"octacach" + bytes(100))),
        ("layout is", lambda c, k: octaplex.ChunkCodec(1, 1, 64, layout="both")),
        (r"pass \[2, 2, tokens, 128\]", lambda c, k: k.encode(CHUNK.reshape(1, 2, 10, 256))),
        ("NaN", lambda c, k: k.encode(CHUNK * np.float32("nan"))),
        ("bytes of a blob", lambda c, k: k.encode_into(CHUNK, bytearray(10))),
        ("cannot be written", lambda c, k: k.encode_into(CHUNK, b"x" * 10**6)),
        ("cut off", lambda c, k: k.decode(b"")),
        ("no chunk", lambda c, k: k.decode(bytes(1000))),
        ("cut off", lambda c, k: k.decode(k.encode(CHUNK)[:-1])),
        ("bytes behind", lambda c, k: k.decode(k.encode(CHUNK) + b"x")),
        ("another configuration", lambda c, k: octaplex.ChunkCodec(2, 2, 64, keys="int").decode(k.encode(CHUNK))),
        ("out has the shape", lambda c, k: k.decode(k.encode(CHUNK), out=CHUNK[:1].copy())),
        ("pass bytes", lambda c, k: k.decode(CHUNK)),
        ("shares memory with tensor", lambda c, k: k.encode_into(CHUNK, CHUNK.view(np.uint8))),
        ("shares memory with queries", lambda c, k: attend_in_place(c)),
        ("either bits or codecs", lambda c, k: octaplex.Cache(1, 1, 64, 1000, bits=3, keys="f16")),
        ("either bits or codecs", lambda c, k: octaplex.Cache(1, 1, 64, 1000, bits=3, values="turboquant")),
        ("set bits as well", lambda c, k: octaplex.Cache(30, 3, 64, 1000, profile=PROFILE)),
        ("either bits or codecs", lambda c, k: octaplex.Cache(30, 3, 64, 1000, profile=PROFILE, bits=2.2, keys="f16")),
        ("it has 30 layers, and the cache has 24", lambda c, k: octaplex.Cache(24, 3, 64, 10**12, profile=PROFILE, bits=2.2)),
        ("more bits", lambda c, k: octaplex.Cache(30, 3, 64, 1000, profile=PROFILE, bits=1.0)),
        ("line 2: the text ends here", lambda c, k: octaplex.Cache(30, 3, 64, 1000, profile="octaplex-profile 1", bits=2.2)),
        ("profile is a path or", lambda c, k: octaplex.Cache(30, 3, 64, 1000, profile=3, bits=2.2)),
        ("keys is a masked array", lambda c, k: c.append(0, np.ma.masked_array(ROWS, ROWS > 0), ROWS)),
        ("tensor is a masked array", lambda c, k: k.encode(np.ma.masked_array(CHUNK, CHUNK > 0))),
        ("blob is a masked array", lambda c, k: k.decode(np.ma.masked_array(np.frombuffer(k.encode(CHUNK), np.uint8), False))),
        ("queries is a numpy.matrix", lambda c, k: c.attend(0, np.matrix(ROWS[0]))),
        ("rows is a numpy.matrix", lambda c, k: octaplex.Codec("trellis", 64).encode(np.matrix(ROWS[0]))),
        ("position is -1: pass a number from 0", lambda c, k: c.truncate(-1)),
        ("position is 1.5: pass a whole number", lambda c, k: c.truncate(1.5)),
        ("end is -3", lambda c, k: c.evict(0, -3)),
        ("layer is -1", lambda c, k: c.append(-1, ROWS, ROWS)),
        ("layer is 'first'", lambda c, k: c.attend("first", ROWS[:, 0].copy())),
        ("layer is -1", lambda c, k: c.next_position(-1)),
        ("layer is None", lambda c, k: c.calibrate(None, ROWS, ROWS)),
        ("window is -5", lambda c, k: c.attend(0, ROWS[:, 0].copy(), window=-5)),
        ("position is 1000000000000000000000000", lambda c, k: c.attend(0, ROWS[:, 0].copy(), position=10**30)),
        ("scale is 'large': pass a number", lambda c, k: c.attend(0, ROWS[:, 0].copy(), scale="large")),
        ("soft_cap is nan", lambda c, k: c.attend(0, ROWS[:, 0].copy(), soft_cap=float("nan"))),
        ("keep_sinks is 'no': pass True or False", lambda c, k: c.attend(0, ROWS[:, 0].copy(), keep_sinks="no")),
        ("layers is -1", lambda c, k: octaplex.Cache(-1, 1, 64, 1000)),
        ("value_dim is -1", lambda c, k: octaplex.Cache(1, 1, 64, 1000, value_dim=-1)),
        ("width 100 is not supported", lambda c, k: octaplex.Cache(1, 1, 64, 1000, value_dim=100)),
        ("capacity is None", lambda c, k: octaplex.Cache(1, 1, 64, None)),
        ("head_dim is 64.0", lambda c, k: octaplex.Cache(1, 1, 64.0, 1000)),
        ("keys is 4: pass a string", lambda c, k: octaplex.Cache(1, 1, 64, 1000, keys=4)),
        ("bits is 'few'", lambda c, k: octaplex.Cache(1, 1, 64, 1000, bits="few")),
        ("page is '64'", lambda c, k: octaplex.Cache(1, 1, 64, 1000, page="64")),
        ("max_rollback is -1", lambda c, k: octaplex.Cache(1, 1, 64, 1000, max_rollback=-1)),
        ("center is None", lambda c, k: octaplex.Cache(1, 1, 64, 1000, center=None)),
        ("balance is 'off'", lambda c, k: octaplex.Cache(1, 1, 64, 1000, balance="off")),
        ("sliding_window is 'all'", lambda c, k: octaplex.Cache(1, 1, 64, 1000, sliding_window="all")),
        ("first_layer is 4294967296: pass a number from 0 to 4294967295", lambda c, k: octaplex.ChunkCodec(1, 1, 64, first_layer=2**32)),
        ("kv_heads is -1", lambda c, k: octaplex.ChunkCodec(1, -1, 64)),
        ("layout is None", lambda c, k: octaplex.ChunkCodec(1, 1, 64, layout=None)),
        ("tokens is -1", lambda c, k: k.max_bytes(-1)),
        ("dim is -64", lambda c, k: octaplex.Codec("trellis", -64)),
        ("head is 4294967296", lambda c, k: octaplex.Codec("trellis", 64, head=2**32)),
        ("spec is None", lambda c, k: octaplex.Codec(None, 64)),
        ("snapshot is a int", lambda c, k: octaplex.Cache.load(5)),
        ("not aligned", lambda c, k: k.encode(np.frombuffer(b"0" * (CHUNK.nbytes + 1), CHUNK.dtype, offset=1).reshape(CHUNK.shape))),
        ("a weight for each", lambda c, k: transposed_weights()),
    ],
)
def test_mistakes(words, call):
    cache, codec = octaplex.Cache(1, 2, 64, 300), octaplex.ChunkCodec(2, 2, 64)
    with pytest.raises(octaplex.Error, match=words) as raised:
        call(cache, codec)
    assert isinstance(raised.value, ValueError) and "\n" not in str(raised.value)


def test_copies_go_their_own_way():
    """``copy`` and ``pickle`` make a cache of its own; codecs are made anew."""
    cache, rows, queries = octaplex.Cache(1, 2, 64, 1000), gaussian(2, 300, 64), gaussian(4, 64, seed=3)
    cache.append(0, rows, rows)
    before = cache.attend(0, queries)
    for duplicate in (copy.copy(cache), copy.deepcopy(cache), *(pickle.loads(pickle.dumps(cache, p)) for p in range(2, 6))):
        assert np.array_equal(duplicate.attend(0, queries), before) and duplicate.specs == cache.specs
        duplicate.append(0, rows[:, :9].copy(), rows[:, :9].copy())
        assert (duplicate.next_position(), cache.next_position()) == (309, 300)
    assert copy.deepcopy({"cache": [cache]})["cache"][0] is not cache
    codec = octaplex.Codec("trellis", 64, layer=3, role="values")
    chunks = octaplex.ChunkCodec(2, 2, 64, keys="trellis", layout="fused", first_layer=5, balance=False)
    tensor = gaussian(1, 2, 70, 256)
    for duplicate in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        assert np.array_equal(duplicate(codec).encode(rows), codec.encode(rows))
        assert duplicate(chunks).encode(tensor) == chunks.encode(tensor)


def test_tensors_of_other_classes_are_read():
    """Every kind of array is taken as one: a mapped file, for example."""
    codec, rows = octaplex.Codec("trellis", 64), gaussian(10, 64)

    class Named(np.ndarray):
        pass

    assert np.array_equal(codec.encode(rows.view(Named)), codec.encode(rows))
    cache = octaplex.Cache(np.int64(1), np.uint8(1), 64, 1000, balance=np.bool_(False), bits=np.float32(3.5))
    cache.append(np.int32(0), rows[None], rows[None])
    assert cache.attend(0, rows[:1], scale=np.float64(0.1), window=np.int16(5)).shape == (1, 64)
    cache.truncate(np.int64(5))
    assert cache.next_position() == 5


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_torch_in_torch_out():
    cache, rows = octaplex.Cache(1, 2, 64, 300), torch.from_numpy(gaussian(2, 100, 64))
    cache.append(0, rows, rows)
    queries = torch.from_numpy(gaussian(4, 64, seed=2))
    for asked in (queries, queries.half(), queries.bfloat16(), queries[:, None].repeat(1, 3, 1)):
        output = cache.attend(0, asked)
        assert isinstance(output, torch.Tensor) and (output.dtype, output.shape) == (torch.float32, asked.shape)
    assert np.array_equal(cache.attend(0, queries).numpy(), cache.attend(0, queries.numpy()))
    codec = octaplex.Codec("trellis", 64)
    blocks = codec.encode(rows[0])
    scores = codec.score(queries, blocks)
    assert isinstance(scores, torch.Tensor) and isinstance(codec.accumulate(scores, blocks), torch.Tensor)
    for bad in (queries.to_sparse(), torch.view_as_complex(queries.reshape(4, 32, 2)).conj().imag):
        with pytest.raises(octaplex.Error) as raised:
            cache.attend(0, bad)
        assert "queries" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_mistakes_with_torch():
    cache, rows = octaplex.Cache(1, 2, 64, 300), torch.ones(2, 10, 64)
    with pytest.raises(octaplex.Error, match="contiguous"):
        cache.append(0, rows.transpose(0, 1), rows)
    with pytest.raises(octaplex.Error, match=r"pass x.cpu\(\)"):
        cache.append(0, rows.to("meta"), rows)
    rows.requires_grad_(True)
    cache.append(0, rows, rows)  # nothing to differentiate, nothing copied
    assert cache.next_position() == 10


def test_the_readme_s_lines_run():
    lines = re.findall(r"```python\n(.*?)```", (HERE.parent / "README.md").read_text(), re.S)
    assert len(lines) == 3
    exec("\n".join(lines), {})


def test_docstrings_have_examples_that_hold():
    import doctest

    for module in ("_codec", "_cache", "_chunk"):
        result = doctest.testmod(getattr(octaplex, module))
        assert result.failed == 0 and result.attempted >= 3, module
