"""Free pages of the heap go back to the system, although living blocks lie between them."""

import subprocess
import sys

import pytest

HOLES = """
import ctypes, psutil
from mcp_rl.system.processes.memory import give_back_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes, libc.memset.argtypes = (
    ctypes.c_void_p, [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
)
blocks = [libc.malloc(64 << 10) for _ in range(2000)]
for block in blocks:
    libc.memset(block, 1, 64 << 10)
for block in blocks[::2]:
    libc.free(block)
before = psutil.Process().memory_info().rss
give_back_memory()
print((before - psutil.Process().memory_info().rss) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_holes_between_living_blocks_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert 40 <= int(done.stdout) <= 65  # of 62.5 MiB
