"""Random calls of llama.cpp's interface, each to a context with octaplex's cache and to one with llama.cpp's own f16 cache.

usage: fuzz.py MODEL [--calls N] [--seed S] [--kl LIMIT] [--exact] [--trace]

GGML_BACKEND_PATH and OCTAPLEX_* say what octaplex's cache is. Two pairs of contexts live at a time: with one stream for all
sequences, or one for each; with whole or windowed caches of sliding windows; with batches of several sizes. Calls: decode
(some sequences, rows of logits at random), seq_rm, seq_cp, seq_keep, seq_add, seq_div, clear, states of a sequence
or of a context saved and loaded (between the pairs as well), contexts freed and made. What both return must be the same,
and no error may be in the log. Logits must be near each other, by their divergence; --exact bounds the largest difference
of logits too. A failure prints the seed, the call's number, and the last calls.
"""

import argparse
import collections
import json
import os
import sys

import numpy as np

import host
from host import ffi, llama

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--calls", type=int, default=300)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--kl", type=float, default=0.05, help="of any row, at most")
parser.add_argument("--exact", action="store_true", help="logits differ by rounding only")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--trace", action="store_true")
options = parser.parse_args()

model = host.load(options.model)
width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
rng = np.random.default_rng(options.seed)
calls = collections.deque(maxlen=12)
largest = {"kl": 0.0, "logit": 0.0, "position": 0}
divergences = []
counts = collections.Counter()


def below(limit):
    return int(rng.integers(limit))


def fail(why):
    print(f"seed {options.seed}, call {sum(counts.values())}: {why}; the last calls:", *calls, sep="\n  ", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class Pair:
    """A context on the device (octaplex), and one on the CPU (llama.cpp's own cache)."""

    def __init__(self, number):
        self.number = number
        self.unified, self.sequences = bool(below(2)), [1, 3][below(2)]
        self.streams = 1 if self.unified else self.sequences
        self.cells = 256 * (1 + below(3)) * self.streams
        self.batch = [7, 32, 64, 200][below(4)]
        self.full = bool(below(2))
        self.contexts = [self.make(True), self.make(False)]

    def make(self, device):
        params = llama.llama_context_default_params()
        assert params.type_k == 1 and params.offload_kqv, "the declarations are not those of this llama.cpp"
        params.n_ctx, params.n_batch, params.n_ubatch = self.cells, 512, self.batch
        params.n_threads = params.n_threads_batch = options.threads
        params.n_seq_max, params.kv_unified, params.swa_full = self.sequences, self.unified, self.full
        params.flash_attn_type, params.offload_kqv = 1, device
        made = llama.llama_init_from_model(model, params)
        return made if made else fail("no context")

    def memories(self):
        return [llama.llama_get_memory(context) for context in self.contexts]

    def __str__(self):
        kind = "unified" if self.unified else "split"
        return f"#{self.number} {kind} {self.sequences} sequences {self.cells} cells ubatch {self.batch} full {self.full}"

    def both(self, name, *arguments):
        """Calls both; gives what both return."""
        results = [getattr(llama, name)(memory, *arguments) for memory in self.memories()]
        if results[0] != results[1]:
            fail(f"{name} gives {results}")
        return results[0]

    def last(self, sequence):
        return self.both("llama_memory_seq_pos_max", sequence)

    def decode(self):
        # Of each of some sequences a few next tokens, interleaved or one behind the other.
        chosen = rng.permutation(self.sequences)[: 1 + below(self.sequences)]
        long = 120 if below(4) == 0 else 12
        todo = [(int(sequence), n) for sequence in chosen for n in range(1 + below(long))]
        if below(2):
            todo.sort(key=lambda item: item[1])
        todo = todo[:256]  # n_batch is never less
        twins = []
        if self.unified and len(chosen) == 1 < self.sequences and below(3) == 0:
            # Tokens of two sequences at once. One is a copy of the other.
            twins = [(int(chosen[0]) + 1) % self.sequences]
            self.both("llama_memory_seq_rm", twins[0], -1, -1)
            self.both("llama_memory_seq_cp", int(chosen[0]), twins[0], -1, -1)
        positions = {sequence: self.last(sequence) for sequence, _ in todo}
        batch = llama.llama_batch_init(len(todo), 0, 2)
        batch.n_tokens = len(todo)
        wanted = []
        for number, (sequence, n) in enumerate(todo):
            batch.token[number] = below(width)
            batch.pos[number] = positions[sequence] + 1 + n
            batch.n_seq_id[number] = 1 + len(twins)
            for n, other in enumerate([sequence, *twins]):
                batch.seq_id[number][n] = other
            batch.logits[number] = number == len(todo) - 1 or below(4) == 0
            wanted += [number] if batch.logits[number] else []
        results = [llama.llama_decode(context, batch) for context in self.contexts]
        if results[0] != results[1]:
            fail(f"llama_decode gives {results}")
        if results[0] == 0:
            rows = []
            for context in self.contexts:
                found = [llama.llama_get_logits_ith(context, number) for number in wanted]
                rows.append(np.stack([np.frombuffer(ffi.buffer(row, 4 * width), np.float32) for row in found]))
            self.compare(*rows)
            largest["position"] = max(largest["position"], *(positions[sequence] + 1 + n for sequence, n in todo))
        llama.llama_batch_free(batch)
        if results[0] == 1:
            # No cell is free: free some.
            self.both("llama_memory_seq_rm", todo[0][0], -1, -1)
        return f"{len(todo)} tokens of {chosen.tolist() + twins} from {positions}: {results[0]}"

    def compare(self, ours, theirs):
        if not np.isfinite(ours).all():
            fail("a logit is no number")
        difference = float(np.abs(ours - theirs).max())
        ours, base = log_softmax(ours), log_softmax(theirs)
        each = (np.exp(base) * (base - ours)).sum(-1)
        divergences.extend(each)
        kl = float(each.max())
        largest["kl"], largest["logit"] = max(largest["kl"], kl), max(largest["logit"], difference)
        if kl > options.kl or (options.exact and difference > 0.02):
            fail(f"logits differ by {difference:.3g}, a row's divergence is {kl:.3g}")

    def some(self):
        """A sequence, and a range of its positions, which may be empty, open, or beyond the last."""
        sequence = below(self.sequences)
        last = self.last(sequence)
        first = below(last + 2) if last >= 0 else 0
        return sequence, first, [-1, first + 1 + below(100), last + 1][below(3)]

    def seq_rm(self):
        sequence, first, end = self.some()
        if below(3) == 0:
            first = max(0, self.last(sequence) - below(40))
            end = -1  # a rollback
        self.both("llama_memory_seq_rm", sequence, first, end)
        return sequence, first, end

    def seq_cp(self):
        source, first, end = self.some()
        target = below(self.sequences)
        if not self.unified:
            first = end = -1  # of streams, all is copied
        if self.last(target) >= 0 and below(4):
            self.both("llama_memory_seq_rm", target, -1, -1)
        self.both("llama_memory_seq_cp", source, target, first, end)
        return source, target, first, end

    def seq_keep(self):
        sequence = below(self.sequences)
        self.both("llama_memory_seq_keep", sequence)
        return (sequence,)

    def seq_add(self):
        sequence, first, end = self.some()
        if below(2):
            # As hosts shift a context: some are removed, and those behind move up.
            count = 1 + below(60)
            self.both("llama_memory_seq_rm", sequence, first, first + count)
            first, end, delta = first + count, -1, -count
        else:
            delta = below(30)  # a gap
        self.both("llama_memory_seq_add", sequence, first, end, delta)
        return sequence, first, end, delta

    def seq_div(self):
        sequence, first, end = self.some()
        self.both("llama_memory_seq_div", sequence, first, end, 2)
        return sequence, first, end

    def clear(self):
        data = bool(below(2))
        self.both("llama_memory_clear", data)
        return (data,)

    def state(self, other):
        """A sequence's state, into a sequence of this pair or the other."""
        source, target = below(self.sequences), below(other.sequences)
        loaded = []
        for context, into in zip(self.contexts, other.contexts):
            size = llama.llama_state_seq_get_size(context, source)
            data = ffi.new("uint8_t[]", max(size, 1))
            if llama.llama_state_seq_get_data(context, data, size, source) != size:
                fail("a state of another size than was said")
            loaded.append((size, llama.llama_state_seq_set_data(into, data, size, target)))
        if loaded[0] != loaded[1]:
            fail(f"states are loaded to {loaded}")
        return source, target, other.number, *loaded[0]

    def checkpoint(self):
        """A sequence's state is kept, on the host or on the device, and is taken up again behind other calls."""
        sequence, on_device = below(self.sequences), 2 * below(2)
        kept = []
        for context in self.contexts:
            size = llama.llama_state_seq_get_size_ext(context, sequence, on_device)
            data = ffi.new("uint8_t[]", max(size, 1))
            kept.append((data, llama.llama_state_seq_get_data_ext(context, data, size, sequence, on_device)))
        between = [self.decode(), self.seq_rm(), self.decode()]
        loaded = [
            llama.llama_state_seq_set_data_ext(context, data, size, sequence, on_device)
            for context, (data, size) in zip(self.contexts, kept)
        ]
        if loaded[0] != loaded[1]:
            fail(f"states are loaded to {loaded}")
        return sequence, on_device, loaded[0], between

    def whole_state(self):
        """Of a whole context, into a new one like it, or into itself."""
        again = below(2)
        before = self.contexts
        loaded = []
        for number, context in enumerate(before):
            size = llama.llama_state_get_size(context)
            data = ffi.new("uint8_t[]", size)
            saved = llama.llama_state_get_data(context, data, size)
            into = self.make(number == 0) if again else context
            loaded.append((saved, llama.llama_state_set_data(into, data, saved)))
            if again:
                llama.llama_free(context)
                self.contexts = [*self.contexts[:number], into, *self.contexts[number + 1 :]]
        # Logits of the last batch are in a state, and as good as those.
        if loaded[0] != loaded[1]:
            fail(f"states are loaded to {loaded}")
        return "into a new context" if again else "into itself", *loaded[0]

    def free(self):
        for context in self.contexts:
            llama.llama_free(context)


pairs = [Pair(0), Pair(1)]
made = 2
for _ in range(options.calls):
    which = below(2)
    pair = pairs[which]
    name = rng.choice(
        ["decode", "seq_rm", "seq_cp", "seq_keep", "seq_add", "seq_div", "clear", "state", "checkpoint", "whole_state", "remake"],
        p=[0.48, 0.14, 0.09, 0.02, 0.09, 0.01, 0.02, 0.07, 0.03, 0.03, 0.02],
    )
    counts[str(name)] += 1
    calls.append(f"{name} on {pair}")
    if options.trace:
        print(calls[-1], file=sys.stderr, flush=True)
    if name == "remake":
        pair.free()
        pairs[which] = Pair(made)
        made += 1
        result = pairs[which]
    elif name == "state":
        result = pair.state(pairs[below(2)])
    else:
        result = getattr(pair, name)()
    calls[-1] += f": {result}"
    if options.trace:
        print("  ", calls[-1], file=sys.stderr, flush=True)
    if any(level == host.ERROR and "octaplex" in line for level, line in host.lines):
        fail("octaplex reports an error")
if not any("OCTAPLEX KV buffer" in line for _, line in host.lines):
    fail("octaplex was not on")
kl = np.array(divergences)
print(json.dumps({"rows": len(kl), "mean_kl": float(kl.mean()), **largest, **counts}))
sys.stdout.flush()
os._exit(0)  # some wheels crash when they are unloaded
