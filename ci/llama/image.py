"""An image encoder together with octaplex: it is on the CPU, and the server answers a question about an image as without octaplex.

usage: image.py MODEL CLIP.gguf

Writes the encoder, with random weights. GGML_BACKEND_PATH names octaplex's library. A process of its own runs each server,
without octaplex, with it, and with it and an encoder that asks for no device.
"""

import base64
import ctypes
import json
import os
import struct
import subprocess
import sys
import time
import urllib.request
import zlib


def write_encoder(path, projected, width=64, layers=2, side=56, patch=14):
    import gguf
    import numpy as np

    random = np.random.default_rng(5)
    hidden, places = 2 * width, (side // patch) ** 2 + 1
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", False)
    for name, value in {
        "image_size": side, "patch_size": patch, "embedding_length": width, "feed_forward_length": hidden,
        "block_count": layers, "projection_dim": projected, "attention.head_count": width // 32,
    }.items():  # fmt: skip
        writer.add_uint32("clip.vision." + name, value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)

    def tensor(name, *shape, scale=None):
        values = (scale or shape[-1] ** -0.5) * random.standard_normal(shape)
        writer.add_tensor(name, values.astype(np.float32))

    def linear(name, outputs, inputs):
        tensor(name + ".weight", outputs, inputs)
        tensor(name + ".bias", outputs, scale=0.1)

    def norm(name):
        writer.add_tensor(name + ".weight", np.ones(width, np.float32))
        tensor(name + ".bias", width, scale=0.1)

    tensor("v.class_embd", width)
    tensor("v.patch_embd.weight", width, 3, patch, patch, scale=0.05)
    tensor("v.position_embd.weight", places, width)
    norm("v.pre_ln")
    for layer in range(layers):
        block = f"v.blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            linear(block + name, width, width)
        norm(block + "ln1")
        norm(block + "ln2")
        linear(block + "ffn_up", hidden, width)
        linear(block + "ffn_down", width, hidden)
    linear("mm.0", projected, width)
    linear("mm.2", projected, projected)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def picture(side=56):
    rows = b"".join(b"\0" + bytes(v for x in range(side) for v in (4 * x, 4 * y, 128)) for y in range(side))
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def serve(model, encoder, on_device):
    import xllamacpp
    import xllamacpp.xllamacpp as extension

    if path := os.environ.get("GGML_BACKEND_PATH"):
        ctypes.CDLL(extension.__file__).ggml_backend_load(path.encode())
    params = xllamacpp.CommonParams()
    params.model.path, params.mmproj.path, params.mmproj_use_gpu = model, encoder, on_device
    params.n_parallel, params.n_ctx, params.n_gpu_layers, params.warmup, params.verbosity = 1, 1024, 99, False, 4
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.fit_params, params.port = False, 18000 + os.getpid() % 2000
    server = xllamacpp.Server(params)
    port = server.listening_address.rsplit(":", 1)[-1].strip("/")
    for _ in range(120):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        except OSError:
            time.sleep(0.5)
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        print("ANSWER", json.dumps(json.load(answer)["choices"][0]["message"]["content"]))
    sys.stdout.flush()
    os._exit(0)  # some wheels crash when they are unloaded


model, encoder, *on_device = sys.argv[1:]
if on_device:
    serve(model, encoder, on_device == ["device"])
write_encoder(encoder, 192)
answers = {}
for name, place, path in (("without", "device", None), ("with", "device", "x"), ("no device", "cpu", "x")):
    environment = {key: value for key, value in os.environ.items() if path or key != "GGML_BACKEND_PATH"}
    environment |= {"OCTAPLEX_BITS": "16"}
    command = [sys.executable, __file__, model, encoder, place]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    log = done.stdout + done.stderr
    sys.stderr.write(log)
    answers[name] = next((line for line in log.splitlines() if line.startswith("ANSWER")), None)
    assert answers[name], f"{name}: no answer, status {done.returncode}"
    print(f"   {name}: {answers[name]}", "| asks for a report" if "report this" in log.lower() else "")
    assert place == "device" or "report this" not in log.lower(), "llama.cpp asks for a report"
assert len(set(answers.values())) == 1, answers
