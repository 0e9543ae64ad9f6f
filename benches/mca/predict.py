"""Cycles a row that llvm-mca predicts for a call that an emulator has followed; run.sh calls this.

predict.py PROGRAM TRACE LLVM CPU...: the trace is qemu's `-singlestep -d exec,nochain`, in which every instruction is a line."""
import re
import subprocess
import sys

program, trace, llvm, *cpus = sys.argv[1:]
ROWS = 256

text = {}
symbols = {}
command = [f"llvm-objdump-{llvm}", "-d", "--no-show-raw-insn", program]
listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
for line in listing.splitlines():
    if found := re.match(r"([0-9a-f]+) <(.*)>:", line):
        symbols[found[2]] = int(found[1], 16)
    elif found := re.match(r"\s*([0-9a-f]+):\s+(\S.*)", line):
        text[int(found[1], 16)] = found[2]

steps = []
for line in open(trace):
    if line.startswith("Trace"):
        fields, _, symbol = line.partition("]")
        steps.append((int(fields.split("/")[1], 16), symbol.strip()))
mark = next(symbol for symbol in symbols if symbol == "mark" or "3mca4mark" in symbol)
first = next(at for at, symbol in steps if symbol == mark)
base = first - symbols[mark]
begin, end = (i for i, (at, _) in enumerate(steps) if at == first)
# Code outside the program cannot be read. It is the C library's copies, a few instructions a row.
call = [text.get(at - base) for at, _ in steps[begin:end]]


def plain(instruction):
    """Without an address: where a jump goes does not matter here."""
    instruction = instruction.split("//")[0].split("<")[0].strip().replace("\t", " ")
    name = instruction.split()[0]
    if name in ("bl", "b") or name.startswith("b."):
        return f"{name} #4"
    if name in ("cbz", "cbnz", "tbz", "tbnz"):
        return instruction.rsplit(",", 1)[0] + ", #4"
    if name in ("adrp", "adr"):
        return instruction.rsplit(",", 1)[0] + ", #0"
    return instruction


assembly = "\n".join(plain(instruction) for instruction in call if instruction)
found = []
for cpu in cpus:
    command = [f"llvm-mca-{llvm}", "--mtriple=aarch64", "--mattr=+dotprod,+fullfp16", f"--mcpu={cpu}", "--iterations=1"]
    said = subprocess.run(command, input=assembly, capture_output=True, text=True, check=True).stdout
    found.append(int(re.search(r"Total Cycles:\s+(\d+)", said)[1]) / ROWS)
print(f"{len(call) / ROWS:.0f}," + ",".join(f"{cycles:.1f}" for cycles in found))
