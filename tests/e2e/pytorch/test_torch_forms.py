"""Parameters of several types and odd shapes, closures, own clipping, state dicts that go on, changed weights."""

import copy

import forebay.torch
import pytest
import torch
from optimizer_cases import DTYPES, OPTIMIZERS, loss_of, make_model, make_optimizer, same, train, weights_of


@pytest.fixture(params=["ram", "store"])
def place(request, tmp_path):
    return {} if request.param == "ram" else {"nvme": tmp_path / "store"}


def test_mixed_types_give_the_bits_of_ram_too(tmp_path):
    results = []
    for nvme in (None, tmp_path / "store"):
        model = make_model(torch.bfloat16)
        model[2].float()
        model[2].register_forward_pre_hook(lambda _, inputs: inputs[0].float())
        model[3].half().register_forward_pre_hook(lambda _, inputs: inputs[0].half())
        optimizer = make_optimizer("AdamW", model, nvme=nvme)
        for step in range(40):
            torch.manual_seed(step)
            model(torch.randn(16, 60, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(weights_of(model))
    assert same(*results)


def test_own_clipping_is_torchs(place):
    results = []
    for own in (True, False):
        model = make_model()
        optimizer = make_optimizer("SGD", model, **(dict(place, clip=0.03) if own else {}))
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if not own:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.03)
            optimizer.step()
            if own:
                assert optimizer.grad_norm > 0.03
        results.append((weights_of(model), optimizer.grad_norm if own else float(norm)))
    for a, b in zip(results[0][0], results[1][0]):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)


def test_closures_and_odd_shapes(place):
    torch.manual_seed(0)
    scalar = torch.nn.Parameter(torch.tensor(3.0))
    transposed = torch.nn.Parameter(torch.randn(5, 7).t())
    empty = torch.nn.Parameter(torch.empty(0, 4))
    optimizer = forebay.torch.SGD([("scalar", scalar), ("transposed", transposed), ("empty", empty)], lr=0.1, **place)
    expected = transposed.detach() * 0.8

    def closure():
        optimizer.zero_grad()
        loss = scalar**2 + (transposed**2).sum() + empty.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(9 + float(((expected / 0.8)**2).sum()))
    assert scalar.item() == pytest.approx(2.4) and torch.allclose(transposed, expected)
    assert optimizer.step_with_ready_grads() is True


def test_megatrons_names_are_the_step_and_the_state_dict(place):
    results = []
    for has_their_names in (True, False):
        model = make_model(torch.bfloat16)
        optimizer = make_optimizer("AdamW", model, **(place if has_their_names else {}))
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if has_their_names:
                assert optimizer.step_with_ready_grads() is True
            else:
                optimizer.step()
        results.append(weights_of(model))
    assert same(*results)


def test_a_sharded_state_dict_of_one_rank_goes_on_bit_for_bit():
    model, other = make_model(torch.bfloat16), make_model(torch.bfloat16, seed=2)
    optimizer, again = make_optimizer("AdamW", model), make_optimizer("AdamW", other)
    train(model, optimizer, range(3))
    document = copy.deepcopy(optimizer.sharded_state_dict(model.state_dict(), is_loading=False))
    other.load_state_dict(model.state_dict())
    again.load_state_dict(document)
    train(model, optimizer, range(3, 6))
    train(other, again, range(3, 6))
    assert same(weights_of(model), weights_of(other))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_state_dicts_of_ram_and_full_ones_of_a_store_go_on_bit_for_bit(tmp_path, name, dtype):
    for nvme in (None, tmp_path / "store"):
        model = make_model(dtype)
        optimizer = make_optimizer(name, model, nvme=nvme)
        train(model, optimizer, range(3))
        document = copy.deepcopy(optimizer.full_state_dict())
        other = make_model(dtype, seed=2)
        other.load_state_dict(model.state_dict())
        again = make_optimizer(name, other)
        again.load_state_dict(document)
        train(model, optimizer, range(3, 6))
        train(other, again, range(3, 6))
        assert same(weights_of(model), weights_of(other))


def test_reload_model_params_takes_new_weights():
    for dtype in (torch.bfloat16, torch.float16):
        model = make_model(dtype)
        optimizer = make_optimizer("AdamW", model)
        train(model, optimizer, range(2))
        other = make_model(dtype, seed=2)
        model.load_state_dict(other.state_dict())
        optimizer.reload_model_params()
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.param_groups[0].update(lr=0.0)
        optimizer.step()
        assert same(weights_of(model), weights_of(other))
