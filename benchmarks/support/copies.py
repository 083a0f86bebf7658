"""Counting what a server copies: every ``memcpy`` and ``memmove`` of 4 KiB or more, in all of its processes.

A small library is compiled and preloaded; it adds up sizes in a file that all processes map. What a loop of machine
code of its own moves (a strided copy of numpy, say) is not seen; contiguous copies go through these two.
"""

from __future__ import annotations

import mmap
import shutil
import subprocess
import sys
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

static unsigned long *counted;
static void *(*real_memcpy)(void *, const void *, size_t);
static void *(*real_memmove)(void *, const void *, size_t);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("COUNTED_COPIES");
    int file = path ? open(path, O_RDWR) : -1;
    real_memcpy = dlsym(RTLD_NEXT, "memcpy");
    real_memmove = dlsym(RTLD_NEXT, "memmove");
    if (file >= 0) {
        void *map = mmap(0, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map != MAP_FAILED) counted = map;
    }
}

static void count(size_t size) {
    if (size >= 4096 && counted) __atomic_add_fetch(counted, size, __ATOMIC_RELAXED);
}

static void *slowly(void *to, const void *from, size_t size) {
    unsigned char *a = to;
    const unsigned char *b = from;
    if (a <= b) for (size_t i = 0; i < size; i++) { a[i] = b[i]; __asm__ volatile("" ::: "memory"); }
    else while (size--) { a[size] = b[size]; __asm__ volatile("" ::: "memory"); }
    return to;
}

void *memcpy(void *to, const void *from, size_t size) {
    count(size);
    return real_memcpy ? real_memcpy(to, from, size) : slowly(to, from, size);
}

void *memmove(void *to, const void *from, size_t size) {
    count(size);
    return real_memmove ? real_memmove(to, from, size) : slowly(to, from, size);
}
"""


class CopyCounter:
    """The library and its counter, in a folder; ``environment`` is for the server.

    Raises:
        RuntimeError: there is no C compiler, or this is not Linux.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or sys.platform != "linux":
            raise RuntimeError("counting copies needs Linux and a C compiler")
        source, library, counter = folder / "copies.c", folder / "copies.so", folder / "copies.count"
        source.write_text(_SOURCE)
        subprocess.run(
            [compiler, "-O2", "-fno-builtin", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
        )
        counter.write_bytes(bytes(mmap.PAGESIZE))
        self._file = counter.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), mmap.PAGESIZE)
        self.environment = {"LD_PRELOAD": str(library), "COUNTED_COPIES": str(counter)}

    def total(self) -> int:
        """Bytes copied so far."""
        return int.from_bytes(self._map[:8], sys.byteorder)

    def close(self) -> None:
        """Lets go of the counter."""
        self._map.close()
        self._file.close()
