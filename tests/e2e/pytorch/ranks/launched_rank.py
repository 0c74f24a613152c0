"""A rank of test_torch_ranks_launched.py, as a user's program is one: `launched_rank.py FOLDER STAGE`. Each writes
what it came to into FOLDER."""

import json
import os
import pathlib
import sys

import torch
import torch_ranks_run as run


def main():
    folder, stage = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    end = run.train(folder / "store", "decoder", 3, zero_stage=stage, num_passes=2, clip=0.5)
    name = f"{os.getpid()}.json"
    (folder / name).write_text(json.dumps({"digest": end["digest"], "norms": end["norms"]}))


if __name__ == "__main__":
    main()
