"""Programs that reach the ports of ranks and are no ranks: strangers.py ADDRESS=PID...

At every port at which a process PID listens, which is reached at ADDRESS, there are NUM_OF_A_KIND connections that say
nothing and as many that say something, also when it listens no more. Prints "ready" when the first process has all of
them. Ends with its input, or after MOST_S, and prints what came of it as JSON.
"""

import contextlib
import errno
import json
import os
import pathlib
import random
import select
import socket
import struct
import sys
import time

NUM_OF_A_KIND = 100
MOST_S = 200
PAUSE_S = 0.005

HELLO = b"fbyrank2" + bytes(40)  # as a rank begins, of no job
BABBLE = (b"GET / HTTP/1.0\r\n\r\n", HELLO, HELLO + bytes(400), bytes(range(256)) * 16, b"\x16\x03\x01\x02\x00")


def listening(pid):
    """[(address, port)] at which the process listens; addresses as /proc has them: hexadecimal, of the network's order
    in words of the machine's."""
    inodes, found = set(), []
    with contextlib.suppress(OSError):
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    address, _, port = fields[1].partition(":")
                    found.append((address, int(port, 16)))
    return found


class Crowd:
    """All strangers at one port."""

    def __init__(self, address):
        self._address = address
        self._sockets = [None] * (2 * NUM_OF_A_KIND)
        self.counts = {"connected": 0, "refused": 0, "dropped": 0}

    def num_connected(self):
        return sum(one is not None for one in self._sockets)

    def go_on(self):
        for i, one in enumerate(self._sockets):
            if one is None:
                self._connect(i)
            elif self._is_dropped(one) or (i % 2 == 1 and not self._babble(one, i)):
                one.close()
                self._sockets[i] = None

    def _connect(self, i):
        try:  # a refusal comes at once: the hosts are on this machine
            self._sockets[i] = socket.create_connection(self._address, timeout=5)
            self._sockets[i].setblocking(False)
            self.counts["connected"] += 1
        except OSError as error:
            self.counts["refused"] += error.errno == errno.ECONNREFUSED

    def _is_dropped(self, one):
        try:
            dropped = one.recv(4096) == b""
        except BlockingIOError:
            dropped = False
        except OSError:
            dropped = True
        self.counts["dropped"] += dropped
        return dropped

    def _babble(self, one, i):
        """False: this one hangs up, hard."""
        text = random.choice(BABBLE)
        with contextlib.suppress(OSError):
            one.send(text[:1] if i % 3 == 0 else text)
        if random.random() < 0.9:
            return True
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


def main():
    processes = [argument.split("=") for argument in sys.argv[1:]]
    crowds, is_ready = {}, False
    end = time.monotonic() + MOST_S
    while time.monotonic() < end and not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        for address, pid in processes:
            for _, port in listening(pid):
                crowds.setdefault((address, port), Crowd((address, port)))
        for crowd in crowds.values():
            crowd.go_on()
        first = [crowd for (address, _), crowd in crowds.items() if address == processes[0][0]]
        if not is_ready and first and all(crowd.num_connected() >= 1.9 * NUM_OF_A_KIND for crowd in first):
            is_ready = True
            print("ready", flush=True)
    print(json.dumps({key: sum(crowd.counts[key] for crowd in crowds.values())
                      for key in ("connected", "refused", "dropped")}))


if __name__ == "__main__":
    main()
