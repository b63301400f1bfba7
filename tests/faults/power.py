"""A server that loses power: only the synced part of its append-only file is left.

A kill alone loses no written data, because the kernel still writes it to the disk. So a small
preloaded library notes the length of each file at its last sync.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from support.redis_servers import VALKEY_SERVER, RedisServer

__all__ = ["cut_power", "server_that_notes_syncs"]

_LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int sync_and_note(const char *name, int fd) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct stat before;
    int is_known = fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    int result = sync(fd);
    char link[64], path[4096], note[8192];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (result == 0 && is_known && length > 0) {
        path[length] = 0;
        snprintf(note, sizeof note, "%s/%s", getenv("SYNCED"), strrchr(path, '/') + 1);
        long long size = before.st_size;
        int file = open(note, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (file >= 0) {
            if (pwrite(file, &size, sizeof size, 0) < 0) result = -1;
            close(file);
        }
    }
    return result;
}

int fsync(int fd) { return sync_and_note("fsync", fd); }
int fdatasync(int fd) { return sync_and_note("fdatasync", fd); }
"""


def server_that_notes_syncs(here: Path) -> str:
    """Return the path of a Valkey that notes how much of each file is synced.

    Raises:
        PermissionError: there is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise PermissionError("cc is not installed; to enable: apt-get install gcc libc6-dev")
    synced, library, program = here / "synced", here / "syncs.so", here / "valkey-server"
    synced.mkdir()
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, "-x", "c", "-", "-ldl"],
        input=_LIBRARY.encode(),
        check=True,
    )
    program.write_text(
        f"#!/bin/sh\nSYNCED='{synced}' LD_PRELOAD='{library}' exec '{VALKEY_SERVER}' \"$@\"\n"
    )
    program.chmod(0o755)
    return str(program)


def cut_power(here: Path, server: RedisServer) -> int:
    """Kill the server, remove the bytes that it has not synced, and return their number."""
    server.kill()
    taken = 0
    for file in (server.folder / "appendonlydir").glob("*.incr.aof"):
        note = here / "synced" / file.name
        (synced,) = struct.unpack("q", note.read_bytes()) if note.exists() else (0,)
        size = file.stat().st_size
        if synced < size:
            with file.open("r+b") as opened:
                opened.truncate(synced)
            taken += size - synced
    return taken
