"""Disks on which an operation fails: a preloaded library, in a process of its own, returns an error for some calls."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static int wanted(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }

static int fail(int number) { errno = number; return -1; }

int fsync(int descriptor) {
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
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode);  \
    }
OPEN(open)
OPEN(open64)
"""


def disk_library(folder: Path) -> Path:
    """Compile the library into ``folder``; the test is skipped where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = folder / "disk.c", folder / "disk.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def on_disk(
    library: Path,
    *,
    fsync_of_folder: str | None = None,
    flock: str | None = None,
    statvfs: str | None = None,
    read_only: Path | None = None,
) -> dict[str, str]:
    """Return the environment variables of a process in which some calls fail.

    Args:
        library: what ``disk_library`` compiled.
        fsync_of_folder: name of the error of flushing a folder, such as EINVAL; None if it works.
        flock: name of the error of locking a file; None if it works.
        statvfs: name of the error of asking for free space; "zeros" if all answers are 0; None if it works.
        read_only: beginning of the paths that can't be opened to write; None for no such path.
    """
    environment = {"LD_PRELOAD": str(library)}
    for name, error in (("DISK_FSYNC_OF_FOLDER", fsync_of_folder), ("DISK_FLOCK", flock)):
        environment |= {name: str(getattr(errno, error))} if error else {}
    if statvfs:
        environment["DISK_STATVFS"] = "-1" if statvfs == "zeros" else str(getattr(errno, statvfs))
    return environment | ({"DISK_READ_ONLY": os.fspath(read_only)} if read_only else {})
