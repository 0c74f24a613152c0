"""One turn of DeepSpeed's aio_handle for bench/compare_io: reads or writes one file for a while.

Prints one JSON object: {"gbps", "cpu_ms_per_gb"}. `--prepare` only builds the extension (minutes, the first time).
"""

import argparse
import json
import os
import resource
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("op", choices=["read", "write"])
    parser.add_argument("file", help="exists, with its whole size written")
    parser.add_argument("--block_bytes", type=int, default=1 << 20)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--buffer_bytes", type=int, default=512 << 20)
    parser.add_argument("--prepare", action="store_true")
    arguments = parser.parse_args()

    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = AsyncIOBuilder().load().aio_handle(arguments.block_bytes, arguments.depth, False, True, 1)
    if arguments.prepare:
        return
    num_bytes = min(arguments.buffer_bytes, os.path.getsize(arguments.file))
    buffer = handle.new_cpu_locked_tensor(num_bytes, torch.empty(0, dtype=torch.uint8))
    buffer.random_(0, 256)
    transfer = handle.sync_pread if arguments.op == "read" else handle.sync_pwrite

    def turn():
        done = transfer(buffer, arguments.file, 0)
        if done != num_bytes and done != 1:
            sys.exit(f"aio_handle returned {done} for {num_bytes} bytes")

    turn()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin, moved = time.monotonic(), 0
    while time.monotonic() - begin < arguments.seconds:
        turn()
        moved += num_bytes
    seconds = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    json.dump({"gbps": moved / seconds / 1e9, "cpu_ms_per_gb": cpu_s * 1e3 / (moved / 1e9)}, sys.stdout)


if __name__ == "__main__":
    main()
