"""The functions of PyTorch's and NumPy's users: values against NumPy in float64 on every device, gradients against differences."""

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl as nc
import netcl.autograd as ag
from netcl.core.device import manager

rng = np.random.default_rng(5)


def data(*shape):
    """Values without ties."""
    return rng.permutation(np.prod(shape, dtype=int)).reshape(shape) / 7.0 - 1.0


V, M, T = data(6), data(3, 4), data(2, 3, 4)
S = data(4, 4)
AT = np.array([[2, 0, 1, 0], [1, 1, 2, 2]])
SOURCE = data(2, 4)
NAN = np.where(M > 0.3, np.nan, M)


def scattered(start, how, include):
    out = M.copy()
    for place in np.unique(AT):
        for column in range(4):
            parts = [SOURCE[row, column] for row in range(2) if AT[row, column] == place]
            if parts:
                out[place, column] = how([M[place, column], *parts] if include else parts)
    return out


def put(x, at, values, axis):
    x = x.copy()
    np.put_along_axis(x, at, values, axis)
    return x


def filled(x, at, values):
    x = x.copy()
    x[:, at] = values
    return x


def logcumsumexp(x):
    return np.log(np.cumsum(np.exp(x), -1))


# name: the function, what NumPy says, the inputs. All of them have gradients.
CASES = {
    "unbind": (lambda x: ag.unbind(x, 1)[2], lambda x: x[:, 2], [T]),
    "narrow": (lambda x: ag.narrow(x, 2, 1, 2), lambda x: x[..., 1:3], [T]),
    "narrow from the end": (lambda x: ag.narrow(x, -1, -2, 2), lambda x: x[..., -2:], [T]),
    "movedim": (lambda x: ag.movedim(x, (0, 1), (-1, 0)), lambda x: np.moveaxis(x, (0, 1), (-1, 0)), [T]),
    "swapaxes": (lambda x: ag.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1), [T]),
    "tile": (lambda x: ag.tile(x, (2, 1)), lambda x: np.tile(x, (2, 1)), [T]),
    "tile, new axes": (lambda x: ag.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)), [M]),
    "roll": (lambda x: ag.roll(x, -5), lambda x: np.roll(x, -5), [T]),
    "roll of axes": (lambda x: ag.roll(x, (1, -2), (0, 2)), lambda x: np.roll(x, (1, -2), (0, 2)), [T]),
    **{f"rot90 {k}": (lambda x, k=k: ag.rot90(x, k, (0, 2)), lambda x, k=k: np.rot90(x, k, (0, 2)), [T]) for k in range(-1, 4)},
    "repeat_interleave": (lambda x: ag.repeat_interleave(x, 2, dim=1), lambda x: np.repeat(x, 2, 1), [T]),
    "repeat_interleave, flat": (lambda x: ag.repeat_interleave(x, 3), lambda x: np.repeat(x, 3), [M]),
    "repeat_interleave, each": (lambda x: ag.repeat_interleave(x, [2, 0, 3], 0), lambda x: np.repeat(x, [2, 0, 3], 0), [M]),
    "meshgrid": (lambda x, y: ag.meshgrid(x, y)[1], lambda x, y: np.meshgrid(x, y, indexing="ij")[1], [V, V]),
    "meshgrid xy": (lambda x: ag.meshgrid(x, x, indexing="xy")[0], lambda x: np.meshgrid(x, x)[0], [V]),
    **{f"diagonal {o}": (lambda x, o=o: ag.diagonal(x, o, 0, 2), lambda x, o=o: np.diagonal(x, o, 0, 2), [T]) for o in (-1, 0, 2, 9)},
    **{f"diag {o}": (lambda x, o=o: ag.diag(x, o), lambda x, o=o: np.diag(x, o), [V]) for o in (-2, 0, 1)},
    "diag of a matrix": (lambda x: ag.diag(x, 1), lambda x: np.diag(x, 1), [S]),
    "diag_embed": (lambda x: ag.diag_embed(x, 1), lambda x: np.stack([np.diag(row, 1) for row in x]), [M]),
    "trace": (ag.trace, np.trace, [S]),
    "vstack": (lambda x, y: ag.vstack([x, y]), lambda x, y: np.vstack([x, y]), [V, V]),
    "hstack": (lambda x, y: ag.hstack([x, y]), lambda x, y: np.hstack([x, y]), [M, M]),
    "dstack": (lambda x, y: ag.dstack([x, y]), lambda x, y: np.dstack([x, y]), [M, M]),
    "broadcast_to": (lambda x: ag.broadcast_to(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)), [M]),
    "broadcast_tensors": (lambda x, y: ag.broadcast_tensors(x, y)[0], lambda x, y: np.broadcast_arrays(x, y)[0], [M, T]),
    "unflatten": (lambda x: ag.unflatten(x, -1, (2, -1)), lambda x: x.reshape(2, 3, 2, 2), [T]),
    "mm": (ag.mm, np.matmul, [M, data(4, 2)]),
    "bmm": (ag.bmm, np.matmul, [T, data(2, 4, 2)]),
    "mv": (ag.mv, np.matmul, [M, data(4)]),
    "dot": (ag.dot, np.dot, [V, V]),
    "outer": (ag.outer, np.outer, [V, data(3)]),
    "inner": (ag.inner, np.inner, [M, T]),
    "addmm": (lambda x, a, b: ag.addmm(x, a, b, beta=0.5, alpha=2.0), lambda x, a, b: 0.5 * x + 2 * a @ b, [data(2), M, data(4, 2)]),
    "baddbmm": (ag.baddbmm, lambda x, a, b: x + a @ b, [data(2, 3, 2), T, data(2, 4, 2)]),
    "tensordot": (ag.tensordot, np.tensordot, [T, data(3, 4, 2)]),
    "tensordot of axes": (lambda a, b: ag.tensordot(a, b, ([0, 2], [1, 0])), lambda a, b: np.tensordot(a, b, ([0, 2], [1, 0])), [T, data(4, 2)]),
    "kron": (ag.kron, np.kron, [M, data(2, 2)]),
    "cross": (ag.cross, np.cross, [data(4, 3), data(3)]),
    "take_along_dim": (lambda x: ag.take_along_dim(x, AT, 0), lambda x: np.take_along_axis(x, AT, 0), [M]),
    "take_along_dim, broadcast": (lambda x: ag.take_along_dim(x, AT[:1, :1], dim=1), lambda x: np.take_along_axis(x, AT[:1, :1], 1), [M]),
    "scatter": (lambda x, y: ag.scatter(x, 0, AT, y), lambda x, y: put(x, AT, y, 0), [M, SOURCE]),
    "scatter, a number": (lambda x: ag.scatter(x, 0, AT, 3.0), lambda x: put(x, AT, 3.0, 0), [M]),
    "scatter of a part": (lambda x, y: ag.scatter(x, 1, AT[:, :3], y), lambda x, y: np.concatenate([put(x[:2], AT[:, :3], y[:, :3], 1), x[2:]]), [M, SOURCE]),
    **{
        f"scatter_reduce {how} {include}": (
            lambda x, y, how=how, include=include: ag.scatter_reduce(x, 0, AT, y, how, include_self=include),
            lambda x, y, f=f, include=include: scattered(x, f, include),
            [M, SOURCE],
        )
        for how, f in [("sum", np.sum), ("prod", np.prod), ("mean", np.mean), ("amax", np.max), ("amin", np.min)]
        for include in (True, False)
    },
    "index_fill": (lambda x: ag.index_fill(x, 1, [3, 0], 9.0), lambda x: filled(x, [3, 0], 9.0), [M]),
    "index_copy": (lambda x, y: ag.index_copy(x, 1, [3, 0], y), lambda x, y: filled(x, [3, 0], y), [M, data(3, 2)]),
    "masked_select": (lambda x: ag.masked_select(x, M > 0), lambda x: x[:, M > 0].ravel(), [T]),
    "masked_scatter": (lambda x, y: ag.masked_scatter(x, M > 0, y), lambda x, y: np.where(M > 0, np.pad(y, (0, 12))[np.cumsum(M > 0).reshape(3, 4) - 1], x), [M, data(12)]),
    "unique": (ag.unique, np.unique, [np.array([2.0, -1.0, 3.0])]),
    "max_along": (lambda x: ag.max_along(x, 1).values, lambda x: x.max(1), [T]),
    "min_along": (lambda x: ag.min_along(x, axis=-1, keepdims=True)[0], lambda x: x.min(-1, keepdims=True), [T]),
    "amax": (lambda x: ag.amax(x, (0, 2)), lambda x: x.max((0, 2)), [T]),
    "amin": (lambda x: ag.amin(x, dim=1, keepdim=True), lambda x: x.min(1, keepdims=True), [T]),
    "aminmax": (lambda x: ag.aminmax(x, dim=0)[1], lambda x: x.max(0), [T]),
    "kthvalue": (lambda x: ag.kthvalue(x, 2, 1)[0], lambda x: np.sort(x, 1)[:, 1], [T]),
    "median": (lambda x: ag.median(x, 1, keepdim=True).values, lambda x: np.sort(x, 1)[:, 1:2], [M]),
    "median of all": (ag.median, lambda x: np.sort(x.ravel())[5], [M]),
    "quantile": (lambda x: ag.quantile(x, 0.3, 1), lambda x: np.quantile(x, 0.3, 1), [T]),
    "quantiles": (lambda x: ag.quantile(x, [0.0, 0.35, 1.0], dim=0, keepdim=True), lambda x: np.quantile(x, [0.0, 0.35, 1.0], 0, keepdims=True), [T]),
    **{
        f"quantile {how}": (
            lambda x, how=how: ag.quantile(x, 0.4, interpolation=how),
            lambda x, how=how: np.quantile(x, 0.4, method=how),
            [M],
        )
        for how in ("lower", "higher", "nearest", "midpoint")
    },
    "var_mean": (lambda x: ag.var_mean(x, 1)[0], lambda x: x.var(1, ddof=1), [T]),
    "std_mean": (lambda x: ag.std_mean(x, correction=0)[0], lambda x: x.std(), [T]),
    "nansum": (lambda x: ag.nansum(x, 1), lambda x: np.nansum(x, 1), [M]),
    "nanmean": (lambda x: ag.nanmean(x, 0), lambda x: np.nanmean(x, 0), [M]),
    "cumprod": (lambda x: ag.cumprod(x, 1), lambda x: np.cumprod(x, 1), [T]),
    "cumprod with zeros": (lambda x: ag.cumprod(x), np.cumprod, [np.array([2.0, 0.0, 3.0, 0.0, 1.5])]),
    "logcumsumexp": (ag.logcumsumexp, logcumsumexp, [T]),
    "cummax": (lambda x: ag.cummax(x, 1).values, lambda x: np.maximum.accumulate(x, 1), [T]),
    "cummin": (lambda x: ag.cummin(x, axis=0)[0], lambda x: np.minimum.accumulate(x, 0), [T]),
    "diff": (lambda x: ag.diff(x, 2, dim=1), lambda x: np.diff(x, 2, 1), [T]),
    "renorm": (lambda x: ag.renorm(x, 2.0, 0, 1.0), lambda x: x * np.minimum(1, 1 / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-7)), [M]),
    "lerp": (lambda x, y, w: ag.lerp(x, y, w), lambda x, y, w: x + w * (y - x), [M, data(3, 4), data(4)]),
    "lerp, a number": (lambda x, y: ag.lerp(x, y, 0.25), lambda x, y: x + 0.25 * (y - x), [M, data(3, 4)]),
    "addcmul": (lambda x, a, b: ag.addcmul(x, a, b, value=0.5), lambda x, a, b: x + 0.5 * a * b, [M, data(4), data(3, 4)]),
    "addcdiv": (lambda x, a, b: ag.addcdiv(x, a, b, value=0.5), lambda x, a, b: x + 0.5 * a / b, [M, data(4), data(3, 4) + 1.5]),
    "logit": (ag.logit, lambda x: np.log(x / (1 - x)), [np.array([0.1, 0.5, 0.9])]),
    "logit, eps": (lambda x: ag.logit(x, eps=0.2), lambda x: np.log(np.clip(x, 0.2, 0.8) / (1 - np.clip(x, 0.2, 0.8))), [np.array([0.1, 0.5, 0.9])]),
    "clip": (lambda x: ag.clip(x, -0.5, 0.3), lambda x: np.clip(x, -0.5, 0.3), [M]),
    "clip between tensors": (lambda x, y: ag.clip(x, y, 0.6), lambda x, y: np.clip(x, y, 0.6), [M, data(4) - 0.03]),
    "cdist": (ag.cdist, lambda x, y: np.linalg.norm(x[:, None] - y[None], axis=-1), [M, data(2, 4)]),
    "cdist, p=1": (lambda x, y: ag.cdist(x, y, p=1.0), lambda x, y: np.abs(x[:, None] - y[None]).sum(-1), [M, data(2, 4) + 0.02]),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    function, reference, arrays = CASES[name]
    queue = manager.default("cpu").queue
    leaves = [ag.tensor(array, dtype="float64", queue=queue) for array in arrays]
    result = function(*leaves)
    expected = reference(*arrays)
    assert tuple(result.shape) == np.shape(expected)
    np.testing.assert_allclose(result.to_host(), expected, rtol=1e-9, atol=1e-12)
    assert ag.gradcheck(function, leaves)


@pytest.mark.parametrize("selector", [s for s in find_device_selectors() if s != "cpu"])
def test_values_on_devices(selector):
    queue = manager.default(selector).queue
    for name, (function, reference, arrays) in CASES.items():
        leaves = [ag.tensor(array, dtype="float32", queue=queue) for array in arrays]
        result = function(*leaves)
        np.testing.assert_allclose(result.to_host(), reference(*arrays), rtol=2e-4, atol=2e-5, err_msg=name)
        result.backward(ag.tensor(np.ones(result.shape), dtype="float32", queue=queue))
        assert all(leaf.grad is None or np.isfinite(leaf.grad.to_host()).all() for leaf in leaves), name


# Results without a gradient: the function, what NumPy says, the inputs.
FACTS = {
    "max_along": (lambda x: ag.max_along(x, 1).indices, lambda x: x.argmax(1), [T]),
    "min_along": (lambda x: ag.min_along(x, 0)[1], lambda x: x.argmin(0), [T]),
    "max_along of ties": (lambda x: ag.max_along(x)[1], lambda x: x.argmax(-1), [np.array([1.0, 3.0, 3.0])]),
    "median": (lambda x: ag.median(x, 1).indices, lambda x: x.argsort(1)[:, 1], [M]),
    "median with NaN": (lambda x: ag.median(x, 1)[0], lambda x: np.where(np.isnan(x).any(1), np.nan, np.sort(x, 1)[:, 1]), [NAN]),
    "nanmedian": (lambda x: ag.nanmedian(x, 0).values, lambda x: np.array([np.sort(c[~np.isnan(c)])[((~np.isnan(c)).sum() - 1) // 2] if (~np.isnan(c)).any() else np.nan for c in x.T]), [NAN]),
    "mode": (lambda x: ag.mode(x)[0], lambda x: np.array([1.0, 2.0]), [np.array([[3.0, 1.0, 1.0, 2.0, 3.0], [5.0, 4.0, 3.0, 2.0, 2.0]])]),
    "quantile with NaN": (lambda x: ag.quantile(x, 0.5, 1), lambda x: np.quantile(x, 0.5, 1), [NAN]),
    "nanmean": (lambda x: ag.nanmean(x), lambda x: np.nanmean(x), [NAN]),
    "cummax": (lambda x: ag.cummax(x)[1], lambda x: np.array([0, 1, 1, 3, 3]), [np.array([1.0, 3.0, 2.0, 3.0, 1.0])]),
    "cummin": (lambda x: ag.cummin(x).indices, lambda x: np.array([0, 0, 2, 2, 4]), [np.array([1.0, 3.0, 0.5, 3.0, 0.5])]),
    "count_nonzero": (lambda x: ag.count_nonzero(x, dim=1), lambda x: np.count_nonzero(x, 1), [np.maximum(M, 0)]),
    "nonzero": (ag.nonzero, lambda x: np.argwhere(x), [np.maximum(T, 0)]),
    "nonzero of an axis": (lambda x: ag.nonzero(x, as_tuple=True)[1], lambda x: np.nonzero(x)[1], [np.maximum(T, 0)]),
    "unique": (lambda x: ag.unique(x, return_inverse=True)[1], lambda x: np.unique(x, return_inverse=True)[1].reshape(x.shape), [np.round(T)]),
    "unique, counted": (lambda x: ag.unique(x, return_counts=True)[1], lambda x: np.unique(x, return_counts=True)[1], [np.round(T)]),
    "searchsorted": (lambda x, y: ag.searchsorted(x, y), np.searchsorted, [np.sort(V), np.concatenate([V, V + 0.05])]),
    "searchsorted right": (lambda x, y: ag.searchsorted(x, y, right=True), lambda x, y: np.searchsorted(x, y, "right"), [np.sort(V), data(2, 3)]),
    "searchsorted of rows": (lambda x, y: ag.searchsorted(x, y), lambda x, y: np.stack([np.searchsorted(a, b) for a, b in zip(x, y)]), [np.sort(M, 1), data(3, 2)]),
    "bucketize": (lambda x: ag.bucketize(x, np.sort(V), right=True), lambda x: np.digitize(x, np.sort(V).astype(x.dtype)), [T]),
    "histc": (lambda x: ag.histc(x, 5, -0.5, 0.5), lambda x: np.histogram(x, 5, (-0.5, 0.5))[0], [M]),
    "histc of all": (lambda x: ag.histc(x, 4), lambda x: np.histogram(x, 4)[0], [np.array([0.1, 2.3, 0.7, 1.1, 1.9])]),
    "isnan": (ag.isnan, np.isnan, [NAN]),
    "isinf": (ag.isinf, np.isinf, [np.array([np.inf, -np.inf, np.nan, 1.0])]),
    "isfinite": (ag.isfinite, np.isfinite, [np.array([np.inf, -np.inf, np.nan, 1.0])]),
    "nan_to_num": (lambda x: ag.nan_to_num(x, posinf=2.0), lambda x: np.nan_to_num(x, posinf=2.0), [np.array([np.nan, np.inf, 1.0])]),
    "logical_and": (ag.logical_and, np.logical_and, [np.maximum(M, 0), np.maximum(data(3, 4), 0)]),
    "logical_xor": (ag.logical_xor, np.logical_xor, [np.maximum(M, 0), np.maximum(data(3, 4), 0)]),
    "logical_not": (ag.logical_not, np.logical_not, [np.maximum(M, 0)]),
    "isclose": (ag.isclose, np.isclose, [np.array([1.0, 1.0, np.inf, np.nan, 1.0, 0.0]), np.array([1.000001, 1.1, np.inf, np.nan, np.inf, 1e-9])]),
    "isclose, NaN": (lambda x: ag.isclose(x, x, equal_nan=True), lambda x: np.isclose(x, x, equal_nan=True), [NAN]),
    "fmod": (ag.fmod, np.fmod, [M * 9, data(4) + 1.4]),
    "remainder": (ag.remainder, np.remainder, [M * 9, data(4) + 0.3]),
    "floor_divide": (ag.floor_divide, np.floor_divide, [M * 9, data(4) + 0.3]),
    "hypot": (ag.hypot, np.hypot, [M, np.zeros(4)]),
    "copysign": (ag.copysign, np.copysign, [M, np.array([-0.0, 0.0, -np.inf, 2.0])]),
    "heaviside": (ag.heaviside, np.heaviside, [np.array([-1.0, 0.0, 2.0]), np.array([0.5])]),
    "inner": (lambda x, y: ag.inner(x, y), np.inner, [M, data(2, 4)]),
    "baddbmm": (lambda x, a, b: ag.baddbmm(x, a, b, beta=2, alpha=0.5), lambda x, a, b: 2 * x + 0.5 * (a @ b), [data(3, 2, 5), data(3, 2, 4), data(3, 4, 5)]),
    "swapdims": (lambda x: ag.swapdims(x, 0, 2), lambda x: np.swapaxes(x, 0, 2), [data(2, 3, 4)]),
    "logaddexp": (ag.logaddexp, np.logaddexp, [np.array([-np.inf, 1.0, 900.0]), np.array([-np.inf, -np.inf, 900.0])]),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts(name):
    function, reference, arrays = FACTS[name]
    for selector, dtype in [("cpu", "float64"), *((s, "float32") for s in find_device_selectors())]:
        queue = manager.default(selector).queue
        with np.errstate(all="ignore"):
            given = [array.astype(dtype) for array in arrays]
            result = function(*(ag.tensor(array, False, dtype=dtype, queue=queue) for array in given))
            np.testing.assert_allclose(result.to_host(), reference(*given), rtol=1e-4, atol=1e-6, err_msg=selector)


def test_bincount_and_comparisons():
    assert ag.bincount(np.array([1, 3, 1]), minlength=6).to_host().tolist() == [0, 2, 0, 1, 0, 0]
    weights = ag.tensor(np.array([1.0, 2.0, 0.5]))
    assert ag.bincount(np.array([1, 3, 1]), weights).to_host().tolist() == [0, 1.5, 0, 2.0]
    x = ag.tensor(M)
    assert ag.equal(x, x) and not ag.equal(x, x[:2]) and ag.allclose(x, x + 1e-9) and not ag.allclose(x, x + 1)


@pytest.mark.parametrize("selector", find_device_selectors())
def test_draws(selector):
    queue = manager.default(selector).queue
    nc.manual_seed(3)
    weights = np.array([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 2.0]])
    x = ag.tensor(weights, dtype="float32", queue=queue)
    drawn = ag.multinomial(x, 4000, replacement=True).to_host()
    shares = np.stack([np.bincount(row, minlength=4) / 4000 for row in drawn])
    np.testing.assert_allclose(shares, weights / weights.sum(1, keepdims=True), atol=0.04)
    assert (shares[weights == 0] == 0).all()
    pairs = ag.multinomial(x, 2).to_host()
    assert (np.sort(pairs, 1) == [[1, 2], [0, 3]]).all()
    first = [int(ag.multinomial(x[0], 1, seed=seed).item()) for seed in range(300)]
    assert 180 < sum(i == 2 for i in first) < 265 and set(first) == {1, 2}
    p = ag.tensor(np.full(4000, 0.25), dtype="float32", queue=queue)
    assert abs(ag.bernoulli(p).to_host().mean() - 0.25) < 0.03
    for wrong in (np.array([1.0, -1.0]), np.array([0.0, 0.0]), np.array([np.nan, 1.0])):
        with pytest.raises(ValueError, match="multinomial"):
            ag.multinomial(ag.tensor(wrong, queue=queue), 1)
    with pytest.raises(ValueError, match="multinomial"):
        ag.multinomial(x, 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ag.narrow(x, 0, 1, 2**62),
        lambda x: ag.narrow(x, 0, -9, 1),
        lambda x: ag.movedim(x, (0, 0), (0, 1)),
        lambda x: ag.roll(x, (1, 2), (0,)),
        lambda x: ag.repeat_interleave(x, 2**62, 1),
        lambda x: ag.repeat_interleave(x, [1, -1, 1], 0),
        lambda x: ag.diag_embed(x, 2**62),
        lambda x: ag.unflatten(x, 1, (-1, -1)),
        lambda x: ag.unflatten(x, 1, (3, -1)),
        lambda x: ag.quantile(x, 1.5),
        lambda x: ag.kthvalue(x, 9),
        lambda x: ag.histc(x, 0),
        lambda x: ag.scatter(x, 0, AT, ag.tensor(SOURCE[:1])),
        lambda x: ag.scatter_reduce(x, 0, AT, x, "max"),
        lambda x: ag.tensordot(x, x, 3),
        lambda x: ag.cross(x, x),
        lambda x: ag.bincount(np.array([-1])),
        lambda x: ag.median(x, 7),
    ],
)
def test_wrong_arguments(call):
    with pytest.raises(ValueError):
        call(ag.tensor(M))


def test_both_names_of_an_axis():
    x = ag.tensor(M)
    np.testing.assert_array_equal(ag.cumprod(x, axis=0).to_host(), ag.cumprod(x, dim=0).to_host())
    with pytest.raises(TypeError, match="dim and axis"):
        ag.cumprod(x, dim=0, axis=0)
