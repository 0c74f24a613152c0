"""A thousand updates of every optimizer beside torch.optim in float64 and in fp32, element by element: gradients of twelve
orders of magnitude, denormals, zeros, and infinities and NaNs on the way.

forebay and PyTorch's fp32 round at different places, so neither has the other's bits; what is asked is that forebay is as near
to float64 as PyTorch's fp32 is.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "training"))
import reference  # noqa: E402

NUM_UPDATES = 1000
DECAY = 0.1
# Element i is of kind i % NUM_KINDS: gradients about 10^(kind - 12), then zeros, then denormals of fp32.
NUM_KINDS = 15
ZERO, DENORMAL = 13, 14
ELEMS_OF_KIND = 64
NUM_ELEMS = NUM_KINDS * ELEMS_OF_KIND

# Constants, and rate of the first update.
OPTIMIZERS = {
    "adamw": (dict(beta1=0.9, beta2=0.999, eps=1e-8), 1e-3),
    "adamw-large-eps": (dict(beta1=0.8, beta2=0.95, eps=1e-4), 1e-3),
    "adam": (dict(beta1=0.9, beta2=0.999, eps=1e-8), 1e-3),
    "adagrad": (dict(eps=1e-10), 1e-2),
    "lion": (dict(beta1=0.9, beta2=0.99), 1e-4),
    "sgd": (dict(), 1e-2),
    "sgd-momentum": (dict(momentum=0.9), 1e-2),
    "sgd-nesterov": (dict(momentum=0.9, nesterov=True), 1e-2),
}


def dtype_of(name):
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


class Task:
    """Weights, gradients as the kernel takes them, and the scalars of each update."""

    def __init__(self, name, weights="fp32", gradients="fp32"):
        self.constants, lr = OPTIMIZERS[name]
        self.name = name.split("-")[0]
        rng = np.random.default_rng(5)
        kind = np.arange(NUM_ELEMS) % NUM_KINDS
        sizes = np.where(kind == ZERO, 0.0, np.where(kind == DENORMAL, 1e-40, 10.0 ** (kind - 12)))
        self.kind = kind
        self.weights = (0.02 * rng.standard_normal(NUM_ELEMS)).astype(np.float32)
        drawn = (sizes * (0.3 + rng.standard_normal((NUM_UPDATES, NUM_ELEMS)))).astype(np.float32)
        self.gradients = torch.from_numpy(drawn).to(dtype_of(gradients)).float().numpy()
        self.lr = [lr * (NUM_UPDATES - i) / NUM_UPDATES for i in range(NUM_UPDATES)]
        self.scale = [0.37 if i % 3 == 0 else 1.0 for i in range(NUM_UPDATES)]
        self.layout = dict(weights=weights, gradients=gradients)

    def forebays(self, folder):
        case = dict(dict(beta1=0.0, beta2=0.0, eps=1.0, momentum=0.0, nesterov=False), **self.constants)
        case.update(self.layout, optimizer=self.name, weight_decay=DECAY, num_elems=NUM_ELEMS, lr=self.lr,
                    gradient_scale=self.scale)
        (folder / "case.json").write_text(json.dumps(case))
        with open(folder / "in", "wb") as file:
            file.write(self.weights.tobytes() + self.gradients.tobytes())
        probe = os.environ.get("FOREBAY_UPDATE_PROBE", "update_probe")
        subprocess.run([probe, folder / "case.json", folder / "in", folder / "out"], check=True)
        weights, m, v = np.fromfile(folder / "out", np.float32).astype(np.float64).reshape(3, NUM_ELEMS)
        return dict(weights=weights, m=m, v=v)

    def optimizer(self, parameter):
        own = dict(self.constants, lr=self.lr[0], weight_decay=DECAY)
        if "beta1" in own:
            own["betas"] = (own.pop("beta1"), own.pop("beta2"))
        kinds = dict(adamw=torch.optim.AdamW, adam=torch.optim.Adam, adagrad=torch.optim.Adagrad, sgd=torch.optim.SGD,
                     lion=reference.Lion)
        return kinds[self.name]([parameter], **own)

    def pytorchs(self, dtype):
        parameter = torch.nn.Parameter(torch.from_numpy(self.weights).to(dtype, copy=True))
        optimizer = self.optimizer(parameter)
        for update, lr in enumerate(self.lr):
            optimizer.param_groups[0]["lr"] = lr
            parameter.grad = torch.from_numpy(self.gradients[update]).to(dtype) * self.scale[update]
            optimizer.step()
        state = optimizer.state[parameter]
        names = dict(m=("exp_avg", "momentum_buffer", "m"), v=("exp_avg_sq", "sum"))
        planes = dict(weights=parameter.detach())
        for plane, keys in names.items():
            found = [state[key] for key in keys if state.get(key) is not None]
            planes[plane] = found[0] if found else torch.zeros(NUM_ELEMS)
        return {plane: values.double().numpy() for plane, values in planes.items()}


def distances(planes, exact, of_kind):
    """Root mean square and largest distance from float64, by plane, of the elements of a kind."""
    differences = {plane: np.abs(planes[plane] - exact[plane])[of_kind] for plane in exact}
    return {plane: (np.sqrt(np.mean(d**2)), d.max()) for plane, d in differences.items()}


LAYOUTS = [("fp32", "fp32"), ("fp32", "bf16"), ("split", "bf16"), ("split", "fp32"), ("fp16", "fp16")]
CASES = [("adamw", *layout) for layout in LAYOUTS]
CASES += [(name, "split", "fp32") for name in OPTIMIZERS if name != "adamw"]


@pytest.mark.parametrize("name, weights, gradients", CASES, ids=["-".join(case) for case in CASES])
def test_a_thousand_updates_are_as_near_to_float64_as_pytorchs_in_fp32(tmp_path, name, weights, gradients):
    task = Task(name, weights, gradients)
    ours, theirs, exact = task.forebays(tmp_path), task.pytorchs(torch.float32), task.pytorchs(torch.float64)
    for kind in range(NUM_KINDS):
        of_kind = task.kind == kind
        near, far = distances(ours, exact, of_kind), distances(theirs, exact, of_kind)
        for plane in exact:
            # One rounding of fp32 at the largest value, for planes in which PyTorch happens to be exact.
            ulp = max(6e-8 * np.abs(exact[plane][of_kind]).max(), 1.5e-45)
            if name == "lion" and plane == "weights":
                continue  # whose steps are of the rate's size, whatever a sign was rounded from
            assert near[plane][0] <= 1.3 * far[plane][0] + 2 * ulp, (kind, plane, near[plane], far[plane], ulp)
            assert near[plane][1] <= 2.0 * far[plane][1] + 4 * ulp, (kind, plane, near[plane], far[plane], ulp)
    # And not so little was done that all of that is nothing.
    assert np.median(np.abs(exact["weights"] - task.weights)[task.kind == ZERO - 1]) > 1e-2


def test_lion_has_the_weights_of_its_algorithm_in_fp32_bit_by_bit(tmp_path):
    """Its roundings are those of Algorithm 2 in its own order; a sign that falls otherwise would be a whole step."""
    task = Task("lion", "split", "fp32")
    one = np.float32
    p, m = task.weights.copy(), np.zeros(NUM_ELEMS, np.float32)
    beta1, beta2 = 0.9, 0.99
    for update, lr in enumerate(task.lr):
        g = task.gradients[update] * one(task.scale[update])
        direction = np.sign(m * one(beta1) + g * one(1 - beta1))
        p = p * one(1 - lr * DECAY) - one(lr) * direction
        m = m * one(beta2) + g * one(1 - beta2)
    ours = task.forebays(tmp_path)
    assert (ours["weights"] == p).all() and (ours["m"] == m).all()


@pytest.mark.parametrize("name", ["adamw", "adam", "adagrad", "sgd", "sgd-momentum", "sgd-nesterov"])
def test_what_is_not_finite_spreads_as_in_pytorch_and_no_further(tmp_path, name):
    """No step of a run is made with such a gradient, but the kernels must not hide one, nor let it touch its neighbours."""
    clean = Task(name, "split", "fp32")
    task = Task(name, "split", "fp32")
    bad = {3: np.inf, 77: -np.inf, 200: np.nan, 959: np.inf}
    for elem, value in bad.items():
        task.gradients[500, elem] = value
    (tmp_path / "clean").mkdir()
    ours, theirs, unhurt = task.forebays(tmp_path), task.pytorchs(torch.float32), clean.forebays(tmp_path / "clean")
    others = ~np.isin(np.arange(NUM_ELEMS), list(bad))
    for plane in ours:
        assert (np.isnan(ours[plane]) == np.isnan(theirs[plane])).all(), plane
        infinite = np.isinf(theirs[plane])
        assert (ours[plane][infinite] == theirs[plane][infinite]).all(), plane
        assert (ours[plane][others] == unhurt[plane][others]).all(), plane
        assert np.isfinite(ours[plane][others]).all(), plane
    assert not np.isfinite(ours["weights"][list(bad)]).any()
