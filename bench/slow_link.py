"""Two hosts with a link of a given rate between them: network namespaces, whose packets a thread for each direction
carries from one to the other. For kernels without tc's netem and tbf. Needs root and /dev/net/tun."""

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import threading
import time

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_MTU = 65000  # few packets: each costs a moment of this process
_MOST_LATE_S = 0.01  # what a direction may make up for after it had nothing to carry


def _ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True)


def _tun_in(namespace):
    """A network interface "wire" in the namespace, whose packets are read from and written to the descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as ours, open(f"/var/run/netns/{namespace}") as theirs:
        # The namespace is that of the thread.
        if libc.setns(theirs.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"the network namespace {namespace} cannot be entered")
        try:
            tun = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", b"wire", _IFF_TUN | _IFF_NO_PI))
        finally:
            libc.setns(ours.fileno(), _CLONE_NEWNET)
    return tun


class SlowLink:
    """prefixes: of each host the command to start a program behind. address: that of the first. carried_bytes: in each
    direction, from its first packet on."""

    address = "10.79.0.1"

    def __init__(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s
        self.carried_bytes = [0, 0]
        self._names = [f"forebay-link-{os.getpid()}-{host}" for host in range(2)]
        self.prefixes = [["ip", "netns", "exec", name] for name in self._names]
        self._tuns = []

    def __enter__(self):
        try:
            for host, name in enumerate(self._names):
                _ip("netns", "add", name)
                self._tuns.append(_tun_in(name))
                _ip("-n", name, "address", "add", f"10.79.0.{host + 1}/24", "dev", "wire")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", "dev", "wire", "mtu", _MTU, "txqueuelen", 1000, "up")
        except BaseException:
            self._remove()
            raise
        for host in range(2):
            threading.Thread(target=self._carry, args=(host, self._tuns[host], self._tuns[1 - host]), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._remove()

    def _remove(self):
        for name in self._names:
            with contextlib.suppress(FileNotFoundError, subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    def _carry(self, host, source, target):
        free_at = time.monotonic()
        while True:
            packet = os.read(source, _MTU + 1000)
            now = time.monotonic()
            free_at = max(free_at, now - _MOST_LATE_S) + len(packet) / self.bytes_per_s
            if free_at > now:
                time.sleep(free_at - now)
            self.carried_bytes[host] += len(packet)
            with contextlib.suppress(OSError):  # the other host is gone
                os.write(target, packet)
