"""llama.cpp's architectures with random weights: their logits with octaplex's cache against those with llama.cpp's own.

usage: archs.py [ARCHITECTURE...]     all of them by default; GGML_BACKEND_PATH names the library
       archs.py --speed ARCHITECTURE  only compares the time of a token at a depth of 2,048

Each runs in a process of its own, because a cache that llama.cpp cannot use ends the process. llama.cpp makes the models
itself, from metadata and a function that fills tensors. Some architectures want other metadata and make no model. A known
number of them must run.
"""

import json
import os
import re
import select
import sys
import time
import zlib

import numpy as np

import host
from host import ffi, llama

for declaration in (
    "void *gguf_init_empty(void);",
    "void gguf_set_val_u32(void *, const char *, uint32_t);",
    "void gguf_set_val_f32(void *, const char *, float);",
    "void gguf_set_val_bool(void *, const char *, bool);",
    "void gguf_set_val_str(void *, const char *, const char *);",
    "void gguf_set_arr_data(void *, const char *, int, const void *, size_t);",
    "void ggml_backend_tensor_set(struct ggml_tensor *, const void *, size_t, size_t);",
    "size_t ggml_nbytes(const struct ggml_tensor *);",
    "const char *ggml_get_name(const struct ggml_tensor *);",
    "void *ggml_backend_dev_by_name(const char *);",
):
    try:
        ffi.cdef(declaration)
    except Exception:  # the wheel's text has it
        pass

# With 144 tokens in batches of 48, a page closes before the last batch of an architecture without streams.
TOKENS, BATCH, VOCABULARY, LEAST = 144, 48, 128, 110
MLA = {"deepseek2", "deepseek32", "glm-dsa", "kimi-linear", "mistral4", "deepseek4", "longcat-flash"}
HYBRID = {"plamo2", "jamba", "nemotron_h", "nemotron_h_moe", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear"}
EXPERTS = re.compile(r"moe|mixtral|grok|dbrx|arctic|deepseek|glm-dsa|kimi|mistral4|llama4|gpt-oss|bailing|dots|hunyuan-moe|longcat|afmoe|minimax|mimo2|step35|plm|qwen3next|rnd1|grovemoe")
ENCODERS = {"t5", "dream", "llada", "llada-moe", "rnd1"}


class Metadata:
    """The values that an architecture is described by, as llama.cpp's own tests of architectures have them."""

    def __init__(self, arch, experts):
        self.arch, self.made, self.kept = arch, llama.gguf_init_empty(), []
        embedding, heads, hidden, layers = 256, 2, 384, 3
        if arch == "llama4":
            layers = 4
        elif arch == "gemma4":
            embedding, heads, hidden, layers = 128, 2, 192, 5
        elif arch == "gemma3n":
            embedding, heads, hidden, layers = 64, 1, 96, 22
        elif arch in MLA:
            embedding, heads, hidden = 128, 1, 192
        width = embedding // heads
        self.text("general.architecture", arch)
        self.text("tokenizer.ggml.model", "no_vocab")
        self.numbers(
            vocab_size=VOCABULARY, context_length=2048, embedding_length=embedding, features_length=embedding,
            block_count=layers, leading_dense_block_count=1, time_mix_extra_dim=64, time_decay_extra_dim=128,
            full_attention_interval=2, feed_forward_length=hidden,
        )  # fmt: skip
        if arch in ("nemotron_h", "nemotron_h_moe"):
            self.list("feed_forward_length", [0 if layer <= 1 else hidden for layer in range(layers)])
        llama.gguf_set_val_bool(self.made, self.key("use_parallel_residual"), False)
        if arch in HYBRID:
            for name in ("attention.head_count", "attention.head_count_kv"):
                self.list(name, [0 if layer == 1 else heads for layer in range(layers)])
        else:
            self.numbers(**{"attention.head_count": heads, "attention.head_count_kv": heads})
        if arch in MLA:
            self.numbers(**{
                "attention.key_length": 576, "attention.value_length": 512, "rope.dimension_count": 64,
                "attention.key_length_mla": 192, "attention.value_length_mla": 128,
            })  # fmt: skip
        self.floats(**{
            "logit_scale": 1.0, "attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 8.0 if arch == "dbrx" else 1.0,
            "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.group_norm_epsilon": 1e-5, "expert_group_scale": 1.0, "xielu.alpha_n": 1.0, "xielu.alpha_p": 1.0,
            "xielu.beta": 1.0, "xielu.eps": 1e-7,
        })  # fmt: skip
        self.numbers(**{
            "attention.group_norm_groups": 8, "attention.q_lora_rank": 512, "attention.kv_lora_rank": 512,
            "attention.relative_buckets_count": 8, "attention.sliding_window": 96, "attention.indexer.head_count": 1,
            "attention.indexer.key_length": 64, "attention.indexer.top_k": 8,
        })  # fmt: skip
        if arch == "gemma4":
            self.numbers(**{
                "embedding_length_per_layer_input": embedding // 2, "attention.shared_kv_layers": 0,
                "attention.key_length_swa": width, "attention.value_length_swa": width,
                "attention.key_length": 2 * width, "attention.value_length": 2 * width,
            })  # fmt: skip
            self.floats(**{"rope.freq_base_swa": 1e4})
            self.list("attention.sliding_window_pattern", [1, 1, 1, 1, 0], 7, np.uint8)
        elif arch in ("cohere2moe", "mimo2", "step35"):
            self.list("attention.sliding_window_pattern", [layer % 2 for layer in range(layers)])
        else:
            self.numbers(**{"attention.sliding_window_pattern": 2})
        sections = width // 8 if arch in ("qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe") else width // 4
        self.list("rope.dimension_sections", [sections] * 4)
        if experts:
            self.numbers(
                expert_feed_forward_length=hidden, interleave_moe_layer_step=2, expert_count=2, expert_used_count=1,
                expert_shared_count=1, expert_gating_func=2, experts_per_group=1,
            )  # fmt: skip
        self.numbers(**{
            "ssm.inner_size": 256 if arch in ("qwen3next", "qwen35", "qwen35moe") else 2 * embedding,
            "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.time_step_rank": heads,
            "ssm.group_count": 0 if arch == "plamo2" else 2, "kda.head_dim": 128, "wkv.head_size": width,
            "shortconv.l_cache": 3,
        })  # fmt: skip

    def key(self, name):
        return (name if name.startswith(("general", "tokenizer")) else f"{self.arch}.{name}").encode()

    def text(self, name, value):
        llama.gguf_set_val_str(self.made, self.key(name), value.encode())

    def numbers(self, **values):
        for name, value in values.items():
            llama.gguf_set_val_u32(self.made, self.key(name), value)

    def floats(self, **values):
        for name, value in values.items():
            llama.gguf_set_val_f32(self.made, self.key(name), value)

    def list(self, name, values, kind=4, of=np.uint32):
        self.kept.append(np.array(values, of))
        llama.gguf_set_arr_data(self.made, self.key(name), kind, ffi.from_buffer(self.kept[-1]), len(values))


@ffi.callback("void(struct ggml_tensor *, void *)")
def fill(tensor, _):
    name, size = ffi.string(llama.ggml_get_name(tensor)).decode(), llama.ggml_nbytes(tensor)
    sizes = ffi.cast("int64_t *", ffi.cast("char *", tensor) + 16)
    of = np.float32 if ffi.cast("int *", tensor)[0] == 0 else np.float16
    count = size // np.dtype(of).itemsize
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(count, np.float32)
    if sizes[1] == 1 and "norm" in name and name.endswith("weight"):
        values = 1 + 0.1 * values
    elif "ssm_a" in name:
        values = -np.abs(values) - 0.1
    elif name.endswith("bias"):
        values = 0.1 * values
    elif name.startswith("rope"):
        values = np.ones(count)
    elif not name.startswith("token_embd"):
        values = values / np.sqrt(max(sizes[0], 1))
    values = values.astype(of)
    llama.ggml_backend_tensor_set(tensor, ffi.from_buffer(values), 0, size)


def logits(arch, experts, devices):
    """The logits of all tokens, or what llama.cpp refused."""
    metadata = Metadata(arch, experts)
    params = llama.llama_model_default_params()
    listed = ffi.new("ggml_backend_dev_t[]", [*devices, ffi.NULL])
    params.devices, params.n_gpu_layers = listed, 99
    model = llama.llama_model_init_from_user(metadata.made, fill, ffi.NULL, params)
    if not model:
        return "no model"
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = 256
    params.n_ubatch = 256 if arch in ENCODERS else BATCH
    params.n_threads = params.n_threads_batch = 1
    context = llama.llama_init_from_model(model, params)
    if not context:
        return "no context"
    tokens, rows = np.random.default_rng(1).integers(0, VOCABULARY, TOKENS), []
    step = TOKENS if arch in ENCODERS else BATCH
    for start in range(0, TOKENS, step):
        batch = llama.llama_batch_init(step, 0, 1)
        batch.n_tokens = step
        for number in range(step):
            batch.token[number], batch.pos[number] = int(tokens[start + number]), start + number
            batch.n_seq_id[number], batch.seq_id[number][0], batch.logits[number] = 1, 0, 1
        if arch in ENCODERS:
            llama.llama_encode(context, batch)
        if status := llama.llama_decode(context, batch):
            return f"llama_decode returns {status}"
        found = ffi.buffer(llama.llama_get_logits(context), step * VOCABULARY * 4)
        rows.append(np.frombuffer(found, np.float32).reshape(-1, VOCABULARY).copy())
    return np.concatenate(rows)


def seconds(arch, devices):
    """The CPU time of a token behind 2,048 others."""
    metadata = Metadata(arch, bool(EXPERTS.search(arch)))
    params = llama.llama_model_default_params()
    listed = ffi.new("ggml_backend_dev_t[]", [*devices, ffi.NULL])
    params.devices, params.n_gpu_layers = listed, 99
    model = llama.llama_model_init_from_user(metadata.made, fill, ffi.NULL, params)
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 2560, 1, 1
    context, depth, count = llama.llama_init_from_model(model, params), 2048, 100
    for start, step in [(start, 512) for start in range(0, depth, 512)] + [(depth + n, 1) for n in range(count)]:
        if start == depth:
            began = time.process_time()
        batch = llama.llama_batch_init(step, 0, 1)
        batch.n_tokens = step
        for number in range(step):
            batch.token[number], batch.pos[number] = (start + number) % VOCABULARY, start + number
            batch.n_seq_id[number], batch.seq_id[number][0], batch.logits[number] = 1, 0, number == step - 1
        assert llama.llama_decode(context, batch) == 0
        llama.llama_batch_free(batch)
    found = (time.process_time() - began) / count
    llama.llama_free(context)
    llama.llama_model_free(model)
    return found


def compare(arch, experts, writing):
    base = logits(arch, experts, [])
    if isinstance(base, str):
        return {"status": base}
    os.write(writing, b"\n")  # what happens from here on is not llama.cpp's alone
    host.lines.clear()
    found = logits(arch, experts, [llama.ggml_backend_dev_by_name(b"OCTAPLEX")])
    if isinstance(found, str):
        return {"status": f"with octaplex: {found}", "lines": [line for _, line in host.lines][-5:]}
    finite = bool(np.isfinite(base).all())
    error = float(((found - base) ** 2).sum() / (base**2).sum()) if finite else 0.0
    on = sum("OCTAPLEX KV buffer" in line for _, line in host.lines)
    errors = [line for level, line in host.lines if level == host.ERROR]
    return {"status": "ok", "error": error, "finite": finite, "on": on, "errors": errors}


def apart(arch, experts):
    """Compares in a process of its own."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            answer = compare(arch, experts, writing)
        except BaseException as why:
            answer = {"status": f"{type(why).__name__}: {why}"}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    answer, end = b"", time.monotonic() + 60
    while select.select([reading], [], [], max(0, end - time.monotonic()))[0] and (part := os.read(reading, 1 << 16)):
        answer += part
    os.close(reading)
    os.kill(child, 9)  # it has answered, has ended, or takes too long
    status = os.waitpid(child, 0)[1]
    if answer.strip():
        return json.loads(answer)
    return {"status": f"ended by signal {os.WTERMSIG(status)}" if answer else "no model"}


llama.llama_log_set(host.log, ffi.NULL)
llama.llama_backend_init()
llama.ggml_backend_load_all()  # reads GGML_BACKEND_PATH
assert llama.ggml_backend_dev_by_name(b"OCTAPLEX"), "octaplex was not loaded"
if sys.argv[1:2] == ["--speed"]:
    device = llama.ggml_backend_dev_by_name(b"OCTAPLEX")
    base, ours = (min(times) for times in zip(*[(seconds(sys.argv[2], []), seconds(sys.argv[2], [device])) for _ in range(5)]))
    print(f"   {sys.argv[2]}: {1e3 * base:.2f} ms of CPU time for a token, {1e3 * ours:.2f} with octaplex ({ours / base:.2f}x)")
    sys.stdout.flush()
    os._exit(ours > 3 * base)  # 1.0x on a quiet machine, and 14x if the cache leaves the device
listed = sys.argv[1:] or open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "archs.txt")).read().split()
began, ran, on, failed = time.monotonic(), 0, 0, []
for arch in listed:
    answer = apart(arch, bool(EXPERTS.search(arch)))
    if sys.argv[1:] or answer["status"] != "ok":
        print(arch, json.dumps(answer))
    if answer["status"] in ("no model", "no context"):
        continue
    ran += 1
    on += answer.get("on", 0) > 0
    if answer["status"] != "ok" or answer["error"] > 0.02 or answer["errors"]:
        failed.append((arch, answer))
for arch, answer in failed:
    print("differs:", arch, json.dumps(answer))
print(f"   {ran} architectures, octaplex serves {on}, {len(failed)} differ ({time.monotonic() - began:.0f} s)")
if not sys.argv[1:] and ran < LEAST:
    failed.append((f"only {ran} of {LEAST} architectures ran", {}))
sys.stdout.flush()
os._exit(bool(failed))  # some wheels crash when they are unloaded
