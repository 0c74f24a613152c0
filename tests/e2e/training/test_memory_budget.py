"""The budget is a hard one, whatever the model and the settings: what is drawn trains at its least legal --ram, in a control
group of that size where one can be had, and with one page less it is refused before it starts."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys

import pytest
from confined import in_group
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

pytestmark = pytest.mark.skipif(
    os.environ.get("FOREBAY_DEVICE") == "cuda", reason="the memory of an emulated GPU is the process's, to the kernel"
)
MIB = 1 << 20
PAGE = 4096
STEPS = 3
DRAWS = int(os.environ.get("FOREBAY_BUDGET_DRAWS", "6"))
SEED = int(os.environ.get("FOREBAY_BUDGET_SEED", str(random.SystemRandom().randrange(1 << 30))))


def draw_model(rng):
    """Mostly a small shape; now and then one whose embedding or whose layers are most of its memory."""
    heads = rng.choice([2, 4, 8])
    model = dict(hidden_size=heads * rng.choice([16, 32, 64]), num_attention_heads=heads,
                 num_key_value_heads=rng.choice([1, heads]), intermediate_size=rng.choice([64, 320, 1536]),
                 num_hidden_layers=rng.randint(1, 9), vocab_size=rng.choice([256, 1000, 20000]),
                 tie_word_embeddings=rng.random() < 0.5, max_position_embeddings=512)
    kind = rng.choice(["small"] * 8 + ["large vocabulary", "wide"])
    if kind == "large vocabulary":
        model |= dict(vocab_size=rng.choice([65537, 151936]), num_hidden_layers=rng.randint(1, 3))
    if kind == "wide":
        model |= dict(hidden_size=2048, num_hidden_layers=rng.randint(1, 2),
                      intermediate_size=rng.choice([64, 5632]))
    return model | draw_family(rng, model), kind != "small"


def draw_family(rng, model):
    """What another architecture has beside that shape."""
    family = rng.choice(["Llama", "Llama", "Mistral", "Qwen2", "Qwen3", "GPT2"])
    if family == "GPT2":
        names = dict(n_embd="hidden_size", n_layer="num_hidden_layers", n_head="num_attention_heads", n_inner="intermediate_size",
                     n_positions="max_position_embeddings")
        return dict(architectures=["GPT2LMHeadModel"], **{name: model[of_others] for name, of_others in names.items()})
    own = dict(Llama=dict(attention_bias=rng.random() < 0.5, mlp_bias=rng.random() < 0.5),
               Mistral=dict(sliding_window=rng.choice([17, 64])), Qwen3=dict(head_dim=rng.choice([32, 128])))
    return dict(architectures=[f"{family}ForCausalLM"], **own.get(family, {}))


def draw_activations(rng):
    settings = dict(activations_tier=rng.choice(["auto", "ram", "nvme"]), activations_dtype=rng.choice(["fp32", "bf16"]),
                    recompute=rng.choice(["auto", "all", "attention", "none"]))
    if settings["recompute"] in ("all", "attention"):
        settings["recompute_layers"] = rng.choice([0, rng.randint(1, 9)])
    in_ram = settings["activations_tier"] == "ram"
    if settings["recompute"] in ("auto", "all") and settings.get("recompute_layers", 0) == 0 and in_ram:
        settings["number_checkpoints"] = rng.choice([0, rng.randint(1, 9)])
    return settings


def draw_update(rng):
    precision = rng.choice(["bf16", "fp16", "fp32"])
    settings = dict(precision=precision, layout=precision, grad_dtype=rng.choice([precision, "bf16", "fp32"]),
                    optimizer=rng.choice(["adamw", "adamw", "adam", "adagrad", "lion", "sgd"]), clip=rng.choice([0, 1]),
                    durability=rng.choice(["none", "step"]), gradients=rng.choice(["auto", "hold"]))
    if precision == "bf16":
        settings["layout"] = rng.choice(["bf16", "bf16-moments", "int8-moments"])
    if settings["optimizer"] == "sgd":
        settings["momentum"] = rng.choice([0, 0.9])
    if settings["durability"] == "step" and rng.random() < 0.5:
        return settings | dict(gradients="speculate", speculate_layers=rng.choice([0, 1, 3]))
    return settings | dict(weights_tier=rng.choice(["auto", "nvme", "host"]), state_tier=rng.choice(["auto", "nvme", "host"]))


def draw_beside(rng, update):
    """What goes on beside the steps, and takes memory of its own. The rest of `update` is given."""
    settings = dict(export=rng.choice(["hf", "none"]), update_threads=rng.choice([0, 1, 3]), io_threads=rng.choice([1, 2, 5]),
                    engine=rng.choice(["auto", "threads", "io_uring", "libaio", "buffered"]))
    if settings["export"] == "hf":
        settings["save_every"] = rng.choice([0, 1])
    if update["durability"] == "step" and update["gradients"] != "speculate" and rng.random() < 0.3:
        settings |= dict(delay_update_from=2, commit_every=2, save_every=0)
    return settings


def draw(rng):
    """A model's shape and a run's settings."""
    model, is_large = draw_model(rng)
    settings = dict(batch=rng.choice([1, 2, 5]), accum=rng.choice([1, 2, 3]), seq=rng.choice([32, 100, 256]),
                    threads=rng.choice([1, 2, 3]), tile_elems=rng.choice(["2K", "64K", "1M"]))
    if is_large:  # in seconds
        settings |= dict(batch=rng.choice([1, 2]), accum=1, tile_elems=rng.choice(["64K", "1M"]))
    update = draw_update(rng)
    return model, settings | draw_activations(rng) | update | draw_beside(rng, update)


def group_of(limit_bytes):
    """in_group: what enters it has no more memory than that."""
    return in_group("memory", v1={"memory.limit_in_bytes": str(limit_bytes)},
                    v2={"memory.max": str(limit_bytes), "memory.swap.max": "0"})


def test_the_kernel_holds_the_draws_to_their_budget():
    """Where this is skipped they are measured alone."""
    with group_of(64 * MIB) as enter:
        too_much = [sys.executable, "-c", f"b'x' * {128 * MIB}"]
        assert subprocess.run(too_much, preexec_fn=enter).returncode == -signal.SIGKILL


def start(command, limit_bytes=None):
    """(exit code, most memory that it had, its errors), in a group of that size if it is said and can be had."""
    with contextlib.ExitStack() as stack:
        enter = None
        if limit_bytes is not None:
            with contextlib.suppress(pytest.skip.Exception):  # the test above says so
                enter = stack.enter_context(group_of(limit_bytes))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=enter)
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, usage.ru_maxrss * 1024, errors


def exact_least(command):
    """The least --ram in bytes, to the page, that does not end with 4: it ends with 0."""
    code, _, errors = start([*command, "--ram=1MiB"])
    assert code == 4, errors
    enough = int(re.findall(r"--ram=(\d+)MiB", errors)[-1]) * MIB
    too_little = enough - MIB
    while enough - too_little > PAGE:
        middle = (enough + too_little) // 2 // PAGE * PAGE
        code, _, errors = start([*command, f"--ram={middle}"])
        assert code in (0, 4), errors
        enough, too_little = (middle, too_little) if code == 0 else (enough, middle)
    return enough


@pytest.mark.parametrize("number", range(DRAWS))
def test_what_is_drawn_stays_inside_its_budget(forebay, tmp_path, number):
    print(f"FOREBAY_BUDGET_SEED={SEED} FOREBAY_BUDGET_DRAWS={DRAWS} repeats it")
    rng = random.Random(f"{SEED}-{number}")
    model, settings = draw(rng)
    print(model, settings)
    folder = make_model(forebay, tmp_path / "model", **model)
    rows = STEPS * settings["batch"] * settings["accum"]
    data = write_rows(tmp_path / "data.fbd", *random_rows(rows, settings["seq"], 256, seed=number), model["vocab_size"])
    flags = [flag_of(name, value) for name, value in settings.items()]
    if rng.random() < 0.3:
        flags += [f"--eval_data={data}", "--eval_every=1"]
    if rng.random() < 0.3:
        flags.append(f"--nvme={tmp_path / 'disk1'},{tmp_path / 'disk2'}")
    train = [forebay.binary, "train", f"--model={folder}", f"--data={data}", f"--out={tmp_path / 'run'}", f"--steps={STEPS}",
             *flags]
    least = exact_least([*train, "--dry_run"])

    code, _, errors = start([*train, f"--ram={least - PAGE}"])
    assert code == 4 and f"The least that works is --ram={-(-least // MIB)}MiB" in errors
    assert not (tmp_path / "run").exists()

    budget = least + rng.choice([0, 0, PAGE, 3 * MIB, 40 * MIB])
    # Memory that was enough to begin is enough to go on.
    for more, expected in [(["--stop_after=1"], 75), (["--resume"], 0)] if rng.random() < 0.5 else [([], 0)]:
        code, peak, errors = start([*train, f"--ram={budget}", *more], budget)
        print(f"least {least / MIB:.2f} MiB, given {budget / MIB:.2f} MiB, peak {peak / MIB:.2f} MiB {more}")
        assert code == expected, errors
        assert peak <= budget

    look = [forebay.binary, "eval", f"--model={folder}", f"--data={data}", f"--batch={settings['batch']}",
            f"--threads={settings['threads']}", f"--precision={settings['precision']}"]
    least = exact_least(look)
    code, peak, errors = start([*look, f"--ram={least}"], least)
    assert code == 0, errors
    assert peak <= least
    shutil.rmtree(tmp_path)  # pytest keeps what large models leave
