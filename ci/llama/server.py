"""Requests to a llama-server: prints its answers in JSON, one a line.

usage: server.py PORT PID

Two requests share a prefix, one after the other, and two run at once in slots of their own. The last is the first one again.
"""

import concurrent.futures
import json
import os
import sys
import time
import urllib.request

port, process = sys.argv[1:]
prefix = " ".join(f"Fact {n}: the number {n * n} is the square of {n}." for n in range(1, 13))


def post(prompt, count=24, slot=-1):
    body = {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": True, "id_slot": slot}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=300) as answer:
        found = json.load(answer)
    timings = found["timings"]
    return {"text": found["content"], "reused": timings["cache_n"], "drafts": timings.get("draft_n_accepted", 0)}


for _ in range(300):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
        break
    except OSError:
        os.kill(int(process), 0)  # an error where the server has ended
        time.sleep(1)
first = post(prefix + " Fact 13:", slot=0)
second = post(prefix + " In other words,", slot=0)
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    both = list(pool.map(lambda n: post(f"{prefix} Question {n}: what is the square of {n}? Answer:", slot=n % 2), (3, 6)))
again = post(prefix + " Fact 13:", slot=0)
assert second["reused"] > 100, f"only {second['reused']} tokens of the prefix were used again"
for answer in (first, second, *both, again):
    print(json.dumps(answer))
