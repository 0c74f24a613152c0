"""The closing words of scripts/demo: what the run cost, where everything is, what to try next.

demo_summary.py MODEL RUN LOSS_BEFORE LOSS_AFTER SAMPLE_BEFORE SAMPLE_AFTER
"""

import json
import math
import pathlib
import struct
import sys

LEAST_FALL = 0.05  # of the held-out loss, in nats: less would not be clear


def num_params(model):
    """Elements of all tensors, from the headers of the safetensors files."""
    total = 0
    for path in sorted(model.glob("*.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total


def folder_bytes(folder):
    """Disk space taken by what lies below `folder`."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def main():
    model, run = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    before, after = float(sys.argv[3]), float(sys.argv[4])
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    params = num_params(model)
    read = sum(step["read_bytes"] for step in steps) / len(steps)
    written = sum(step["write_bytes"] for step in steps) / len(steps)
    seconds = sum(step["step_s"] for step in steps)
    speed = sum(step["tokens"] for step in steps) / seconds
    peak = max(step["rss_bytes"] for step in steps)
    swap = run / "swap"
    print(f"""
---- what happened ----
held-out loss  {before:.3f} before, {after:.3f} after {len(steps)} steps (perplexity {math.exp(before):.1f} -> {math.exp(after):.1f})
sample before  {sys.argv[5]}
sample after   {sys.argv[6]}
speed          {speed:.0f} tokens/s ({seconds / len(steps):.1f} s a step, {seconds / 60:.1f} minutes of training)
disk, a step   {read / 1e9:.2f} GB read, {written / 1e9:.2f} GB written: {read / params:.1f} + {written / params:.1f} bytes per parameter ({params / 1e6:.1f} M parameters)
memory         {peak / 2**20:.0f} MiB at the peak, of the 1024 MiB allowed
state          weights and AdamW state in {swap} ({folder_bytes(swap) / 1e9:.2f} GB, two generations), none of it in RAM
model          {run / 'model'}: a Hugging Face folder

---- three commands to try next ----
build/bin/forebay generate --model {run / 'model'} --prompt 'The king said unto the queen,' --max_tokens 60
build/bin/forebay inspect {run} --tensors
build/bin/forebay clean {run}      # gives the disk space of the run's state back; the model stays""")
    if not after < before - LEAST_FALL:
        print(f"demo: error: the held-out loss did not fall by {LEAST_FALL} or more", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
