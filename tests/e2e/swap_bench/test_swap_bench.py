"""swap-bench as somebody uses it for the first time: what it prints, refuses and leaves alone. Nothing here
depends on how fast the disk is."""

import csv
import io
import json
import os
import pathlib
import pwd
import re
import resource
import shutil
import signal
import subprocess
import xml.etree.ElementTree

import pytest
from conftest import SMALL

RUN_KEYS = [
    "device", "op", "read_percent", "bs", "inflight", "burst_bytes", "engine", "threads", "fixed", "pages", "pattern", "reasons",
    "bytes", "seconds", "gbps", "read_gbps", "write_gbps", "flushed_gbps", "lat_us", "submit_us", "cpu_ms_per_gb",
    "cpu_cores", "punted", "splits", "flush_ms", "process_ratio", "disk_ratio", "steady_repeats", "series",
    "first10_gbps", "last10_gbps", "verify", "fio", "errors", "verdict",
]


def test_links_storage_alone(bench):
    libraries = subprocess.run(["ldd", bench.binary], capture_output=True, text=True, check=True).stdout
    for word in ("dnnl", "cuda", "cudart", "torch", "gomp", "python"):
        assert word not in libraries, libraries


COMMANDS = ["run", "probe", "sweep", "tune", "step", "compare"]


def test_help_names_every_command(bench):
    overview = bench.run("--help").stdout
    for command in COMMANDS:
        assert f"  {command} " in overview
    assert bench.run(expect=2).stderr.startswith("swap-bench tells")


def test_the_version_is_told_however_it_is_asked_for(bench):
    for words in (["version"], ["--version"], ["-v"]):
        assert re.fullmatch(r"swap-bench \d+\.\d+\.\d+\n", bench.run(*words).stdout)


def documented_flags():
    """Of each command, by docs/cli.md."""
    text = (pathlib.Path(__file__).resolve().parents[3] / "docs/cli.md").read_text()
    text = text[text.index("\n# swap-bench\n") :]

    def part(begin, end):
        return text.split(begin, 1)[1].split(end, 1)[0]

    def named(words):
        return {flag for code in re.findall(r"`[^`]*`", words) for flag in re.findall(r"--([a-z_]+)", code)}

    def table(rows):
        return {flag for row in re.findall(r"^\| (`.*?) \|", rows, re.M) for flag in named(row)}

    run = table(part("flags: begin -->", "<!--"))
    takes = part("`sweep` takes all but ", "\n\n")
    left_out = takes.split("and `--budget")[0]
    return {
        "run": run | named(part("\nBeside them:", "`sweep`")),
        "probe": set(),
        "sweep": (run - named(left_out)) | {"out", "plot", "live"} | named(takes.removeprefix(left_out)),
        "tune": table(part("\n## tune\n", "\n## ")),
        "step": table(part("\n## step\n", "\n## ")),
        "compare": named(part("| `compare BEFORE AFTER`", "\n")),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_the_documented_flags(bench, command):
    page = bench.run(command, "--help").stdout
    assert "Exit codes:" in page and "Example:\n  swap-bench " + command in page
    flags = set(re.findall(r"^ +(?:-\w,)?--([a-z_]+)", page, re.M))
    assert flags - {"help", "format"} == documented_flags()[command]
    assert {"help", "format"} <= flags
    assert command not in ("step", "tune") or "64M or more, step 16 tiles of state (160M," in " ".join(page.split())


@pytest.mark.parametrize("layout, least", [("bf16", "160MiB"), ("fp32", "128MiB")])
def test_the_least_size_of_step_is_that_of_its_help(bench, disk, layout, least):
    flags = [f"--layout={layout}", "--params=135M", "--ram=4G", "--size=120M"]
    assert f"take --size={least}" in bench.run("step", disk, *flags, expect=2).stderr


def test_the_least_size_of_tune_is_that_of_its_help(bench, disk):
    assert "a file of 64.0 MiB or more" in bench.run("tune", disk, "--size=63M", expect=2).stderr


def test_a_folder_alone_is_a_run(bench, disk):
    text = bench.run(disk, *SMALL).stdout
    rows = [line.split() for line in text.splitlines() if line.startswith(str(disk) + " ")]
    assert [row[1] for row in rows] == ["read", "write", "mixed50"]
    assert text.count("verdict ") == 3
    assert "incompressible data" in text and "interleaved" in text


def test_json_has_the_documented_keys_and_sound_figures(bench, disk):
    # Long enough for a disk that others keep busy to complete something.
    report = bench.json("run", disk, *SMALL, "--time=2s", "--verify", "--percentiles=50,95,99.99")
    assert list(report) == ["schema", "tool", "host", "devices", "config", "runs", "written_bytes", "warnings"]
    assert report["schema"] == 1 and report["tool"]["name"] == "swap-bench"
    assert report["devices"][0]["path"] == str(disk)
    assert report["config"]["size"] == 64 << 20
    assert [run["op"] for run in report["runs"]] == ["read", "write", "mixed"]
    for run in report["runs"]:
        assert list(run) == RUN_KEYS
        assert run["bs"] == 1 << 20 and run["inflight"] == 8 << 20
        assert run["bytes"] > 0 and run["gbps"]["min"] <= run["gbps"]["median"] <= run["gbps"]["max"]
        latency = run["lat_us"]
        assert list(latency) == ["p50", "p99", "p999", "p95", "p9999", "max", "hist"]
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
        assert sum(count for _, count in latency["hist"]) * run["bs"] == run["bytes"]
        assert sum(count for _, count in run["series"]) <= run["bytes"]
        assert run["verify"]["blocks"] > 0 and run["verify"]["bad"] == 0
        assert run["errors"] == [] and run["verdict"]
        assert run["punted"] is None or run["engine"] == "io_uring"
    assert report["runs"][0]["flush_ms"] is None and report["runs"][1]["flush_ms"] is not None


def test_csv_has_a_row_for_each_run(bench, disk):
    rows = list(csv.DictReader(io.StringIO(bench.run(disk, *SMALL, "--format=csv", "--op=read,mixed=70").stdout)))
    assert [(row["op"], row["read_percent"]) for row in rows] == [("read", "100"), ("mixed", "70")]
    for row in rows:
        assert None not in row and float(row["gbps_median"]) > 0 and float(row["p999_us"]) > 0


def test_every_engine_that_works_is_used_when_asked_for(bench, disk):
    engines = {engine["engine"]: engine["works"] for engine in bench.json("probe", disk)["devices"][0]["engines"]}
    assert set(engines) == {"io_uring", "libaio", "threads", "buffered"}
    assert engines["buffered"]
    for engine, works in engines.items():
        run = bench.json(disk, *SMALL, "--op=mixed", f"--engine={engine}")["runs"][0]
        if works:
            assert run["engine"] == engine
        else:
            assert run["engine"] != engine and any("fell back" in line for line in run["verdict"])


def test_several_folders_are_measured_alone_and_striped(bench, disk, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    runs = bench.json(f"{disk}:3", f"{other}:1", *SMALL, "--op=read")["runs"]
    assert [run["device"] for run in runs] == [str(disk), str(other), f"{disk}+{other}"]
    assert list(other.iterdir()) == []


def test_all_options_at_once(bench, disk):
    run = bench.json("run", disk, "--op", "mixed=30", "--bs=256K", "--inflight=4M", "--engine=auto", "--size=64M",
                     "--time=0.5s", "--warmup=0", "--steady=bw:50%/0.5s", "--threads=2", "--fixed=off", "--pages=4k",
                     "--numa=auto", "--pattern=rand", "--verify", "--flush=every=8", "--fill=compressible=50",
                     "--seed=7", "--repeats=2", "--live")["runs"][0]
    assert (run["bs"], run["inflight"], run["threads"], run["pattern"]) == (256 << 10, 4 << 20, 2, "rand")
    assert run["fixed"] is False and run["pages"] == "4k" and run["verify"]["bad"] == 0
    assert bench.json(disk, *SMALL, "--op=read", "--pages=huge", "--numa=0")["runs"][0]["pages"] in ("huge", "thp", "4k")


def test_live_prints_lines_without_a_terminal(bench, disk):
    lines = bench.run(disk, *SMALL, "--op=read,write", "--warmup=1s", "--verify", "--live").stderr.splitlines()
    for phase in ("filling a file in ", "read ", "write ", "reading back "):
        assert any(line.startswith(phase) for line in lines)
    assert all(re.search(r" \d+\.\d\d GB/s \d+ %$", line) for line in lines if line), lines


def test_what_was_written_in_all_is_told(bench, disk):
    reading = bench.json(disk, *SMALL, "--op=read")
    assert reading["written_bytes"] == 64 << 20
    report = bench.json(disk, *SMALL, "--op=write")
    # What was measured, and the warm-up.
    assert report["written_bytes"] > (64 << 20) + report["runs"][0]["bytes"]
    assert "wear: this wrote 67.1 MB in all, 67.1 MB of it to fill the file\n" in bench.run(disk, *SMALL, "--op=read").stdout
    assert "wear: " in bench.run("sweep", disk, "--size=64M", "--op=read", "--budget=1s").stdout


def test_a_run_that_costs_a_drive_some_of_its_life_says_so_first(bench, disk):
    # More than 6 TB on every disk that writes 100 KB/s.
    flags = ["--size=64M", "--qd=8", "--op=write", "--time=24h", "--repeats=1000"]
    with subprocess.Popen([bench.binary, disk, *flags], stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 75
    assert re.match(rf"swap-bench: note: {disk}: about \d.* [TP]B are going to be written, ", line), line


def test_a_single_pass_has_no_spread(bench, disk):
    assert "(min..max)" not in bench.run(disk, *SMALL, "--op=read").stdout
    twice = bench.run(disk, *SMALL, "--op=read", "--repeats=2").stdout
    assert "(min..max)" in twice and re.search(r"\(\d+\.\d+\.\.\d+\.\d+\)", twice)


def test_hyphens_are_underscores(bench, disk):
    bench.run(disk, *SMALL, "--op=read", "--engine-strict", "--engine=threads")


@pytest.mark.parametrize("flags, words", [
    (["--sice=1G"], "did you mean '--size'?"),
    (["--size=0"], "--size is 0"),
    (["--size=1M"], "need a file of 64.0 MiB, twice as much, or more: take --size=64M"),
    (["--size=big"], "is not a size"),
    (["--qd=1000000"], "allowed: 1 to 128"),
    (["--qd=0"], "--qd is 0"),
    (["--qd=8", "--inflight=8M"], "give this or --qd"),
    (["--inflight=4K"], "4K is less than one operation of --bs=1M"),
    (["--bs=1000"], "multiple of 4096"),
    (["--op=raed"], "allowed: read, write, mixed"),
    (["--op=step"], "'swap-bench step'"),
    (["--op=mixed=100"], "1 to 99"),
    (["--engine=fast"], "allowed: auto or io_uring"),
    (["--time=0"], "--time"),
    (["--time=soon"], "is not a time"),
    (["--steady=2%"], "bw:2%/5s"),
    (["--steady=bw:5%/100ms"], "a TIME of 0.5s or more"),
    (["--steady=bw:5%/4s"], "--time=3s never reaches"),
    (["--threads=100000"], "--threads is 100000; allowed: 1 to 64\n"),
    (["--flush=often"], "every=N"),
    (["--fill=zeros"], "compressible=PERCENT"),
    (["--pages=1g"], "thp or huge or 4k"),
    (["--numa=x"], "whole number"),
    (["--percentiles=0"], "above 0 to 100"),
    (["--format=xml"], "table or json or csv"),
    (["--plot=picture.png"], ".svg"),
    (["--fio", "--verify"], "give one of them"),
])
def test_what_cannot_be_is_refused_with_the_reason(bench, disk, flags, words):
    assert words in bench.run("run", disk, *flags, expect=2).stderr


def test_errors_are_documents_too(bench, disk):
    document = json.loads(bench.run(disk, "--size=0", "--format=json", expect=2).stdout)
    assert document["error"]["exit_code"] == 2 and "--size" in document["error"]["message"]


def test_a_mistyped_command_is_not_a_folder(bench):
    assert "did you mean 'probe'?" in bench.run("prob", expect=2).stderr
    error = bench.run("frobnicate", expect=3).stderr
    assert "no folder here, and no command of swap-bench (run, probe, sweep, tune, step, compare" in error


@pytest.mark.parametrize("command", ["tune", "sweep"])
def test_a_search_names_the_least_budget_and_file(bench, disk, command):
    for budget in ("0s", "1ms"):
        assert re.search(r"--budget=\ds or more", bench.run(command, disk, f"--budget={budget}", expect=2).stderr)
    error = bench.run(command, disk, "--size=64K", expect=2).stderr
    assert "a file of 64.0 MiB or more" in error and "--bs" not in error and "--qd" not in error


@pytest.mark.parametrize("arguments, words", [
    (["--params=135M", "--config=config.json"], "give one of them"),
    (["--params=135M", "--time=0s"], "--time: '0s'; allowed: above 0"),
    (["--params=135M", "."], "are one folder"),
    (["--params=135M", "/:2"], "give every folder a weight"),
    (["--params=135M", "/:0"], "is no number from 0.001"),
])
def test_step_says_what_is_wrong(bench, disk, arguments, words):
    assert words in bench.run("step", disk, *arguments, cwd=disk, expect=2).stderr


@pytest.mark.parametrize("durability", ["none", "step"])
def test_the_row_of_step_says_what_it_is_of(bench, disk, durability):
    small = ["--params=135M", "--size=160M", "--time=100ms", f"--durability={durability}", "--format=csv"]
    (row,) = csv.DictReader(io.StringIO(bench.run("step", disk, *small).stdout))
    assert None not in row and None not in row.values()
    assert (row["durability"], row["layout"], row["compute"]) == (durability, "bf16", "none")


def test_step_stripes_the_store_over_several_folders(bench, disk, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    small = ["--params=135M", "--size=128M", "--time=100ms", "--tile_elems=256K"]
    report = bench.json("step", f"{disk}:3", f"{other}:1", *small)
    stripes = report["step"]["stripes"]
    assert [(stripe["folder"], stripe["weight"]) for stripe in stripes] == [(str(disk), 3), (str(other), 1)]
    assert sum(stripe["store_bytes"] for stripe in stripes) == report["step"]["store_bytes"]
    assert len(report["devices"]) == 2
    text = bench.run("step", disk, other, *small).stdout
    assert re.search(rf"striped +{disk} \d+ %, {other} \d+ % \(measured: ", text)
    assert list(other.iterdir()) == []


def test_the_same_folder_twice_is_refused(bench, disk, tmp_path):
    (tmp_path / "link").symlink_to(disk)
    for other in (disk, f"{disk}/", tmp_path / "link"):
        assert "are one folder" in bench.run("run", f"{disk}:3", other, *SMALL, expect=2).stderr


def test_a_weight_that_is_none_is_quoted(bench, disk):
    assert f"the weight in '{disk}:0' is no number above 0" in bench.run("run", f"{disk}:0", expect=2).stderr


def test_a_folder_that_is_none(bench, tmp_path):
    for arguments in (["/there/is/none"], ["run", "/there/is/none"], ["probe", "/there/is/none"],
                      ["sweep", "/there/is/none"]):
        assert "is no folder" in bench.run(*arguments, expect=3).stderr
    file = tmp_path / "file"
    file.write_text("mine")
    bench.run("run", file, expect=3)
    assert file.read_text() == "mine"


def test_what_lies_in_the_folder_is_left_alone(bench, tmp_path):
    names = ["swap-bench.tmp", ".forebay-probe-1", "swap-bench", "data.bin"]
    for name in names:
        (tmp_path / name).write_text(name)
    bench.run(tmp_path, *SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert all((tmp_path / name).read_text() == name for name in names)


def test_out_and_plot_are_written_and_replaced_but_nobody_elses(bench, disk, tmp_path):
    out, plot = tmp_path / "results.json", tmp_path / "results.svg"
    for _ in range(2):
        text = bench.run(disk, *SMALL, "--op=read", f"--out={out}", f"--plot={plot}").stdout
        assert "verdict" in text
        assert json.loads(out.read_text())["runs"][0]["op"] == "read"
        assert xml.etree.ElementTree.fromstring(plot.read_text()).tag.endswith("svg")
    swapped = bench.run(disk, *SMALL, f"--out={tmp_path / 'results.svg'}", expect=2).stderr
    assert "holds a picture of swap-bench" in swapped
    assert "is a folder" in bench.run(disk, *SMALL, f"--out={tmp_path}", expect=2).stderr
    foreign = tmp_path / "mine.json"
    foreign.write_text("{}")
    for flag in (f"--out={foreign}", f"--plot={tmp_path / 'x' / 'a.svg'}"):
        bench.run(disk, *SMALL, flag, expect=2)
    assert foreign.read_text() == "{}"
    occupied = tmp_path / "new.json"
    (tmp_path / "new.json.tmp").write_text("mine")
    assert "in the way" in bench.run(disk, *SMALL, f"--out={occupied}", expect=2).stderr
    assert (tmp_path / "new.json.tmp").read_text() == "mine"
    (tmp_path / "results.json.tmp").write_text("mine")
    assert "in the way" in bench.run(disk, *SMALL, f"--out={out}", expect=2).stderr
    one = [f"--out={tmp_path}/one.svg", f"--plot={tmp_path}/./one.svg"]
    assert "name one file" in bench.run(disk, *SMALL, *one, expect=2).stderr


def test_probe_says_what_there_is(bench, disk):
    text = bench.run("probe", disk).stdout
    assert "--engine=auto takes" in text and "registered buffers:" in text
    document = bench.json("probe", disk)
    assert document["schema"] == 1 and document["devices"][0]["chosen"]
    assert not document["pages"].startswith("pages") and "\npages: " in text
    assert "forbids" not in text
    engines = document["devices"][0]["engines"]
    rows = list(csv.DictReader(io.StringIO(bench.run("probe", disk, "--format=csv").stdout)))
    assert [(row["engine"], row["works"] == "true") for row in rows] == [(e["engine"], e["works"]) for e in engines]


def test_sweep_finds_settings(bench, disk, tmp_path):
    plot = tmp_path / "sweep.svg"
    report = bench.json("sweep", disk, "--size=64M", "--op=read", "--budget=1s", f"--plot={plot}")
    best = report["best"][0]
    for point in (best["best"], best["knee"]):
        assert point["bs"] > 0 and point["inflight"] >= point["bs"] and point["gbps"][0] > 0
    assert best["knee"]["inflight"] <= best["best"]["inflight"]
    assert len({run["bs"] for run in report["runs"]}) >= 4
    assert report["config"]["budget_s"] == 1 and report["config"]["depth"] is None
    xml.etree.ElementTree.fromstring(plot.read_text())
    text = bench.run("sweep", disk, "--size=64M", "--op=read", "--budget=1s").stdout
    assert "knee" in text and "verdict" in text and "  engine " in text
    assert "unknown flag" in bench.run("sweep", disk, "--bs=1M", expect=2).stderr


def test_sweep_measures_the_best_again_or_says_that_it_could_not(bench, disk):
    for budget in ("10s", "1s"):
        report = bench.json("sweep", disk, "--size=64M", "--op=read", "--engine=threads", f"--budget={budget}")
        best, knee = report["best"][0]["best"], report["best"][0]["knee"]
        for point in (best, knee):
            assert point["gbps_min"][0] <= point["gbps"][0] <= point["gbps_max"][0]
            same = [run for run in report["runs"] if (run["bs"], run["inflight"]) == (point["bs"], point["inflight"])]
            assert [run["gbps"]["median"] for run in same] == point["gbps"]
        noted = any("Take a longer --budget" in warning for warning in report["warnings"])
        assert best["turns"] == knee["turns"] and noted == (knee["turns"] < 3)


def scaled(report, factor):
    copy = json.loads(json.dumps(report))
    for run in copy["runs"]:
        run["gbps"] = {key: value * factor for key, value in run["gbps"].items()}
    return copy


def test_compare_has_an_exit_code_for_scripts(bench, disk, tmp_path):
    report = bench.json(disk, *SMALL)
    for run in report["runs"]:  # a loaded machine may move nothing in so short a time
        run["gbps"] = dict.fromkeys(run["gbps"], 2.5)
    files = {}
    for name, content in (("a", report), ("slow", scaled(report, 0.8)), ("near", scaled(report, 0.97)),
                          ("other", {**report, "runs": []}), ("no", {"schema": 9})):
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(json.dumps(content))
    assert "1.000" in bench.run("compare", files["a"], files["a"], "--fail_below=0%").stdout
    bench.run("compare", files["a"], files["slow"])
    assert "80.0 %" in bench.run("compare", files["a"], files["slow"], "--fail-below=5%", expect=10).stderr
    bench.run("compare", files["a"], files["near"], "--fail-below=5%")
    fewer = tmp_path / "fewer.json"
    fewer.write_text(json.dumps({**report, "runs": report["runs"][1:]}))
    bench.run("compare", files["a"], fewer)
    bench.run("compare", fewer, files["a"], "--fail-below=5%")
    assert "no run of" in bench.run("compare", files["a"], fewer, "--fail-below=5%", expect=3).stderr
    bench.run("compare", files["slow"], files["a"], "--fail-below=5%")
    assert "no run in common" in bench.run("compare", files["a"], files["other"], expect=3).stderr
    assert "schema is 9" in bench.run("compare", files["a"], files["no"], expect=3).stderr
    bench.run("compare", files["a"], tmp_path / "none.json", expect=3)
    bench.run("compare", files["a"], files["a"], "--fail_below=lots", expect=2)
    cells = bench.json("compare", files["a"], files["slow"])["cells"]
    assert len(cells) == 3 and all(abs(cell["ratio"] - 0.8) < 1e-9 for cell in cells)
    rows = list(csv.DictReader(io.StringIO(bench.run("compare", files["a"], files["slow"], "--format=csv").stdout)))
    assert len(rows) == 3
    nothing = tmp_path / "nothing.json"
    nothing.write_text(json.dumps(scaled(report, 0)))
    assert "no bandwidth" in bench.run("compare", nothing, files["a"], "--fail-below=5%", expect=3).stderr
    assert bench.json("compare", nothing, files["a"])["cells"][0]["ratio"] is None
    bench.run("compare", files["a"], nothing, "--fail-below=5%", expect=10)


def tuned(bench, disk, out):
    """The report of tune and its budget in seconds: the shortest in which the disk, which others may keep busy, completes
    every pass."""
    for budget_s in (8, 16, 32, 64):
        done = bench.run("tune", disk, "--size=64M", f"--budget={budget_s}s", f"--out={out}", "--format=json", expect=None)
        if done.returncode == 0:
            return json.loads(done.stdout), budget_s
        assert done.returncode == 2 and "Take a longer --budget" in done.stderr, done.stderr
    raise AssertionError(done.stderr)


def test_tune_keeps_its_budget_and_tells_turns_apart(bench, disk, tmp_path):
    out = tmp_path / "io.json"
    report, budget_s = tuned(bench, disk, out)
    assert sum(run["seconds"] for run in report["runs"]) < 1.5 * budget_s
    assert min(json.loads(out.read_text())["devices"][0][key] for key in ("read_bw", "write_bw", "mixed_bw")) > 0
    mixed = [run for run in report["runs"] if run["op"] == "mixed"]
    block = mixed[0]["bs"]  # what was best here: no turn is shorter
    turns = {max(size << 20, block) for size in (4, 8, 16, 32, 64)}
    assert [run["burst_bytes"] for run in mixed] == sorted(turns)
    assert report["config"]["seconds"] is None and report["config"]["budget_s"] == budget_s
    rates, settings = report["rates"][0], report["profile"]["devices"][0]
    for rate, key in (("read_gbps", "read_bw"), ("write_gbps", "write_bw"), ("mixed_gbps", "mixed_bw")):
        assert rates[rate]["min"] <= rates[rate]["median"] <= rates[rate]["max"]
        assert settings[key] == pytest.approx(rates[rate]["median"] * 1e9)
    # A disk that others keep busy may have no time for all turns, and then a note says so.
    assert (rates["turns"] == 3) != any("Take a longer --budget" in warning for warning in report["warnings"])
    assert "does not read" in bench.run("compare", out, out, expect=3).stderr
    assert "holds settings of swap-bench tune" in bench.run(disk, *SMALL, f"--out={out}", expect=2).stderr


def test_results_are_in_their_files_when_nobody_reads_the_rest(bench, disk, tmp_path):
    out, settings = tmp_path / "results.json", tmp_path / "io.json"
    _, budget_s = tuned(bench, disk, tmp_path / "budget.json")
    commands = [["run", disk, *SMALL, "--op=read", f"--out={out}"],
                ["step", disk, "--params=135M", "--size=128M", "--time=100ms", "--tile_elems=256K",
                 f"--out={tmp_path / 'step.json'}"],
                ["sweep", disk, "--size=64M", "--op=read", "--budget=1s", f"--out={tmp_path / 'sweep.json'}"],
                ["tune", disk, "--size=64M", f"--budget={2 * budget_s}s", f"--out={settings}"]]
    for command in commands:
        with open("/dev/full", "w") as full:
            done = subprocess.run([bench.binary, *map(str, command), "--format=json"], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=300)
        assert done.returncode == 5, done.stderr
        json.loads(pathlib.Path(command[-1].removeprefix("--out=")).read_text())


def test_fio_beside_it_or_how_to_get_it(bench, disk, tmp_path):
    missing = bench.run(disk, *SMALL, "--fio", expect=9, env={**os.environ, "PATH": str(tmp_path)}).stderr
    assert "apt-get install fio" in missing
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    done = bench.run(disk, *SMALL, "--op=read,mixed", "--fio", "--format=json")
    assert f"fio read {disk}" in done.stderr and f"fio mixed50 {disk}" in done.stderr
    for run in json.loads(done.stdout)["runs"]:
        assert run["fio"]["ratio"] == pytest.approx(run["gbps"]["median"] / run["fio"]["gbps"]["median"])


def test_what_fio_says_of_its_failure_is_in_the_document(bench, disk, tmp_path):
    script = tmp_path / "fio"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "fio: no memory today"; echo "{}"; exit 1; }\n')
    script.chmod(0o700)
    done = bench.run(disk, *SMALL, "--fio", "--format=json", expect=9,
                     env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "fio ended with exit code 1: fio: no memory today. Leave --fio out" in json.loads(done.stdout)["error"]["message"]


def test_a_full_disk_is_found_before_anything_is_measured(bench, mounted):
    done = mounted(bench.binary, ["tmpfs", "-osize=16m"], "FOLDER", *SMALL)
    assert done.returncode == 4 and "has no room for a file of 64.0 MiB: 16.0 MiB are free" in done.stderr


@pytest.mark.parametrize("command", ["run", "probe"])
def test_a_disk_without_any_room_is_no_storage_error(bench, mounted, command):
    # A page is the least that tmpfs can have.
    done = mounted(bench.binary, ["tmpfs", "-osize=4k"], command, "FOLDER")
    assert done.returncode == 4 and "has no room for a file of" in done.stderr
    assert "resume" not in done.stderr and ".forebay-probe" not in done.stderr
    assert ("--size" in done.stderr) == (command == "run"), "a flag that the command has not"


def test_a_disk_that_is_read_only(bench, mounted):
    done = mounted(bench.binary, ["tmpfs", "-oro"], "FOLDER", *SMALL)
    assert done.returncode == 5 and "EROFS" in done.stderr and "mounted read-only: remount it" in done.stderr


def test_tmpfs_is_measured_and_named(bench, mounted):
    done = mounted(bench.binary, ["tmpfs", "-osize=128m"], "FOLDER", *SMALL, "--format=json", "--verify")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["devices"][0]["fs"] == "tmpfs" and not report["devices"][0]["direct"]["verified"]
    assert any("RAM" in warning for warning in report["warnings"])
    for run in report["runs"]:
        assert run["engine"] == "buffered" and any("tmpfs keeps" in line for line in run["verdict"])
        assert run["verify"]["bad"] == 0
        assert run["verdict"][0].startswith(("bound by memory", "CPU-bound"))
    assert not any("large enough" in warning for warning in report["warnings"])
    text = mounted(bench.binary, ["tmpfs", "-osize=128m"], "FOLDER", *SMALL).stdout
    assert "match" not in text and "page cache suspected" not in text
    probe = mounted(bench.binary, ["tmpfs", "-osize=128m"], "probe", "FOLDER").stdout
    assert "forbids" not in probe and "these are figures" not in probe and "no direct I/O here" in probe
    strict = mounted(bench.binary, ["tmpfs", "-osize=128m"], "FOLDER", *SMALL, "--engine_strict")
    assert strict.returncode == 9 and "forbids a lesser engine" in strict.stderr


def test_a_user_with_little_locked_memory_still_measures(bench, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    nobody = pwd.getpwnam("nobody")
    binary = tmp_path / "swap-bench"
    shutil.copy(bench.binary, binary)
    folder = tmp_path / "disk"
    folder.mkdir()
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and parent != pathlib.Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)

    def become_nobody():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)

    done = subprocess.run([binary, folder, "--op=read", *SMALL, "--qd=32", "--format=json"], capture_output=True,
                          text=True, timeout=300, preexec_fn=become_nobody)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["runs"][0]
    if run["engine"] == "io_uring":
        assert run["fixed"] is False and any("ulimit -l" in reason for reason in run["reasons"])
