"""An unchanged DeepSpeed trains with parameters and optimizer on NVMe, on forebay's operations: the bits of the same in
RAM."""

import os

os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")

import deepspeed
import forebay
import forebay.deepspeed_ops
import pytest
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder import PinMemoryBuilder
from deepspeed.utils.pin_memory import get_native_pinned_memory

vars(deepspeed.ops)["__compatible_ops__"] = {}  # nothing that has to be compiled
forebay.deepspeed_ops.install()

WIDTH, OUTPUTS, STEPS = 1024, 16, 4


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.head = torch.nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return self.head(x)


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory):
    path = tmp_path_factory.mktemp("rendezvous") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    deepspeed.init_distributed("gloo")


def train(dtype, offload_param, offload_optimizer, aio=None):
    """Losses of STEPS steps, and a weight's last value."""
    torch.manual_seed(0)
    config = {
        "train_batch_size": 4, "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "sub_group_size": 1_500_000, "stage3_param_persistence_threshold": 2000,
                              "offload_param": offload_param, "offload_optimizer": offload_optimizer},
        "bf16": {"enabled": dtype is torch.bfloat16}, **({"aio": aio} if aio else {})}
    model = Model()
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    assert type(optimizer.optimizer).__name__ == "DeepSpeedCPUAdam"
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(4, WIDTH, generator=generator).to(dtype)
        y = torch.randn(4, OUTPUTS, generator=generator)
        loss = (engine(x).float() - y).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        weight = model.head.weight.detach().clone().float()
    engine.destroy()
    return losses, weight


def nvme(path, **more):
    return {"device": "nvme", "nvme_path": str(path), **more}


IN_RAM = {"device": "cpu"}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_engine_gives_its_pinned_memory_back(monkeypatch, stage):
    monkeypatch.setenv("DS_PIN_MEMORY_BACKEND", "native")
    pins = get_native_pinned_memory()
    before = len(pins._ranges)
    model = Model()
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    if stage == 3:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_batch_size": 4, "zero_allow_untested_optimizer": True, "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
    engine.backward(engine(torch.ones(4, WIDTH)).square().mean())
    engine.step()
    addresses = list(pins._ranges)
    assert len(addresses) > before
    engine.destroy()
    # Stage 3 of DeepSpeed keeps the parameters' own, as long as there is the model.
    assert len(pins._ranges) < len(addresses) if stage == 3 else len(pins._ranges) <= before
    handle = PinMemoryBuilder().load().pin_handle()
    assert not any(handle.free_cpu_locked_tensor_by_ptr(address) for address in addresses
                   if address not in pins._ranges)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_zero3_on_nvme_has_the_bits_of_ram(tmp_path, dtype):
    if dtype is torch.float32 and not get_accelerator().is_fp16_supported():
        pytest.skip("where a CPU has no fp16, DeepSpeed rounds fp32 parameters on NVMe to bf16 (zero.Init._set_dtype)")
    losses, weight = train(dtype, IN_RAM, IN_RAM)
    assert losses[-1] != losses[0]
    parameters = nvme(tmp_path, buffer_count=6, buffer_size=4 * WIDTH * WIDTH)
    for name, optimizer, aio in [
            ("plain", nvme(tmp_path), None),
            ("pipelined", nvme(tmp_path, pipeline_read=True, pipeline_write=True, buffer_count=8),
             {"block_size": 65536, "queue_depth": 4, "intra_op_parallelism": 2, "overlap_events": False,
              "single_submit": True})]:
        found, last = train(dtype, parameters, optimizer, aio)
        assert found == losses, name
        assert torch.equal(last, weight), name
    assert any(path.stat().st_size >= 2 * WIDTH * WIDTH for path in tmp_path.rglob("*param.tensor.swp"))


def test_a_full_disk_ends_a_step_with_the_cause(tmp_path, monkeypatch):
    import resource

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
    try:
        with pytest.raises(forebay.StorageError, match="EFBIG"):
            train(torch.bfloat16, IN_RAM, nvme(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
