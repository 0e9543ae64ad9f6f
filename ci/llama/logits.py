"""Logits of a prebuilt llama.cpp (the wheel xllamacpp), with whatever cache the environment says.

usage: logits.py MODEL TEXT|- OUT.npy [--tokens N] [--ubatch N] [--test NAME] [--against BASE.npy]

--against prints the divergence from logits of an earlier run as JSON.
"""

import argparse
import json
import os
import sys

import numpy as np

from host import ffi, llama, load

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("text")
parser.add_argument("out")
parser.add_argument("--tokens", type=int, default=256)
parser.add_argument("--ubatch", type=int, default=64)
parser.add_argument("--context", type=int, default=0)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--layers", type=int, default=99)
parser.add_argument("--flash", type=int, default=-1, help="-1 auto, 0 off, 1 on")
parser.add_argument("--type", type=int, default=1, help="ggml's type of the cache: 1 f16, 8 q8_0")
parser.add_argument("--test", default="plain")
parser.add_argument("--against")
options = parser.parse_args()

model = load(options.model, options.layers)
vocabulary = llama.llama_model_get_vocab(model)
width = llama.llama_vocab_n_tokens(vocabulary)
if options.text == "-":
    # A made model has no words.
    tokens = [int(token) for token in np.random.default_rng(3).integers(0, width, options.tokens)]
else:
    text = open(options.text, "rb").read()[: 8 * (options.tokens + 100)]
    room = ffi.new("llama_token[]", len(text) + 8)
    count = llama.llama_tokenize(vocabulary, text, len(text), room, len(text) + 8, True, False)
    tokens = list(room[0 : min(count, options.tokens)])


def context(cells, sequences=1, unified=True):
    params = llama.llama_context_default_params()
    assert params.type_k == 1 and params.offload_kqv, "the declarations are not those of this llama.cpp"
    params.n_ctx = cells
    params.n_batch = max(options.ubatch, 512)
    params.n_ubatch = options.ubatch
    params.n_threads = params.n_threads_batch = options.threads
    params.n_seq_max = sequences
    params.kv_unified = unified
    params.flash_attn_type = options.flash
    params.type_k = params.type_v = options.type
    made = llama.llama_init_from_model(model, params)
    if not made:
        sys.exit("llama.cpp makes no context")
    return made


def decode(made, rows):
    """Decodes (token, position, sequence) in one call, and returns the status and the logits of each."""
    batch = llama.llama_batch_init(len(rows), 0, 1)
    batch.n_tokens = len(rows)
    for number, (token, position, sequence) in enumerate(rows):
        batch.token[number], batch.pos[number] = token, position
        batch.n_seq_id[number], batch.seq_id[number][0] = 1, sequence
        batch.logits[number] = 1
    status = llama.llama_decode(made, batch)
    logits = None
    if status == 0:
        logits = ffi.buffer(llama.llama_get_logits(made), len(rows) * width * 4)
        logits = np.frombuffer(logits, np.float32).reshape(len(rows), width).copy()
    llama.llama_batch_free(batch)
    return status, logits


def feed(made, tokens, first=0, sequence=0):
    """Decodes tokens, and returns the logits of each."""
    rows = []
    for start in range(0, len(tokens), options.ubatch):
        part = tokens[start : start + options.ubatch]
        status, logits = decode(made, [(token, first + start + at, sequence) for at, token in enumerate(part)])
        if status != 0:
            sys.exit(f"llama_decode returns {status}")
        rows.append(logits)
    return np.concatenate(rows)


def memory(made):
    return llama.llama_get_memory(made)


half = len(tokens) // 2
cells = options.context or len(tokens) + 64
if options.test == "plain":
    logits = feed(context(cells), tokens)
elif options.test == "rollback":
    # The second half is forgotten and written anew, 20 times: cells are used again.
    made = context(cells)
    feed(made, tokens)
    runs = []
    for _ in range(20):
        llama.llama_memory_seq_rm(memory(made), 0, half, -1)
        runs.append(feed(made, tokens[half:], half))
    logits = runs[-1]
    # A page that was decoded may change once more when it is coded again, a layer's behind those of the layers below it.
    print(json.dumps({"rewritten": float(np.abs(runs[-1] - runs[4]).max())}))
elif options.test == "state":
    made = context(cells)
    feed(made, tokens[:half])
    size = llama.llama_state_seq_get_size(made, 0)
    state = ffi.new("uint8_t[]", size)
    assert llama.llama_state_seq_get_data(made, state, size, 0) == size
    expected = feed(made, tokens[half:], half)
    again = context(cells)
    assert llama.llama_state_seq_set_data(again, state, size, 0) == size
    logits = feed(again, tokens[half:], half)
    print(json.dumps({"loaded": float(np.abs(logits - expected).max())}))
elif options.test in ("copy", "streams"):
    made = context(2 * (len(tokens) + 64), 2, options.test == "copy")
    feed(made, tokens[:half])
    llama.llama_memory_seq_cp(memory(made), 0, 1, -1, -1)
    logits = feed(made, tokens[half:], half, 0)
    other = feed(made, tokens[half:], half, 1)
    print(json.dumps({"copied": float(np.abs(logits - other).max())}))
elif options.test == "shift":
    made = context(cells)
    feed(made, tokens[:half])
    llama.llama_memory_seq_rm(memory(made), 0, 16, 80)
    llama.llama_memory_seq_add(memory(made), 0, 80, -1, -64)
    logits = feed(made, tokens[half:], half - 64)
elif options.test == "unified":
    # Three sequences share a cache, and grow in turns.
    made = context(3 * (len(tokens) + 64), 3)
    step = options.ubatch
    runs = [[feed(made, tokens[at : at + step], at, of) for of in range(3)] for at in range(0, len(tokens), step)]
    logits = np.concatenate([rows for run in zip(*runs) for rows in run])
elif options.test in ("together", "together-streams"):
    # Batches with tokens of three sequences, which differ, and start one after the other.
    texts = [[(token + 37 * of) % width for token in tokens] for of in range(3)]
    made = context(3 * (len(tokens) + 64), 3, options.test == "together")
    step, late = max(1, options.ubatch // 3), 24
    runs = [[], [], []]
    for at in range(0, len(tokens) + 2 * late, step):
        rows = [(texts[of][p], p, of) for of in range(3) for p in range(at - of * late, at - of * late + step) if 0 <= p < len(tokens)]
        status, found = decode(made, rows)
        assert status == 0, status
        for row, (_, _, of) in zip(found, rows):
            runs[of].append(row)
    logits = np.concatenate([np.stack(rows) for rows in runs])
elif options.test == "refused":
    # The model's last token has no finite embedding. A sequence with it must not harm the other one.
    made = context(2 * (len(tokens) + 64), 2)
    tokens = [token % (width - 1) for token in tokens]
    runs, failed = [feed(made, tokens[:half])], 0
    for position, token in enumerate([*tokens[:20], width - 1, *tokens[:180]]) if "GGML_BACKEND_PATH" in os.environ else ():
        failed += decode(made, [(token, position - failed, 1)])[0] != 0
    # A prompt with it fails, or what follows it.
    if "GGML_BACKEND_PATH" in os.environ:
        print(json.dumps({"none_failed": int(failed == 0)}))
        llama.llama_memory_seq_rm(memory(made), 1, -1, -1)
        prompt = [(width - 1, 0, 1), *((token, 1 + at, 1) for at, token in enumerate(tokens[:60]))]
        begun, follow = decode(made, prompt)[0] == 0, [(tokens[0], len(prompt), 1)]
        followed = begun and decode(made, follow)[0] == 0
        if begun:  # a state does not heal it
            size = llama.llama_state_seq_get_size(made, 1)
            state = ffi.new("uint8_t[]", size)
            llama.llama_state_seq_get_data(made, state, size, 1)
            llama.llama_memory_seq_rm(memory(made), 1, -1, -1)
            llama.llama_state_seq_set_data(made, state, size, 1)
            followed |= decode(made, follow)[0] == 0
        print(json.dumps({"prompt_did_not_fail": int(followed)}))
        llama.llama_memory_seq_rm(memory(made), 1, -1, -1)
        # Its cell is free for others.
        decode(made, [(width - 1, 0, 1)])
        llama.llama_memory_seq_rm(memory(made), 1, -1, -1)
        failed = sum(decode(made, [(token, at, 1)])[0] != 0 for at, token in enumerate(tokens[:130]))
        print(json.dumps({"reused_failed": failed}))
        llama.llama_memory_seq_rm(memory(made), 1, -1, -1)
    runs.append(feed(made, tokens[half:], half))
    again = feed(made, tokens[:half], 0, 1)
    print(json.dumps({"again": float(np.abs(again - runs[0]).mean())}))
    logits = np.concatenate(runs)
else:
    sys.exit(f"no such test: {options.test}")


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


np.save(options.out, logits)
if options.against:
    ours, base = log_softmax(logits), log_softmax(np.load(options.against))
    divergence = (np.exp(base) * (base - ours)).sum(-1)
    same = float((base.argmax(-1) == ours.argmax(-1)).mean())
    if options.test == "unified":
        each = divergence.reshape(3, -1).mean(-1)
        print(json.dumps({"sequences": each.tolist(), "unequal": float(each.max() / each.min() - 1)}))
    print(json.dumps({"kl": float(divergence.mean()), "kl_second_half": float(divergence[len(divergence) // 2 :].mean()), "same_top": same}))
sys.stdout.flush()
os._exit(0)  # some wheels crash when they are unloaded
