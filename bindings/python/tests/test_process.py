"""The package in a process that has a life of its own: it forks, rounds otherwise, writes files, and has little memory."""

import ctypes
import ctypes.util
import os
import platform
import signal
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import octaplex
import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
needs_root_s_absence = pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
ROWS = np.random.default_rng(1).standard_normal((2, 9000, 64), dtype=np.float32)
QUERIES = np.ones((8, 64), np.float32)
CHUNK = np.ones((2, 4, 256, 256), np.float16)


def filled(tokens=9000):
    cache = octaplex.Cache(layers=1, kv_heads=2, head_dim=64, capacity=10000)
    cache.append(0, ROWS[:, :tokens].copy(), ROWS[:, :tokens].copy())
    return cache


def in_child(work, seconds=60):
    """Returns the bytes that ``work`` returns in a forked child, or None if it hangs."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writes, work())
        finally:
            os._exit(0)
    os.close(writes)
    try:
        end = time.monotonic() + seconds
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.01)
        return os.read(reads, 1 << 16)
    finally:
        os.close(reads)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_works():
    cache = filled()
    codec = octaplex.ChunkCodec(4, 2, 128)
    blob, output = codec.encode(CHUNK), cache.attend(0, QUERIES).tobytes()  # threads run from here on

    def everything():
        same = codec.encode(CHUNK) == blob and octaplex.ChunkCodec(4, 2, 128).decode(blob).shape == CHUNK.shape
        cache.truncate(8990)
        cache.append(0, ROWS[:, :10].copy(), ROWS[:, :10].copy())
        again = filled().attend(0, QUERIES).tobytes() == output
        return b"same" if same and again and cache.next_position() == 9000 else b"differs"

    assert in_child(everything) == b"same"
    # A child of a child, whose parent has used threads of its own.
    assert in_child(lambda: everything() and in_child(lambda: cache.attend(0, QUERIES).tobytes() and b"two") or b"hangs") == b"two"
    assert cache.attend(0, QUERIES).tobytes() == output and codec.encode(CHUNK) == blob


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_calls_in_progress():
    """Otherwise the child has a cache that is locked for ever, or changed by half."""
    cache, stop = octaplex.Cache(1, 2, 64, 100_000), threading.Event()

    def change():
        while not stop.is_set():
            cache.clear()
            for start in range(0, 9000, 3000):
                cache.append(0, ROWS[:, start : start + 3000].copy(), ROWS[:, start : start + 3000].copy())

    thread = threading.Thread(target=change)
    thread.start()
    try:
        found = [in_child(lambda: b"%d" % (cache.next_position() % 3000), seconds=20) for _ in range(10)]
    finally:
        stop.set()
        thread.join()
    assert found == [b"0"] * 10


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("call", ["load", "load half", "save", "save half"])
def test_a_fork_does_not_wait_for_pipes(tmp_path, call):
    """A call that waits for another process keeps neither forks nor other calls of the cache waiting."""
    cache, pipe, done = filled(), str(tmp_path / "pipe"), []
    os.mkfifo(pipe)
    run = (lambda: done.append(octaplex.Cache.load(pipe).next_position())) if call.startswith("load") else lambda: done.append(cache.save(pipe))
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # "half": the other end is open, and the call has the first bytes.
    snapshot = cache.save()
    other = open(pipe, "wb" if call.startswith("load") else "rb", buffering=0) if call.endswith("half") else None
    begun = 50_000
    if call == "load half":
        other.write(snapshot[:begun])
    time.sleep(0.3)
    found = []
    # In a thread of its own, so that a hang is a failure; a fork would copy what this one has locked.
    forks = threading.Thread(target=lambda: found.append(in_child(lambda: b"%d" % (cache.next_position() + len(cache.attend(0, QUERIES))))), daemon=True)
    forks.start()
    forks.join(30)
    assert found == [b"9008"]
    if call.startswith("load"):
        with other or open(pipe, "wb", buffering=0) as writes:
            left = memoryview(snapshot)[begun if other else 0 :]
            while left:
                left = left[writes.write(left) :]
        wanted = [9000]
    else:
        cache.append(0, ROWS[:, :1].copy(), ROWS[:, :1].copy())  # the file has the cache of before
        with other or open(pipe, "rb") as reads:
            assert b"".join(iter(lambda: reads.read(1 << 16), b"")) == snapshot
        wanted = [None]
    thread.join(30)
    assert done == wanted


class Floats:
    """The floating-point environment of this thread: rounds up and flushes denormals meanwhile."""

    def __init__(self):
        self.library = ctypes.CDLL(ctypes.util.find_library("m"))
        self.before, self.other = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)

    def word(self):
        found = ctypes.create_string_buffer(64)
        self.library.fegetenv(found)
        return self.settings(found)

    @staticmethod
    def settings(found):
        """MXCSR is behind 28 bytes of the x87, without its flags; FPCR comes first."""
        if platform.machine() == "x86_64":
            return int.from_bytes(found.raw[28:32], "little") & ~0x3F
        return int.from_bytes(found.raw[:4], "little")

    def __enter__(self):
        self.library.fegetenv(self.before)
        self.library.fegetenv(self.other)
        x86 = platform.machine() == "x86_64"
        start, bits = (28, 0x8040 | 0x4000) if x86 else (0, 1 << 24 | 1 << 22)
        word = int.from_bytes(self.other.raw[start : start + 4], "little") | bits
        self.other[start : start + 4] = word.to_bytes(4, "little")
        self.library.fesetenv(self.other)
        return self

    def __exit__(self, *_):
        self.library.fesetenv(self.before)


FLOATS = """
import sys; sys.path.insert(0, {folder!r})
import numpy as np, octaplex
from test_process import CHUNK, QUERIES, ROWS, Floats, filled
def bits():
    cache = octaplex.Cache(1, 2, 64, 10000, bits=3.2)
    cache.calibrate(0, ROWS, ROWS)
    cache.append(0, ROWS, ROWS)
    outputs = [cache.attend(0, QUERIES, scale=0.1, soft_cap=1.1).tobytes(), cache.save(), octaplex.verify().encode()]
    for spec in ("polarquant", "trellis", "turboquant:rotation=haar"):
        codec = octaplex.Codec(spec, 64)
        blocks = codec.encode(ROWS[0, :100] * np.float32(1e-3))
        outputs += [blocks.tobytes(), codec.decode(blocks).tobytes(), codec.score(QUERIES, blocks).tobytes()]
    codec = octaplex.ChunkCodec(4, 2, 128)
    blob = codec.encode(CHUNK)
    return outputs + [blob, codec.decode(blob).tobytes()]
with Floats() as floats:  # the first calls of the process: its threads start here
    set_to, other = floats.word(), bits()
    assert np.float32(2e-38) * np.float32(0.1) == 0 and floats.word() == set_to, "the caller's own settings are gone"
assert floats.word() != set_to and other == bits(), "bits differ"
print("the same bits")
"""


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"), reason="another fenv_t")
def test_bits_do_not_depend_on_the_caller_s_floats():
    program = FLOATS.format(folder=os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "the same bits\n", done.stderr


MEMORY = """
import resource, sys
import numpy as np, octaplex
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
def cache(**sizes):
    found = octaplex.Cache(**{"layers": 1, "kv_heads": 8, "head_dim": 128, "capacity": 1000, **sizes})
    row = np.ones((found.kv_heads, 1, found.head_dim), np.float32)
    found.append(0, row, row)
    return found.attend(0, row[:, 0].copy())
for sizes in (
    {"capacity": 2**30, "max_rollback": 2**24},
    {"capacity": 2**40, "recent_window": 2**24},
    {"layers": 2000, "max_rollback": 2**12},  # each layer could be had
    {"layers": 2**40},
    {"layers": 2**62},
    {"layers": 0},
    {"capacity": 2**62},
    {"capacity": 2**40, "kv_heads": 2**16},  # what attention works in
    {"kv_heads": 2**50},
    {"head_dim": 2**50},
    {"max_rollback": 2**50},
    {"boundary_layers": 2**62, "layers": 2**40},
    {"sink_tokens": 2**62},
):
    try:
        cache(**sizes)
        print("made", sizes)
    except octaplex.Error as error:
        assert "memory" in str(error) or "layers" in str(error) or "at most" in str(error) or "heads" in str(error) or "width" in str(error), error
for call in (
    lambda: octaplex.ChunkCodec(2**40, 8, 128),
    lambda: octaplex.ChunkCodec(1, 2**50, 128),
    lambda: octaplex.ChunkCodec(1, 8, 128, first_layer=2**32 - 1).encode(np.ones((2, 2, 9, 9), np.float32)),
    lambda: octaplex.Codec("trellis", 2**50),
):
    try:
        call()
        print("made")
    except octaplex.Error:
        pass
try:
    cache(capacity=2**30, max_rollback=2**24)
except MemoryError as error:
    assert isinstance(error, octaplex.OutOfMemory) and isinstance(error, octaplex.Error) and "bytes" in str(error), error
octaplex.Codec("turboquant:rotation=haar", 64, layer=2**32 - 1, head=2**32 - 1, role="values").encode(np.ones((1, 64), np.float32))
cache(capacity=2**40, max_rollback=0)
print("refused")
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="needs a limit of the address space")
def test_what_no_machine_has_is_refused():
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert done.stdout == "refused\n", (done.returncode, done.stdout, done.stderr[-2000:])


def test_a_save_touches_no_other_file(tmp_path):
    cache, path = filled(300), tmp_path / "x.bin"
    (tmp_path / "x.bin.part").write_text("mine")
    cache.save(path)
    cache.save(path)
    assert (tmp_path / "x.bin.part").read_text() == "mine" and path.read_bytes() == cache.save()
    assert sorted(os.listdir(tmp_path)) == ["x.bin", "x.bin.part"]


@pytest.mark.skipif(os.name != "posix", reason="links and modes of POSIX")
def test_a_save_keeps_modes_links_and_devices(tmp_path):
    cache, path, link = filled(300), tmp_path / "x.bin", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to("x.bin")
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link.part").symlink_to("precious")
    cache.save(link)
    assert link.is_symlink() and path.read_bytes() == cache.save() and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "precious").read_text() == "precious"
    if os.path.exists("/dev/full"):
        with pytest.raises(OSError, match="/dev/full") as raised:
            cache.save("/dev/full")
        assert raised.value.errno == 28 and raised.value.filename == "/dev/full" and not os.path.isfile("/dev/full")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    cache.save(pipe)
    reader.join()
    assert found == [cache.save()] and stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(platform.system() != "Linux", reason="needs a limit of a file's size")
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path):
    import resource

    cache, path = filled(), tmp_path / "x.bin"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="x.bin") as raised:
            cache.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["x.bin"]


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_save_at_once_leave_a_whole_file(tmp_path):
    caches, path, children = [filled(tokens) for tokens in (300, 3000)], tmp_path / "x.bin", []
    for cache in caches:
        child = os.fork()
        if child == 0:
            for _ in range(20):
                cache.save(path)
            os._exit(0)
        children.append(child)
    while children:
        done, _ = os.waitpid(children[-1], os.WNOHANG)
        if path.exists():
            assert octaplex.Cache.load(path).next_position() in (300, 3000)
        if done:
            children.pop()
    assert os.listdir(tmp_path) == ["x.bin"]


def test_errors_of_files_name_the_path(tmp_path):
    for call in (octaplex.Cache.load, filled(300).save):
        with pytest.raises(FileNotFoundError, match="nope/x") as raised:
            call("/nope/x")
        assert raised.value.filename == "/nope/x" and raised.value.errno == 2
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            call(tmp_path)
    for damaged in (b"", b"octacach" + bytes(100), filled(300).save()[:-1]):
        (tmp_path / "x.bin").write_bytes(damaged)
        with pytest.raises(octaplex.Error, match="x.bin"):
            octaplex.Cache.load(tmp_path / "x.bin")


@needs_root_s_absence
def test_a_read_only_folder_is_an_error_that_names_the_file(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError, match="x.bin"):
        filled(300).save(tmp_path / "x.bin")
    tmp_path.chmod(0o755)
    assert os.listdir(tmp_path) == []
