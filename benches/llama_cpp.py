"""Speed and memory of an unmodified llama.cpp with its own caches and with octaplex's, side by side.

usage: llama_cpp.py --bench PATH/llama-bench --library PATH/liboctaplex_ggml.so --model MODEL.gguf
                    [--threads 2] [--depths 1024,8192,32768] [--prompt 8192] [--rounds 1] [--limit SECONDS]
                    [--csv OUT.csv] [--svg OUT.svg]

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


def picture(path, names, depths, speed):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "octaplex", "svg.fonttype": "none", "font.size": 11})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2))
    for name in names:
        axes.plot(depths, [speed(name, depth) for depth in depths], marker="o", label=name, ls="-" if "ours" in name else "--")
    axes.set(xscale="log", xticks=depths, xlabel="tokens in the cache", ylabel="tokens a second", ylim=(0, None))
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bench", "library", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", default="1024,8192,32768")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that a run may take")
    parser.add_argument("--settings", nargs="+", default=[name for name, *_ in SETTINGS], help="names of settings; f16 must be one")
    parser.add_argument("--csv")
    parser.add_argument("--svg")
    options = parser.parse_args()
    depths = [int(depth) for depth in options.depths.split(",") if depth]
    settings = [setting for setting in SETTINGS if setting[0] in options.settings]
    rows = []

    def measure(what, depth, arguments):
        for _ in range(options.rounds):
            for setting in settings:
                speed, memory = run(options, setting, arguments)
                rows.append({"what": what, "tokens": depth, "setting": setting[0], "tokens_per_s": speed, "mib": memory})
                print(f"{what} {depth:>6}  {setting[0]:<15} {speed or 0:8.2f} tokens/s {memory or 0:8.0f} MiB", flush=True)

    if options.prompt:
        measure("prompt", options.prompt, ["-p", str(options.prompt), "-n", "0"])
    for depth in depths:
        measure("decode", depth, ["-p", "0", "-n", "16", "-d", str(depth)])

    def middle(what, depth, name, column):
        found = [row[column] for row in rows if (row["what"], row["tokens"], row["setting"]) == (what, depth, name)]
        found = [value for value in found if value is not None]
        return statistics.median(found) if found else float("nan")

    columns = ([("prompt", options.prompt)] if options.prompt else []) + [("decode", depth) for depth in depths]
    print("\n| setting | " + " | ".join(f"{what}, {depth:,}" for what, depth in columns) + f" | MiB at {columns[-1][1]:,} |")
    print("|---" * (len(columns) + 2) + "|")
    for name, *_ in settings:
        cells = []
        for what, depth in columns:
            speed, base = middle(what, depth, name, "tokens_per_s"), middle(what, depth, "f16", "tokens_per_s")
            cells.append("not measured" if speed != speed else f"{speed:.1f} ({speed / base:.2f}x)")
        print(f"| {name} | " + " | ".join(cells) + f" | {middle(*columns[-1], name, 'mib'):.0f} |")
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    if options.svg:
        picture(options.svg, [name for name, *_ in settings], depths, lambda name, depth: middle("decode", depth, name, "tokens_per_s"))


if __name__ == "__main__":
    main()
