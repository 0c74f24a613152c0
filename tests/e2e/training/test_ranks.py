"""Runs of several processes, which find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or by MPI."""

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import random_rows, read_metrics, write_rows
from rank_processes import digest_of_ranks, ends_of, folder_of, make_task, start_ranks, train_ranks, wait_for_steps
from option_flags import flag_of

SEQ = 48
NUM_KILLS = 8


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    return make_task(forebay, tmp_path_factory.mktemp("task"), SEQ, steps=6, ram="1GiB", precision="fp32")


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    """The digest of two ranks that nothing disturbed, and their losses."""
    out = tmp_path_factory.mktemp("expected") / "run"
    train_ranks(forebay, 2, out=out, **task)
    return digest_of_ranks(forebay, out, 2), [line["loss"] for line in read_metrics(out)]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_compute_what_one_process_computes_with_all_the_data(forebay, task, expected, tmp_path, num_ranks):
    forebay.run("train", out=tmp_path / "alone", **task)
    ends = train_ranks(forebay, num_ranks, out=tmp_path / "ranks", **task)
    losses = [line["loss"] for line in read_metrics(tmp_path / "ranks")]
    assert losses == pytest.approx([line["loss"] for line in read_metrics(tmp_path / "alone")], rel=1e-5)
    digest = digest_of_ranks(forebay, tmp_path / "ranks", num_ranks)
    if num_ranks == 2:
        assert (digest, losses) == expected
    # One of them speaks for all, and has the model.
    assert "step 6/6" in ends[0][1] and ends[1][1] == ""
    assert (tmp_path / "ranks" / "model").is_dir()
    assert not (folder_of(tmp_path / "ranks", 1) / "model").exists()


@pytest.mark.parametrize(
    "changes",
    [
        dict(weights_tier="nvme", state_tier="nvme"),
        dict(weights_tier="host", state_tier="host", commit_every=4),
        dict(threads=2, tile_elems=2048, engine="threads"),
    ],
    ids=lambda changes: "-".join(f"{k}={v}" for k, v in changes.items()),
)
def test_the_digest_does_not_depend_on(forebay, task, expected, tmp_path, changes):
    train_ranks(forebay, 2, out=tmp_path / "run", **dict(task, **changes))
    assert digest_of_ranks(forebay, tmp_path / "run", 2) == expected[0]


LAUNCHERS = {
    "mpirun.openmpi": ["-n", "2", "--allow-run-as-root", "--oversubscribe"],
    "mpirun.mpich": ["-n", "2"],
    "torchrun": ["--nproc_per_node=2", "--no-python", f"--master_port={29000 + os.getpid() % 1000}"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_start_the_same_run(forebay, task, expected, tmp_path, launcher):
    program = shutil.which(launcher) or shutil.which(launcher, path=pathlib.Path(sys.executable).parent)
    if program is None:
        pytest.skip(f"{launcher} is not there")
    family = launcher.partition("mpirun.")[2]
    plugin = pathlib.Path(os.environ["FOREBAY_BIN"]) / f"libforebay_mpi_{family}.so"
    if family and not plugin.exists():
        pytest.skip(f"{plugin} was not built")
    settings = [flag_of(key, value) for key, value in dict(task, out=tmp_path / "run").items()]
    command = [program, *LAUNCHERS[launcher], forebay.binary, "train", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 6/6") == 1
    assert digest_of_ranks(forebay, tmp_path / "run", 2) == expected[0]


def test_a_rank_that_is_killed_ends_the_others_and_the_run_goes_on(forebay, task, expected, tmp_path):
    seed = int(os.environ.get("FOREBAY_RANKS_SEED", random.randrange(1 << 30)))
    print(f"FOREBAY_RANKS_SEED={seed}")
    draw = random.Random(seed)
    for kill in range(NUM_KILLS):
        out = tmp_path / str(kill)
        processes = start_ranks(forebay, 2, out=out, **task)
        wait_for_steps(out, draw.randint(1, 4), processes)
        time.sleep(draw.uniform(0, 0.03))
        victim = draw.randrange(2)
        processes[victim].send_signal(signal.SIGKILL)
        code, _, errors = ends_of(processes)[1 - victim]
        # One that had come to its end meanwhile is whole.
        assert code in (0, 9), errors
        if code == 9:
            assert f"rank {victim} " in errors and socket.gethostname() in errors
        train_ranks(forebay, 2, "--resume", out=out)
        assert digest_of_ranks(forebay, out, 2) == expected[0], kill


def test_a_rank_that_hangs_is_given_up(forebay, task, expected, tmp_path):
    processes = start_ranks(forebay, 2, out=tmp_path / "run", rank_timeout=2, **task)
    wait_for_steps(tmp_path / "run", 1, processes)
    processes[1].send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    output, errors = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 9 and "rank 1 " in errors, (output, errors)
    assert time.monotonic() - begin < 30
    processes[1].kill()
    processes[1].communicate()
    train_ranks(forebay, 2, "--resume", out=tmp_path / "run")
    assert digest_of_ranks(forebay, tmp_path / "run", 2) == expected[0]


@pytest.mark.parametrize("interrupted", [[0], [1], [0, 1]])
def test_ctrl_c_stops_all_behind_one_step(forebay, task, expected, tmp_path, interrupted):
    processes = start_ranks(forebay, 2, out=tmp_path / "run", **task)
    wait_for_steps(tmp_path / "run", 2, processes)
    for rank in interrupted:
        processes[rank].send_signal(signal.SIGINT)
    ends = ends_of(processes)
    if [code for code, _, _ in ends] != [0, 0]:  # not too late
        if ends[1][0] != 0:
            assert [code for code, _, _ in ends] == [75, 75], ends
            assert ends[0][2].splitlines()[-1] == ends[1][2].splitlines()[-1]
        else:
            expect_a_stop_in_the_export(ends)
        train_ranks(forebay, 2, "--resume", out=tmp_path / "run")
    assert digest_of_ranks(forebay, tmp_path / "run", 2) == expected[0]
    assert (tmp_path / "run/model/model.safetensors").exists()


def expect_a_stop_in_the_export(ends):
    """The first rank exports the model behind the last step, when the others have no more to do."""
    assert [code for code, _, _ in ends] == [75, 0], ends
    assert "after step 6 of 6" in ends[0][2], ends


def test_ctrl_c_in_the_export_of_the_first_rank_is_made_up_for(forebay, task, expected, tmp_path):
    processes = start_ranks(forebay, 2, out=tmp_path / "run", **task)
    wait_for_steps(tmp_path / "run", 6, processes)
    processes[0].send_signal(signal.SIGINT)
    ends = ends_of(processes)
    if [code for code, _, _ in ends] != [0, 0]:
        expect_a_stop_in_the_export(ends)
        train_ranks(forebay, 2, "--resume", out=tmp_path / "run")
    assert digest_of_ranks(forebay, tmp_path / "run", 2) == expected[0]
    assert (tmp_path / "run/model/model.safetensors").exists()


def test_what_a_rank_cannot_do_ends_all_with_its_reason(forebay, task, tmp_path):
    # The second rank's folder is occupied.
    occupied = folder_of(tmp_path / "run", 1)
    occupied.mkdir(parents=True)
    (occupied / "something").write_text("of others")
    ends = ends_of(start_ranks(forebay, 2, out=tmp_path / "run", **task))
    assert [code for code, _, _ in ends] == [2, 2], ends
    assert "is not empty" in ends[1][2] and "is not empty" in ends[0][2] and "rank 1" in ends[0][2]
    assert sorted(path.name for path in tmp_path.joinpath("run").iterdir()) == ["rank-001"]


def test_a_batch_that_cannot_be_divided_is_refused(forebay, task, tmp_path):
    ends = ends_of(start_ranks(forebay, 2, out=tmp_path / "run", **dict(task, batch=3)))
    assert [code for code, _, _ in ends] == [2, 2]
    assert all("--batch=3" in errors for _, _, errors in ends)


def test_what_ranks_do_not_agree_on_is_named_with_both_values(forebay, task, tmp_path):
    """A flag with its values; a file with its path; the first tensor of a model that differs, with its digests."""
    other_data = write_rows(tmp_path / "other.fbd", *random_rows(12, SEQ, 256, seed=5), 256)
    config = pathlib.Path(task["model"]).parent / "model.config.json"
    other_model = tmp_path / "other"
    forebay.run("init", config=config, out=other_model, seed=77)
    for key, other, says in [
        ("lr", 2e-3, ["--lr is ", "0.001", "0.002"]),
        ("seed", 9, ["--seed is ", "3", "9"]),
        ("data", other_data, ["what is in --data is ", f"'{task['data']}' (10 rows", f"'{other_data}' (12 rows"]),
        ("model", other_model, ["the model is ", f"'{task['model']}'", f"'{other_model}'", "the first that differs is 'model."]),
    ]:
        rest = {name: value for name, value in task.items() if name != key}
        behind = [["sh", "-c", f'exec "$@" --{key}={value}', "-"] for value in (task[key], other)]
        ends = ends_of(start_ranks(forebay, 2, out=tmp_path / f"run-{key}", hosts=(behind, "127.0.0.1"), **rest))
        assert [code for code, _, _ in ends] == [2, 2], ends
        for _, _, errors in ends:
            assert all(text in errors for text in says), (key, errors)
            assert "on rank 0 (" in errors and "on rank 1 (" in errors


def test_one_process_goes_on_where_two_stopped(forebay, task, tmp_path):
    ends = ends_of(start_ranks(forebay, 2, out=tmp_path / "run", stop_after=3, **task))
    assert [code for code, _, _ in ends] == [75, 75], ends
    forebay.run("train", "--resume", out=tmp_path / "run")
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_a_new_rank_goes_on_with_a_copy(forebay, task, tmp_path):
    out, second = tmp_path / "run", folder_of(tmp_path / "run", 1)
    forebay.run("train", out=out, stop_after=3, check=False, **task)
    ends = ends_of(start_ranks(forebay, 2, "--resume", out=out, rank_timeout=3))
    assert ends[1][0] == 2 and ends[0][0] != 0, ends
    assert "copy the folder of rank 0" in ends[1][2]
    shutil.copytree(out, tmp_path / "copy")
    (tmp_path / "copy").rename(second)
    train_ranks(forebay, 2, "--resume", out=out)
    digest_of_ranks(forebay, out, 2)
    forebay.run("train", out=tmp_path / "alone", **task)
    alone = [line["loss"] for line in read_metrics(tmp_path / "alone")]
    assert [line["loss"] for line in read_metrics(out)] == pytest.approx(alone, rel=1e-5)


def test_plan_counts_a_rank(forebay, task):
    plan = {n: json.loads(forebay.run("plan", task["model"], "--format=json", ranks=n, batch=4, seq=SEQ).stdout)
            for n in (1, 2)}
    terms = {n: {term["name"]: term["host_bytes"] for term in plan[n]["terms"]} for n in plan}
    # Half of the rows, and what is summed with others.
    assert plan[2]["tokens_per_step"] * 2 == plan[1]["tokens_per_step"]
    assert terms[2]["sum of gradients over ranks (fp32)"] > 0
    assert "sum of gradients over ranks (fp32)" not in terms[1]
    assert "ranks" not in plan[1]
    refused = forebay.run("plan", task["model"], check=False, ranks=3, batch=4, seq=SEQ)
    assert refused.returncode == 2 and "--batch=4" in refused.stderr


def test_plan_has_each_rank_and_the_slowest(forebay, task):
    settings = dict(ranks=4, zero_stage=3, batch=4, seq=SEQ, ram="256MiB", weights_tier="nvme", state_tier="nvme")
    plan = json.loads(forebay.run("plan", task["model"], "--format=json", **settings).stdout)
    rows, slowest = plan["ranks"], plan["slowest_rank"]
    assert [row["rank"] for row in rows] == [0, 1, 2, 3]
    for key in ("host_bytes", "nvme_bytes", "read_bytes_per_step", "write_bytes_per_step"):
        assert rows[0][key] == plan[key]
    per_step = [row["read_bytes_per_step"] + row["write_bytes_per_step"] for row in rows]
    assert per_step[slowest] == max(per_step) > min(per_step)
    lines = [line for line in forebay.run("plan", task["model"], **settings).stdout.splitlines() if line.startswith("rank ")]
    assert len(lines) == 4 and "the slowest" in lines[slowest]


def test_report_has_a_row_for_each_rank_and_each_traces_its_steps(forebay, task, tmp_path):
    out = tmp_path / "run"
    trace = tmp_path / "trace.json"
    train_ranks(forebay, 2, out=out, trace=trace, trace_steps="2-3", **task)
    rows = json.loads(forebay.run("report", out, out / "rank-001", "--format=json").stdout)["runs"]
    assert [(pathlib.Path(row["run"]).name, row["last_step"]) for row in rows] == [("run", 6), ("rank-001", 6)]
    of_both, of_second = (json.loads(file.read_text())["traceEvents"] for file in (trace, tmp_path / "trace.json.rank-001"))
    assert "gradient to be summed over ranks" in {event["name"] for event in of_second}
    # The first rank's file has the rows of all.
    groups = {event["args"]["name"]: event["pid"] for event in of_both if event["name"] == "process_name"}
    assert {"rank 0: forebay", "rank 1: forebay", "rank 0: disks", "rank 1: disks"} <= groups.keys()
    assert len(set(groups.values())) == len(groups)
    assert of_both[-len(of_second):] == of_second and len(of_both) > len(of_second)
    steps = [event["name"] for event in of_both if event.get("tid") == 0 and event["ph"] == "X"]
    assert sorted(steps) == ["step 2", "step 2", "step 3", "step 3"]


def test_each_rank_records_what_it_did(forebay, task, tmp_path):
    train_ranks(forebay, 2, out=tmp_path / "run", **task)
    first, second = (read_metrics(folder_of(tmp_path / "run", rank)) for rank in range(2))
    same = ("step", "loss", "grad_norm", "lr", "tokens")
    assert [[line[key] for key in same] for line in first] == [[line[key] for key in same] for line in second]
    assert any(line["waits"]["ranks"] > 0 for line in first + second)
    settings = json.loads((folder_of(tmp_path / "run", 1) / "resolved_config.json").read_text())
    assert settings["data"]["batch"]["value"] == task["batch"]
