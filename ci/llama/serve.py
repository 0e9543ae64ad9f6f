"""llama-server as the wheel xllamacpp has it, and the requests of server.py to it.

usage: serve.py MODEL unified|split [DRAFT_MODEL]

GGML_BACKEND_PATH names octaplex's library, or is not set.
"""

import ctypes
import os
import subprocess
import sys

import xllamacpp
import xllamacpp.xllamacpp as extension

model, streams, *draft = sys.argv[1:]
if path := os.environ.get("GGML_BACKEND_PATH"):
    ctypes.CDLL(extension.__file__).ggml_backend_load(path.encode())
params = xllamacpp.CommonParams()
params.model.path = model
params.n_parallel, params.n_ctx, params.kv_unified = 2, 4096, streams == "unified"
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.n_gpu_layers, params.fit_params, params.warmup, params.verbosity = 99, False, False, 4
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
params.port = 18000 + os.getpid() % 2000
if draft:
    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    params.speculative.draft.mparams.path = draft[0]
    params.speculative.draft.n_max, params.speculative.draft.n_gpu_layers = 5, 99
server = xllamacpp.Server(params)
port = server.listening_address.rsplit(":", 1)[-1].strip("/")
requests = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")
done = subprocess.run([sys.executable, requests, port, str(os.getpid())])
os._exit(done.returncode)  # some wheels crash when they are unloaded
