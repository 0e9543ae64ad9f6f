"""A text by llama-cpp-python, with whatever cache the environment says.

usage: binding.py MODEL PROMPT THREADS

It runs in the folder of llama.cpp's libraries, where ggml looks for its CPU backend.
"""

import sys

import llama_cpp

model, prompt, threads = sys.argv[1:]
llm = llama_cpp.Llama(
    model, n_gpu_layers=-1, flash_attn=True, n_ctx=1024, n_threads=int(threads), n_threads_batch=int(threads), verbose=True
)
answer = llm.create_completion(prompt, max_tokens=24, temperature=0)
print(answer["choices"][0]["text"])
# A prompt that begins as the last one did, and a state that is saved and loaded.
state = llm.save_state()
again = llm.create_completion(prompt, max_tokens=24, temperature=0)
print(again["choices"][0]["text"])
llm.load_state(state)
print(llm.create_completion(prompt + " Madrid. The capital of", max_tokens=8, temperature=0)["choices"][0]["text"])
