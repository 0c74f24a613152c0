"""The keys of DeepSpeed's configurations: all that DeepSpeed has are known, values are read as it reads them, and all that
is wrong is told at once."""

import ast
import os
import pathlib
import sys

import pytest
import torch

import forebay
from forebay.deepspeed import _optimizers, _schedules
from forebay.deepspeed._config import Config
from forebay.deepspeed._table import KEYS, TABLE

SOURCE = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(SOURCE / "tests" / "train" / "sequences"))
import deepspeed_document
import peers

# Files of constants, and the section whose keys they are.
CONSTANTS = {"runtime/constants.py": "", "runtime/swap_tensor/constants.py": "aio.", "comm/constants.py": "comms_logger.",
             "runtime/data_pipeline/constants.py": "data_efficiency.", "profiling/constants.py": "flops_profiler.",
             "runtime/model_checkpointing/constants.py": "checkpoint.", "runtime/activation_checkpointing/config.py":
             "activation_checkpointing."}
# Constants of these files that are no keys of a configuration: routes, values, attributes of tensors, variables.
NO_KEYS = {"train", "eval", "predict", "encode", "mean", "sum", "ds_pipe_replicated", "data_parallel_group",
           "global_rank", "ddp_bf16", "WARN", "IGNORE", "FAIL", "nccl", "ccl", "mpi", "gloo", "sccl", "hccl", "54965",
           "^docker0,lo", "none", "auto"}
# Keys of sections of sections, which their own section has.
ELSEWHERE = {"enabled", "type", "params", "legacy_fusion", "max_grad_norm", "loss_scale", "auto_cast"}
MODELS = {"runtime/zero/config.py": {"DeepSpeedZeroConfig": "zero_optimization."},
          "runtime/zero/offload_config.py": {"DeepSpeedZeroOffloadParamConfig": "zero_optimization.offload_param.",
                                             "DeepSpeedZeroOffloadOptimizerConfig":
                                                 "zero_optimization.offload_optimizer."},
          "runtime/precision_config.py": {"DeepSpeedBF16Config": "bf16.", "DeepSpeedFP16Config": "fp16."},
          "runtime/config.py": {"HybridEngineConfig": "hybrid_engine."},
          "monitor/config.py": {"TensorBoardConfig": "tensorboard.", "WandbConfig": "wandb.", "CSVConfig":
                                "csv_monitor.", "CometConfig": "comet."},
          "compile/config.py": {"CompileConfig": "compile."}, "comm/config.py": {"CommsLoggerConfig": "comms_logger."},
          "runtime/tensor_parallel/config.py": {"TPTrainingConfig": "tensor_parallel."},
          "runtime/zero/leaf_module_config.py": {"DeepSpeedZeroLeafModuleConfig": "zero_optimization.leaf_module."},
          "utils/config.py": {"DeepSpeedThroughputTimerConfig": "timers.throughput."}}


def all_paths(keys=KEYS, section=""):
    for key, node in keys.items():
        yield section + key
        if isinstance(node, dict) and "keys" in node:
            yield from all_paths(node["keys"], f"{section}{key}.")


def is_known(path):
    keys = KEYS
    for name in path.split("."):
        node = keys.get(name, keys.get("*"))
        if node is None:
            return False
        keys = node.get("keys", {}) if isinstance(node, dict) else {"*": node}
    return True


def sources():
    folder = peers.deepspeed_folder()
    if folder is None:
        pytest.skip("DeepSpeed is not installed, and FOREBAY_DEEPSPEED does not name its package")
    return pathlib.Path(folder)


@pytest.mark.parametrize("file", CONSTANTS)
def test_every_constant_of_deepspeed_is_a_known_key(file):
    names = {path.rsplit(".", 1)[-1] for path in all_paths()} | {"data_sampling", "data_routing"}
    found = 0
    for node in ast.walk(ast.parse((sources() / file).read_text())):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        name, value = getattr(node.targets[0], "id", ""), node.value.value
        if not isinstance(value, str) or name.endswith(("_DEFAULT", "_FORMAT")) or "\n" in value or value in NO_KEYS:
            continue
        assert value in names | ELSEWHERE or is_known(CONSTANTS[file] + value), (name, value)
        found += 1
    assert found > 4


@pytest.mark.parametrize("file", MODELS)
def test_every_field_of_deepspeed_s_sections_is_a_known_key(file):
    for node in ast.walk(ast.parse((sources() / file).read_text())):
        if not isinstance(node, ast.ClassDef) or node.name not in MODELS[file]:
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign):
                continue
            given = {keyword.arg: keyword.value for keyword in getattr(field.value, "keywords", [])}
            for name in (field.target.id, *([given["alias"].value] if "alias" in given else [])):
                assert is_known(MODELS[file][node.name] + name), (node.name, name)


def test_keys_that_deepspeed_has_removed_are_known():
    for node in ast.walk(ast.parse((sources() / "runtime/config.py").read_text())):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").startswith("_REMOVED_"):
            section = "zero_optimization." if "_ZERO_" in node.targets[0].id else ""
            if isinstance(node.value, ast.Dict):
                assert all(is_known(section + key.value) for key in node.value.keys)


def test_the_documented_table_is_that_of_the_keys():
    document = SOURCE / "docs" / "deepspeed-keys.md"
    if os.environ.get("FOREBAY_WRITE_EXPECTED"):
        document.write_text(deepspeed_document.document_of(TABLE), encoding="utf-8")
    assert document.read_text(encoding="utf-8") == deepspeed_document.document_of(TABLE)


def notes_of(document):
    return "\n".join(Config.read(document).notes)


def test_auto_says_nothing():
    config = Config.read({
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
        "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto", "stage3_max_live_parameters": "auto"}})
    assert (config.micro_batch, config.accumulation, config.clip, config.bf16, config.fp16) == (None, 1, 0.0, False, None)
    assert (config.stage, config.reduce_bucket) == (0, None)
    kind, settings = _optimizers.configured(config.optimizer, config.optimizer_params)
    assert kind.kind == "adamw" and settings == {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = _schedules.make(config.scheduler, config.scheduler_params, optimizer)
    schedule.step(1000)
    assert schedule.get_lr() == [0.5]
    note, = (note for note in config.notes if '"auto"' in note)
    assert "zero_optimization.stage" in note and "optimizer.params.lr" in note and "max_live" not in note
    with pytest.raises(forebay.UsageError, match='total_num_steps is "auto", which says nothing, and WarmupDecayLR'):
        Config.read({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})


def test_other_names_and_values_are_those_of_deepspeed():
    assert Config.read({"bfloat16": {"enabled": True}}).bf16
    assert Config.read({"zero_optimization": True}).stage == 1 and Config.read({"zero_optimization": False}).stage == 0
    for off in (False, 0, "no", None):
        assert Config.read({"sparse_attention": {}, "elasticity": {"enabled": off}, "nebula": None, "amp": {"enabled": off},
                            "sequence_parallel_size": 1}).stage == 0
    fp16 = Config.read({"fp16": {"enabled": "true", "loss_scale": "dynamic", "hysteresis": "3"}}).fp16
    assert fp16.static_scale == 0 and fp16.hysteresis == 3
    for enabled in (1, "True", "yes", "on", "1", True):
        assert Config.read({"bf16": {"enabled": enabled}}).bf16, enabled
    for enabled in (0, "False", "no", "off", "0", False):
        assert not Config.read({"bf16": {"enabled": enabled}}).bf16, enabled
    for zero in ({"cpu_offload": True}, {"stage": 3, "cpu_offload_param": True}):
        assert Config.read({"zero_optimization": zero}).optimizer_nvme is None
    nvme = {"device": "nvme", "nvme_path": "/x"}
    assert Config.read({"offload_optimizer": nvme}).optimizer_nvme == "/x"
    assert Config.read({"communication_data_type": "BF16"}).reduce_dtype == "bf16"
    with pytest.raises(forebay.UsageError, match=r"bf16.enabled and bfloat16.enabled are one setting"):
        Config.read({"bf16": {"enabled": True}, "bfloat16": {"enabled": False}})


@pytest.mark.parametrize(("given", "kind", "decay"), [
    ({"type": "Adam"}, "adamw", 0.0), ({"type": "Adam", "params": {"torch_adam": True}}, "adamw", 0.01),
    ({"type": "Adam", "params": {"torch_adam": True, "adam_w_mode": False}}, "adam", 0.0),
    ({"type": "Adam", "params": {"adam_w_mode": False}}, "adam", 0.0),
    ({"type": "Adam", "params": {"adamw_mode": False}}, "adam", 0.0),
    ({"type": "AdamW", "params": {"adam_w_mode": False, "torch_adam": True, "weight_decay": 0.2}}, "adamw", 0.2)])
def test_an_adam_is_what_deepspeed_makes_of_it(given, kind, decay):
    config = Config.read({"optimizer": given})
    made, settings = _optimizers.configured(config.optimizer, config.optimizer_params)
    assert (made.kind, settings["weight_decay"]) == (kind, decay)


@pytest.mark.parametrize("given", [
    {"BF16": {"enabled": True}}, {"bf_16": {"enabled": True}}, {"b16": {"enabled": True}}, {"bf16": True},
    {"bf16": {"enable": True}}, {"bf16": {"Enabled": True}}, {"bf16": {"enabled": "treu"}}, {"bf16": {"enabled": 2}},
    {"torch_dtype": "bfloat16"}, {"precision": "bf16"}, {"enabled": True}, {"bf16": "enabled"}], ids=str)
def test_bf16_that_is_misspelled_is_an_error(given):
    with pytest.raises(forebay.UsageError):
        Config.read(given)


def test_a_schedule_of_no_steps_is_wrong_where_it_is_made_alone():
    """The Trainer of transformers fills in zeros when it evaluates."""
    config = Config.read({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 0, "warmup_num_steps": 0}}})
    with pytest.raises(forebay.UsageError, match="warmup_num_steps is 0"):
        _schedules.make(config.scheduler, config.scheduler_params,
                        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5))


def test_a_section_of_a_precision_that_is_not_enabled_is_told():
    for given in ({"bf16": {}}, {"bfloat16": {}}, {"fp16": {"loss_scale": 0}}):
        name, = given
        assert f'{name} is there without "enabled": true' in notes_of(given)
    assert "enabled" not in notes_of({"bf16": {"enabled": False}})


def test_all_problems_are_told_at_once():
    with pytest.raises(forebay.UsageError) as refused:
        Config.read({"gradient_cliping": 1, "fp16": {"enabled": 3, "hysteresis": 0}, "stage": 3,
                     "zero_optimization": {"stage": 7, "offload_optimizer": {"device": "nvme"}, "zenflow": {"a": 1}},
                     "optimizer": {"type": "Adam", "params": {"learning_rate": 1, "amsgrad": True}},
                     "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "warmup": 1}}})
    for text in ("11 problems with the configuration", "Is gradient_clipping meant?", "fp16.enabled is 3",
                 "fp16.hysteresis is 0", "stage is not known. Is zero_optimization.stage meant?",
                 "zero_optimization.stage is 7", "nvme_path is missing", "zero_optimization.zenflow is",
                 "learning_rate is not known. There are: lr, betas", "optimizer.params.amsgrad is true",
                 "scheduler.params.warmup is not known", "cycle_max_lr is missing"):
        assert text in str(refused.value), text
