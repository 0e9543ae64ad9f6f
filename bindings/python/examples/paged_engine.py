"""A paged engine in 150 lines: many sequences on one GPU, which come and go, and share the pages of what they begin with.

    python paged_engine.py          a small model with random weights answers 24 requests, at most 8 at once

The scheduler is the engine's own; `octaplex.sequences.Sequences` holds keys and values. A request takes a place, its prompt is appended,
and from then on it takes part in each decode step until it is done. Requests that begin with the same tokens fork the sequence that
holds them. Places in use are 0 to n - 1: the last one moves where one becomes free, so that a step is one call a layer.
"""

from __future__ import annotations

import dataclasses

import torch
from octaplex.sequences import Sequences
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu


class Model:
    """A decoder of Llama's kind with random weights."""

    def __init__(self, layers=4, hidden=512, heads=8, kv_heads=4, dim=64, vocabulary=1000, dtype=torch.float32, device="cuda", seed=0):
        self.layers, self.heads, self.kv_heads, self.dim = layers, heads, kv_heads, dim
        random = torch.Generator("cpu").manual_seed(seed)

        def weight(rows, columns):
            return (torch.randn(rows, columns, generator=random) / columns**0.5).to(device, dtype)

        self.embedding = weight(vocabulary, hidden) * hidden**0.5
        self.blocks = [
            {
                "q": weight(heads * dim, hidden) * 2, "k": weight(kv_heads * dim, hidden) * 2, "v": weight(kv_heads * dim, hidden),
                "o": weight(hidden, heads * dim), "up": weight(2 * hidden, hidden), "down": weight(hidden, 2 * hidden),
            }
            for _ in range(layers)
        ]
        self.angles = 10000 ** -(torch.arange(0, dim, 2, device=device) / dim)

    def turned(self, x, positions):
        """Rotary embedding of [tokens, heads, dim]."""
        angles = positions[:, None, None] * self.angles
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).to(x.dtype)

    def __call__(self, tokens, positions, attention):
        """Logits of tokens [tokens]; ``attention`` gets a layer's number, queries, keys and values [tokens, heads, dim]."""
        x = self.embedding[tokens]
        for number, block in enumerate(self.blocks):
            y = rms_norm(x, x.shape[-1:])
            q, k, v = (linear(y, block[name]).view(len(tokens), -1, self.dim) for name in "qkv")
            found = attention(number, self.turned(q, positions), self.turned(k, positions), v)
            x = x + linear(found.reshape(len(tokens), -1).to(x.dtype), block["o"])
            x = x + linear(silu(linear(rms_norm(x, x.shape[-1:]), block["up"])), block["down"])
        return linear(rms_norm(x, x.shape[-1:]), self.embedding)

    def dense(self, tokens):
        """Logits of a whole sequence with exact attention: what the engine is compared with."""

        def attention(number, q, k, v):
            q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

        return self(tokens, torch.arange(len(tokens), device=tokens.device), attention)


@dataclasses.dataclass
class Request:
    """A prompt; the first ``shared`` tokens of it are what other requests begin with as well."""

    prompt: list[int]
    new: int
    shared: int = 0
    written: list[int] = dataclasses.field(default_factory=list)


class Engine:
    """Answers requests, at most ``places`` at once; ``prefixes`` more sequences hold what requests begin with."""

    def __init__(self, model: Model, places: int, capacity: int, prefixes: int = 2, **options) -> None:
        self.model, self.places = model, places
        self.pool = Sequences(model.layers, model.kv_heads, model.dim, capacity, sequences=places + prefixes, **options)
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # request i is sequence i
        self.known: dict[tuple[int, ...], int] = {}  # what requests begin with, and the sequence that holds it
        self.steps = 0

    def run(self, requests: list[Request]) -> None:
        """Until all are done."""
        self.waiting.extend(requests)
        with torch.no_grad():
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.places:
                    self.admit(self.waiting.pop(0))
                self.step()

    def admit(self, request: Request) -> None:
        """Takes a place and appends the part of the prompt that is not stored yet."""
        place, start = len(self.running), 0
        if request.shared:
            self.pool.fork(self.prefix(tuple(request.prompt[: request.shared])), place)
            start = request.shared
        logits = self.prefill(place, request.prompt[start:], start)
        request.written.append(int(logits[-1].argmax()))
        self.running.append(request)
        self.leave()

    def prefix(self, tokens: tuple[int, ...]) -> int:
        """The sequence that holds these tokens; the one that was used longest ago makes way."""
        if tokens not in self.known:
            free = [number for number in range(self.places, self.pool.sequences) if number not in self.known.values()]
            number = free[0] if free else self.known.pop(next(iter(self.known)))
            self.pool.clear(number)
            self.prefill(number, list(tokens), 0)
            self.known[tokens] = number
        self.known[tokens] = self.known.pop(tokens)  # asked for last
        return self.known[tokens]

    def prefill(self, sequence: int, tokens: list[int], start: int) -> torch.Tensor:
        """Tokens of one sequence behind those that it holds."""

        def attention(number, q, k, v):
            self.pool.append(number, sequence, k.transpose(0, 1), v.transpose(0, 1))
            return self.pool.attend(number, q.transpose(0, 1)[None].contiguous(), sequence)[0].transpose(0, 1)

        ids = torch.tensor(tokens, device=self.model.embedding.device)
        return self.model(ids, start + torch.arange(len(tokens), device=ids.device), attention)

    def step(self) -> None:
        """A token of every sequence that is running."""
        if not self.running:
            return

        def attention(number, q, k, v):
            self.pool.step(number, k.contiguous(), v.contiguous())
            return self.pool.attend(number, q.contiguous())

        device = self.model.embedding.device
        tokens = torch.tensor([request.written[-1] for request in self.running], device=device)
        positions = torch.tensor([len(request.prompt) + len(request.written) - 1 for request in self.running], device=device)
        for request, token in zip(self.running, self.model(tokens, positions, attention).argmax(-1).tolist()):
            request.written.append(token)
        self.steps += 1
        self.leave()

    def leave(self) -> None:
        """Requests that are done give their places back; the last one moves there."""
        for place in reversed(range(len(self.running))):
            if len(self.running[place].written) >= self.running[place].new:
                last = self.running.pop()
                if place < len(self.running):
                    self.running[place] = last
                    self.pool.fork(len(self.running), place)
                self.pool.clear(len(self.running))


if __name__ == "__main__":
    random = torch.Generator().manual_seed(1)
    head = torch.randint(0, 1000, (400,), generator=random).tolist()
    requests = [Request(head + torch.randint(0, 1000, (20 + 7 * i,), generator=random).tolist(), 30 + i, shared=400) for i in range(24)]
    engine = Engine(Model(), places=8, capacity=2048)
    engine.run(requests)
    print(f"{len(requests)} requests, {sum(len(r.written) for r in requests)} tokens in {engine.steps} steps, {engine.pool.page_bytes / 1e6:.1f} MB of pages")
