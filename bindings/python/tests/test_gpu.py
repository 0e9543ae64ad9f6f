"""Compares caches on a GPU with caches on the CPU: the same bytes, and outputs as near as their queries' bits let them be."""

import gc
import pickle

import gpu
import numpy as np
import octaplex
import pytest

gpu.need()

SIZE = dict(layers=2, kv_heads=2, head_dim=64, capacity=20_000)
RNG = np.random.default_rng(7)


def rows(tokens, heads=2, dim=64, seed=1):
    return np.random.default_rng(seed).standard_normal((heads, tokens, dim)).astype(np.float32)


def both(**options):
    """A cache on the CPU, and one on the GPU."""
    return octaplex.Cache(**{**SIZE, **options}), octaplex.Cache(**{**SIZE, **options}, device="cuda:0")


def fill(caches, tokens, seed=1):
    """The same tokens to all layers of all caches."""
    for layer in range(SIZE["layers"]):
        keys, values = rows(tokens, seed=10 * seed + layer), rows(tokens, seed=100 * seed + layer)
        for cache in caches:
            at = gpu.put if cache.device != "cpu" else np.copy
            cache.append(layer, at(keys), at(values))


def near(found, wanted, tolerance=0.02):
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted)


CODECS = [
    ("turboquant", "turboquant"), ("trellis", "trellis:m=2"), ("int", "int:bits=8"), ("graded", "trellis"), ("graded:bits=4", "trellis:m=8"),
    ("graded:bits=2", "trellis:m=2"), ("graded:fine=16,coarse=2,states=16", "turboquant"),
]


@pytest.mark.parametrize("codecs", CODECS)
def test_the_bytes_are_the_cpus_and_outputs_near(codecs):
    cpu, on_gpu = both(keys=codecs[0], values=codecs[1])
    for seed, tokens in enumerate((1, 200, 63, 64)):
        fill([cpu, on_gpu], tokens, seed + 1)
        assert on_gpu.save() == cpu.save()
    assert (on_gpu.device, cpu.device, on_gpu.specs, on_gpu.next_position(1)) == ("cuda:0", "cpu", cpu.specs, 328)
    assert on_gpu.stats()[:4] == cpu.stats()[:4]
    for queries in (rows(1, heads=4, seed=5)[:, 0], rows(9, heads=4, seed=6)):
        for options in ({}, dict(scale=0.2, soft_cap=3.0), dict(window=70)):
            found = on_gpu.attend(1, gpu.put(queries), **options)
            near(gpu.get(found), cpu.attend(1, queries, **options))


@pytest.mark.parametrize("width", [64, 128, 192, 256])
@pytest.mark.parametrize("options", [dict(page=64), dict(page=128, center="prefix"), dict(page=256, center="off"), dict(balance=False)])
def test_graded_keys_of_every_width(width, options):
    """Channels of different size, so that the halves are no halves of the rows as they come; and a balance of a prompt's queries."""
    sizes = np.where(np.arange(width) % 3 == 1, 4.0, 0.3).astype(np.float32)
    keys, values, queries = rows(500, dim=width) * sizes, rows(500, dim=width, seed=2), rows(30, heads=4, dim=width, seed=3)
    caches = both(keys="graded", values="trellis", head_dim=width, layers=1, **options)
    for cache in caches:
        if options.get("balance", True):
            cache.calibrate(0, np.ascontiguousarray(keys[:, :250]), np.repeat(queries, 10, 1))
        at = gpu.put if cache.device != "cpu" else np.copy
        for part in (slice(0, 210), slice(210, 211), slice(211, 500)):
            cache.append(0, at(np.ascontiguousarray(keys[:, part])), at(np.ascontiguousarray(values[:, part])))
    cpu, on_gpu = caches
    assert on_gpu.save() == cpu.save() and on_gpu.stats().paged_tokens > 0
    assert octaplex.Cache.load(cpu.save(), device="cuda").save() == cpu.save()
    for asked in (queries[:, 0].copy(), queries):
        near(gpu.get(on_gpu.attend(0, gpu.put(asked))), cpu.attend(0, asked), 0.04)  # the CPU's queries have 8 bits


def test_the_default_is_the_cpus():
    cpu, on_gpu = both()
    assert on_gpu.specs == cpu.specs
    for bits in (2.2, 3.2, 4.2):
        cpu, on_gpu = both(bits=bits)
        assert on_gpu.specs == cpu.specs and on_gpu.specs[0][0].startswith("graded")


def test_sinks_logits_and_biases():
    cpu, on_gpu = both()
    fill([cpu, on_gpu], 300)
    queries, logits, bias = rows(1, heads=4, seed=3)[:, 0], np.array([0.1, -2, 3, 1], np.float32), rows(300, heads=4, dim=1, seed=4)[..., 0]
    options = dict(sink_logits=logits, bias=bias)
    near(gpu.get(on_gpu.attend(0, gpu.put(queries), **options)), cpu.attend(0, queries, **options))


def test_views_are_read_where_they_lie_and_results_written_where_asked():
    cpu, on_gpu = both()
    mixed = RNG.standard_normal((100, 2, 2, 64)).astype(np.float32)  # [tokens, keys and values, heads, width]
    tensor = gpu.permuted(gpu.put(mixed), 1, 2, 0, 3)
    on_gpu.append(0, tensor[0], tensor[1])
    cpu.append(0, *(np.ascontiguousarray(mixed.transpose(1, 2, 0, 3)[i]) for i in range(2)))
    assert on_gpu.save() == cpu.save()
    # Keys and values that lie differently are copied first.
    keys = gpu.permuted(gpu.put(rows(5).transpose(1, 0, 2)), 1, 0, 2)
    on_gpu.append(0, keys, gpu.put(rows(5, seed=2)))
    cpu.append(0, rows(5), rows(5, seed=2))
    assert on_gpu.save() == cpu.save()
    for dtype in (np.float32, np.float16):
        out = gpu.empty((4, 64), dtype)
        queries = rows(1, heads=4)[:, 0].astype(dtype)
        assert on_gpu.attend(0, gpu.put(queries), out=out) is out
        near(gpu.get(out), cpu.attend(0, queries))


def test_rows_of_the_host_are_taken_as_well():
    cpu, on_gpu = both()
    for cache in (cpu, on_gpu):
        cache.append(0, rows(150), rows(150, seed=2))
    assert on_gpu.save() == cpu.save()


def test_forks_share_and_go_their_own_way():
    cpu, on_gpu = both(forks=0)[0], octaplex.Cache(**SIZE, device="cuda", forks=2)
    fill([cpu, on_gpu], 500)
    fork, other = on_gpu.fork(), cpu.fork()
    assert on_gpu.stats().shared_bytes == on_gpu.stats().paged_bytes > 0
    fill([fork, other], 100, seed=9)
    assert fork.save() == other.save() and on_gpu.save() == cpu.save()
    third = on_gpu.fork()
    with pytest.raises(octaplex.Error, match="forks=3"):
        on_gpu.fork()
    del third
    gc.collect()
    third = on_gpu.__copy__()
    assert third.save() == cpu.save()
    queries = rows(1, heads=4)[:, 0]
    for mine, theirs in ((on_gpu, cpu), (fork, other)):
        near(gpu.get(mine.attend(1, gpu.put(queries))), theirs.attend(1, queries))


def test_tokens_are_taken_back_evicted_and_forgotten():
    cpu, on_gpu = both()
    caches = [cpu, on_gpu]
    fill(caches, 700)
    for position in (690, 300):
        for cache in caches:
            cache.truncate(position)
        assert on_gpu.save() == cpu.save()
    fill(caches, 400, seed=3)
    assert len({cache.evict(100, 500) for cache in caches}) == 1
    assert on_gpu.save() == cpu.save()
    for cache in caches:
        cache.clear()
    assert on_gpu.save() == cpu.save() and on_gpu.stats().tokens == 0


def test_snapshots_cross(tmp_path):
    cpu, on_gpu = both(keys="trellis")
    fill([cpu, on_gpu], 333)
    snapshot = cpu.save()
    again = octaplex.Cache.load(snapshot, device="cuda:0", forks=1)
    assert again.device == "cuda:0" and again.save() == snapshot
    on_gpu.save(tmp_path / "file")
    assert octaplex.Cache.load(tmp_path / "file").save() == snapshot
    assert on_gpu.to("cpu").save() == cpu.to("cuda:0").save() == snapshot and on_gpu.to("cuda:0") is on_gpu
    assert pickle.loads(pickle.dumps(on_gpu)).save() == snapshot


def test_the_balance_of_a_prompt_is_the_cpus():
    cpu, on_gpu = both()
    keys, queries = rows(256) * np.geomspace(0.1, 8, 64, dtype=np.float32), rows(256, heads=4, seed=8)
    for cache in (cpu, on_gpu):
        cache.calibrate(0, keys, queries)
        cache.append(0, keys, rows(256, seed=2))
    assert on_gpu.save() == cpu.save() and on_gpu.stats().balanced_heads == 2
    with pytest.raises(octaplex.Error, match="before the first page closes"):
        on_gpu.calibrate(0, keys, queries)


def test_memory_grows_with_the_tokens():
    on_gpu = octaplex.Cache(1, 1, 64, 20_000, device="cuda:0")
    cpu = octaplex.Cache(1, 1, 64, 20_000)
    for seed in range(3):
        for cache in (cpu, on_gpu):
            cache.append(0, rows(6000, 1, seed=seed), rows(6000, 1, seed=seed + 9))
    assert on_gpu.save() == cpu.save()
    queries = rows(1, heads=1)[:, 0]
    near(gpu.get(on_gpu.attend(0, gpu.put(queries))), cpu.attend(0, queries))
    with pytest.raises(octaplex.Error):
        on_gpu.append(0, rows(6000, 1), rows(6000, 1))
    assert on_gpu.save() == cpu.save()


def test_mistakes_change_nothing():
    cpu, on_gpu = both()
    fill([cpu, on_gpu], 300)
    before = on_gpu.save()

    def refused(match, call):
        with pytest.raises(octaplex.Error, match=match) as raised:
            call()
        assert "\n" not in str(raised.value)
        assert on_gpu.save() == before

    good, bad = rows(70), rows(70)
    bad[1, 33, 7] = np.nan
    refused("head 1|not finite", lambda: on_gpu.append(0, gpu.put(bad), gpu.put(good)))
    refused("head 1|not finite", lambda: on_gpu.append(0, gpu.put(good), gpu.put(bad)))
    refused(r"\[2, tokens, 64\]", lambda: on_gpu.append(0, gpu.put(rows(5, heads=3)), gpu.put(rows(5, heads=3))))
    refused("as many of both", lambda: on_gpu.append(0, gpu.put(rows(5)), gpu.put(rows(6))))
    refused("of one type", lambda: on_gpu.append(0, gpu.put(rows(5)), gpu.put(rows(5).astype(np.float16))))
    refused("float64", lambda: on_gpu.append(0, *[gpu.put(rows(5).astype(np.float64))] * 2)) if not gpu.STAND_IN else None
    refused("pass a tensor of that GPU", lambda: on_gpu.append(0, gpu.put(rows(5)), rows(5)))
    refused("pass a tensor of that GPU", lambda: on_gpu.attend(0, rows(1, heads=4)[:, 0]))
    refused("layer", lambda: on_gpu.append(2, gpu.put(good), gpu.put(good)))
    refused("query_heads", lambda: on_gpu.attend(0, gpu.put(rows(1)[:, 0, :32])))
    refused("heads", lambda: on_gpu.attend(0, gpu.put(rows(1, heads=3)[:, 0])))
    refused("pass", lambda: on_gpu.attend(0, gpu.put(rows(1)[:, 0]), out=gpu.empty((2, 32))))
    queries = gpu.put(rows(1)[:, 0])
    refused("shares memory", lambda: on_gpu.attend(0, queries, out=queries))
    refused("on the CPU", lambda: on_gpu.append_chunk(b""))
    refused("device", lambda: octaplex.Cache(**SIZE, device="metal"))
    refused("no on_gpu 99|99", lambda: octaplex.Cache(**SIZE, device="cuda:99"))
    refused("take", lambda: octaplex.Cache(**SIZE, keys="polarquant", device="cuda:0"))
    refused("fine or coarse", lambda: octaplex.Cache(**SIZE, keys="graded:fine=12,coarse=2", device="cuda:0"))
    refused("width", lambda: octaplex.Cache(**{**SIZE, "head_dim": 32}, device="cuda:0"))
    with pytest.raises(octaplex.Error, match="no token|empty"):
        octaplex.Cache(**SIZE, device="cuda:0").attend(0, queries)


def test_a_gpu_whose_memory_is_full_says_so():
    try:
        octaplex.Cache(64, 64, 256, 1 << 28, recent_window=16_384, device="cuda:0", forks=4000)
    except octaplex.Error as error:
        assert isinstance(error, octaplex.OutOfMemory) and "bytes" in str(error)
    else:
        pytest.fail("petabytes")


torch = None if gpu.STAND_IN else pytest.importorskip("torch")


@pytest.mark.skipif(gpu.STAND_IN, reason="the stand-in's tensors are not PyTorch's")
def test_pytorch_streams_types_and_devices():
    cpu, on_gpu = both()
    side = torch.cuda.Stream()
    keys, values = (torch.from_numpy(rows(300, seed=seed)).cuda().bfloat16() for seed in (1, 2))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            keys = keys * 1.0
        on_gpu.append(0, keys, values)
        queries = torch.from_numpy(rows(1, heads=4)[:, 0]).cuda().bfloat16()
        out = on_gpu.attend(0, queries, out=torch.empty_like(queries))
        result = out.float()
    torch.cuda.current_stream().wait_stream(side)
    cpu.append(0, keys.cpu(), values.cpu())
    assert on_gpu.save() == cpu.save() and out.dtype == torch.bfloat16
    near(result.cpu().numpy(), cpu.attend(0, queries.cpu()).numpy())
    assert torch.cuda.current_device() == 0
    with pytest.raises(octaplex.Error, match="on cpu"):
        on_gpu.attend(0, queries.cpu())
    with pytest.raises(octaplex.Error, match="make the cache with device"):
        cpu.append(0, keys, values)


@pytest.mark.skipif(gpu.STAND_IN, reason="the stand-in's tensors are not PyTorch's")
def test_a_step_is_captured_into_a_graph_of_pytorch():
    _, on_gpu = both()
    fill([on_gpu], 500)
    queries = torch.from_numpy(rows(1, heads=4)[:, 0]).cuda()
    out, row = torch.empty_like(queries), gpu.put(rows(1))
    for _ in range(3):
        on_gpu.attend(0, queries, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        on_gpu.attend(0, queries, out=out)
        with pytest.raises(octaplex.Error, match="captured"):
            on_gpu.append(0, row, row)
    on_gpu.append(0, gpu.put(rows(9, seed=4)), gpu.put(rows(9, seed=4)))
    queries.copy_(torch.from_numpy(rows(1, heads=4, seed=77)[:, 0]))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, on_gpu.attend(0, queries))


@pytest.mark.skipif(gpu.STAND_IN or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_gpu_are_refused():
    _, on_gpu = both()
    with pytest.raises(octaplex.Error, match="cuda:1"):
        on_gpu.append(0, *[torch.zeros(2, 3, 64, device="cuda:1")] * 2)
    other = octaplex.Cache(**SIZE, device="cuda:1")
    other.append(0, *[torch.ones(2, 3, 64, device="cuda:1")] * 2)
    assert torch.cuda.current_device() == 0 and other.device == "cuda:1"
