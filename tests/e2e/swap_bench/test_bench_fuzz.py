"""Random combinations of the options of `run`, good and bad. Whatever is asked for, swap-bench ends with figures that
hang together and are of what was asked, or with a documented exit code and a message that names the option. It never
crashes, hangs, or speaks of a bug; the folders are empty again, and files of others are as they were.

FOREBAY_FUZZ_SEED chooses what is drawn ("random": something new), FOREBAY_FUZZ_CASE one case of it. FOREBAY_FULL draws
something new, and for longer; without it a change is judged by what the change before it was judged by."""

import csv
import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree

import pytest

FULL = os.environ.get("FOREBAY_FULL") == "1"
SECONDS = 240 if FULL else 15
MIB = 1 << 20
SWITCHES = ("engine_strict", "verify", "live")
ENGINES = ["io_uring", "libaio", "threads", "buffered"]  # each may step down to those behind it
SIZES = {"4K": 4 << 10, "4096": 4 << 10, "64K": 64 << 10, "132KiB": 132 << 10, "1M": MIB, "0.5Mi": MIB // 2}
TIMES = {"30ms": 0.03, "0.05": 0.05, "80ms": 0.08}


def draw(rng):
    """Settings that work on any disk, in the words of a user; a few options are left out."""
    bs = rng.choice(list(SIZES))
    qd = rng.choice([1, 2, 3, 8, 16])
    drawn = dict(
        op=rng.choice(["read", "write", "mixed", "mixed=1", "mixed=99", "mixed=70,read", "read,write,read"]),
        bs=bs, engine=rng.choice(["auto", *ENGINES]), engine_strict=rng.random() < 0.2,
        threads=rng.choice([1, 1, 2, 3]), fixed=rng.choice(["on", "off"]), pages=rng.choice(["thp", "huge", "4k"]),
        numa=rng.choice(["auto", "0", "1000", "2147483647"]), pattern=rng.choice(["seq", "rand"]), verify=rng.random() < 0.3,
        flush=rng.choice(["none", "step", "every=1", "every=7", "every=1000000"]),
        fill=rng.choice(["random", "compressible=0", "compressible=50", "compressible=90"]),
        percentiles=rng.choice(["50", "99.99", "100", "0.001,50,50", "12.5,75", "9.99,9.5"]),
        seed=rng.choice([0, 7, (1 << 64) - 1]), warmup=rng.choice(["0", "0ms", "20ms"]),
        live=rng.random() < 0.3, out=rng.random() < 0.5, plot=rng.random() < 0.3,
        format=rng.choice(["table", "json", "json", "csv"]),
    )
    kept = {key: value for key, value in drawn.items() if rng.random() < 0.6}
    bytes_of_one = SIZES[kept.get("bs", "1M")]
    kept["threads"] = min(kept.get("threads", 1), qd)
    # In most cases in bytes, not all of them whole operations.
    kept |= rng.choice([dict(qd=qd), dict(inflight=qd * bytes_of_one), dict(inflight=qd * bytes_of_one + 1)])
    kept |= dict(time=rng.choice(list(TIMES)), repeats=rng.choice([1, 1, 2]))
    if rng.random() < 0.05:
        kept |= dict(time="600ms", steady=rng.choice(["bw:50%/0.5s", "bw:0.9/500ms", "bw:100%/0.6"]), repeats=1)
    folders = rng.choice([1, 1, 1, 2])
    least = 2 * qd * bytes_of_one * folders
    kept["size"] = rng.choice([least, least + 1, least + 4095, max(least, 3 * MIB), max(least, 8 * MIB)])
    return kept, folders


def mistake(rng):
    """One thing that cannot work: (changes, exit code, what the message names)."""
    return rng.choice([
        (dict(op=rng.choice(["", "raed", "mixed=0", "mixed=100", "mixed=", "read,,write", "mixed=5.5"])), 2, "--op"),
        (dict(bs=rng.choice(["0", "1000", "2G", "x", "", "-4096", "4097"])), 2, "--bs"),
        (dict(qd=rng.choice(["0", "-1", "100000", "1.5", "", "1e3", "9" * 30])), 2, "--qd"),
        (dict(inflight=rng.choice(["1", "4095", "nan"]), bs="4K"), 2, "--inflight"),
        (dict(qd=4, inflight="4M"), 2, "--inflight"),
        (dict(engine=rng.choice(["", "floppy", "IO_URING"])), 2, "--engine"),
        (dict(size=rng.choice(["0", "1", "-1", "1X", "inf"])), 2, "--size"),
        (dict(size=rng.choice(["900T", "4000000T"])), 4, "has no room"),
        (dict(size="99999999T"), 2, "--size"),
        (dict(time=rng.choice(["0", "0ms", "-1", "25h", "soon", "", "nan", "1e400"])), 2, "--time"),
        (dict(warmup=rng.choice(["2h", "-1s", "x"])), 2, "--warmup"),
        (dict(steady=rng.choice(["", "2%", "bw:0%/1s", "bw:nan%/1s", "bw:2%/", "bw:2%/0.1s", "bw:2%/9s", "bw:200%/1s"])), 2,
         "--steady"),
        (dict(repeats=rng.choice(["0", "-1", "1001", "x"])), 2, "--repeats"),
        (dict(threads=rng.choice(["0", "-1", "65", "100000", "x"])), 2, "--threads"),
        (dict(threads=2, qd=1), 2, "--threads"),
        (dict(fixed="maybe"), 2, "--fixed"),
        (dict(pages="1g"), 2, "--pages"),
        (dict(numa=rng.choice(["x", "-1", "-2", "1.5", "", "2147483648"])), 2, "--numa"),
        (dict(pattern="zigzag"), 2, "--pattern"),
        (dict(flush=rng.choice(["often", "every=0", "every=-1", "every=", "every=1.5"])), 2, "--flush"),
        (dict(fill=rng.choice(["zeros", "compressible=91", "compressible=-1", "compressible=", "compressible"])), 2, "--fill"),
        (dict(percentiles=rng.choice(["", "0", "101", "50,", "nan", "p50", "-1"])), 2, "--percentiles"),
        (dict(seed=rng.choice(["-1", "x", "1.5", "18446744073709551616"])), 2, "--seed"),
        (dict(format=rng.choice(["", "xml", "JSON"])), 2, "--format"),
        (dict(plot="picture.png"), 2, "--plot"),
        (dict(out="/there/is/none.json"), 2, "--out"),
        (dict(sice="1G"), 2, "did you mean '--size'"),
        (dict(verify=True, fio=True), 2, "--fio"),
    ])


def spell(rng, settings):
    """The flags as a user may write them, in any order."""
    groups = []
    for key, value in settings.items():
        flag = "--" + (key.replace("_", "-") if rng.random() < 0.5 else key)
        if value is True:
            groups.append([flag])
        elif value is not False and value is not None:
            # A value that begins with hyphens is one only behind "=".
            apart = rng.random() < 0.3 and not str(value).startswith("-") and value != ""
            groups.append([flag, str(value)] if apart else [f"{flag}={value}"])
    rng.shuffle(groups)
    return [word for group in groups for word in group]


class Case:
    """One call of swap-bench on folders of its own."""

    def __init__(self, bench, seed, folder):
        self.bench, self.folder = bench, folder
        self.rng = random.Random(seed)
        self.command, self.stdout, self.stderr = [], "", ""
        folder.mkdir()

    def targets(self, number):
        folders = [self.folder / f"disk{i}" for i in range(number)]
        for folder in folders:
            folder.mkdir()
        weighted = self.rng.random() < 0.4
        return [f"{folder}:{self.rng.choice([1, 2.5, 0.001])}" if weighted else str(folder) for folder in folders]

    def run(self):
        settings, num_folders = draw(self.rng)
        targets = self.targets(num_folders)
        self.files(settings)
        wrong, code, named = mistake(self.rng) if self.rng.random() < 0.4 else ({}, 0, "")
        # These two exclude one another, which would be a second mistake.
        for key, other in (("qd", "inflight"), ("inflight", "qd")):
            if key in wrong and other not in wrong:
                settings.pop(other, None)
        settings |= wrong
        if code == 0 and self.rng.random() < 0.08:
            settings["size"] = "64M"  # enough for two
            targets, code, named = self.wrong_targets()
        self.command = [*self.rng.choice([["run"], []]), *targets, *spell(self.rng, settings)]
        done = subprocess.run([self.bench.binary, *self.command], capture_output=True, text=True, timeout=60)
        self.stdout, self.stderr = done.stdout, done.stderr
        self.check(done, settings, num_folders, code, named)

    def files(self, settings):
        """Names for --out and --plot, where these were drawn; some of them taken, by us or by others."""
        self.foreign = {}
        for key, ours in (("out", '{"tool": {"name": "swap-bench"}}'), ("plot", None)):
            if not settings.pop(key, False):
                continue
            path = self.folder / ("out.json" if key == "out" else "plot.svg")
            settings[key] = str(path)
            taken = self.rng.choice(["no", "no", "no", "others", "ours"])
            if taken == "others":
                self.foreign[key] = path
                path.write_text("mine")
            elif taken == "ours" and ours:
                path.write_text(ours)

    def wrong_targets(self):
        plain = str(self.folder / "disk0")
        return self.rng.choice([
            ([f"{plain}:0"], 2, "weight"), ([f"{plain}:-1"], 2, "weight"), ([f"{plain}:nan"], 2, "weight"),
            ([plain, plain + "/"], 2, "are one folder"), ([plain + "/none"], 3, "is no folder"),
            ([plain, "/dev/null"], 3, "is no folder"), (["/proc"], 5, "/proc"),
        ])

    def check(self, done, settings, num_folders, code, named):
        for bad in ("CHECK", "Traceback", "terminate called", "Sanitizer", "bug", "internal error"):
            assert bad not in done.stderr, bad
        allowed = [(code, named)]
        if self.foreign:
            # Where a value is wrong too, it is one of two things that are.
            allowed = [*([] if code == 0 else allowed), (2, "--")]
        elif code == 0 and settings.get("engine_strict"):
            allowed.append((9, "--engine_strict"))  # what a small or odd machine may refuse
        names = [name for exit_code, name in allowed if exit_code == done.returncode]
        assert names, f"exit {done.returncode}, not {allowed}"
        for path in self.foreign.values():
            assert path.read_text() == "mine"
        for folder in self.folder.glob("disk*"):
            assert os.listdir(folder) == []
        if done.returncode == 0:
            self.check_figures(settings, num_folders)
            return
        assert any(name in done.stderr for name in names), f"none of {names} is named"
        assert done.stderr.count("swap-bench: error: ") == 1
        if settings.get("format") == "json":
            assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode
        else:
            assert done.stdout == ""

    def check_figures(self, settings, num_folders):
        form = settings.get("format", "table")
        report = None
        if form == "json":
            report = json.loads(self.stdout)
        elif form == "csv":
            rows = list(csv.DictReader(io.StringIO(self.stdout)))
            assert rows and all(None not in row and None not in row.values() for row in rows)
            for row in rows:
                assert float(row["gbps_min"]) <= float(row["gbps_median"]) <= float(row["gbps_max"])
        else:
            assert self.stdout.count("verdict ") == len(self.loads(settings)) * (1 if num_folders == 1 else 3)
            assert "nan" not in self.stdout.split() and "inf" not in self.stdout.split()
        if "out" in settings:
            with open(settings["out"], encoding="utf-8") as file:
                written = json.load(file)
            assert report is None or report == written
            report = written
        if "plot" in settings:
            xml.etree.ElementTree.parse(settings["plot"])
        if settings.get("live"):
            phases = [line for line in self.stderr.splitlines() if re.match(r"(filling|read|write|mixed)", line)]
            assert phases and all(re.search(r" \d+\.\d\d GB/s \d+ %$", line) for line in phases)
        if report is not None:
            self.check_report(report, settings, num_folders)

    @staticmethod
    def loads(settings):
        return list(dict.fromkeys(settings.get("op", "read,write,mixed").split(",")))

    def check_report(self, report, settings, num_folders):
        config = report["config"]
        block = SIZES[settings.get("bs", "1M")]
        depth = settings["qd"] if "qd" in settings else settings["inflight"] // block
        asked = dict(size=settings["size"], repeats=settings["repeats"], depth=depth,
                     engine=settings.get("engine", "auto"), fixed=settings.get("fixed", "on") == "on",
                     pages=settings.get("pages", "thp"), verify=settings.get("verify", False),
                     flush=settings.get("flush", "step"), seed=settings.get("seed", 1),
                     compressible_percent=int(settings.get("fill", "compressible=0").replace("random", "=0").split("=")[1]))
        assert {key: config[key] for key in asked} == asked
        assert config["seconds"] == pytest.approx(TIMES.get(settings["time"], 0.6))
        loads = self.loads(settings)
        assert len(report["runs"]) == len(loads) * (1 if num_folders == 1 else 3)
        filled = num_folders * (settings["size"] // 4096 * 4096)
        assert report["written_bytes"] >= filled
        # A short pass of few writes may have had none.
        assert report["written_bytes"] > filled or "write" not in loads
        assert report["written_bytes"] == filled or any(load != "read" for load in loads)
        for run in report["runs"]:
            self.check_run(run, settings, block, depth)

    def check_run(self, run, settings, block, depth):
        assert (run["bs"], run["inflight"], run["threads"]) == (block, block * depth, settings["threads"])
        assert run["pattern"] == settings.get("pattern", "seq")
        asked = settings.get("engine", "auto")
        ladder = ENGINES if asked == "auto" else ENGINES[ENGINES.index(asked) :]
        assert run["engine"] in ladder and (run["fixed"] is False or run["engine"] == "io_uring")
        if settings.get("engine_strict"):
            assert run["engine"] == ladder[0]
        assert run["errors"] == [] and run["verdict"]
        if settings.get("numa", "auto") not in ("auto", "0"):
            assert any(f"not placed on NUMA node {settings['numa']}" in reason for reason in run["reasons"])
        # A busy disk may complete nothing in so short a time, and then it is said.
        assert run["bytes"] > 0 or "nothing was completed" in run["verdict"][0]
        assert run["bytes"] % block == 0
        for key in ("gbps", "read_gbps", "write_gbps"):
            assert 0 <= run[key]["min"] <= run[key]["median"] <= run[key]["max"] < 1000
        latency = run["lat_us"]
        assert sum(count for _, count in latency["hist"]) * block == run["bytes"]
        if run["bytes"] > 0:
            assert 0 < latency["p50"] <= latency["p99"] <= latency["p999"] <= latency["max"]
        for part in settings.get("percentiles", "50").split(","):
            key = f"p{part}" if float(part) < 10 else f"p{part}".replace(".", "")
            assert key in latency
            assert run["bytes"] == 0 or (latency[key] <= latency["p50"]) == (float(part) <= 50) or latency[key] == latency["p50"]
        wrote = run["op"] != "read"
        assert (run["flush_ms"] is not None) == (wrote and settings.get("flush") != "none")
        assert (run["verify"] is not None) == settings.get("verify", False)
        assert run["verify"] is None or run["verify"]["bad"] == 0
        assert (run["steady_repeats"] is not None) == ("steady" in settings)


def test_any_combination_of_options(bench, tmp_path):
    chosen = os.environ.get("FOREBAY_FUZZ_SEED") or ("random" if FULL else "1")
    seed = random.SystemRandom().randrange(1 << 32) if chosen == "random" else int(chosen)
    print(f"seed {seed}")
    only = os.environ.get("FOREBAY_FUZZ_CASE")
    begin = time.monotonic()
    for number in [int(only)] if only else itertools.count():
        if time.monotonic() - begin > SECONDS and number >= 10:
            break
        case = Case(bench, f"{seed} {number}", tmp_path / str(number))
        try:
            case.run()
        except BaseException:
            print(f"repeat with: FOREBAY_FUZZ_SEED={seed} FOREBAY_FUZZ_CASE={number}")
            print(" ".join(case.command), case.stdout[-2000:], case.stderr[-2000:], sep="\n")
            raise
        shutil.rmtree(case.folder)
    print(f"{number} cases")
