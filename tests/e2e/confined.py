"""Worse machines than this one, for a program that a test starts: system calls that are refused, another user, small
and odd file systems. What needs rights that are missing skips the test with the reason."""

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import struct
import subprocess
import time

import pytest

# linux/seccomp.h, linux/filter.h, sys/prctl.h; the numbers of the calls are the same on every architecture.
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_RET_ALLOW = 0x7FFF0000
_RET_ERRNO = 0x00050000
IO_URING = (425, 426, 427)
_IO_SETUP = {"x86_64": 206, "aarch64": 0}
_SCHED_GETAFFINITY = {"x86_64": 204, "aarch64": 123}


def _number_of(call, numbers):
    machine = os.uname().machine
    if machine not in numbers:
        pytest.skip(f"the number of {call} on {machine} is not known to this test")
    return numbers[machine]


def io_setup():
    """The call that libaio begins with."""
    return _number_of("io_setup", _IO_SETUP)


def sched_getaffinity():
    """The call that tells on which cores a process may run."""
    return _number_of("sched_getaffinity", _SCHED_GETAFFINITY)


class _SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def forbidding(*calls):
    """A preexec_fn: from then on the kernel refuses these calls with EPERM, as container runtimes make it."""
    rows = [(0x20, 0, 0, 0)]  # the number of the call
    rows += [(0x15, len(calls) - i, 0, call) for i, call in enumerate(calls)]  # one of them: to the last row
    rows += [(0x06, 0, 0, _RET_ALLOW), (0x06, 0, 0, _RET_ERRNO | errno.EPERM)]
    code = b"".join(struct.pack("HBBI", *row) for row in rows)
    program = _SockFprog(len(rows), code)
    libc = ctypes.CDLL(None, use_errno=True)

    def confine():
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
        if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")

    return confine


def as_nobody(memlock_bytes):
    """A preexec_fn: uid nobody with this much locked memory. Root is exempt from that limit, which hides it."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")

    def confine():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock_bytes, memlock_bytes))
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    return confine


def _must(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def _unmount(folder):
    """The kernel gives back what a process had open some time after its end: io_uring's files by a thread of its own."""
    for attempt in range(1000):
        done = subprocess.run(["umount", str(folder)], capture_output=True, text=True)
        if done.returncode == 0:
            return
        if "busy" not in done.stderr:
            break
        time.sleep(min(0.01 * attempt, 0.2))
    raise AssertionError(f"umount {folder}: {done.stderr}")


@contextlib.contextmanager
def tmpfs(folder, options="size=256m"):
    """A file system of its own at `folder`."""
    folder.mkdir()
    _must("mount", "-t", "tmpfs", "-o", options, "none", str(folder))
    try:
        yield folder
    finally:
        _unmount(folder)


@contextlib.contextmanager
def ext4(folder, image, sector_bytes=512, options="rw", features="extent"):
    """A small ext4 on a loop device with sectors of that size."""
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    _must("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", features, str(image))
    loop = _must("losetup", "--find", "--show", f"--sector-size={sector_bytes}", "--direct-io=on", str(image))
    try:
        folder.mkdir()
        _must("mount", "-o", options, loop, str(folder))
        try:
            yield folder
        finally:
            _unmount(folder)
    finally:
        subprocess.run(["losetup", "--detach", loop], check=True)
        os.remove(image)


@contextlib.contextmanager
def _on_loop_device(folder, image, size_bytes, mkfs, package):
    """A file system in a file, made by the program `mkfs` of a package of Debian's."""
    if shutil.which(mkfs) is None:
        pytest.skip(f"there is no {mkfs} (apt-get install {package})")
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    _must(mkfs, "-q", str(image))
    folder.mkdir()
    _must("mount", "-o", "loop", str(image), str(folder))
    try:
        yield folder
    finally:
        _unmount(folder)
        os.remove(image)


def xfs(folder, image):
    """A small xfs."""
    return _on_loop_device(folder, image, 320 << 20, "mkfs.xfs", "xfsprogs")


def btrfs(folder, image):
    """A small btrfs."""
    return _on_loop_device(folder, image, 256 << 20, "mkfs.btrfs", "btrfs-progs")


def remount_read_only(folder):
    _must("mount", "-o", "remount,ro", str(folder))


def fail_ext4(folder):
    """What an error of its metadata does to an ext4 that was mounted with errors=remount-ro."""
    device = os.path.basename(_must("findmnt", "--noheadings", "--output=SOURCE", "--mountpoint", str(folder)))
    trigger = f"/sys/fs/ext4/{device}/trigger_fs_error"
    if not os.path.exists(trigger):
        pytest.skip(f"the kernel has no {trigger}")
    with open(trigger, "w", encoding="ascii") as file:
        file.write("1")


def fill_to_the_last_block(folder):
    """Takes what can be written, root's share too, in files called full-N."""
    size = 64 << 20
    number = 0
    while size >= 512:
        number += 1
        try:
            with open(f"{folder}/full-{number}", "wb", buffering=0) as file:
                left = size
                while left > 0:
                    left -= file.write(b"\1" * left)
                os.fsync(file.fileno())
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            size //= 8


def free_bytes(disk):
    info = os.statvfs(disk)
    return info.f_bavail * info.f_frsize


def fill(disk, leave_bytes=0):
    """Another program takes all but so much of what is left of a file system; less than before, if need be.

    To the byte, except if the file system needs blocks of its own for that.
    """
    with open(disk / "other", "wb", buffering=0) as file:  # at once empty, while XFS frees what is removed later
        for own_bytes in range(0, 1 << 20, 64 << 10):
            try:
                os.posix_fallocate(file.fileno(), 0, free_bytes(disk) - leave_bytes - own_bytes)
                return
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                os.ftruncate(file.fileno(), 0)
        raise OSError(errno.ENOSPC, f"cannot leave {leave_bytes} of {free_bytes(disk)} B", str(disk))


def fill_beside(disk):
    """The same of all that is left, while a program uses the disk too; and new files as long as their inodes find a block, as
    those of XFS take from what files have."""
    size = 64 << 20
    with open(disk / "other", "wb", buffering=0) as file:
        while size >= 4096:
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
            except OSError:
                size //= 2
    with contextlib.suppress(OSError):
        for number in range(1000):
            (disk / f"other-{number}").touch()


def compile_shim(source, folder):
    """The library, for LD_PRELOAD, whose functions take the place of those of the C library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the library that is preloaded")
    library = folder / source.with_suffix(".so").name
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@contextlib.contextmanager
def in_group(controller, **files):
    """A preexec_fn that enters a new control group, whose `files` (by name of version 1, or 2) hold these texts."""
    for root, version in ((f"/sys/fs/cgroup/{controller}", 1), ("/sys/fs/cgroup", 2)):
        if not os.path.exists(f"{root}/cgroup.procs"):
            continue
        group = f"{root}/forebay-test-{os.getpid()}"
        try:
            os.mkdir(group)
            for name, text in files[f"v{version}"].items():
                with open(f"{group}/{name}", "w", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.rmdir(group)
            pytest.skip(f"no control group for {controller} can be made in {root}: {error}")

        def enter():
            with open(f"{group}/cgroup.procs", "w", encoding="utf-8") as file:
                file.write(str(os.getpid()))
        try:
            yield enter
        finally:
            os.rmdir(group)
        return
    pytest.skip(f"no control groups for {controller} are mounted here")
