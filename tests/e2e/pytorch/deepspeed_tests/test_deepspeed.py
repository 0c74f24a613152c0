"""forebay.deepspeed: configurations as they were published, DeepSpeed's own rates and scales, its engine's calls."""

import ast
import json
import pathlib
import re
import sys
import types

import pytest
import torch

import forebay
import forebay.torch
from forebay import deepspeed
from forebay.deepspeed import _schedules, _timers
from forebay.deepspeed._config import Config, Fp16
from forebay.deepspeed._scaler import LossScaler

FOLDER = pathlib.Path(__file__).resolve().parent
SEQUENCES = FOLDER.parents[2] / "train" / "sequences"
sys.path.insert(0, str(SEQUENCES))
import peers

CONFIGURATIONS = sorted(path for path in (FOLDER / "deepspeed_configs").iterdir() if path.name != "expected.json")


def summary_of(path):
    try:
        config = Config.read(path)
    except forebay.UsageError as error:
        return {"refused": str(error).replace(str(path), path.name)}
    return json.loads(json.dumps({**config._asdict(), "document": None}))


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_published_configurations(path):
    expected = json.loads((FOLDER / "deepspeed_configs" / "expected.json").read_text())
    assert summary_of(path) == expected[path.name]


def sequences_of(module):
    return [item for item in peers.read(__import__(module).FILE)]


@pytest.mark.parametrize("case", [item for item in json.loads((SEQUENCES / "schedule_sequences.json").read_text())
                                  if item["of"] == "deepspeed"], ids=lambda case: case["schedule"])
def test_rates_are_those_of_deepspeed(case):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=case["lr"], betas=(0.9, 0.999))
    schedule = _schedules.make(case["schedule"], case["args"], optimizer)
    for number, expected in enumerate(case["rates"]):
        group = optimizer.param_groups[0]
        assert [group["lr"], *group["betas"]] == pytest.approx(expected, rel=1e-12, abs=1e-18), number
        schedule.step()


@pytest.mark.parametrize("case", [item for item in json.loads((SEQUENCES / "scaler_sequences.json").read_text())
                                  if item["rules"] != "torch"])
def test_scales_are_those_of_deepspeed(case):
    scaler = LossScaler(Fp16(False, 0, case["initial_scale_power"], case["window"], case.get("hysteresis", 1),
                             case.get("consecutive_hysteresis", False), case["min_scale"]),
                        0 if case["rules"] == "stage0" else 2)
    for number, (overflowed, scale) in enumerate(zip(case["overflows"], case["scales"])):
        if number == case["error_at"]:
            with pytest.raises(forebay.NumericalError, match="Current loss scale already at minimum"):
                scaler.update(overflowed)
            return
        scaler.update(overflowed)
        assert scaler.cur_scale == scale, number


def make_model(dtype=torch.float32):
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.GELU(), torch.nn.Linear(33, 7)).to(dtype)


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 20, generator=generator), torch.randint(0, 7, (4,), generator=generator)


def train(engine, first, last):
    losses = []
    for step in range(first, last):
        inputs, labels = batch_of(step)
        loss = torch.nn.functional.cross_entropy(engine(inputs).float(), labels)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def config_of(tmp_path, stage=1, nvme=False, **more):
    zero = {"stage": stage}
    if nvme:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": str(tmp_path / "nvme")}
        if stage == 3:
            zero["offload_param"] = {"device": "nvme", "nvme_path": str(tmp_path / "nvme")}
    return {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.5, "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.01}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}, **more}


def engine_of(config, dtype=torch.float32):
    model = make_model(dtype)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def plain(steps, accumulation=1, by_torch=False):
    """The same loop without an engine. by_torch: with its optimizer and clipping, which round otherwise."""
    model = make_model()
    if by_torch:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.01)
    else:
        optimizer = forebay.torch.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), clip=0.5)
    schedule = _schedules.make("WarmupLR", {"warmup_num_steps": 4}, optimizer)
    losses = []
    for step in range(steps):
        inputs, labels = batch_of(step)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        (loss / accumulation).backward()
        if (step + 1) % accumulation == 0:
            if by_torch:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("stage", "where"), [
    (0, None), (1, None), (1, "cpu"), (1, "nvme"), (2, None), (2, "cpu"), (2, "nvme"), (3, None), (3, "nvme")])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_all_stages_have_the_bits_of_a_plain_loop(tmp_path, stage, where, accumulation):
    config = config_of(tmp_path, stage, where == "nvme", gradient_accumulation_steps=accumulation)
    if where == "cpu":
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    engine = engine_of(config)
    losses = train(engine, 0, 8)
    assert losses == plain(8, accumulation)
    assert losses == pytest.approx(plain(8, accumulation, by_torch=True), rel=1e-5)
    assert engine.global_steps == 8 // accumulation and engine.was_step_applied()
    engine.destroy()


@pytest.mark.parametrize(("stage", "nvme"), [(2, False), (3, True)])
def test_fp16_skips_steps_that_overflow(tmp_path, capsys, stage, nvme):
    engine = engine_of(config_of(tmp_path, stage, nvme, steps_per_print=4, fp16={
        "enabled": True, "auto_cast": True, "initial_scale_power": 20, "hysteresis": 2}))
    scales, applied = [], []
    for step in range(12):
        train(engine, step, step + 1)
        scales.append(engine.optimizer.cur_scale)
        applied.append(engine.was_step_applied())
    assert not applied[0] and applied[-1] and scales[0] == 2.0**20 and scales[-1] < 2.0**20
    assert engine.skipped_steps == applied.count(False)
    assert engine.lr_scheduler.last_batch_iteration == applied.count(True) - 1
    assert "step=4, skipped=" in capsys.readouterr().out
    engine.destroy()


def test_fp16_with_a_scale_of_2_to_the_32_skips_steps_until_it_fits(tmp_path):
    config = config_of(tmp_path, 2, fp16={"enabled": True, "auto_cast": True, "initial_scale_power": 32,
                                          "hysteresis": 1, "loss_scale_window": 5})
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    engine = engine_of(config)
    model = make_model(torch.float16)
    optimizer = forebay.torch.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), clip=0.5)
    schedule = _schedules.make("WarmupLR", {"warmup_num_steps": 4}, optimizer)
    for step in range(40):
        scale, num_skipped = engine.optimizer.cur_scale, engine.skipped_steps
        inputs, labels = batch_of(step)
        loss = torch.nn.functional.cross_entropy(model(inputs.half()).float(), labels)
        assert train(engine, step, step + 1) == [loss.item()], step
        (loss * scale).backward()
        overflows = not all(torch.isfinite(p.grad).all() for p in model.parameters())
        assert (engine.skipped_steps > num_skipped) == overflows, step
        if not overflows:
            optimizer.step_scaled(scale)
            schedule.step()
        optimizer.zero_grad()
    assert engine.skipped_steps >= 32 - 20 and engine.skipped_steps < 25
    engine.destroy()


def of_deepspeed(path, names, **others):
    """Functions and classes of a file of DeepSpeed's, without the rest of it."""
    folder = peers.deepspeed_folder()
    if folder is None:
        pytest.skip("DeepSpeed is not installed, and FOREBAY_DEEPSPEED does not name its package")
    for node in ast.walk(ast.parse((pathlib.Path(folder) / path).read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names:
            exec(compile(ast.Module([node], []), node.name, "exec"), others)  # noqa: S102
    return [others[name] for name in names]


def reported(name, optimizer, step, skipped):
    """The line that DeepSpeed's engine prints of an optimizer of torch."""
    lines = []
    names = ["_report_progress", "get_lr", "get_mom", "_get_optimizer_param"]
    functions = of_deepspeed("runtime/engine.py", names,
                             log_dist=lambda text, ranks: lines.append(f"[Rank {ranks[0]}] {text}"))
    engine = types.SimpleNamespace(optimizer=optimizer, optimizer_name=lambda: name, skipped_steps=skipped)
    for function in functions:
        setattr(engine, function.__name__, types.MethodType(function, engine))
    engine._report_progress(step)
    return lines[0]


@pytest.mark.parametrize(("name", "settings"), [
    ("AdamW", {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.01}), ("SGD", {"lr": 0.1, "momentum": 0.5}),
    ("Adagrad", {"lr": 0.01})])
def test_what_steps_per_print_prints_is_deepspeed_s_with_its_values(tmp_path, capsys, name, settings):
    theirs = getattr(torch.optim, name)(make_model().parameters(), **settings)
    rates = {"warmup_num_steps": 4, "warmup_max_lr": settings["lr"]}
    schedule = _schedules.make("WarmupLR", rates, theirs)
    engine = engine_of(config_of(
        tmp_path, 1, steps_per_print=2, optimizer={"type": name, "params": settings},
        scheduler={"type": "WarmupLR", "params": rates},
        fp16={"enabled": True, "auto_cast": True, "initial_scale_power": 20, "hysteresis": 1}))
    expected = [reported(name, theirs, 0, 0)]  # as it is made
    for step in range(1, 13):
        train(engine, step, step + 1)
        if engine.was_step_applied():
            schedule.step()
        if step % 2 == 0:
            expected.append(reported(name, theirs, step, engine.skipped_steps))
    assert [line for line in capsys.readouterr().out.splitlines() if "skipped=" in line] == expected
    assert 0 < engine.skipped_steps < 12
    engine.destroy()


class Clock:
    """Goes on by itself, by a second for each look at it."""

    def __init__(self):
        self.now = 1.0

    def time(self):
        self.now += 1
        return self.now

    perf_counter = time


def test_the_line_of_rates_is_deepspeed_s(monkeypatch):
    clock, memory, lines = Clock(), 3 << 29, []
    accelerator = types.SimpleNamespace(memory_allocated=lambda: memory, max_memory_allocated=lambda: 2 * memory)
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.utils", types.SimpleNamespace(logger=None))
    timer, = of_deepspeed("utils/timer.py", ["ThroughputTimer"], time=clock, TIME_EPSILON=1e-6,
                          get_accelerator=lambda: accelerator, PSUTILS_INSTALLED=False)
    theirs = timer(types.SimpleNamespace(enabled=True, synchronized=False), 4, steps_per_output=1,
                   logging_fn=lines.append)
    monkeypatch.setattr(_timers, "time", clock)
    monkeypatch.setattr(_timers, "memory_of_process", lambda: (memory, 2 * memory))
    ours = _timers.Timers(False)
    for micro_step in range(1, 11):
        is_step = micro_step % 2 == 0
        theirs.start()
        clock.now += 5 + micro_step
        theirs.stop(global_step=is_step)
        clock.now = 1.0
        with ours.phase("fwd"):
            clock.now += 4 + micro_step
        ours.end_micro_step(is_step)
        line = ours.rate(4) if is_step else None
        expected = lines.pop() if lines else None
        assert (line is None) == (expected is None), micro_step
        if line is not None:
            assert "=1.5GB, MaxMemAllocated=3.0GB" in line
            numbers = r"(?<==)[0-9.]+"
            assert re.sub(numbers, "#", line) == re.sub(numbers, "#", expected)
            for our, their in zip(re.findall(numbers, line), re.findall(numbers, expected)):
                assert float(our) == pytest.approx(float(their), rel=1e-5), (line, expected)


@pytest.mark.parametrize("nvme", [False, True])
def test_checkpoints(tmp_path, nvme):
    config = config_of(tmp_path, 1, nvme)
    engine = engine_of(config)
    train(engine, 0, 3)
    assert engine.save_checkpoint(str(tmp_path / "out"), client_state={"epoch": 2})
    expected = train(engine, 3, 6) if not nvme else plain(6)[3:]
    engine.destroy()
    again = engine_of(config)
    assert again.load_checkpoint(str(tmp_path / "none")) == (None, {})
    path, state = again.load_checkpoint(str(tmp_path / "out"))
    assert path.endswith("global_step3") and state == {"epoch": 2} and again.global_steps == 3
    assert train(again, 3, 6) == expected
    again.destroy()


def test_what_is_wrong_in_a_configuration_is_named(tmp_path):
    for change, text in (({"gradient_cliping": 1}, "Is gradient_clipping meant"),
                         ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage is 4"),
                         ({"zero_optimization": {"stage": 1, "offload_param": {"device": "nvme", "nvme_path": "x"}}},
                          "needs stage 3"),
                         ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "nvme_path is missing"),
                         ({"zero_optimization": {"stage": 1, "stages": 1}}, "zero_optimization.stages is not known"),
                         ({"train_batch_size": 7}, "Make them fit"),
                         ({"optimizer": {"type": "Lamb"}}, "has to be one of: Adam"),
                         ({"optimizer": {"type": "Adam", "params": {"learning_rate": 1}}},
                          "learning_rate is not known"),
                         ({"scheduler": {"type": "WarmupLR", "params": {"warmup": 1}}}, "scheduler.params.warmup"),
                         ({"scheduler": {"type": "WarmupDecayLR", "params": {}}}, "total_num_steps is missing"),
                         ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "Choose one")):
        with pytest.raises(forebay.UsageError, match=text):
            engine_of({**config_of(tmp_path), **change})
    for text, message in (('{"a": 1, "a": 2}', "twice"), ("{'a': }", "line 1"), ("[{}]", "is a list")):
        with pytest.raises(forebay.UsageError, match=message):
            Config.read(text)
    with pytest.raises(forebay.UsageError, match="cannot be read"):
        Config.read(tmp_path / "missing.json")
    engine = deepspeed.initialize(model=make_model(), config={"train_batch_size": 4})[0]
    with pytest.raises(forebay.UsageError, match="there is no optimizer"):
        engine.backward(engine(batch_of(0)[0]).mean())


def test_keys_of_deepspeed_0_19_are_known_and_those_that_cannot_be_on_are_refused(tmp_path):
    config = config_of(tmp_path, steps_per_print=float("inf"), tensor_parallel={"autotp_size": 1},
                       amp={"enabled": False}, checkpoint={"load_universal": False}, wandb={"enabled": False},
                       dataloader_drop_last=True, data_types={"grad_accum_dtype": None})
    assert Config.read(config).steps_per_print == 0  # accelerate has infinity for never
    for change, text in (({"tensor_parallel": {"autotp_size": 2}}, "autotp_size is 2: all ranks are data-parallel"),
                         ({"amp": {"enabled": True}}, "amp.enabled is true: Apex is not there"),
                         ({"zero_optimization": {"stage": float("inf")}}, "stage is Infinity"),
                         ({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}}, "zero_optimization.zenflow"),
                         ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, "moments are fp32")):
        with pytest.raises(forebay.UsageError, match=text):
            Config.read({**config, **change})


@pytest.mark.parametrize("nvme", [False, True])
def test_calls_that_are_asked_of_an_engine(tmp_path, capsys, nvme):
    engine = engine_of(config_of(tmp_path, 3, nvme, gradient_accumulation_steps=2, steps_per_print=2,
                                 wall_clock_breakdown=True))
    assert sum(p.numel() for p in engine.parameters()) == sum(p.numel() for p in make_model().parameters())
    assert engine.module in list(engine.modules()) and engine.append.__self__ is engine.module  # a name of the module
    assert engine.device.type == "cpu" and engine.local_rank == 0 and not engine.fp16_enabled()
    assert engine.get_global_grad_norm() is None and not engine.was_step_applied()
    assert engine.config["zero_optimization"]["stage"] == engine.zero_optimization_stage() == 3
    assert engine.train_batch_size() == 8 and engine.zero_gather_16bit_weights_on_model_save()
    assert engine._zero3_consolidated_16bit_state_dict().keys() == make_model().state_dict().keys()
    engine.offload_states()
    engine.reload_states()
    with pytest.raises(forebay.NotSupportedError, match="Call forward, backward and step"):
        engine.train_batch()
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = engine.no_such_name
    assert train(engine, 0, 8) == plain(8, 2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", lr")[0] for line in lines if "skipped=" in line] == [
        "[Rank 0] step=0, skipped=0", "[Rank 0] step=2, skipped=0", "[Rank 0] step=4, skipped=0"]
    assert [line for line in lines if "global_step=4, RunningAvgSamplesPerSec=" in line and "MaxMemAllocated=" in line]
    assert sum("time (ms) | fwd_microstep: " in line for line in lines) == 8
    times = [line for line in lines if "time (ms) | fwd: " in line]
    assert len(times) == 4 and all(float(part.split(": ")[1]) >= 0 for part in times[0].split(" | ")[1:])
    # Twice the micro-batches of a step, from here on.
    engine.set_train_batch_size(16)
    assert engine.gradient_accumulation_steps() == 4
    before = engine.global_steps
    train(engine, 8, 12)
    assert engine.global_steps == before + 1
    with pytest.raises(forebay.UsageError, match="Choose a multiple"):
        engine.set_train_batch_size(5)
    engine.destroy()


@pytest.mark.parametrize("nvme", [False, True])
def test_gradients_that_add_up_without_a_counter(tmp_path, nvme):
    """As accelerate sets it, with scale_wrt_gas=False; and in no_sync()."""
    runs = []
    for way in ("accelerate", "no_sync", "counted"):
        engine = engine_of(config_of(tmp_path / way, 3, nvme, gradient_accumulation_steps=2 if way == "counted" else 1))
        for step in range(0, 6, 2):
            for number in (step, step + 1):
                inputs, labels = batch_of(number)
                loss = torch.nn.functional.cross_entropy(engine(inputs), labels)
                if way == "counted":
                    engine.backward(loss)
                    engine.step()
                elif way == "accelerate":
                    engine.set_gradient_accumulation_boundary(number > step)
                    engine.backward(loss / 2, scale_wrt_gas=False)
                elif number > step:
                    engine.backward(loss / 2)
                else:
                    with engine.no_sync():
                        engine.backward(loss / 2)
                        with pytest.raises(forebay.UsageError, match=r"step\(\) inside no_sync"):
                            engine.step()
            if way != "counted":
                engine.step()
        runs.append((engine.global_steps, engine.get_global_grad_norm(), engine.state_dict()))
        engine.destroy()
    for steps, norm, state in runs[1:]:
        assert (steps, norm) == runs[0][:2] == (3, norm)
        assert all(torch.equal(tensor, state[name]) for name, tensor in runs[0][2].items())


@pytest.mark.parametrize("stage, nvme", [(0, None), (3, "nvme")])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, forebay.torch.AdamW], ids=str)
def test_the_optimizer_that_was_given_is_the_one_that_comes_back(tmp_path, stage, nvme, kind):
    zero = {"stage": stage, **({"offload_param": {"device": "nvme", "nvme_path": str(tmp_path)}} if nvme else {})}
    model = make_model()
    given = kind(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(given, 1, 0.5)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=given, lr_scheduler=schedule,
                                                   config={"zero_optimization": zero})
    assert optimizer is given is engine.optimizer and isinstance(given, forebay.torch.Optimizer)
    before = {name: weight.clone() for name, weight in engine.module_state_dict().items()}
    for step in range(2):
        inputs, labels = batch_of(step)
        engine.backward(torch.nn.functional.cross_entropy(engine(inputs), labels))
        engine.step()
    assert given.param_groups[0]["lr"] == 1e-2 / 4
    assert any(not torch.equal(weight, before[name]) for name, weight in engine.module_state_dict().items())
    engine.destroy()


class WithUnused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.uses_all = False

    def forward(self, x):
        return self.unused(self.used(x)) if self.uses_all else self.used(x)


@pytest.mark.parametrize("nvme", [False, True])
def test_parameters_without_a_gradient_are_an_error_if_the_configuration_says_so(tmp_path, nvme):
    zero = {"stage": 3 if nvme else 1, "ignore_unused_parameters": False,
            **({"offload_param": {"device": "nvme", "nvme_path": str(tmp_path)}} if nvme else {})}
    model = WithUnused()
    engine, *_ = deepspeed.initialize(model=model, config={
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": zero})
    before = {name: weight.clone() for name, weight in engine.module_state_dict().items()}
    engine.backward(engine(torch.ones(2, 4)).sum())
    with pytest.raises(forebay.UsageError, match="2 parameters got no gradient .*unused|param"):
        engine.step()
    assert all(torch.equal(weight, before[name]) for name, weight in engine.module_state_dict().items())
    model.uses_all = True
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


HJSON = """
{
  # as people write it
  train_batch_size: 8
  optimizer: {
    type: AdamW
    params: { lr: 1e-3, betas: [0.9, 0.95] }
  }
  zero_optimization: {
    stage: 3
    offload_param: {
      device: nvme
      nvme_path: %s
    }
  }
  // tags
  checkpoint: {
    tag_validation: Fail
  }
}
"""


def test_hjson_is_read_as_deepspeed_reads_it(tmp_path, monkeypatch):
    hjson = pytest.importorskip("hjson")
    path = tmp_path / "config.json"
    path.write_text(HJSON % tmp_path)
    config = Config.read(path)
    assert config.document == json.loads(json.dumps(hjson.loads(path.read_text())))
    assert (config.micro_batch, config.stage, config.weights_nvme) == (8, 3, str(tmp_path))
    assert config.optimizer_params == {"lr": 1e-3, "betas": [0.9, 0.95]} and config.tag_validation == "fail"
    with pytest.raises(forebay.UsageError, match="train_batch_size' twice"):
        Config.read("{\n train_batch_size: 8\n train_batch_size: 8\n}")
    with pytest.raises(forebay.UsageError, match="no JSON, Hjson or Python dict"):
        Config.read("{\n train_batch_size: [8\n")
    monkeypatch.setitem(sys.modules, "hjson", None)
    with pytest.raises(forebay.UsageError, match="install the Python package hjson"):
        Config.read(path)


def test_a_schedule_of_the_optimizer_that_was_given_moves_the_engine_s(tmp_path):
    def make():
        model = make_model()
        optimizer = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}],
                                      lr=0.2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule,
                                    config={"train_batch_size": 4})[0]

    engine = make()
    losses = train(engine, 0, 2)
    assert engine.get_lr() == pytest.approx([0.1 / 3, 0.2 / 3])
    engine.save_checkpoint(tmp_path)
    losses += train(engine, 2, 5)
    again = make()
    again.load_checkpoint(tmp_path)
    assert train(again, 2, 5) == losses[2:] and again.get_lr() == engine.get_lr()
    with pytest.raises(forebay.UsageError, match="amsgrad=True is not known"):
        deepspeed.initialize(model=make_model(), config={}, optimizer=lambda p: torch.optim.AdamW(p, amsgrad=True))
    decoupled = deepspeed.initialize(model=make_model(), config={}, optimizer=lambda p: torch.optim.Adam(
        p, decoupled_weight_decay=True))[1]
    assert decoupled.kind == "adamw"


def test_buffers_keep_their_type_but_for_those_of_batch_norms():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model.register_buffer("frequencies", torch.ones(3))
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_batch_size": 5, "bf16": {"enabled": True}, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}})[0]
    assert model.frequencies.dtype == torch.float32 and model[1].running_mean.dtype == torch.bfloat16
    engine.backward(engine(torch.ones(5, 3).bfloat16()).float().sum())
    engine.step()


@pytest.mark.parametrize("nvme", [False, True])
def test_compile(tmp_path, nvme):
    engine = engine_of(config_of(tmp_path, 3, nvme))
    engine.compile(backend="eager")
    assert engine.is_compiled and train(engine, 0, 4) == plain(4)
    engine.destroy()


def test_optimizers_by_deepspeed_s_names_are_optimizers_of_their_own():
    from forebay.deepspeed.ops import adagrad, adam, lion
    for make, kind in ((adam.DeepSpeedCPUAdam, "adamw"), (adam.FusedAdam, "adamw"), (lion.DeepSpeedCPULion, "lion"),
                       (lambda p: adam.FusedAdam(p, adam_w_mode=False, weight_decay=0.1), "adam"),
                       (adagrad.DeepSpeedCPUAdagrad, "adagrad")):
        model = make_model()
        optimizer = make(model.parameters())
        model(batch_of(0)[0]).square().mean().backward()
        before = model[0].weight.clone()
        optimizer.step()
        assert optimizer.kind == kind and not torch.equal(before, model[0].weight)
    for kind, settings in (("AdamW", (1e-3, 0.0, (0.9, 0.999))), ("Lion", (1e-3, 0.0, (0.9, 0.999)))):
        engine = engine_of({"train_batch_size": 4, "optimizer": {"type": kind}})
        group = engine.optimizer.param_groups[0]
        assert (group["lr"], group["weight_decay"], group["betas"]) == settings, kind
    with pytest.raises(forebay.UsageError, match="amsgrad"):
        adam.DeepSpeedCPUAdam(make_model().parameters(), amsgrad=True)


def test_a_script_with_arguments_a_torch_optimizer_and_training_data(tmp_path):
    import argparse
    (tmp_path / "config.json").write_text('{"train_batch_size": 2, # two\n "gradient_clipping": 0.5,}')
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", str(tmp_path / "config.json")])
    model = make_model()
    data = torch.utils.data.TensorDataset(*batch_of(0))
    engine, optimizer, loader, schedule = deepspeed.initialize(
        args=args, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), training_data=data)
    assert isinstance(optimizer, forebay.torch.SGD) and optimizer.param_groups[0]["momentum"] == 0.9
    assert schedule is None and len(loader) == 2
    for inputs, labels in loader:
        engine.backward(torch.nn.functional.cross_entropy(engine(inputs), labels))
        engine.step()
    assert engine.get_global_grad_norm() > 0 and engine.train_batch_size() == 2


def test_training_data_is_collated_as_the_script_says():
    model = make_model()
    inputs, labels = batch_of(0)

    def collate(rows):
        return {"inputs": torch.stack([row[0] for row in rows]), "labels": torch.stack([row[1] for row in rows])}

    engine, _, loader, _ = deepspeed.initialize(
        model=model, config={"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
        training_data=torch.utils.data.TensorDataset(inputs, labels), collate_fn=collate)
    seen = 0
    for batch in loader:
        assert batch.keys() == {"inputs", "labels"}
        engine.backward(torch.nn.functional.cross_entropy(engine(batch["inputs"]), batch["labels"]))
        engine.step()
        seen += len(batch["labels"])
    assert seen == len(labels)
