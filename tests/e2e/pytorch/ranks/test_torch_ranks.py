"""Ranks that train one streamed module: the weights of torch's optimizer with the rows of all of them, and the same
bits on every rank, at every stage and in every run."""

import forebay
import pytest
import torch
import torch_ranks_run as run
from forked_ranks import errors_of, on_ranks

STAGES = [0, 1, 2, 3]
CLIPPED = {"num_passes": 2, "clip": 0.5}


def farthest(weights, expected):
    """The largest difference of a weight; both have the same names."""
    assert weights.keys() == expected.keys()
    return max((torch.from_numpy(weights[name]) - expected[name]).abs().max().item() for name in expected)


def weights_on(num_ranks, folder, kind, num_steps, **options):
    """Gives the end of the first rank, as all have the same, and nothing is leased."""
    ends = on_ranks(num_ranks, run.train, folder, kind, num_steps, **options)
    assert len({end["digest"] for end in ends}) == 1, [end["digest"] for end in ends]
    assert len({str(end["norms"]) for end in ends}) == 1
    for end in ends:
        assert end["leased"] == [] and end["steps"] == num_steps
        # Where units are gathered as they come, a pass of the same kind has the same order.
        assert kind != "decoder" or end["deviations"] == 0
    return ends[0]


def test_every_stage_has_the_weights_of_one_process_and_the_bits_of_every_other(tmp_path):
    expected = run.reference("decoder", 2, 4, **CLIPPED)
    ends = [weights_on(2, tmp_path / str(stage), "decoder", 4, zero_stage=stage, **CLIPPED) for stage in STAGES]
    assert max(ends[0]["norms"]) > 0.5  # so that it was clipped
    for stage, end in enumerate(ends):
        assert farthest(end["weights"], expected) < 1e-5, stage
        assert end["digest"] == ends[0]["digest"] and end["norms"] == ends[0]["norms"], stage
    before = run.make().state_dict()
    for name in ("scale", "embedding.weight", "blocks.2.down.weight"):
        assert not torch.equal(torch.from_numpy(ends[0]["weights"][name]), before[name]), name
    assert torch.equal(torch.from_numpy(ends[0]["weights"]["blocks.1.frozen.weight"]), before["blocks.1.frozen.weight"])


@pytest.mark.parametrize("stage", [1, 3])
def test_four_ranks(tmp_path, stage):
    end = weights_on(4, tmp_path / "store", "decoder", 3, zero_stage=stage, **CLIPPED)
    assert farthest(end["weights"], run.reference("decoder", 4, 3, **CLIPPED)) < 1e-5


def test_updates_in_backward(tmp_path):
    expected = run.reference("decoder", 2, 4)
    digests = set()
    for stage in STAGES:
        end = weights_on(2, tmp_path / str(stage), "decoder", 4, zero_stage=stage, update_in_backward=True)
        assert farthest(end["weights"], expected) < 1e-5, stage
        digests.add(end["digest"])
    digests.add(weights_on(2, tmp_path / "held", "decoder", 4, zero_stage=3)["digest"])
    assert len(digests) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_two_bytes(tmp_path, dtype):
    expected = run.reference("decoder", 2, 4, **CLIPPED)
    ends = [weights_on(2, tmp_path / str(stage), "decoder", 4, zero_stage=stage, dtype=dtype, **CLIPPED)
            for stage in (0, 2, 3)]
    assert len({end["digest"] for end in ends}) == 1
    # Each rank rounds gradients of its own: the way is nearly the same.
    before = run.make().state_dict()
    off, way = [torch.cat([(weights[name] - expected[name]).flatten() for name in expected]).norm().item()
                for weights in ({name: torch.from_numpy(ends[0]["weights"][name]) for name in expected}, before)]
    assert off < 0.15 * way, (off, way)


def test_a_second_run_has_the_same_bits(tmp_path):
    first, second = [weights_on(2, tmp_path / name, "decoder", 5, zero_stage=3) for name in "ab"]
    assert (first["digest"], first["losses"]) == (second["digest"], second["losses"])


@pytest.mark.parametrize("options", [{}, {"update_in_backward": True}], ids=["held", "in backward"])
def test_ranks_whose_tokens_go_to_other_experts(tmp_path, options):
    experts = [{token % 5 for token in run.data_of("mixture", step, 2, 1)[0, rank].flatten().tolist()}
               for step in range(2) for rank in range(2)]
    assert experts == [{0, 1, 2, 3, 4}, {2, 3}, {0, 1, 2, 3}, {2, 3}]  # or this tests nothing
    expected = run.reference("mixture", 2, 4)
    digests = set()
    for stage in STAGES:
        end = weights_on(2, tmp_path / str(stage), "mixture", 4, zero_stage=stage, **options)
        assert farthest(end["weights"], expected) < 1e-5, stage
        digests.add(end["digest"])
    assert len(digests) == 1


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"update_in_backward": True}], ids=["held", "in backward"])
def test_blocks_that_one_rank_alone_uses(tmp_path, stage, options):
    end = weights_on(2, tmp_path / "store", "branches", 4, zero_stage=stage, **options)
    assert farthest(end["weights"], run.reference("branches", 2, 4)) < 1e-5


@pytest.mark.parametrize("kind", ["adapted", "checkpointed"])
@pytest.mark.parametrize("options", [{}, {"update_in_backward": True}], ids=["held", "in backward"])
def test_blocks_that_are_frozen_or_go_forward_again(tmp_path, kind, options):
    expected = run.reference(kind, 2, 3)
    digests = set()
    for stage in STAGES:
        end = weights_on(2, tmp_path / str(stage), kind, 3, zero_stage=stage, **options)
        assert farthest(end["weights"], expected) < 1e-5, stage
        digests.add(end["digest"])
    assert len(digests) == 1


@pytest.mark.parametrize("options", [{}, {"update_in_backward": True}], ids=["held", "in backward"])
def test_blocks_that_the_last_pass_does_not_use(tmp_path, options):
    expected = run.reference("ladder", 2, 3, num_passes=2)
    for stage in STAGES:
        end = weights_on(2, tmp_path / str(stage), "ladder", 3, zero_stage=stage, num_passes=2, **options)
        assert farthest(end["weights"], expected) < 1e-5, stage


def test_where_units_are_gathered_as_they_come_every_rank_has_to_use_the_same(tmp_path):
    for error, message in errors_of(2, run.train, tmp_path, "branches", 4, zero_stage=3):
        assert error == forebay.EnvironmentProblem.__name__, message
        assert "made another call" in message and " of layer " in message


def evaluate_apart(folder):
    """The second block of one rank is of the shapes of the third, which the other uses."""
    with run.streamed(folder, "branches", zero_stage=3) as (engine, ranks), torch.no_grad():
        engine(2 * torch.arange(6).view(1, 6) + ranks.rank)


def test_blocks_of_the_same_shapes_are_not_taken_for_each_other(tmp_path):
    for error, message in errors_of(2, evaluate_apart, tmp_path):
        assert error == forebay.EnvironmentProblem.__name__
        assert "of layer 2" in message and "of layer 3" in message
