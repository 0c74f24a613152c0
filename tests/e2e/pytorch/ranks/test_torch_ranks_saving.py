"""Reads of a module that ranks train: state dicts, files, evaluations between steps and in them, at all stages; and
weights from elsewhere."""

import forebay
import pytest
import safetensors.torch
import torch
import torch_ranks_run as run
from forked_ranks import LATE_S, digest_of, errors_of, on_ranks

STAGES = [0, 1, 3]
BEFORE, BEHIND = 2, 2  # steps before what is tested, and behind it


def loaded(path):
    return safetensors.torch.load_file(path)


def reads(folder, saved, **options):
    """All ways to read, behind some steps; then others."""
    with run.streamed(folder, **options) as (engine, ranks):
        for step in range(BEFORE):
            run.step_of(engine, "decoder", step, ranks, 1)
        state = engine.state_dict()
        named = {name: weight.clone() for name, weight in engine.named_weights()}
        engine.save_pretrained(saved / "saved")
        assert engine.optimizer.layers.stats()["leased_layers"] == []
        for step in range(BEFORE, BEFORE + BEHIND):
            run.step_of(engine, "decoder", step, ranks, 1)
        arrays = [{name: value.numpy() for name, value in tensors.items()} for tensors in (state, named)]
        return *arrays, digest_of(engine.state_dict())


@pytest.mark.parametrize("stage", STAGES)
def test_weights_are_read_as_a_whole(tmp_path, stage):
    ends = on_ranks(2, reads, tmp_path / "store", tmp_path, zero_stage=stage)
    alone = on_ranks(2, run.train, tmp_path / "whole", "decoder", BEFORE, zero_stage=stage)
    behind = on_ranks(2, run.train, tmp_path / "behind", "decoder", BEFORE + BEHIND, zero_stage=stage)
    files = loaded(tmp_path / "saved" / "model.safetensors")
    for *arrays, digest in ends:
        state, named = ({name: torch.as_tensor(value) for name, value in each.items()} for each in arrays)
        assert digest_of(state) == alone[0]["digest"] and digest == behind[0]["digest"]
        assert digest_of(files) == digest_of({name: state[name] for name in files})
        assert digest_of(named) == digest_of({name: state[name] for name in named})
        assert files.keys() == state.keys() - {"head.weight"}
    # It is the file of one process that has these weights.
    engine = forebay.torch.stream(run.make(), nvme=tmp_path / "one", **run.SETTINGS)
    engine.module.load_state_dict(state)
    engine.save_pretrained(tmp_path / "one file")
    assert (tmp_path / "one file" / "model.safetensors").read_bytes() == (
        tmp_path / "saved" / "model.safetensors").read_bytes()
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["model.safetensors"]


def saves_in_vain(folder, saved, **options):
    """The first rank cannot write; all go on behind it."""
    with run.streamed(folder, **options) as (engine, ranks):
        run.step_of(engine, "decoder", 0, ranks, 1)
        with pytest.raises(forebay.ForebayError) as caught:
            engine.save_pretrained(saved)
        run.step_of(engine, "decoder", 1, ranks, 1)
        return type(caught.value).__name__, str(caught.value), digest_of(engine.state_dict())


@pytest.mark.parametrize("stage", STAGES)
def test_where_the_first_rank_cannot_write_all_go_on(tmp_path, stage):
    (tmp_path / "file").touch()
    ends = on_ranks(2, saves_in_vain, tmp_path / "store", tmp_path / "file", zero_stage=stage)
    assert [end[0] for end in ends] == ["UsageError", "StorageError"]
    assert "there can be no folder" in ends[0][1] and "first rank" in ends[1][1]
    expected = on_ranks(2, run.train, tmp_path / "without", "decoder", 2, zero_stage=stage)
    assert {end[2] for end in ends} == {expected[0]["digest"]}


def loads(folder, saved, how, **options):
    """Weights that each rank has of its own count for nothing, or those of the first do."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    if how == "weights":
        options["weights"] = saved
    with run.streamed(folder, ranks=ranks, seed=50 + ranks.rank, **options) as (engine, _):
        if how == "load_pretrained":
            engine.load_pretrained(saved)
        if how == "load_state_dict":
            engine.module.load_state_dict(run.make(seed=9).state_dict())
        first = digest_of(engine.state_dict())
        run.step_of(engine, "decoder", 0, ranks, 1)
        return first, digest_of(engine.state_dict())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["load_pretrained", "load_state_dict", "weights", "of the first rank"])
def test_weights_from_elsewhere(tmp_path, stage, how):
    model = run.make(seed=50 if how == "of the first rank" else 9)
    (tmp_path / "saved").mkdir()
    state = model.state_dict()
    safetensors.torch.save_file({name: value for name, value in state.items() if name != "head.weight"},
                                tmp_path / "saved" / "model.safetensors")
    first, second = on_ranks(2, loads, tmp_path / "store", tmp_path / "saved", how, zero_stage=stage)
    assert first == second and first[0] == digest_of(state)
    assert first[1] != first[0]


def evaluates(folder, **options):
    """Each rank with rows of its own, between steps, between passes, and token by token; other than without them is
    only that they were there."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    with run.streamed(folder, ranks=ranks, accumulation_steps=2, **options) as (engine, _):
        passes = []

        def evaluate():
            engine.eval()
            with torch.no_grad():
                tokens = torch.arange(6).view(1, 6) + 3 * ranks.rank
                passes.append(engine(tokens).sum().item())
                for _ in range(3):
                    tokens = torch.cat([tokens, engine(tokens)[:, -1:].argmax(-1)], 1)
                passes.append(tokens.tolist())
            engine.train()

        evaluate()
        for step in range(3):
            for number, tokens in enumerate(run.data_of("decoder", step, ranks.size, 2)):
                engine.backward(run.loss_of(engine, tokens[ranks.rank], 2))
                if number == 0:
                    evaluate()
            engine.step()
            evaluate()
        assert engine.optimizer.layers.stats()["leased_layers"] == []
        model = run.make()
        model.load_state_dict(engine.state_dict())
        with torch.no_grad():
            wanted = model(torch.arange(6).view(1, 6) + 3 * ranks.rank).sum().item()
        assert abs(passes[-2] - wanted) < 1e-4
        return passes, digest_of(engine.state_dict())


@pytest.mark.parametrize("options", [{"zero_stage": stage} for stage in STAGES] +
                         [{"zero_stage": 3, "update_in_backward": True}], ids=str)
def test_evaluations_change_nothing(tmp_path, options):
    ends = on_ranks(2, evaluates, tmp_path / "store", **options)
    assert ends[0][0] != ends[1][0]  # each has rows of its own
    expected = on_ranks(2, run.train, tmp_path / "without", "decoder", 3, num_passes=2, **options)
    assert {end[1] for end in ends} == {end["digest"] for end in expected}


def evaluates_as_often(folder, how_often, **options):
    """how_often: by rank, behind each step."""
    with run.streamed(folder, **options) as (engine, ranks):
        for step in range(3):
            run.step_of(engine, "decoder", step, ranks, 1)
            with torch.no_grad():
                for _ in range(how_often[ranks.rank]):
                    engine(torch.arange(4 + ranks.rank).view(1, -1))
        return digest_of(engine.state_dict())


@pytest.mark.parametrize("stage, how_often", [(0, (2, 0)), (0, (0, 1)), (1, (1, 3)), (2, (4, 1))])
def test_where_weights_are_there_for_a_step_ranks_evaluate_as_often_as_they_like(tmp_path, stage, how_often):
    digests = on_ranks(2, evaluates_as_often, tmp_path / "store", how_often, zero_stage=stage)
    assert {*digests} == {end["digest"] for end in on_ranks(2, run.train, tmp_path / "without", "decoder", 3,
                                                            zero_stage=stage)}


@pytest.mark.parametrize("stage, how_often", [(3, (1, 0)), (3, (1, 2)), (1, (0, 1))])
def test_where_they_are_not_another_number_of_passes_is_an_error_on_all(tmp_path, stage, how_often):
    for error, message in errors_of(2, evaluates_as_often, tmp_path / "store", how_often, zero_stage=stage):
        assert error == "EnvironmentProblem" and "made another call" in message


def commits(folder, own, **options):
    """Each rank has other words, a buffer of its own and other random numbers."""
    with run.streamed(folder, **options) as (engine, ranks):
        run.step_of(engine, "decoder", 0, ranks, 1)
        engine.module.shift.fill_(ranks.rank + 1)
        torch.manual_seed(70 + ranks.rank)
        engine.commit({"own": own[ranks.rank]})


def resumes(folder, **options):
    with run.streamed(folder, resume=True, **options) as (engine, _):
        return engine.resumed, engine.module.shift[0].item(), torch.rand(1).item()


@pytest.mark.parametrize("stage", STAGES)
def test_buffers_generators_and_words_are_each_ranks_own(tmp_path, stage):
    on_ranks(2, commits, tmp_path / "store", ["a", "b"], zero_stage=stage)
    ends = on_ranks(2, resumes, tmp_path / "store", zero_stage=stage)
    for rank, (words, shift, drawn) in enumerate(ends):
        torch.manual_seed(70 + rank)
        assert (words, shift, drawn) == ({"own": "ab"[rank]}, rank + 1.0, torch.rand(1).item())
