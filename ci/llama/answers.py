"""Counts the answers of server.py that equal those of another run.

usage: answers.py BASE OTHER LEAST [drafts]     at least LEAST must be; with `drafts` some drafts were accepted
"""

import json
import sys

base, other = ([json.loads(line) for line in open(name)] for name in sys.argv[1:3])
same = sum(a["text"] == b["text"] for a, b in zip(base, other))
drafts = sum(answer["drafts"] for answer in other)
print(f"   {same} of {len(base)} answers are the same, {[answer['reused'] for answer in other]} tokens used again, {drafts} drafts accepted")
sys.exit(same < int(sys.argv[3]) or ("drafts" in sys.argv and drafts == 0))
