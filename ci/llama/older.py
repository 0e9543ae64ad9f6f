"""Lets a wheel that wants glibc 2.38 load on an older system: writes copies of its libraries, and a library with what they miss.

usage: older.py FOLDER OUT

The newest ggml is in wheels for the newest Linux. They want four functions of glibc 2.38, which read numbers as the older ones
do. In the copies the version is optional, and OUT/numbers.so has the functions: preload it.
"""

import glob
import os
import struct
import subprocess
import sys

folder, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
NAMES = {"sscanf": "int", "strtol": "long", "strtoul": "unsigned long", "strtoull": "unsigned long long"}
code = "#include <stdarg.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
for name, kind in NAMES.items():
    if name == "sscanf":
        code += "int __isoc23_sscanf(const char *s, const char *f, ...)"
        code += "{ va_list a; va_start(a, f); int n = vsscanf(s, f, a); va_end(a); return n; }\n"
    else:
        code += f"{kind} __isoc23_{name}(const char *s, char **e, int b) {{ return {name}(s, e, b); }}\n"
subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", out + "/numbers.so"], input=code, text=True, check=True)

SHT_GNU_VERNEED, WEAK = 0x6FFFFFFE, 2
for path in glob.glob(folder + "/lib*.so*"):
    data = bytearray(open(path, "rb").read())
    sections, size, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
    header = lambda number: struct.unpack_from("<IIQQQQIIQQ", data, sections + number * size)
    for number in range(count):
        kind, offset, link, files = (header(number)[at] for at in (1, 4, 6, 7))
        if kind != SHT_GNU_VERNEED:
            continue
        strings, entry = header(link)[4], offset
        for _ in range(files):
            _, versions, _, first, next_entry = struct.unpack_from("<HHIII", data, entry)
            version = entry + first
            for _ in range(versions):
                name, next_version = struct.unpack_from("<II", data, version + 8)
                if data[strings + name :].startswith(b"GLIBC_2.38\0"):
                    struct.pack_into("<H", data, version + 4, struct.unpack_from("<H", data, version + 4)[0] | WEAK)
                version += next_version
            entry += next_entry
    with open(os.path.join(out, os.path.basename(path)), "wb") as file:
        file.write(data)
