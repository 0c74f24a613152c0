"""Two hosts that reach each other over TCP alone: network namespaces with one cable between them, which can be pulled."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

import pytest


def ip(*arguments):
    return subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, text=True)


class TwoHosts:
    """Has of each host the command to start a program behind, and the address of the first."""

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self, name):
        self.names = [f"{name}-{host}" for host in range(2)]
        self.hosts = [["ip", "netns", "exec", name] for name in self.names], self.addresses[0]

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", "cable", "netns", self.names[0], "type", "veth", "peer", "cable", "netns", self.names[1])
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            self._remove()
            pytest.skip(f"there can be no other host here: {error}: {getattr(error, 'stderr', '')}")
        for name, address in zip(self.names, self.addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "cable", "up")
        return self

    def __exit__(self, *_):
        self._remove()

    def _remove(self):
        for name in self.names:
            with contextlib.suppress(FileNotFoundError, subprocess.CalledProcessError):
                ip("netns", "delete", name)

    def pull(self):
        ip("-n", self.names[0], "link", "set", "cable", "down")

    def plug_in(self):
        ip("-n", self.names[0], "link", "set", "cable", "up")

    def await_cable(self):
        """The kernel may say a moment after its ends are up that it runs. There are programs that look once."""
        for name in self.names:
            while " state UP " not in ip("-n", name, "link", "show", "cable").stdout:
                time.sleep(0.01)

    def named(self, host):
        """The command to start a program behind that is told the name of the host: host0 or host1."""
        prefix = self.hosts[0][host]
        return [*prefix, "unshare", "--uts", "sh", "-c", f'hostname host{host} && exec "$@"', "-"]

    def sent_bytes(self):
        """By the first host through the cable."""
        counter = "/sys/class/net/cable/statistics/tx_bytes"
        done = subprocess.run([*self.hosts[0][0], "cat", counter], check=True, capture_output=True, text=True)
        return int(done.stdout)

    def processes(self, host, program):
        """The ids of the processes of this program on the host."""
        found = []
        for pid in map(int, ip("netns", "pids", self.names[host]).stdout.split()):
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{pid}/comm").read_text().startswith(program):
                    found.append(pid)
        return found

    def waiting(self):
        """What runs on the hosts, and what its threads wait for in the kernel."""
        lines = []
        for host, name in enumerate(self.names):
            for pid in ip("netns", "pids", name).stdout.split():
                for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
                    with contextlib.suppress(OSError):
                        lines.append(f"host{host} {pid} {(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}")
        return "\n".join(lines)

    def kill_all(self):
        """Whatever runs on the hosts."""
        for host in range(2):
            for pid in self.processes(host, ""):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
