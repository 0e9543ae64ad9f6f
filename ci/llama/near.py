"""Compares the probabilities of node.mjs's runs with those of the first.

usage: near.py BASE.json OTHER.json LIMIT
"""

import json
import sys

base, other = (json.load(open(name)) for name in sys.argv[1:3])
assert len(base) == len(other) > 0 and all(base), "a run without probabilities"
worst = 0.0
for row, expected in zip(other, base):
    found = dict(row)
    worst = max(worst, *(abs(found.get(token, 0.0) - value) for token, value in expected[:20]))
print(f"   largest difference of a probability: {worst:.3g} (at most {sys.argv[3]})")
sys.exit(worst > float(sys.argv[3]))
