"""Disks on which an operation fails: a preloaded library, in a process of its own, returns an error for some calls."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int wanted(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }

static int fail(int number) { errno = number; return -1; }

/* The n-th call of one kind below a folder fails; afterwards no call of any kind does, or each one. */
enum kind { OPEN, WRITE, FSYNC, RENAME, TRUNCATE, MKDIR, UNLINK, N_KINDS };
static char watched[4096];
static int seen[N_KINDS], failing_kind, failing_call, failing_error, for_ever, is_dead;

void disk_fails(const char *below, int kind, int call, int error, int from_then_on) {
    snprintf(watched, sizeof watched, "%s", below);
    memset(seen, 0, sizeof seen);
    failing_kind = kind, failing_call = call, failing_error = error, for_ever = from_then_on, is_dead = 0;
}

int disk_has_seen(int kind) { return seen[kind]; }

static int fails(int kind, const char *path) {
    if (!watched[0] || strncmp(path, watched, strlen(watched))) return 0;
    if (__sync_add_and_fetch(&seen[kind], 1) == failing_call && kind == failing_kind) {
        is_dead = for_ever;
    } else if (!is_dead) {
        return 0;
    }
    errno = failing_error;
    return 1;
}

static int fails_on(int kind, int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = watched[0] ? readlink(link, path, sizeof path - 1) : -1;
    if (length < 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

#define NEXT(name, ...) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(__VA_ARGS__)
#define BY_PATH(kind, type, name, declared, path, ...) \
    type name declared { return fails(kind, path) ? -1 : NEXT(name, __VA_ARGS__); }
#define BY_DESCRIPTOR(kind, type, name, declared, ...) \
    type name declared { return fails_on(kind, fd) ? -1 : NEXT(name, __VA_ARGS__); }
BY_PATH(RENAME, int, rename, (const char *path, const char *to), path, path, to)
BY_PATH(MKDIR, int, mkdir, (const char *path, mode_t mode), path, path, mode)
BY_PATH(UNLINK, int, unlink, (const char *path), path, path)
BY_PATH(TRUNCATE, int, truncate, (const char *path, off_t length), path, path, length)
BY_PATH(TRUNCATE, int, truncate64, (const char *path, off64_t length), path, path, length)
BY_DESCRIPTOR(TRUNCATE, int, ftruncate, (int fd, off_t length), fd, length)
BY_DESCRIPTOR(TRUNCATE, int, ftruncate64, (int fd, off64_t length), fd, length)
BY_DESCRIPTOR(WRITE, ssize_t, write, (int fd, const void *bytes, size_t n), fd, bytes, n)
BY_DESCRIPTOR(WRITE, ssize_t, pwrite, (int fd, const void *bytes, size_t n, off_t at), fd, bytes, n, at)
BY_DESCRIPTOR(WRITE, ssize_t, pwrite64, (int fd, const void *bytes, size_t n, off64_t at), fd, bytes, n, at)
BY_DESCRIPTOR(FSYNC, int, fdatasync, (int fd), fd)
int posix_fallocate64(int fd, off64_t at, off64_t n) {
    if (wanted("DISK_FALLOCATE")) return wanted("DISK_FALLOCATE");
    return fails_on(TRUNCATE, fd) ? errno : NEXT(posix_fallocate64, fd, at, n);
}

int fsync(int descriptor) {
    if (fails_on(FSYNC, descriptor)) return -1;
    struct stat about;
    int number = wanted("DISK_FSYNC_OF_FOLDER");
    if (number && fstat(descriptor, &about) == 0 && S_ISDIR(about.st_mode)) return fail(number);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

int flock(int descriptor, int operation) {
    int number = wanted("DISK_FLOCK");
    return number ? fail(number) : ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(descriptor, operation);
}

#define STATVFS(name)                                                          \
    int name(const char *path, struct name *about) {                           \
        int number = wanted("DISK_STATVFS");                                   \
        memset(about, 0, sizeof *about);                                       \
        if (number) return number < 0 ? 0 : fail(number);                      \
        return ((int (*)(const char *, struct name *))dlsym(RTLD_NEXT, #name))(path, about);  \
    }
STATVFS(statvfs)
STATVFS(statvfs64)

static int is_read_only(const char *path, int flags) {
    const char *below = getenv("DISK_READ_ONLY");
    return below && (flags & (O_WRONLY | O_RDWR | O_CREAT)) && strncmp(path, below, strlen(below)) == 0;
}

#define OPEN(name)                                                                             \
    int name(const char *path, int flags, ...) {                                               \
        va_list rest;                                                                          \
        va_start(rest, flags);                                                                 \
        mode_t mode = va_arg(rest, mode_t);                                                    \
        va_end(rest);                                                                          \
        if (is_read_only(path, flags)) return fail(EROFS);                                     \
        if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails(OPEN, path)) return -1;           \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode);  \
    }
OPEN(open)
OPEN(open64)
"""


def disk_library(folder: Path) -> Path:
    """Compile the library into ``folder``; the test is skipped where there is no C compiler, and except on Linux."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and Linux's calls and way to load a library")
    source, library = folder / "disk.c", folder / "disk.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def on_disk(
    library: Path,
    *,
    fsync_of_folder: str | None = None,
    flock: str | None = None,
    fallocate: str | None = None,
    statvfs: str | None = None,
    read_only: Path | None = None,
) -> dict[str, str]:
    """Return the environment variables of a process in which some calls fail.

    Args:
        library: what ``disk_library`` compiled.
        fsync_of_folder: name of the error of flushing a folder, such as EINVAL; None if it works.
        flock: name of the error of locking a file; None if it works.
        fallocate: name of the error of reserving room for a file; None if it works.
        statvfs: name of the error of asking for free space; "zeros" if all answers are 0; None if it works.
        read_only: beginning of the paths that can't be opened to write; None for no such path.
    """
    environment = {"LD_PRELOAD": str(library)}
    errors = {"DISK_FSYNC_OF_FOLDER": fsync_of_folder, "DISK_FLOCK": flock, "DISK_FALLOCATE": fallocate}
    for name, error in errors.items():
        environment |= {name: str(getattr(errno, error))} if error else {}
    if statvfs:
        environment["DISK_STATVFS"] = "-1" if statvfs == "zeros" else str(getattr(errno, statvfs))
    return environment | ({"DISK_READ_ONLY": os.fspath(read_only)} if read_only else {})


CALLS = ("open", "write", "fsync", "rename", "truncate", "mkdir", "unlink")


class FailingDisk:
    """The library in this process, which was started with it: lets a call fail that changes a folder or what is in it.

    ``open`` counts if it is to write; ``write``, ``fsync`` and ``truncate`` stand for all calls that do the same.

    Args:
        folder: the folder, absolute.
    """

    def __init__(self, folder: Path) -> None:
        self._library, self._folder = ctypes.CDLL(None), folder

    def fail(self, call: str, number: int, error: str, *, from_then_on: bool = False) -> None:
        """Begin to count, and let one call fail.

        Args:
            call: one of ``CALLS``.
            number: which of these calls, from 1; 0 for none.
            error: name of its error, such as EIO.
            from_then_on: whether all later calls fail too, of any kind.
        """
        below, kind = os.fsencode(self._folder), CALLS.index(call)
        self._library.disk_fails(below, kind, number, getattr(errno, error), from_then_on)

    def n_calls(self, call: str) -> int:
        """Return how many calls there were since ``fail``."""
        return int(self._library.disk_has_seen(CALLS.index(call)))

    def mend(self) -> None:
        """Let no call fail any more."""
        self._library.disk_fails(b"", 0, 0, 0, False)
