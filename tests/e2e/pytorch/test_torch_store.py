"""State that lasts in a store; gradients that are taken in backward; interrupted waits."""

import random
import signal

import forebay
import forebay.torch
import pytest
import torch
from optimizer_cases import DTYPES, loss_of, make_model, make_optimizer, same, train, weights_of


def test_resume_takes_weights_settings_and_the_users_words(tmp_path):
    model = make_model(torch.bfloat16)
    optimizer = make_optimizer("AdamW", model, nvme=tmp_path / "store")
    assert optimizer.resume() is None
    optimizer.commit({"rows": 0})  # the parameters as they are, before any step
    train(model, optimizer, range(2))
    optimizer.param_groups[0]["lr"] = 0.125
    optimizer.commit({"rows": 32, "name": "é"})
    committed = weights_of(model)
    train(model, optimizer, range(2, 4))  # and this is lost
    optimizer.close()
    other = make_model(torch.bfloat16, seed=2)
    optimizer = make_optimizer("AdamW", other, nvme=tmp_path / "store")
    assert optimizer.resume() == {"rows": 32, "name": "é"}
    assert same(weights_of(other), committed)
    assert optimizer.param_groups[0]["lr"] == 0.125 and optimizer.param_groups[0]["betas"] == (0.8, 0.95)
    assert optimizer.layers.step == 2


def test_a_state_dict_is_a_reference_to_the_store(tmp_path):
    model = make_model()
    optimizer = make_optimizer("AdamW", model, nvme=tmp_path / "store", ram="64MiB")
    train(model, optimizer, range(3))
    document = optimizer.state_dict()
    assert document["state"] == {} and document["forebay"] == {"folders": [str(tmp_path / "store")], "step": 3}
    train(model, optimizer, range(3, 5))
    optimizer.close()  # without a commit
    other = make_model(seed=2)
    again = make_optimizer("AdamW", other, nvme=tmp_path / "store")
    again.load_state_dict(document)
    train(other, again, range(3, 5))
    assert same(weights_of(model), weights_of(other))
    again.commit()
    again.close()
    late = make_optimizer("AdamW", make_model(), nvme=tmp_path / "store")
    with pytest.raises(forebay.UsageError, match="of step 3, and the store .* is at step 5"):
        late.load_state_dict(document)
    late.close()
    with pytest.raises(forebay.NotSupportedError, match="nvme= of these folders"):
        make_optimizer("AdamW", make_model()).load_state_dict(document)
    elsewhere = make_optimizer("AdamW", make_model(), nvme=tmp_path / "elsewhere")
    with pytest.raises(forebay.UsageError, match="there is no store in"):
        elsewhere.load_state_dict(document)
    full = make_optimizer("AdamW", model)
    train(model, full, [0])
    with pytest.raises(NotImplementedError, match="resume()"):
        elsewhere.load_state_dict(full.state_dict())


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("place", ["ram", "store"])
def test_gradients_taken_in_backward_with_accumulation(tmp_path, place, clip):
    """In float32 the sums of micro-batches have the same bits wherever they are made."""
    results = []
    for backward_update in (True, False):
        model = make_model()
        nvme = tmp_path / f"store{backward_update}" if place == "store" else None
        optimizer = make_optimizer("AdamW", model, nvme=nvme, clip=clip, backward_update=backward_update)
        for step in range(4):
            with optimizer.accumulate():
                for micro_batch in range(2):
                    loss_of(model, step, micro_batch).backward()
            loss_of(model, step, 2).backward()
            if backward_update and (place == "store" or clip == 0):
                assert all(parameter.grad is None for parameter in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        results.append(weights_of(model))
    assert same(*results)


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("place", ["ram", "store"])
def test_gradients_taken_in_backward_are_divided_by_the_loss_scale(tmp_path, place, clip):
    results = []
    for backward_update in (True, False):
        model = make_model()
        nvme = tmp_path / f"store{backward_update}" if place == "store" else None
        optimizer = make_optimizer("SGD", model, nvme=nvme, clip=clip, backward_update=backward_update)
        norms = []
        for step, scale in enumerate([1024.0, 1.0, 4.0]):
            (loss_of(model, step) * scale).backward()
            if backward_update and (place == "store" or clip == 0):
                assert all(parameter.grad is None for parameter in model.parameters())
            optimizer.step_scaled(scale)
            optimizer.zero_grad()
            norms.append(optimizer.grad_norm)
        results.append((weights_of(model), norms))
    (weights, norms), (expected, norms_of_them) = results
    assert same(weights, expected) and norms == norms_of_them


def test_a_scale_behind_steps_without_one_is_refused_where_gradients_were_applied():
    model = make_model()
    optimizer = make_optimizer("AdamW", model, backward_update=True)
    loss_of(model, 0).backward()
    optimizer.step()
    (loss_of(model, 1) * 8).backward()
    with pytest.raises(forebay.UsageError, match="step_scaled.8. after steps without a scale"):
        optimizer.step_scaled(8.0)


def test_layers_are_handed_over_in_order_whatever_backward_does(tmp_path, monkeypatch):
    """Several layers; the first parameters get their gradients first, one gets none, one step is dropped."""
    monkeypatch.setattr("forebay.torch._in_store.MAX_LAYER_ELEMS", 1000)
    results = []
    for options in ({}, {"nvme": tmp_path / "a"}, {"nvme": tmp_path / "b", "backward_update": True},
                    {"nvme": tmp_path / "c", "backward_update": True, "clip": 0.02},
                    {"nvme": tmp_path / "d", "clip": 0.02}):
        model = make_model(torch.bfloat16)
        unused = torch.nn.Parameter(torch.ones(700, dtype=torch.bfloat16))
        parameters = [*reversed(list(model.parameters())), unused]
        optimizer = forebay.torch.AdamW(parameters, lr=1e-2, **options)
        for step in range(4):
            loss_of(model, step).backward()
            if step == 2:
                optimizer.zero_grad()  # never was
                continue
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(unused.detach(), torch.ones_like(unused))
        results.append(weights_of(model))
        if "nvme" in options:
            assert optimizer.layers.plan()["disk_bytes"] > 0 and len(optimizer._backend._layout) >= 4
            assert optimizer.layers.step == 3
    assert same(results[0], results[1]) and same(results[0], results[2]) and same(results[3], results[4])


def test_misuse_of_backward_update_is_told(tmp_path):
    model = make_model()
    optimizer = make_optimizer("AdamW", model, nvme=tmp_path / "store", backward_update=True)
    loss_of(model, 0).backward()
    with pytest.raises(forebay.UsageError, match="accumulate"):
        loss_of(model, 0).backward()
    optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, 0)).backward()
    with pytest.raises(forebay.UsageError, match="GradScaler"):
        scaler.step(optimizer)
    optimizer.zero_grad()
    train(model, optimizer, range(3))
    other = make_model()
    train(other, make_optimizer("AdamW", other), range(3))
    assert same(weights_of(model), weights_of(other))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ctrl_c_in_a_step_leaves_a_step_that_is_made_or_not(tmp_path, dtype):
    def interrupt(*_):
        raise KeyboardInterrupt

    rng = random.Random(5)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        model = make_model(dtype)
        optimizer = make_optimizer("AdamW", model, nvme=tmp_path / "store")
        num_interrupted = 0
        for step in range(30):
            # An interrupt in torch.no_grad() itself, which step() is under as torch's own are, leaves that mode on.
            with torch.enable_grad():
                loss_of(model, step).backward()
            while optimizer.layers is None or optimizer.layers.step <= step:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 8e-3))
                    optimizer.step()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    num_interrupted += 1
            optimizer.state_dict()  # commits, and completes the copy of the weights
            optimizer.zero_grad()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(True)
    other = make_model(dtype)
    train(other, make_optimizer("AdamW", other), range(30))
    assert same(weights_of(model), weights_of(other)) and num_interrupted >= 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_store_without_steps_takes_new_weights(tmp_path, dtype):
    """As an RL trainer loads them: into the model, behind the making of all else."""
    model, other = make_model(dtype), make_model(dtype, seed=2)
    optimizer = make_optimizer("AdamW", model, nvme=tmp_path / "store")
    optimizer.reload_model_params()  # there is no store yet
    optimizer.commit({"name": "first"})
    model.load_state_dict(other.state_dict())
    optimizer.reload_model_params()
    train(model, optimizer, range(3))
    train(other, make_optimizer("AdamW", other), range(3))
    assert same(weights_of(model), weights_of(other))
    optimizer.close()
    again = make_model(dtype, seed=3)
    optimizer = make_optimizer("AdamW", again, nvme=tmp_path / "store")
    assert optimizer.resume() == {"name": "first"}  # steps that were not committed are lost, the new weights are not
    train(again, optimizer, range(3))
    assert same(weights_of(again), weights_of(other))


def test_a_store_keeps_to_its_parameters(tmp_path):
    model = make_model()
    optimizer = make_optimizer("AdamW", model, nvme=tmp_path / "store")
    train(model, optimizer, [0])
    with pytest.raises(forebay.UsageError, match="before it"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    with pytest.raises(forebay.UsageError, match="before the first step"):
        optimizer.resume()
    with pytest.raises(forebay.UsageError, match="has made 1 steps"):
        optimizer.reload_model_params()
    optimizer.commit()
    with pytest.raises(forebay.EnvironmentProblem):
        make_optimizer("AdamW", model, nvme=tmp_path / "store").resume()  # open already
    optimizer.close()
    with pytest.raises(forebay.ForebayError):
        make_optimizer("Lion", model, nvme=tmp_path / "store").resume()
    frozen = make_model()
    frozen[0].weight.requires_grad_(False)
    optimizer = make_optimizer("AdamW", frozen, nvme=tmp_path / "frozen")
    train(frozen, optimizer, [0])
    frozen[0].weight.requires_grad_(True)
    with pytest.raises(forebay.UsageError, match="did not require one"):
        train(frozen, optimizer, [1])


def spoil(store, how):
    """What a file system may leave of the commit records after a crash, or a slip of the hand."""
    for path in (store / "commit.fbs", store / "copy" / "commit.fbs"):
        size = path.stat().st_size
        path.unlink()
        if how == "zero":
            path.write_bytes(bytes(size))
        elif how == "empty":
            path.touch()
        elif how == "link":
            path.symlink_to(store / "nowhere")
        elif how == "folder":
            path.mkdir()


def step_in_store(store, resumes):
    model = make_model()
    optimizer = make_optimizer("AdamW", model, nvme=store)
    try:
        if resumes:
            optimizer.resume()
        train(model, optimizer, range(1))
        optimizer.commit()
    finally:
        optimizer.close()


def step_in_stream(store, resumes):
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    engine = forebay.torch.stream(module, nvme=store, lr=1e-2, resume=resumes)
    try:
        engine.backward(module(torch.ones(2, 8)).sum())
        engine.step()
        engine.commit()
    finally:
        engine.close()


@pytest.mark.parametrize("how", ["zero", "empty", "absent", "link", "folder"])
@pytest.mark.parametrize("step", [step_in_store, step_in_stream])
def test_a_store_whose_commits_cannot_be_read_is_not_begun_anew(tmp_path, how, step):
    store = tmp_path / "store"
    step(store, False)
    spoil(store, how)

    def data():
        return {path: path.read_bytes() for path in store.rglob("*.fbs") if path.name != "commit.fbs"}

    before = data()
    assert len(before) == 4
    for resumes in (True, False):
        with pytest.raises(forebay.ForebayError):
            step(store, resumes)
        assert data() == before


def test_resume_that_must_find_a_store(tmp_path):
    with pytest.raises(forebay.BadInputError, match="resume='must'"):
        make_optimizer("AdamW", make_model(), nvme=tmp_path / "store").resume(must=True)
    module = torch.nn.Linear(4, 4)
    with pytest.raises(forebay.BadInputError, match="resume='must'"):
        forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2, resume="must")
    with pytest.raises(forebay.UsageError, match="resume='may'"):
        forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2, resume="may")
    assert not (tmp_path / "store").exists() or not any((tmp_path / "store").iterdir())
    engine = forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2)
    engine.close()
    again = forebay.torch.stream(torch.nn.Linear(4, 4), nvme=tmp_path / "store", lr=1e-2, resume="must")
    assert again.resumed is not None
    again.close()
