"""Speed and memory of an unmodified llama.cpp with its own caches and with octaplex's, side by side.

usage: llama_cpp.py --bench PATH/llama-bench --library PATH/liboctaplex_ggml.so --model MODEL.gguf
                    [--threads 2] [--depths 1024,8192,32768] [--prompt 8192] [--rounds 1] [--limit SECONDS]
                    [--csv OUT.csv] [--svg OUT.svg]
       llama_cpp.py --read RUN.csv... [--csv OUT.csv] [--svg OUT.svg]    (the table and picture of earlier runs)

llama-bench must be able to load backends (GGML_BACKEND_DL) and be built for the instruction set of the CPU.
Every setting is a process of its own. All settings take turns at one depth before the next depth begins, so that they
share whatever else the machine does. Memory is the largest resident set of the process, as the kernel counts it.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading

SETTINGS = [  # name, arguments of llama-bench, variables of octaplex
    ("f16", "f16", None),
    ("q8_0", "q8_0", None),
    ("q4_0", "q4_0", None),
    ("ours, f16", "f16", {"OCTAPLEX_BITS": "16"}),
    ("ours, 4.3 bits", "f16", {"OCTAPLEX_BITS": "4.3"}),
    ("ours, 3.2 bits", "f16", {}),
    ("ours, 2.3 bits", "f16", {"OCTAPLEX_BITS": "2.3"}),
]


def run(options, setting, arguments):
    """Runs llama-bench once. Returns tokens a second and MiB, or None for both where it failed."""
    _, kind, variables = setting
    command = [options.bench, "-m", options.model, "-t", str(options.threads), "-fa", "1", "-r", "1", "-o", "json"]
    command += ["-ctk", kind, "-ctv", kind, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OCTAPLEX_", "GGML_BACKEND"))}
    if variables is not None:
        environment |= {"GGML_BACKEND_PATH": os.path.abspath(options.library), **variables}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=out, stderr=log, env=environment)
        timer = threading.Timer(options.limit, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        out.seek(0)
        log.seek(0)
        if status != 0:
            sys.stderr.write(log.read().decode(errors="replace")[-2000:])
            return None, None
        found = json.load(out)[0]
    on = "OCTAPLEX" in found["backends"].upper()
    if on != (variables is not None):
        sys.exit(f"{setting[0]}: octaplex is {'on' if on else 'off'}, which is not what was asked for")
    return found["avg_ts"], usage.ru_maxrss / 1024


def picture(path, rows):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "octaplex", "svg.fonttype": "none", "font.size": 11})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2))
    depths = sorted({row["tokens"] for row in rows if row["what"] == "decode"})
    for name, *_ in SETTINGS:
        speeds = [[middle(rows, "decode", depth, of, "tokens_per_s") for of in (name, "f16")] for depth in depths]
        shares = [(depth, ours / base) for depth, (ours, base) in zip(depths, speeds) if ours and base]
        axes.plot(*zip(*shares), marker="o", label=name, ls="-" if "ours" in name else "--")
    axes.set(xscale="log", xlabel="tokens in the cache", ylabel="speed of decoding, f16 = 1", ylim=(0, None))
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def middle(rows, what, tokens, name, column):
    """The median of what was measured, or None."""
    found = [row[column] for row in rows if (row["what"], row["tokens"], row["setting"]) == (what, tokens, name)]
    found = [value for value in found if value is not None]
    return statistics.median(found) if found else None


def table(rows):
    columns = sorted({(row["what"] != "prompt", row["tokens"], row["what"]) for row in rows})
    columns = [(what, tokens) for _, tokens, what in columns]
    print("\n| setting | " + " | ".join(f"{what}, {tokens:,}" for what, tokens in columns) + f" | MiB at {columns[-1][1]:,} |")
    print("|---" * (len(columns) + 2) + "|")
    for name, *_ in SETTINGS:
        cells = []
        for what, tokens in columns:
            speed, base = (middle(rows, what, tokens, of, "tokens_per_s") for of in (name, "f16"))
            cells.append("not measured" if speed is None else f"{speed:.0f} ({speed / base:.2f}x)" if base else f"{speed:.0f}")
        memory = middle(rows, *columns[-1], name, "mib")
        print(f"| {name} | " + " | ".join(cells) + f" | {'not measured' if memory is None else format(memory, '.0f')} |")


def measure(options):
    """Yields rows as they are measured."""
    settings = [setting for setting in SETTINGS if setting[0] in options.settings]
    plan = [("prompt", options.prompt, ["-p", str(options.prompt), "-n", "0"])] if options.prompt else []
    for depth in [int(depth) for depth in options.depths.split(",") if depth]:
        plan.append(("decode", depth, ["-p", "0", "-n", "16", "-d", str(depth)]))
    for what, tokens, arguments in plan:
        for _ in range(options.rounds):
            for setting in settings:
                speed, memory = run(options, setting, arguments)
                print(f"{what} {tokens:>6}  {setting[0]:<15} {speed or 0:8.2f} tokens/s {memory or 0:8.0f} MiB", flush=True)
                yield {"what": what, "tokens": tokens, "setting": setting[0], "tokens_per_s": speed, "mib": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bench", "library", "model", "csv", "svg"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", default="1024,8192,32768")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that a run may take")
    parser.add_argument("--settings", nargs="+", default=[name for name, *_ in SETTINGS], help="names of settings")
    parser.add_argument("--read", nargs="+", default=[])
    options = parser.parse_args()
    rows = []
    for path in options.read:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                numbers = {name: float(row[name]) if row[name] else None for name in ("tokens_per_s", "mib")}
                rows.append(row | numbers | {"tokens": int(row["tokens"])})
    if not options.read:
        if not (options.bench and options.library and options.model):
            parser.error("give --bench, --library and --model, or --read")
        rows = list(measure(options))
    table(rows)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if options.svg:
        picture(options.svg, rows)


if __name__ == "__main__":
    main()
