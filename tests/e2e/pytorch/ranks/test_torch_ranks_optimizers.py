"""The optimizers alone on ranks, with their state in RAM or on disk: torch's optimizer with the mean of the
gradients."""

import ctypes
import os
import re

import forebay
import forebay.torch
import pytest
import torch
import torch_ranks_run  # noqa: F401 - what is preloaded
from forked_ranks import LATE_S, digest_of, errors_of, on_ranks
from torch import nn

SETTINGS = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
# As the optimizer gets them; a folder is added where there is a store.
BACKENDS = {"ram": {}, "nvme 0": {"zero_stage": 0}, "nvme 1": {"zero_stage": 1}, "nvme 3": {"zero_stage": 3}}
SHAPES = {"weight": (300, 20), "bias": (20,), "one": (70, 3), "none": (5000,), "scalar": ()}


class Parameters(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(4)
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape).to(dtype)))


def gradient_of(name, step, rank, dtype=torch.float32):
    """The second rank alone has one of "one", no rank has one of "none", and each in a step of its own of "scalar"."""
    if name == "none" or (name == "one" and rank != 1) or (name == "scalar" and step % 3 != rank):
        return None
    generator = torch.Generator().manual_seed(100 * step + 10 * rank + len(name))
    return torch.randn(SHAPES[name], generator=generator).to(dtype)


def mean_of(name, step, num_ranks, dtype):
    """A gradient that a rank has none of counts as zeros."""
    there = [gradient for rank in range(num_ranks) if (gradient := gradient_of(name, step, rank, dtype)) is not None]
    return sum(gradient.float() for gradient in there) / num_ranks if there else None


def reference(num_steps, clip=0.0, dtype=torch.float32, num_ranks=2):
    model = Parameters(dtype).float()
    optimizer = torch.optim.AdamW(model.parameters(), **SETTINGS)
    for step in range(num_steps):
        for name, parameter in model.named_parameters():
            parameter.grad = mean_of(name, step, num_ranks, dtype)
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def options_of(backend, folder, **others):
    """For a rank. Its store has some layers, among them one that no rank has a gradient of."""
    forebay.torch._in_store.MAX_LAYER_ELEMS = 6000
    return {**SETTINGS, **BACKENDS[backend], **({} if backend == "ram" else {"nvme": folder}), **others}


def train(backend, folder, num_steps, dtype=torch.float32, resume=False, user=None, name="AdamW", **others):
    """Steps up to that number, and a commit where there is a store."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    model = Parameters(dtype)
    optimizer = getattr(forebay.torch, name)(model.named_parameters(), ranks=ranks,
                                             **options_of(backend, folder, **others))
    resumed = optimizer.resume() if resume else None
    first = optimizer.layers.step if resume else 0
    norms = []
    for step in range(first, num_steps):
        optimizer.zero_grad()
        for key, parameter in model.named_parameters():
            parameter.grad = gradient_of(key, step, ranks.rank, dtype)
        optimizer.step()
        norms.append(optimizer.grad_norm)
    if backend != "ram":
        optimizer.commit(user)
    weights = {key: parameter.detach() for key, parameter in model.named_parameters()}
    state = optimizer.full_state_dict()
    end = {"weights": {key: value.float().numpy() for key, value in weights.items()}, "digest": digest_of(weights),
           "norms": norms, "resumed": resumed,
           "state": {number: {key: value.float().numpy() for key, value in each.items()}
                     for number, each in state["state"].items()}}
    optimizer.close()
    return end


def farthest(weights, expected):
    assert weights.keys() == expected.keys()
    return max((torch.as_tensor(weights[name]) - expected[name]).abs().max().item() for name in expected)


def same_on_ranks(ends):
    assert len({end["digest"] for end in ends}) == 1
    assert all(end["norms"] == ends[0]["norms"] for end in ends)
    return ends[0]


@pytest.mark.parametrize("clip", [0.0, 20.0])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_weights_are_those_of_the_mean_gradient(tmp_path, clip, num_ranks):
    expected = reference(6, clip, num_ranks=num_ranks)
    digests = set()
    for backend in BACKENDS:
        end = same_on_ranks(on_ranks(num_ranks, train, backend, tmp_path / backend, 6, clip=clip))
        assert farthest(end["weights"], expected) < 1e-5, backend
        assert torch.equal(torch.as_tensor(end["weights"]["none"]), Parameters().none.detach())
        assert (min(end["norms"]) < 20 < max(end["norms"])) or clip == 0 or max(end["norms"]) > clip
        digests.add(end["digest"])
    # Disk and RAM take norms of other pieces.
    assert len(digests) == 1 or clip > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_state_in_ram_that_is_divided_has_the_same_bits(tmp_path, dtype):
    ends = [same_on_ranks(on_ranks(3, train, "ram", None, 5, dtype, clip=20.0, zero_stage=stage)) for stage in (0, 1)]
    assert ends[0]["digest"] == ends[1]["digest"] and ends[0]["norms"] == ends[1]["norms"]
    for number, each in ends[0]["state"].items():
        for key, value in each.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(ends[1]["state"][number][key])), (number, key)


NUM_LARGE = 4_000_001


def memory_of_state(zero_stage):
    """The bytes of the moments that this rank holds, what a step has added to the memory of the process, and what it
    came to."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    parameter = nn.Parameter(torch.ones(NUM_LARGE))
    parameter.grad = torch.ones(NUM_LARGE)
    optimizer = forebay.torch.AdamW([parameter], ranks=ranks, zero_stage=zero_stage, **SETTINGS)
    before = resident_bytes()
    optimizer.step()
    grown = resident_bytes() - before
    held = sum(value.numel() * value.element_size() for value in optimizer.state[parameter].values() if value.dim() > 0)
    optimizer.close()
    return held, grown, digest_of({"parameter": parameter})


def resident_bytes():
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_each_rank_holds_its_part_of_the_state_in_ram():
    whole, parts = (on_ranks(2, memory_of_state, stage) for stage in (0, 1))
    assert [held for held, _, _ in whole] == [8 * NUM_LARGE] * 2
    assert [held for held, _, _ in parts] == [8 * (NUM_LARGE // 2 + 1), 8 * (NUM_LARGE // 2)]
    for (_, grown, _), (held, grown_by_part, _) in zip(whole, parts):
        assert grown - grown_by_part > 0.8 * held
    assert len({digest for ends in (whole, parts) for _, _, digest in ends}) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_of_two_bytes(tmp_path, backend, dtype):
    end = same_on_ranks(on_ranks(2, train, backend, tmp_path / "store", 4, dtype))
    expected = reference(4, dtype=dtype)
    rounded = {name: value.to(dtype).float() for name, value in expected.items()}
    for name, value in rounded.items():
        # A unit in the last place of the type, where a value lies between two.
        torch.testing.assert_close(torch.as_tensor(end["weights"][name]), value, rtol=1e-2 if dtype == torch.bfloat16
                                   else 2e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "Lion", "SGD"])
def test_the_other_optimizers_have_the_same_weights_everywhere(tmp_path, name):
    without = {"Adam": (), "Adagrad": ("betas",), "Lion": ("eps",), "SGD": ("betas", "eps")}[name]
    digests = set()
    for backend in BACKENDS:
        options = {key: value for key, value in options_of(backend, tmp_path / backend).items() if key not in without}
        digests |= {end["digest"] for end in on_ranks(2, train_plain, name, options)}
    assert len(digests) == 1


def train_plain(name, options):
    ranks = forebay.Ranks(timeout_s=LATE_S)
    model = Parameters()
    optimizer = getattr(forebay.torch, name)(model.parameters(), ranks=ranks, **options)
    for step in range(4):
        for key, parameter in model.named_parameters():
            parameter.grad = gradient_of(key, step, ranks.rank)
        optimizer.step()
    optimizer.close()
    return {"digest": digest_of(dict(model.named_parameters()))}


@pytest.mark.parametrize("backend", ["nvme 0", "nvme 1"])
def test_a_store_goes_on_from_its_commit(tmp_path, backend):
    whole = same_on_ranks(on_ranks(2, train, backend, tmp_path / "whole", 7))
    on_ranks(2, train, backend, tmp_path / "store", 3, user={"epoch": 2})
    end = same_on_ranks(on_ranks(2, train, backend, tmp_path / "store", 7, resume=True))
    assert end["resumed"] == {"epoch": 2} and end["digest"] == whole["digest"] and end["norms"] == whole["norms"][3:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_whole_state_is_the_same_everywhere(tmp_path, dtype):
    """It is torch's, too: of each parameter as many updates as there were steps with a gradient."""
    # A store keeps sums in the type of the gradients while they wait.
    backends = [backend for backend in BACKENDS if backend != "ram" or dtype == torch.float32]
    states = [end["state"] for backend in backends for end in on_ranks(2, train, backend, tmp_path / backend, 5, dtype)]
    assert states[0].keys() == {0, 1, 2, 4}
    assert [float(states[0][number]["step"]) for number in (0, 2, 4)] == [5.0, 5.0, 4.0]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for number, each in state.items():
            assert each.keys() == states[0][number].keys()
            for key, value in each.items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(states[0][number][key])), (number, key)


def go_on(folder, zero_stage, first, end):
    """Steps of a number of ranks that has the same gradients whatever it is, from a state that all of them load."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    model = Parameters()
    optimizer = forebay.torch.AdamW(model.named_parameters(), ranks=ranks, zero_stage=zero_stage, **SETTINGS)
    if first > 0:
        document = torch.load(folder / f"{first}.pt")
        model.load_state_dict(document["model"])
        optimizer.load_state_dict(document["optimizer"])
    for step in range(first, end):
        for key, parameter in model.named_parameters():
            parameter.grad = gradient_of(key, step, 0)
        optimizer.step()
    state = optimizer.state_dict()  # by all ranks
    if ranks.rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": state}, folder / f"{end}.pt")
    optimizer.close()
    return digest_of(dict(model.named_parameters()))


def test_another_number_of_ranks_goes_on_with_a_state_dict(tmp_path):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = on_ranks(1, go_on, tmp_path / "whole", 0, 0, 6)
    on_ranks(2, go_on, tmp_path / "parts", 1, 0, 2)
    on_ranks(4, go_on, tmp_path / "parts", 1, 2, 4)
    assert on_ranks(1, go_on, tmp_path / "parts", 1, 4, 6) == whole


def test_gradients_of_16_bits_on_their_way(tmp_path):
    digests = {name: same_on_ranks(on_ranks(2, train, backend, tmp_path / name, 3, reduce_dtype=dtype))["digest"]
               for name, backend, dtype in (("fp32", "nvme 1", torch.float32), ("parts", "nvme 1", torch.bfloat16),
                                            ("whole", "nvme 0", torch.bfloat16))}
    assert digests["parts"] == digests["whole"] != digests["fp32"]


def one_not_finite(backend, folder):
    ranks = forebay.Ranks(timeout_s=LATE_S)
    model = Parameters()
    optimizer = forebay.torch.AdamW(model.named_parameters(), ranks=ranks, **options_of(backend, folder))
    for step in range(3):
        for is_finite in (False, True) if step != 1 else (True,):
            for key, parameter in model.named_parameters():
                parameter.grad = gradient_of(key, step, ranks.rank)
            before = digest_of(dict(model.named_parameters()))
            if is_finite:
                optimizer.step_scaled(1.0)
                assert digest_of(dict(model.named_parameters())) != before
                continue
            if ranks.rank == 1:
                model.one.grad[3, 1] = float("nan")
            with pytest.raises(forebay.NumericalError, match="one"):
                optimizer.step_scaled(1.0)
            assert digest_of(dict(model.named_parameters())) == before
    optimizer.close()
    return digest_of(dict(model.named_parameters()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_of_one_rank_that_is_not_finite(tmp_path, backend):
    digests = on_ranks(2, one_not_finite, backend, tmp_path / "store")
    assert {*digests} == {end["digest"] for end in on_ranks(2, train, backend, tmp_path / "other", 3)}


def no_gradients(backend, folder):
    """On one rank, and on both: a step that changes nothing of what has none."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    model = Parameters()
    optimizer = forebay.torch.AdamW(model.named_parameters(), ranks=ranks, **options_of(backend, folder))
    for with_some in ({0}, set(), {0, 1}, {1}):
        before = digest_of(dict(model.named_parameters()))
        for key, parameter in model.named_parameters():
            parameter.grad = gradient_of(key, 0, ranks.rank) if ranks.rank in with_some else None
        optimizer.step()
        assert (digest_of(dict(model.named_parameters())) == before) == (not with_some)
    optimizer.close()
    return digest_of(dict(model.named_parameters()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_without_gradients(tmp_path, backend):
    assert len({*on_ranks(2, no_gradients, backend, tmp_path / "store")}) == 1


def other_settings(backend, folder, name, values):
    ranks = forebay.Ranks(timeout_s=LATE_S)
    model = Parameters()
    options = {**options_of(backend, folder), name: values[ranks.rank]}
    optimizer = forebay.torch.AdamW(model.named_parameters(), ranks=ranks, **options)
    for key, parameter in model.named_parameters():
        parameter.grad = gradient_of(key, 0, ranks.rank)
    optimizer.step()


@pytest.mark.parametrize("name, values, says", [
    ("lr", (1e-2, 2e-2, 3e-2), "lr(=|_scale is )0.01 .*on rank 0.*0.02 .*on rank 1"),
    ("clip", (0.0, 0.0, 1e-3), "clip=0.0 on rank 0, and clip=0.001 on rank 2|gradient_scale is .* on rank 0 .* on rank 2"),
    ("betas", ((0.9, 0.9), (0.9, 0.99), (0.9, 0.9)), "beta2(=| is )0.9 .*on rank 0.*0.99 .*on rank 1")], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_with_other_settings(tmp_path, backend, name, values, says):
    for error, message in errors_of(3, other_settings, backend, tmp_path / "store", name, values):
        assert error == "UsageError", message
        assert re.search("rank [12] .*another rate|different rates", message), message
        assert re.search(says, message), message


def other_weights(backend, folder):
    """Ranks that begin with other weights: those of the first count, as in a store."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    model = Parameters()
    with torch.no_grad():
        model.weight.add_(ranks.rank)
    optimizer = forebay.torch.AdamW(model.named_parameters(), ranks=ranks, **options_of(backend, folder))
    for key, parameter in model.named_parameters():
        parameter.grad = gradient_of(key, 0, ranks.rank)
    optimizer.step()
    optimizer.close()
    return digest_of(dict(model.named_parameters()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_weights_of_the_first_rank_count(tmp_path, backend):
    digests = on_ranks(2, other_weights, backend, tmp_path / "store")
    assert {*digests} == {end["digest"] for end in on_ranks(2, train, backend, tmp_path / "other", 1)}
