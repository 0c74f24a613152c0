"""Random combinations of the options of `train`, good and bad. Whatever is asked for, a run ends with 0 and the bits
that its mathematics give, or with a documented exit code, a message that names the option, and a run folder that is
untouched or goes on. It never crashes, hangs, or speaks of a bug.

FOREBAY_FUZZ_SEED chooses what is drawn ("random": something new), FOREBAY_FUZZ_CASE one case of it. FOREBAY_FULL draws
something new, and for longer; without it a change is judged by what the change before it was judged by."""

import itertools
import json
import os
import random
import shutil
import time

import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

ROWS = {16: 9, 32: 7}  # rows of data for each length
FULL = os.environ.get("FOREBAY_FULL") == "1"
SECONDS = 300 if FULL else 20
SECTIONS = {
    "data": "eval_data eval_every batch accum seq seed",
    "optim": "steps epochs stop_after lr warmup schedule schedule_args optimizer weight_decay decay_all param_groups betas eps "
    "momentum nesterov clip opt_level loss_scaling loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale",
    "offload": "nvme nvme_weights ram precision layout grad_dtype threads update_threads engine engine_strict io_threads tile_elems "
    "weights_tier state_tier activations_tier activations_dtype recompute recompute_layers number_checkpoints gradients durability",
    "io": "save_every keep export export_dtype",
}
SECTION_OF = {key: section for section, keys in SECTIONS.items() for key in keys.split()}


def mathematics(rng):
    """Settings that decide the bits."""
    steps = rng.randint(2, 5)
    precision = rng.choice(["bf16", "fp16", "fp32"])
    layout = rng.choice(["bf16", "bf16-moments", "int8-moments"]) if precision == "bf16" else precision
    optimizer = rng.choice(["adamw", "adamw", "adam", "adagrad", "lion", "sgd"])
    own = {"momentum": rng.choice([0.5, 0.9]), "nesterov": rng.choice([True, False])} if optimizer == "sgd" else {}
    if optimizer in ("adamw", "adam", "lion"):
        own |= dict(betas=rng.choice(["0.9,0.999", "0.8,0.95", "0,0"]))
    if optimizer in ("adamw", "adam", "adagrad"):
        own |= dict(eps=rng.choice([1e-8, 1e-4]))
    if rng.random() < 0.3:
        own |= dict(param_groups='[{"match": "*norm*", "lr": 1e-4}, {"match": "*embed*", "weight_decay": 0.3}]')
    if precision == "fp16":
        # The higher scales overflow.
        moving = dict(loss_scaling=rng.choice(["zero", "stage0", "torch"]), loss_scale_window=rng.randint(1, 2),
                      initial_scale_power=rng.choice([4, 16, 28]))
        own |= moving if rng.random() < 0.8 else dict(loss_scale=rng.choice([64, 1 << 40]))
    schedule = rng.choice(["constant", "linear", "cosine", "inverse_sqrt", "polynomial"])
    if schedule == "polynomial":
        own |= dict(schedule_args="power=2,end_lr=1e-5")
    return dict(
        optimizer=optimizer, layout=layout, **own, precision=precision, grad_dtype=rng.choice([precision, "bf16", "fp32"]),
        batch=rng.randint(1, 3), accum=rng.randint(1, 3), seq=rng.choice(list(ROWS)), steps=steps,
        lr=rng.choice([1e-3, 3e-4, 0.01]), schedule=schedule, warmup=rng.randint(0, 2),
        weight_decay=rng.choice([0, 0.01, 0.5]), decay_all=rng.choice([True, False]),
        clip=rng.choice([0, 0.3, 1]), seed=rng.choice([0, 1, 1 << 63]), activations_dtype=rng.choice(["fp32", "bf16"]),
    )


def activations(rng):
    """These go together, and a resume may have some of them from the start: all are said, or none."""
    drawn = dict(activations_tier=rng.choice(["ram", "nvme"]), recompute=rng.choice(["auto", "all", "attention", "none"]),
                 recompute_layers=0, number_checkpoints=0)
    if drawn["recompute"] in ("all", "attention"):
        drawn["recompute_layers"] = rng.choice([0, 1, 5])
    if drawn["recompute"] in ("auto", "all") and drawn["recompute_layers"] == 0 and drawn["activations_tier"] == "ram":
        drawn["number_checkpoints"] = rng.choice([0, 1, 2, 7])
    return drawn


def manner(rng, held_out, starts):
    """Settings that must not change a bit, some of them left out. `starts`: those of a start are among them."""
    drawn = dict(
        engine=rng.choice(["auto", "io_uring", "libaio", "threads", "buffered"]),
        engine_strict=rng.random() < 0.2, io_threads=rng.randint(1, 5), threads=rng.randint(0, 4), update_threads=rng.randint(0, 3),
        weights_tier=rng.choice(["auto", "host", "nvme"]), state_tier=rng.choice(["auto", "host", "nvme"]),
        ram=rng.choice(["1GiB", "1GiB", "300M", "110M", "98M", "auto"]),
        keep=rng.randint(1, 2), export_dtype=rng.choice(["bf16", "fp16", "fp32"]),
    )
    if rng.random() < 0.3:
        drawn |= dict(eval_data=held_out, eval_every=rng.randint(0, 2))
    if starts:
        drawn |= dict(tile_elems=rng.choice(["2048", "4K", "6144", "64K", "1M"]),
                      durability=rng.choice(["auto", "none", "step"]))
    kept = {key: value for key, value in drawn.items() if rng.random() < 0.6}
    if "eval_every" in kept and "eval_data" not in kept:
        del kept["eval_every"]
    if rng.random() < 0.6:
        kept |= activations(rng)
    # Speculation goes with some of the others alone, and a resume has it from the start where nothing else is said.
    if starts and rng.random() < 0.3:
        kept |= dict(gradients="speculate", weights_tier=rng.choice(["auto", "nvme"]), state_tier="nvme",
                     durability=rng.choice(["auto", "step"]))
    elif not starts and "host" in (kept.get("weights_tier"), kept.get("state_tier")):
        kept |= dict(gradients=rng.choice(["auto", "hold"]))
    # These two go together, and a resume may have one of them from the start.
    if rng.random() < 0.6:
        export = rng.choice(["hf", "none"])
        kept |= dict(export=export, save_every=rng.randint(0, 2) if export == "hf" else 0)
    return kept


def mistake(rng, settings):
    """One thing that cannot work: (changes, exit code, what the message names)."""
    steps = settings["steps"]
    other_seq = next(seq for seq in ROWS if seq != settings["seq"])
    layout = "fp32" if settings["precision"] == "bf16" else "bf16"
    return rng.choice([
        (dict(batch=rng.choice([0, -1, "x", 1 << 64, "1.5"])), 2, "batch"),
        (dict(accum=rng.choice([0, "", 1 << 40])), 2, "accum"),
        (dict(batch=60000, accum=60000), 2, "--batch=60000"),
        (dict(seq=rng.choice([1, 0, "many"])), 2, "seq"),
        (dict(seq=other_seq), 3, f"--seq={other_seq}"),
        (dict(lr=rng.choice(["nan", 0, -1, "inf", "1e400", 11])), 2, "lr"),
        (dict(warmup=steps + 1), 2, "--warmup"),
        (dict(schedule="sine"), 2, "schedule"),
        (dict(schedule_args=rng.choice(["zest=1", "zest"])), 2, "zest"),
        (dict(optimizer="adamax"), 2, "optimizer"),
        (dict(momentum=1.5), 2, "momentum"),
        (dict(param_groups=rng.choice(['[{"match": "*"}]', "{}", "*.bias"])), 2, "param_groups"),
        (dict(param_groups='[{"match": "zest", "lr": 0}]'), 2, "zest"),
        (dict(opt_level="O5"), 2, "opt_level"),
        (dict(loss_scale=-1), 2, "loss_scale"),
        (dict(min_loss_scale=0), 2, "min_loss_scale"),
        (dict(betas=rng.choice(["0.9", "1,0.9", "0.9,nan", "a,b"])), 2, "betas"),
        (dict(eps=rng.choice([0, -1, "inf"])), 2, "eps"),
        (dict(clip=rng.choice([-1, "nan"])), 2, "clip"),
        (dict(weight_decay=-1), 2, "weight_decay"),
        (dict(decay_all="maybe"), 2, "decay_all"),
        (dict(layout=layout), 2, "--layout"),
        (dict(grad_dtype="fp8"), 2, "grad_dtype"),
        (dict(ram=rng.choice(["4MiB", "96M"])), 4, "--ram"),
        (dict(ram="900T"), 4, "--ram"),
        (dict(ram=rng.choice(["0", "-1", "1XB"])), 2, "ram"),
        (dict(threads=rng.choice([-1, 1025])), 2, "threads"),
        (dict(io_threads=rng.choice([0, 257])), 2, "io_threads"),
        (dict(tile_elems=rng.choice([0, 3, 2049, 1 << 50])), 2, "tile_elems"),
        (dict(engine="floppy"), 2, "engine"),
        (dict(weights_tier="moon"), 2, "weights_tier"),
        (dict(recompute="none", recompute_layers=1, number_checkpoints=0), 2, "--set=recompute_layers=1"),
        (dict(recompute="attention", recompute_layers=0, number_checkpoints=2), 2, "--set=number_checkpoints=2"),
        (dict(save_every=-1), 2, "save_every"),
        (dict(keep=0), 2, "keep"),
        (dict(save_every=1, export="none"), 2, "--save_every=1 does not go with --export=none"),
        (dict(export="gguf"), 2, "export"),
        (dict(stop_after=-1), 2, "stop_after"),
        (dict(epochs=2), 2, "--steps and --epochs exclude one another"),
        (dict(eval_every=1), 2, "--eval_every=1 needs --eval_data"),
        (dict(eval_data="/nowhere/text.fbd"), 3, "/nowhere/text.fbd"),
        (dict(nvme="/dev/null/swap"), 2, "/dev/null"),
        (dict(nvme=rng.choice(["x,x", "x,,y"])), 2, "nvme"),
        (dict(nvme_weights=rng.choice(["0", "1,x", "nan"])), 2, "nvme_weights"),
        (dict(bacth=2), 2, "did you mean"),
    ])


def refusals(settings):
    """What the manner of a run may be refused for on a small or odd machine: {exit code: what the message names}."""
    allowed = {}
    if settings.get("engine_strict"):
        allowed[9] = "--engine_strict"
    if settings.get("ram") in ("110M", "98M"):
        allowed[4] = "--ram="
    return allowed


def spell(rng, settings, folder):
    """The settings as a user may write them: flags in either spelling, --set, a configuration; in any order."""
    groups, config = [], {}
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        section = SECTION_OF.get(key)
        way = rng.choice(["flag", "flag", "hyphens", "set", "section", "config"]) if section else "flag"
        if way == "config" and isinstance(value, (int, float)) and abs(value) < 1 << 53:
            config.setdefault(section, {})[key] = value
        elif way == "set":
            groups.append([f"--set={key}={text}"])
        elif way == "section":
            groups.append(["--set", f"{section}.{key}={text}"])
        elif way == "hyphens":
            groups.append([flag_of(key.replace('_', '-'), text)])
        else:
            groups.append([flag_of(key, text)])
    if config:
        path = folder / f"config-{len(os.listdir(folder))}.json"
        path.write_text("// drawn\n" + json.dumps(config))
        groups.append([f"--config={path}"])
    rng.shuffle(groups)
    return [word for group in groups for word in group]


class Case:
    """One run folder and everything that is done to it."""

    def __init__(self, forebay, task, references, seed, folder):
        self.forebay, self.task, self.references = forebay, task, references
        self.rng = random.Random(seed)
        self.settings = self.rng.choice(task["mathematics"])
        self.folder, self.out = folder, folder / "run"
        self.commands = []
        folder.mkdir()

    def train(self, changes, *flags, out=None):
        """A command with the settings of this case and `changes`. Its end is one of those in docs/cli.md."""
        settings = self.settings | changes
        paths = dict(model=self.task["model"], data=self.rows("data"), out=out or self.out)
        words = ["train", *flags, *spell(self.rng, paths | settings, self.folder)]
        self.commands.append(" ".join(map(str, words)))
        done = self.forebay.run(*words, check=False, timeout=60)
        for bad in ("CHECK", "Traceback", "terminate called", "Sanitizer"):
            assert bad not in done.stderr, done.stderr
        assert done.returncode in (0, 2, 3, 4, 9, 75), f"exit {done.returncode}\n{done.stderr}"
        assert done.stderr.count("forebay: error: ") == (0 if done.returncode in (0, 75) else 1), done.stderr
        return done

    def rows(self, of_what):
        return self.task[f"{of_what} {self.settings['seq']}"]

    def assert_refused(self, done, named_by_code):
        assert done.returncode in named_by_code, f"exit {done.returncode}, not {named_by_code}\n{done.stderr}"
        assert named_by_code[done.returncode] in done.stderr, done.stderr

    def digest(self):
        return self.forebay.digest(self.out)

    def expected(self):
        key = json.dumps(self.settings)
        if key not in self.references:
            # Other draws than those of the case, which would be others where the reference is known already.
            drawn, self.rng = self.rng, random.Random(key)
            out = self.folder / "reference"
            done = self.train(dict(ram="1GiB", threads=1, export="none"), out=out)
            assert done.returncode == 0, done.stderr
            self.references[key] = self.forebay.digest(out)
            self.rng = drawn
        return self.references[key]

    def fail_to_start(self):
        changes, code, named = mistake(self.rng, self.settings)
        self.assert_refused(self.train(dict(ram="1GiB") | changes), {code: named})
        assert not self.out.exists(), os.listdir(self.out)

    def fail_to_go_on(self):
        """Other mathematics, a start over a run, or something that cannot work: nothing changes."""
        before = self.digest()
        kind = self.rng.random()
        if kind < 0.4:
            key, value = self.rng.choice([("lr", 2e-3), ("seed", 7), ("batch", self.settings["batch"] + 1),
                                          ("clip", 0.7), ("steps", self.settings["steps"] + 1), ("betas", "0.5,0.5"),
                                          ("eps", 1e-6)])
            self.assert_refused(self.train({"ram": "1GiB", key: value}, "--resume"), {2: key})
        elif kind < 0.6:
            self.assert_refused(self.train(dict(ram="1GiB")), {2: "--out"})
        else:
            changes, code, named = mistake(self.rng, self.settings)
            # A run that exists has its swap area, and may have text to measure on.
            if not changes.keys() & {"nvme", "eval_every"}:
                self.assert_refused(self.train(dict(ram="1GiB") | changes, "--resume"), {code: named})
        assert self.digest() == before

    def begin(self, stop_after):
        """Starts the run, in whatever manner this machine allows."""
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            self.fail_to_start()
        while True:
            drawn = manner(self.rng, self.rows("held out"), starts=True) | self.swap_folders() | stop_after
            dry = ["--dry_run"] if self.rng.random() < 0.1 else []
            done = self.train(drawn, *dry)
            if done.returncode in (4, 9):
                self.assert_refused(done, refusals(drawn))
            if done.returncode not in (4, 9) and not dry:
                assert done.returncode == (75 if stop_after else 0), done.stderr
                return
            assert not self.out.exists()

    def swap_folders(self):
        """Folders of the swap area, with or without their shares; or none, which is OUT/swap."""
        number = self.rng.choice([0, 0, 1, 2, 3])
        if number == 0:
            return {}
        drawn = dict(nvme=",".join(str(self.folder / f"disk{i}") for i in range(number)))
        if self.rng.random() < 0.5:
            drawn |= dict(nvme_weights=",".join(str(self.rng.choice([1, 2.5, 7])) for _ in range(number)))
        return drawn

    def go_on(self, stop_after):
        if self.rng.random() < 0.5:
            self.fail_to_go_on()
        before = self.digest()
        while True:
            drawn = manner(self.rng, self.rows("held out"), starts=False) | stop_after
            done = self.train(drawn, "--resume")
            if done.returncode not in (4, 9):
                assert done.returncode == (75 if stop_after else 0), done.stderr
                return
            # What is not said again comes from the run's own settings.
            self.assert_refused(done, {4: "--ram=", 9: "--engine_strict"})
            assert self.digest() == before

    def run(self):
        expected = self.expected()
        stops = self.rng.choice([[], [], [1], [2], [1, 1], [1, 2]])
        while sum(stops) >= self.settings["steps"]:
            stops = stops[1:]
        for number, steps in enumerate([*stops, None]):
            (self.begin if number == 0 else self.go_on)({} if steps is None else dict(stop_after=steps))
        assert self.digest() == expected
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line["step"] > 0] == list(range(1, self.settings["steps"] + 1))


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    drawn = dict(model=make_model(forebay, folder / "model"))
    for seq, rows in ROWS.items():
        drawn[f"data {seq}"] = write_rows(folder / f"rows-{seq}.fbd", *random_rows(rows, seq, 256, seed=seq), 256)
        drawn[f"held out {seq}"] = write_rows(folder / f"held-{seq}.fbd", *random_rows(2, seq, 256, seed=1), 256)
    return drawn


def test_any_combination_of_options(forebay, task, tmp_path):
    chosen = os.environ.get("FOREBAY_FUZZ_SEED") or ("random" if FULL else "1")
    seed = random.SystemRandom().randrange(1 << 32) if chosen == "random" else int(chosen)
    print(f"seed {seed}")
    # Few, so that many runs have the same bits to reach.
    rng = random.Random(seed)
    task["mathematics"] = [mathematics(rng) for _ in range(6)]
    only = os.environ.get("FOREBAY_FUZZ_CASE")
    references, begin, num_commands = {}, time.monotonic(), 0
    for number in [int(only)] if only else itertools.count():
        if time.monotonic() - begin > SECONDS and number >= 5:
            break
        case = Case(forebay, task, references, f"{seed} {number}", tmp_path / str(number))
        try:
            case.run()
        except BaseException:
            print(f"repeat with: FOREBAY_FUZZ_SEED={seed} FOREBAY_FUZZ_CASE={number}")
            print("\n".join(case.commands))
            raise
        num_commands += len(case.commands)
        shutil.rmtree(case.folder)
    print(f"{number} cases, {num_commands} commands")
