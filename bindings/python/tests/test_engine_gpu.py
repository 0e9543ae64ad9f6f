"""examples/paged_engine.py on a GPU, and what octaplex.sequences refuses."""

import pathlib
import sys

import gpu
import octaplex
import pytest

gpu.need()
torch = pytest.importorskip("torch", reason="the engine's model is of PyTorch, which is not installed")
if gpu.STAND_IN:
    pytest.skip("the stand-in has no tensors of PyTorch", allow_module_level=True)

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
from octaplex.sequences import Sequences
from paged_engine import Engine, Model, Request

SIZE = dict(layers=2, kv_heads=2, head_dim=64, capacity=1024, sequences=4)


def requests(count, shared):
    random = torch.Generator().manual_seed(7)
    heads = [torch.randint(0, 1000, (shared,), generator=random).tolist() for _ in range(3)]
    tails = [torch.randint(0, 1000, (9 + 11 * i % 50,), generator=random).tolist() for i in range(count)]
    return [Request(heads[i % 3] + tail, 5 + 13 * i % 40, shared=shared) for i, tail in enumerate(tails)]


@pytest.mark.parametrize("options, most", [(dict(keys="turboquant:bits=8", values="turboquant:bits=8"), 0.05), ({}, 1.0)])
def test_an_engine(options, most):
    """Three beginnings and space for two; every token is the likeliest of the whole sequence's, or nearly."""
    model, asked = Model(), requests(13, 300)
    engine = Engine(model, places=4, capacity=1024, **options)
    engine.run(asked)
    assert [len(request.written) for request in asked] == [request.new for request in asked]
    assert not engine.running and all(engine.pool.stats(place).tokens == 0 for place in range(4))
    worst = 0.0
    for request in asked:
        tokens = torch.tensor(request.prompt + request.written, device="cuda")
        logits = model.dense(tokens[:-1])[len(request.prompt) - 1 :].log_softmax(-1)
        written = logits.gather(1, tokens[len(request.prompt) :, None])[:, 0]
        worst = max(worst, float((logits.max(-1).values - written).max()))
    assert worst < most, worst


def test_beginnings_share_their_pages():
    model = Model()
    alone, together = (Engine(model, places=8, capacity=1024) for _ in range(2))
    head = list(range(100, 800))
    alone.run([Request(head + [1, 2, 3], 20)])
    together.run([Request(head + [i, 2, 3], 20, shared=700) for i in range(8)])
    # One beginning, and a page or two of each request: eight of their own would be seven times more.
    assert together.pool.page_bytes < 1.5 * alone.pool.page_bytes
    with_pages = [together.pool.stats(number) for number in range(8, 10)]
    assert sum(stats.paged_tokens for stats in with_pages) >= 512


def test_a_captured_step():
    pool, random = Sequences(**SIZE, keys="int:bits=8", values="int:bits=8"), torch.Generator("cuda").manual_seed(1)

    def rows(*shape):
        return torch.randn(*shape, device="cuda", generator=random)

    for number in range(4):
        for layer in range(2):
            pool.append(layer, number, rows(2, 150 + number, 64), rows(2, 150 + number, 64))
    pool.reserve(1024)
    keys, values, queries, out = rows(4, 2, 64), rows(4, 2, 64), rows(4, 4, 64), rows(4, 4, 64)
    other = Sequences(**SIZE, keys="int:bits=8", values="int:bits=8")
    pool.step(0, keys, values), pool.attend(0, queries, out=out)
    pool.step(1, keys, values), pool.attend(1, queries, out=out)
    pool.settle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(2):
            pool.step(layer, keys, values)
            pool.attend(layer, queries, out=out)
    done = 0
    while done < 100:
        for _ in range(left := min(pool.steps_left(), 100 - done)):
            graph.replay()
        done += left
        torch.cuda.synchronize()
        pool.settle()
    assert [pool.next_position(number) for number in range(4)] == [150 + number + 1 + 100 for number in range(4)]
    assert other.next_position(0) == 0 and bool(out.isfinite().all())


def test_what_is_refused():
    def refused(words, call):
        with pytest.raises(octaplex.Error, match=words):
            call()

    refused("cpu", lambda: Sequences(**SIZE, device="cpu"))
    refused("no option", lambda: Sequences(**SIZE, forks=3))
    pool, x = Sequences(**SIZE), torch.zeros(4, 2, 64, device="cuda")
    refused("on cpu", lambda: pool.step(0, x.cpu(), x.cpu()))
    refused("shapes", lambda: pool.step(0, x[:, :1], x[:, :1]))
    refused("sink tokens", lambda: pool.step(0, x, x))
    row = torch.zeros(2, 3, 64, device="cuda")
    refused("sequence", lambda: pool.append(0, 9, row, row))
    refused("no token|empty", lambda: pool.attend(0, torch.zeros(1, 4, 64, device="cuda")))
    refused(r"pass \[sequences, query_heads, 64\]", lambda: pool.attend(0, x[0]))
