"""What gpu-check does on the machine with the GPU: one row after another, in the order of what is worth most, within a
budget of seconds. Each row is written before the next begins, so that whoever kills it loses one; a later call goes on
after those that are written.
"""

import ctypes
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Reasons for skipping a test that say nothing against this machine.
MAY_BE_SKIPPED = ("tied embeddings do not share it", "this machine has a GPU, and the test is about one without")
FILTERS = {"offloaded_optimizer_test": ("--gtest_filter=*Gpu*:*Landing*",)}  # the rest has nothing to do with a GPU
TOOLS = {"memcheck": ("compute-sanitizer", "--tool=memcheck", "--error-exitcode=99"),
         "racecheck": ("compute-sanitizer", "--tool=racecheck", "--error-exitcode=99"),
         "ncu": ("ncu", "--clock-control=none", "--launch-count=40")}


def die_with_parent():
    """In a child before it runs: the kernel ends it when this process is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Machine:
    """Runs programs of the pack, and keeps all that they print."""

    def __init__(self, out, work, budget_s):
        self.manifest = json.loads((HERE / "manifest.json").read_text())
        self.tiny = self.manifest["tiny"]
        self.work = work
        self.end = time.monotonic() + budget_s
        self.log = open(out / "log.txt", "a", encoding="utf-8")
        libraries = [str(HERE / "lib")] + [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}
        if self.tiny:  # a few tests of every suite
            self.environment.update(GTEST_TOTAL_SHARDS="60", GTEST_SHARD_INDEX="0")
        self.python_environment = {**os.environ, "FOREBAY_LIBRARY": str(HERE / "lib/libforebay.so"), "PYTHONPATH": str(HERE / "python")}
        self.making = {}  # size: a process that makes a model
        self.rows = {}  # the report's

    def left(self):
        """Seconds of the budget."""
        return self.end - time.monotonic()

    def has(self, item):
        """Whether it was packed."""
        return item in self.manifest["items"]

    def start(self, command, environment=None, **streams):
        """A process that ends with this one, and whose own children can be ended with it."""
        return subprocess.Popen([str(part) for part in command], start_new_session=True, preexec_fn=die_with_parent,
                                env=environment or self.environment, cwd=HERE, **streams)

    def call(self, command, seconds, environment=None):
        """Its exit code (None: it ran longer than so many seconds), and what it printed."""
        begin, code = time.monotonic(), None
        with open(self.work / "stdout", "w+b") as out, open(self.work / "stderr", "w+b") as err:
            process = self.start(command, environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            try:
                code = process.wait(max(1, min(seconds, self.left())))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            printed = []
            for stream in (out, err):
                stream.seek(0)
                printed.append(stream.read().decode(errors="replace"))
        self.log.write(f"$ {' '.join(map(str, command))}\n{printed[0]}{printed[1]}[exit {code}, {time.monotonic() - begin:.1f} s]\n\n")
        self.log.flush()
        return code, *printed

    def program(self, name, *arguments, seconds):
        """Calls a packed program."""
        return self.call([HERE / "bin" / name, *arguments], seconds)

    def lacks_gb(self, size):
        """What a model of that shape in bf16 takes on the disk."""
        return (2 * self.manifest["params"][size] - shutil.disk_usage(self.work).free) / 1e9

    def make_model(self, size):
        """Begins to write random weights of that shape during the rows, unless that was done or begun."""
        if size in self.making or (self.work / f"model-{size}").exists() or self.lacks_gb(size) > 0:
            return
        unfinished = self.work / f"model-{size}.new"
        shutil.rmtree(unfinished, ignore_errors=True)  # of a call that was killed
        log = open(self.work / f"init-{size}.txt", "wb")
        self.making[size] = self.start(["nice", HERE / "bin/forebay", "init", f"--config={HERE}/data/{size}.json", f"--out={unfinished}"],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def remove_model(self, size):
        """Removes what there is of it."""
        process = self.making.pop(size, None)
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in (f"model-{size}", f"model-{size}.new"):
            shutil.rmtree(self.work / name, ignore_errors=True)

    def model(self, size, seconds):
        """Its folder; Failed if it is not there in that time."""
        self.make_model(size)
        if size in self.making:
            try:
                code = self.making[size].wait(max(1, min(seconds, self.left())))
            except subprocess.TimeoutExpired:
                raise Failed(f"its random weights are not there after {seconds} s") from None
            del self.making[size]
            if code != 0:
                raise Failed(f"forebay init: {last_line((self.work / f'init-{size}.txt').read_text(errors='replace'))}")
            (self.work / f"model-{size}.new").rename(self.work / f"model-{size}")
        elif not (self.work / f"model-{size}").exists():
            raise LeftOut(f"the disk has {self.lacks_gb(size):.1f} GB less than its random weights take")
        return self.work / f"model-{size}"


class Failed(Exception):
    """A row that has no result, and why."""


class LeftOut(Exception):
    """A row that this machine has nothing for, and why."""


def last_line(text):
    """The last line of what a program said."""
    return (text.strip().splitlines() or ["it says nothing"])[-1].strip()


def json_of(machine, name, *arguments, seconds):
    """The document that a program prints."""
    code, out, err = machine.program(name, *arguments, seconds=seconds)
    document = out.strip()
    if name == "forebay":  # an error may follow the document
        document = document.split("\n", 1)[0]
    if code is None:
        raise Failed(f"{name} ran longer than {seconds} s")
    if not document or (code != 0 and name != "forebay"):
        raise Failed(last_line(err))
    try:
        return json.loads(document)
    except ValueError:
        raise Failed(f"{name} prints no JSON: {document[:200]}") from None


# ---- What rows do: each gives its part of the report, or raises one of the two ------------------------------------------


def libraries(machine, seconds):
    """What the programs themselves found; without it nothing else is worth a second."""
    _, version, _ = machine.program("forebay", "--version", seconds=seconds)
    checks = json_of(machine, "forebay", "doctor", "--json", f"--dir={machine.work}", seconds=seconds).get("checks", [])
    found = {"version": version.strip(), "checks": [check for check in checks if check["group"] == "gpu"],
             "disk_free_gb": shutil.disk_usage(machine.work).free / 1e9}
    bad = [f"{check['id']}: {check['value']}. {check.get('fix', '')}" for check in found["checks"] if check["verdict"] == "fail"]
    if not any(check["id"] == "card" for check in found["checks"]):
        bad.append(f"no card: {version.strip()}")
    if bad:
        raise Failed("; ".join(bad))
    return found


def suite(name, prefix=(), arguments=()):
    """A row's work: a test program, of which no test may be skipped."""
    def run(machine, seconds):
        if prefix and shutil.which(prefix[0]) is None:
            raise LeftOut(f"{prefix[0]} is not installed")
        code, out, err = machine.call([*prefix, HERE / "bin" / name, *FILTERS.get(name, ()), *arguments], seconds)
        counts = {word.lower(): int(number) for word, number in re.findall(r"^\[\s+(PASSED|SKIPPED)\s+\] (\d+) tests?", out, re.M)}
        result = {"passed": counts.get("passed", 0), "skipped": counts.get("skipped", 0)}
        reasons = {reason.strip() for reason in re.findall(r"^.*: Skipped\n(.+)$", out, re.M)} - set(MAY_BE_SKIPPED)
        failures = sorted(set(re.findall(r"^\[  FAILED  \] ([\w./]+)", out, re.M)))
        if code is None:
            raise Failed(f"ran longer than {seconds:.0f} s, in {last_line(out)}", result)
        if code != 0:
            raise Failed(", ".join(failures) or last_line(err or out), result)
        if reasons or (result["skipped"] > 0 and result["passed"] == 0):
            raise Failed(f"{result['skipped']} tests were skipped: {'; '.join(sorted(reasons)) or 'they do not say why'}", result)
        return result
    return run


def operators(machine, seconds):
    """Every operator and copy."""
    return json_of(machine, "cuda_ops", *(["--tiny"] if machine.tiny else []), seconds=seconds)


def with_torch(script):
    """A row's work: one of our programs for PyTorch, with its own libraries."""
    def run(machine, seconds, *arguments):
        device = "cpu" if machine.tiny else "cuda"
        code, out, err = machine.call([sys.executable, HERE / "data" / script, device, *arguments], seconds, dict(os.environ))
        if machine.tiny and "No module named" in err:
            raise LeftOut(last_line(err))
        if code != 0:
            raise Failed("it ran too long" if code is None else last_line(err))
        return json.loads(out)
    return run


def torch_operators(machine, seconds):
    """PyTorch's, at the shapes of ours."""
    ours = machine.rows.get("operators", {})
    if "shape" not in ours:
        raise LeftOut("there is nothing of ours to compare it with")
    theirs = with_torch("torch_ops.py")(machine, seconds, json.dumps(ours["shape"]))
    speeds = {row["name"]: theirs["ms"][row["name"]] / row["ms"] for row in ours["operators"] if row["name"] in theirs["ms"]}
    return {**theirs, "times_torch": speeds}


def train(size, *flags):
    """A row's work: tokens per second of some steps, and what the plan said of a step before."""
    def run(machine, seconds):
        begin, model = time.monotonic(), machine.model(size, seconds)
        shape = machine.manifest["runs"][size]
        out = machine.work / "run"
        shutil.rmtree(out, ignore_errors=True)
        settings = [f"--model={model}", f"--out={out}", "--device=cuda", *(f"--{key}={shape[key]}" for key in ("batch", "seq", "accum")),
                    "--durability=none", "--export=none", *flags]
        try:
            forecast = json_of(machine, "forebay", "plan", *settings, "--measure", "--format=json", seconds=seconds).get("forecast") or {}
            trace = [f"--trace={machine.work}/trace.json"] if size == "1b" else []
            code, _, err = machine.program("forebay", "train", *settings, *trace, f"--data={HERE}/data/tokens.fbd",
                                           f"--steps={shape['steps']}", "--lr=1e-5", seconds=seconds - (time.monotonic() - begin))
            if code != 0:
                raise Failed("it ran too long" if code is None else last_line(err))
            with open(out / "metrics.jsonl", encoding="utf-8") as file:
                steps = [json.loads(line) for line in file]
        finally:
            shutil.rmtree(out, ignore_errors=True)
        # The first step has no update to apply, the last one two.
        step_s = statistics.median(step["step_s"] for step in steps[1:-1])
        tokens = shape["batch"] * shape["seq"] * shape["accum"]
        return {"tokens_per_s": tokens / step_s, "step_s": step_s, "forecast_s": forecast.get("step_s"),
                "losses": [step["loss"] for step in steps]}
    return run


def generate(size):
    """A row's work: new tokens of a model that was made here."""
    def run(machine, seconds):
        model = machine.model(size, seconds)
        shutil.copy(HERE / "data/tokenizer.json", model)
        code, out, err = machine.program("forebay", "generate", f"--model={model}", "--device=cuda", "--prompt=1 2 3 4 5 6 7 8",
                                         f"--max_tokens={4 if machine.tiny else 64}", "--format=json", seconds=seconds)
        if "Python package" in err:
            raise LeftOut(last_line(err))
        if code != 0:
            raise Failed("it ran too long" if code is None else last_line(err))
        return {"speed": json.loads(out.strip().splitlines()[0])}
    return run


def transformers_step(machine, seconds):
    """A step of transformers' own Llama: the same shape and tokens, sdpa, a fused AdamW."""
    return with_torch("transformers_step.py")(machine, seconds, HERE / "data/1b.json", json.dumps(machine.manifest["runs"]["1b"]))


def torch_package(machine, seconds):
    """The tests of forebay.torch that need a GPU."""
    code, out, err = machine.call([sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--basetemp={machine.work}/pytest",
                                   HERE / "python/tests/test_torch_cuda.py"], seconds, machine.python_environment)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped)", last_line(out))}
    result = {"passed": counts.get("passed", 0), "skipped": counts.get("skipped", 0)}
    if machine.tiny and "No module named" in out + err:
        raise LeftOut("no PyTorch here")
    if code != 0:
        raise Failed("it ran too long" if code is None else last_line(out or err), result)
    skipped = [line for line in re.findall(r"^SKIPPED .*", out, re.M) if not any(reason in line for reason in MAY_BE_SKIPPED)]
    if not machine.tiny and skipped:
        raise Failed(f"tests were skipped: {'; '.join(skipped)}", result)
    return result


class Row:
    """`seconds`: at most, and as many as the budget has to have left. `model`: the size of the one that it reads."""

    def __init__(self, name, seconds, work, needs=(), model=None):
        self.name, self.seconds, self.work, self.needs, self.model = name, seconds, work, needs, model


def all_rows(manifest):
    """In their order: what is small and fundamental first, and what compares before what is merely more. No run has a swap
    area, and a model is gone after the last row that reads it."""
    in_ram = ("--weights_tier=host", "--state_tier=host")
    on_gpu = ("--weights_tier=host", "--state_tier=gpu")

    def training(name, size, seconds, *flags):
        return Row(name, seconds, train(size, *flags), ("forebay",), size)

    rows = [Row("libraries", 25, libraries, ("forebay",))]
    rows += [Row(name, 15, suite(name), (name,)) for name in ("ptx_test", "device_test", "gpu_matmul_test", "update_device_test")]
    rows += [Row("operators", 40, operators, ("cuda_ops",)),
             Row("operators of PyTorch", 40, torch_operators, ("cuda_ops",))]
    rows += [Row(name, 30, suite(name), (name,)) for name in ("model_cuda_attention_test", "model_cuda_test", "cuda_decoder_test")]
    rows += [training("train 1B, state in RAM", "1b", 60, *in_ram), training("train 1B, state on the GPU", "1b", 50, *on_gpu),
             Row("transformers 1B", 60, transformers_step, ("transformers_step.py",)),
             training("train 3.2B in 12 GiB of GPU memory", "3b", 80, *in_ram, *([] if manifest["tiny"] else ["--gpu_mem=12GiB"]))]
    rows += [Row(f"{tool}: {name}", 30, suite(name, TOOLS[tool]), (name,))
             for tool in ("memcheck", "racecheck") for name in ("ptx_test", "update_device_test")]
    rows += [Row(f"ncu: {name}", 20, suite(name, TOOLS["ncu"]), (name,)) for name in ("model_cuda_attention_test", "update_device_test")]
    rows += [Row("generate 3.2B", 25, generate("3b"), ("forebay",), "3b"),
             training("train 7B with int8-moments", "7b", 110, *in_ram, "--layout=int8-moments")]
    rows += [Row(name, 30, suite(name), (name,)) for name in ("c_device_layers_test", "offloaded_optimizer_test", "gpu_run_test")]
    rows += [Row("forebay.torch", 60, torch_package, ("forebay.torch",))]
    return [row for row in rows if all(item in manifest["items"] for item in row.needs)]


# ---- The run --------------------------------------------------------------------------------------------------------------


class Report:
    """The rows that are there, in files that are whole after each."""

    def __init__(self, out, manifest):
        self.out, self.manifest = out, manifest
        # Next to the programs too: a later call may have another folder for its results.
        self.files = [out / "gpu-check.jsonl", HERE / "rows.jsonl"]
        self.rows = {}
        for file in self.files:
            if file.exists():
                lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
                self.rows.update({row["name"]: row for row in map(json.loads, (line for line in lines if line.endswith("\n")))})
        for file in self.files:  # without a line that was cut off
            file.write_text("".join(json.dumps(row) + "\n" for row in self.rows.values()), encoding="utf-8")

    def add(self, row):
        """Written to the disk when this returns."""
        self.rows[row["name"]] = row
        for file in self.files:
            with open(file, "a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
                out.flush()
                os.fsync(out.fileno())
        page = self.out / "gpu-check.md.new"
        page.write_text(page_of(self.rows, self.manifest), encoding="utf-8")
        page.replace(self.out / "gpu-check.md")
        print(f"{row['verdict']:9} {row['seconds']:6.1f} s  {row['name']}{'  ' + row['why'] if row.get('why') else ''}", flush=True)

    def is_done(self, name):
        """False also for what was left out: there may be time for it now."""
        return self.rows.get(name, {}).get("verdict", "left out") != "left out"


def result_of(machine, row):
    """The row's part of the report."""
    begin = time.monotonic()
    verdict, why, found = "passed", "", {}
    try:
        if machine.left() < row.seconds:
            raise LeftOut(f"it may take {row.seconds} s, and {max(0, machine.left()):.0f} are left of the budget")
        found = row.work(machine, row.seconds)
    except LeftOut as error:
        verdict, why = "left out", str(error)
    except Failed as error:
        verdict, why, found = "failed", str(error.args[0]), error.args[1] if len(error.args) > 1 else {}
    except (OSError, ValueError, KeyError, statistics.StatisticsError) as error:
        verdict, why = "failed", f"{type(error).__name__}: {error}"
    return {"name": row.name, "verdict": verdict, "why": why, "seconds": round(time.monotonic() - begin, 1), **found}


def hold_a_context(machine):
    """A process that keeps the driver awake: without one each program of the pack waits for it to load."""
    program = ("import ctypes, time\ncuda = ctypes.CDLL('libcuda.so.1')\ncuda.cuInit(0)\ncontext = ctypes.c_void_p()\n"
               "cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)\ntime.sleep(3600)\n")
    return machine.start([sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def keep_models(machine, rows):
    """Makes those that `rows` read, during them, and removes others."""
    for size in machine.manifest["params"]:
        if any(row.model == size for row in rows):
            machine.make_model(size)
        else:
            machine.remove_model(size)


def run_rows(machine, report):
    """All of them; ends early if there is no GPU that can be used."""
    rows = all_rows(machine.manifest)
    for i, row in enumerate(rows):
        if not report.is_done(row.name):
            report.add(result_of(machine, row))
        if report.rows["libraries"]["verdict"] != "passed":
            return
        keep_models(machine, [other for other in rows[i + 1:] if other.model is not None and not report.is_done(other.name)])


def run(out, work, budget_s):
    """The command `run`; its exit code."""
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    machine = Machine(out, work, budget_s)
    report = Report(out, machine.manifest)
    machine.rows = report.rows
    holder = hold_a_context(machine)
    try:
        run_rows(machine, report)
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        for size in list(machine.making):
            if machine.making[size].poll() == 0:
                machine.model(size, 1)  # for the next call
            else:
                machine.remove_model(size)
    left_out = [name for name, row in report.rows.items() if row["verdict"] == "left out"]
    bad = [name for name, row in report.rows.items() if row["verdict"] == "failed"]
    if left_out:
        print(f"gpu-check: left out: {', '.join(left_out)}; the same call again goes on with them")
    if bad:
        print(f"gpu-check: failed: {', '.join(bad)}; {out / 'log.txt'} has all that was printed")
    return 1 if bad else 0


# ---- The page -------------------------------------------------------------------------------------------------------------


def cell(value):
    """A number as people read it."""
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def table(heading, rows):
    """Markdown."""
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    return lines + ["| " + " | ".join(cell(value).replace("|", "/") for value in row) + " |" for row in rows] + [""]


def operator_lines(ops, theirs):
    """The part of the page on operators and copies."""
    roofs, copies, speeds = ops["roofs"], ops["copies"], theirs.get("times_torch", {})
    lines = [f"Roofs of this run: {cell(roofs['tflops_per_s'])} TFLOP/s (a large bf16 product), {cell(roofs['gb_per_s'])} GB/s "
             f"(a copy on the card). PyTorch: {theirs.get('torch', 'not measured')}.", ""]
    lines += table(("operator", "ms", "TFLOP/s", "GB/s", "share of the roof", "times PyTorch's speed"),
                   [(row["name"], row["ms"], row["tflops_per_s"], row["gb_per_s"], row["share_of_roof"], speeds.get(row["name"]))
                    for row in ops["operators"]])
    if speeds:
        slowest = min(speeds, key=speeds.get)
        lines += [f"Against PyTorch: {statistics.geometric_mean(speeds.values()):.2f} times its speed in the geometric mean, least "
                  f"{speeds[slowest]:.2f} ({slowest}).", ""]
    others = [(name, ms) for name, ms in theirs.get("ms", {}).items() if "[" in name]
    if others:
        lines += table(("PyTorch's attention by backend", "ms"), others)
    keys = ("to_device_gb_per_s", "to_host_gb_per_s", "both_gb_per_s")
    lines += table(("copies, GB/s", "to the card", "from it", "both"),
                   [(name, *(copies[kind][key] for key in keys)) for name, kind in (("one large", "raw"), ("layers", "layers"))])
    return lines + [f"Layers have {copies['share_of_raw']:.2f} of the bandwidth of one large copy, both directions together.", ""]


def page_of(rows, manifest):
    """All of them, as Markdown."""
    checks = rows.get("libraries", {}).get("checks", [])
    card = next((check["value"] for check in checks if check["id"] == "card"), "no card")
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    lines = [f"# forebay on {card}", "", f"{today}, commit {manifest['commit'] or 'unknown'}. "
             + " ".join(f"{check['id']}: {check['value']}." for check in checks), ""]
    if manifest["tiny"]:
        lines += ["Tiny shapes on an emulated GPU: the times mean nothing.", ""]
    lines += table(("row", "verdict", "seconds", "passed", "skipped", "why"),
                   [(row["name"], row["verdict"], row["seconds"], row.get("passed"), row.get("skipped"), row["why"]) for row in rows.values()])
    if "operators" in rows.get("operators", {}):
        lines += operator_lines(rows["operators"], rows.get("operators of PyTorch", {}))
    trained = [(row["name"], row["tokens_per_s"], row["step_s"], row.get("forecast_s")) for row in rows.values() if "tokens_per_s" in row]
    for row in rows.get("transformers 1B", {}).get("steps", []):
        trained.append((f"transformers 1B, {row['name']}", row["tokens_per_s"], row["step_s"], None))
    if trained:
        lines += table(("training", "tokens/s", "s a step", "the plan said"), trained)
    return "\n".join(lines)
