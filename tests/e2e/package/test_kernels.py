"""The update kernels over arrays of the caller's."""

import forebay
import numpy as np
import pytest

NUM_ELEMS = 200_003


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(NUM_ELEMS).astype(np.float32) for _ in range(2)]


def updated(num_threads):
    master, gradient = arrays()
    weights, remainder = np.empty(NUM_ELEMS, np.uint16), np.empty(NUM_ELEMS, np.int16)
    m, v = np.zeros(NUM_ELEMS, np.float32), np.zeros(NUM_ELEMS, np.float32)
    group = forebay.Group(lr=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.999, eps=1e-8)
    with forebay.Kernels(num_threads) as kernels:
        kernels.split(master, weights, remainder)
        for step in (1, 2, 3):
            kernels.update([forebay.Run("adamw", group, weight_dtype="bf16", weights=weights, remainder=remainder, m=m,
                                        v=v, gradient_dtype="f32", gradient=gradient, step=step)])
        joined = np.empty_like(master)
        kernels.join(weights, remainder, joined)
    return joined, m, v


def test_an_update_is_adamw_and_the_same_with_any_number_of_threads():
    one, three = updated(1), updated(3)
    for a, b in zip(one, three):
        assert np.array_equal(a, b)
    weights, gradient = (values.astype(np.float64) for values in arrays())
    m = v = 0.0
    for step in (1, 2, 3):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        weights = weights * (1 - 1e-4) - 1e-3 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    assert np.allclose(one[0], weights, rtol=0, atol=2e-6)


def test_split_and_join_are_exact():
    master, _ = arrays(1)
    weights, remainder, joined = np.empty(NUM_ELEMS, np.uint16), np.empty(NUM_ELEMS, np.int16), np.empty_like(master)
    with forebay.Kernels(2) as kernels:
        kernels.split(master, weights, remainder)
        kernels.join(weights, remainder, joined)
    assert np.array_equal(master.view(np.uint32), joined.view(np.uint32))


def test_sum_of_squares_takes_buffers_and_addresses():
    _, gradient = arrays()
    with forebay.Kernels(2) as kernels:
        total = kernels.sum_of_squares("f32", gradient)
        assert total == kernels.sum_of_squares("f32", gradient.tobytes())
        assert total == kernels.sum_of_squares("f32", (gradient.ctypes.data, gradient.nbytes))
        gradient[7] = np.nan
        assert np.isnan(kernels.sum_of_squares("f32", gradient))
    assert np.isclose(total, np.sum(arrays()[1].astype(np.float64)**2), rtol=1e-12)


def test_mistakes_are_usage_errors():
    master, gradient = arrays()
    group = forebay.Group(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8)
    with pytest.raises(forebay.UsageError, match="gradient is 8 bytes"):
        forebay.Run("sgd", group, weight_dtype="f32", weights=master, gradient_dtype="f32", gradient=gradient[:2],
                    step=1)
    with pytest.raises(ValueError, match="optimizer='adamx' is not known. Use one of: adamw"):
        forebay.Run("adamx", group, weight_dtype="f32", weights=master, gradient_dtype="f32", gradient=gradient, step=1)
    kernels = forebay.Kernels(1)
    with pytest.raises(forebay.UsageError) as caught:
        kernels.update([forebay.Run("adamw", group, weight_dtype="f32", weights=master, gradient_dtype="f32",
                                    gradient=gradient, step=1)])
    assert caught.value.exit_code == 2 and "m" in str(caught.value)
    with pytest.raises(BufferError):
        kernels.split(master, bytes(2 * NUM_ELEMS), np.empty(NUM_ELEMS, np.int16))  # bytes cannot be written to
    with pytest.raises((BufferError, ValueError)):  # NumPy raises the latter
        kernels.sum_of_squares("f32", gradient[::2])  # not contiguous
    kernels.close()
    kernels.close()
    with pytest.raises(forebay.UsageError, match="closed"):
        kernels.sum_of_squares("f32", gradient)
