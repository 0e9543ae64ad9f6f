"""A decode step of onnxruntime's GroupQueryAttention on the CPU, with f32, f16, int8 and int4 caches, compared with this library's: one head, one query.

    pip install ./bindings/python onnxruntime==1.32.0 onnx
    python benches/peers/onnx_attention.py [TOKENS...]     # 4096 32768

Both on one thread, in turns, the least of all turns by that thread's own time; nanoseconds a token, and the output's distance from attention in
f64, relative to its norm. Keys and values are Gaussian, 128 wide. onnxruntime quantises what it appends, by one scale a tensor, which is the largest value's here."""

import os
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"  # read when the library is loaded

import numpy as np
import octaplex
import onnxruntime
from onnx import TensorProto, helper

WIDTH, TURNS, BATCH = 128, 40, 1024
#: Bits of onnxruntime's caches: type of a stored value, values in each, type of queries and output, largest code.
CACHES = {
    32: (TensorProto.FLOAT, 1, TensorProto.FLOAT, None),
    16: (TensorProto.FLOAT16, 1, TensorProto.FLOAT16, None),
    8: (TensorProto.INT8, 1, TensorProto.FLOAT, 127),
    4: (TensorProto.UINT8, 2, TensorProto.FLOAT, 7),
}
SPECS = ["turboquant", "turboquant:bits=8", "trellis", "trellis:bits=2", "int"]


class Peer:
    """onnxruntime's cache, which lies in one buffer."""

    def __init__(self, bits, keys, values):
        kind, packed, floats, most = CACHES[bits]
        capacity = len(keys) + 1
        names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
        shapes = [[1, "s", WIDTH]] * 3 + [[1, 1, "p", WIDTH // packed]] * 2 + [[1], [1]]
        kinds = [floats] * 3 + [kind] * 2 + [TensorProto.INT32] * 2
        options = {"num_heads": 1, "kv_num_heads": 1}
        if most:
            names += [""] * 5 + ["k_scale", "v_scale"]
            shapes += [[1], [1]]
            kinds += [TensorProto.FLOAT] * 2
            options |= {"kv_cache_bit_width": bits, "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
        given = [helper.make_tensor_value_info(*each) for each in zip(filter(None, names), kinds, shapes)]
        outputs = [helper.make_tensor_value_info("output", floats, [1, "s", WIDTH])]
        outputs += [helper.make_tensor_value_info(name, kind, [1, 1, "t", WIDTH // packed]) for name in ("present_key", "present_value")]
        node = helper.make_node("GroupQueryAttention", names, [each.name for each in outputs], domain="com.microsoft", **options)
        graph = helper.make_graph([node], "attention", given, outputs)
        versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        model = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
        self.session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        self.dtype = np.float16 if bits == 16 else np.float32
        stored = helper.tensor_dtype_to_np_dtype(kind)
        self.buffers = [onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, capacity, WIDTH // packed), stored)) for _ in range(2)]
        self.scales = [np.array([np.abs(rows).max() / most], np.float32) for rows in (keys, values)] if most else []
        for start in range(0, len(keys), BATCH):
            part = slice(start, start + BATCH)
            self.bind(keys[part], keys[part], values[part], start)
            self.run()

    def bind(self, query, key, value, past):
        self.binding = self.session.io_binding()
        for name, rows in zip(("query", "key", "value"), (query, key, value)):
            self.binding.bind_cpu_input(name, rows[None].astype(self.dtype))
        for name, buffer in zip(("key", "value"), self.buffers):
            self.binding.bind_ortvalue_input(f"past_{name}", buffer)
            self.binding.bind_ortvalue_output(f"present_{name}", buffer)
        total = past + len(query)
        self.binding.bind_cpu_input("seqlens_k", np.array([total - 1], np.int32))
        self.binding.bind_cpu_input("total_sequence_length", np.array([total], np.int32))
        for name, scale in zip(("k_scale", "v_scale"), self.scales):
            self.binding.bind_cpu_input(name, scale)
        self.binding.bind_output("output")

    def run(self):
        self.session.run_with_iobinding(self.binding)

    def output(self):
        return self.binding.get_outputs()[-1].numpy()[0, 0]  # bound last


class Ours:
    """All tokens in pages but the first four and the open page."""

    def __init__(self, spec, keys, values, query):
        self.cache = octaplex.Cache(1, 1, WIDTH, len(keys) + 1, keys=spec, values=spec, recent_window=0, max_rollback=0)
        self.cache.append(0, keys[None], values[None])
        self.query, self.out = query[None], np.empty((1, 1, WIDTH), np.float32)

    def run(self):
        self.cache.attend(0, self.query, out=self.out)

    def output(self):
        return self.out[0, 0]


def main(depth):
    random = np.random.default_rng(1)
    keys, values = (random.standard_normal((depth + 1, WIDTH)).astype(np.float32) for _ in range(2))
    query = random.standard_normal((1, WIDTH)).astype(np.float32)
    rows = {}
    for bits in CACHES:
        rows[f"onnxruntime, {bits} bits"] = bits, (peer := Peer(bits, keys[:-1], values[:-1]))
        peer.bind(query, keys[-1:], values[-1:], depth)
    for spec in SPECS:
        ours = Ours(spec, keys, values, query)
        rows[f"`{spec}`"] = 8 * ours.cache.stats().bytes / ours.cache.stats().values, ours
    logits = (keys.astype(np.float64) @ query[0]) / np.sqrt(WIDTH)
    weights = np.exp(logits - logits.max())
    exact = weights @ values / weights.sum()
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(TURNS):
        for name, (_, each) in rows.items():
            start = time.thread_time()
            each.run()
            best[name] = min(best[name], time.thread_time() - start)
    print(f"\n{depth} tokens, onnxruntime {onnxruntime.__version__}\n\n| cache | bits a value | ns a token | output error |\n| :-- | --: | --: | --: |")
    for name, (bits, each) in rows.items():
        error = np.linalg.norm(each.output() - exact) / np.linalg.norm(exact)
        print(f"| {name} | {bits:.2f} | {1e9 * best[name] / depth:.1f} | {error:.4f} |")


if __name__ == "__main__":
    for each in sys.argv[1:] or ["4096", "32768"]:
        main(int(each))
