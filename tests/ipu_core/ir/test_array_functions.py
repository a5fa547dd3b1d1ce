"""NumPy's functions on traced values: each is what NumPy computes, has its gradient, or says what to write."""

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat as evaluate
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify

RNG = np.random.default_rng(8)
A, B, C = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4)), RNG.normal(size=(2, 3, 4))
ROWS = np.array([[2, 0], [1, 2]])
TRUE = np.array([[0.0, 1, 0, 2], [0, 0, 0, 0], [1, 1, -1, 3]])

MOVES = {
    "swapaxes": lambda a, b, c: np.swapaxes(c, 0, -1),
    "transpose": lambda a, b, c: [np.transpose(a), np.transpose(c, axes=(2, 0, 1)), np.permute_dims(c, (1, 0, 2))],
    "moveaxis": lambda a, b, c: [np.moveaxis(c, 0, -1), np.moveaxis(c, (0, 2), (1, 0)), np.moveaxis(c, -1, 0)],
    "expand_dims": lambda a, b, c: [np.expand_dims(a, 1), np.expand_dims(a, (0, -1))],
    "squeeze": lambda a, b, c: [np.squeeze(c[:1]), np.squeeze(c[:, :1], 1), c[:1, :, :1].squeeze(axis=(0, -1))],
    "ravel": lambda a, b, c: [np.ravel(c), a.T.ravel(), a.flatten()],
    "stack": lambda a, b, c: [np.stack([a, b]), np.stack((a, b), -1), np.stack([a, b], axis=1)],
    "vstack": lambda a, b, c: [np.vstack([a, b]), np.vstack([a[0], b[1]])],
    "hstack": lambda a, b, c: [np.hstack([a, b]), np.hstack([a[0], b[0]])],
    "concatenate": lambda a, b, c: [np.concatenate([a, b], axis=1), np.concatenate((a, b[0]), axis=None)],
    "split": lambda a, b, c: [*np.split(a, 2, axis=1), *np.split(c, [1, 2], 1), *np.array_split(a, 3, -1)],
    "take": lambda a, b, c: [np.take(a, ROWS, 0), np.take(c, ROWS, axis=1), np.take(a, 3), a.take(ROWS),
                             np.take(a, -1, 1)],
    "take_along_axis": lambda a, b, c: [np.take_along_axis(a, np.array([[0], [3], [1]]), 1),
                                        np.take_along_axis(a, np.array([[2, 1, 0, 0]]), 0),
                                        np.take_along_axis(a, np.array([[3, 1]]), 1)],
    "flip": lambda a, b, c: [np.flip(a), np.flip(c, 1), np.flip(c, (0, 2)), np.flipud(a), np.fliplr(a)],
    "roll": lambda a, b, c: [np.roll(a, 2), np.roll(a, -1, axis=1), np.roll(c, 5, 1)],
    "repeat": lambda a, b, c: [np.repeat(a, 3), np.repeat(a, 2, axis=0), c.repeat(2, -1)],
    "tile": lambda a, b, c: [np.tile(a, 2), np.tile(a, (2, 1, 3)), np.tile(c, (2,))],
    "pad": lambda a, b, c: [np.pad(a, 1), np.pad(a, ((0, 2), (1, 0))), np.pad(a, (1, 2), constant_values=-3.5)],
    "tril, triu": lambda a, b, c: [np.tril(a), np.triu(a, 1), np.tril(c, -1), np.triu(c, -2)],
    "broadcast_to": lambda a, b, c: np.broadcast_to(a, (2, 3, 4)),
    "matrix_transpose": lambda a, b, c: np.matrix_transpose(c),
    "where": lambda a, b, c: np.where(a > b, a, b),
    "copy, likes": lambda a, b, c: [np.copy(a) * np.full_like(a, 2.0), np.zeros_like(c) + c, np.ones_like(a) * b],
    "shapes": lambda a, b, c: a * np.ones(4, a.dtype) * (np.ndim(c) + np.size(a) + np.shape(b)[1]),
}  # fmt: skip
NUMBERS = {
    "min": lambda a, b, c: [np.min(a), np.amin(c, axis=(0, 2)), a.min(1, keepdims=True)],
    "var": lambda a, b, c: [np.var(a), np.var(c, axis=(0, 1)), a.var(1, ddof=1), np.var(a, 0, keepdims=True)],
    "std": lambda a, b, c: [np.std(a), np.std(c, 1, ddof=1), a.std(axis=0, keepdims=True)],
    "norm": lambda a, b, c: [np.linalg.norm(a), np.linalg.norm(a, axis=1), np.linalg.norm(a[0]),
                             np.linalg.norm(a, 1, 0), np.linalg.norm(a, np.inf, axis=1, keepdims=True),
                             np.linalg.norm(c, 2, axis=0), np.linalg.norm(a, "fro")],
    "cumsum": lambda a, b, c: [np.cumsum(a), np.cumsum(c, axis=1), a.cumsum(0)],
    "diff": lambda a, b, c: [np.diff(a), np.diff(c, 2, axis=1)],
    "trace": lambda a, b, c: [np.trace(a), c.trace()],
    "dot": lambda a, b, c: [np.dot(a, b.T), np.dot(a, b[0]), np.dot(a[0], b[0]), np.dot(c, a.T), a.dot(2.0),
                            np.dot(C[:, 0], b.T)],
    "inner, outer": lambda a, b, c: [np.inner(a, b), np.inner(c, a), np.outer(a, b[0]), np.vdot(a, b)],
    "tensordot": lambda a, b, c: [np.tensordot(c, a), np.tensordot(c, a.T, 1),
                                  np.tensordot(c, a, ([2, 1], [1, 0])), np.tensordot(a[0], b[0], 0)],
    "einsum": lambda a, b, c: [
        np.einsum("ij,kj->ik", a, b), np.einsum("ij, ij -> j", a, b), np.einsum("ij,ij", a, b), np.einsum("ij->ji", a),
        np.einsum("bij,ij->b", c, a), np.einsum("bij,bkj->bik", c, c), np.einsum("i,j->ij", a[:, 0], b[0]),
        np.einsum("bij,kj,ki->bk", c, a, B[:, :3]), np.einsum("ba,cb", a[:, :3], b[:3, :3]),
        np.einsum("ijk->", c), np.einsum("ij,jk,kl->il", a, b.T, a)],
    "clip": lambda a, b, c: [np.clip(a, -0.5, 0.5), a.clip(0), np.clip(a, None, 0.2), np.clip(a, b - 1, b + 1)],
    "log1p": lambda a, b, c: [np.log1p(abs(a) * 10.0**-n) for n in (0, 3, 6, 9)],
    "expm1": lambda a, b, c: [np.expm1(a * 10.0**-n) for n in (0, 3, 6, 9)],
    "logarithms": lambda a, b, c: [np.log2(abs(a)), np.log10(abs(a)), np.exp2(a), np.logaddexp(a, 30 * b)],
    "hyperbolic": lambda a, b, c: [np.sinh(a), np.cosh(a), np.arcsinh(3 * a), np.arccosh(1.5 + abs(a)),
                                   np.arctanh(0.1 * a), np.sinh(a * 1e-6), np.arcsinh(a * 1e-6)],
    "angles": lambda a, b, c: [np.arctan(a), np.arctan(c * 1e4), np.arctan(a * 1e-6), np.arcsin(np.tanh(a)),
                               np.arccos(np.tanh(a)), np.arctan2(a, b)],
    "cumprod": lambda a, b, c: [np.cumprod(a), a.cumprod(1), np.cumulative_prod(c, axis=1, include_initial=True)],
    "operators": lambda a, b, c: [2.0 ** a, sum(a), a.mT, a.prod(), a[[2, 0]]],
    "tan, hypot": lambda a, b, c: [np.tan(0.2 * a), np.hypot(a, b), np.conj(a) * np.real(b)],
    "prod": lambda a, b, c: [np.prod(a), np.prod(c, axis=1), np.prod(c, (0, 2), keepdims=True)],
    "sort": lambda a, b, c: [np.sort(a), np.sort(c, axis=0), np.sort(a, None)],
    "vecdot, cross": lambda a, b, c: [np.vecdot(a, b), np.vecdot(c, a), np.linalg.cross(a[:, :3], b[:, 1:]),
                                      np.linalg.cross(a, b, axis=0), np.linalg.vecdot(a, b)],
    "cumulative_sum": lambda a, b, c: [np.cumulative_sum(a, axis=1),
                                       np.cumulative_sum(c, axis=0, include_initial=True)],
    "linalg": lambda a, b, c: [np.linalg.trace(c), np.linalg.diagonal(a), np.linalg.diagonal(c, offset=1),
                               np.linalg.diagonal(a, offset=-1), np.linalg.matrix_power(a[:, :3], 3),
                               np.linalg.matrix_transpose(c), np.linalg.matrix_norm(c),
                               np.linalg.vector_norm(c, axis=1),
                               np.linalg.vector_norm(a), np.linalg.vector_norm(a, ord=1, keepdims=True)],
    "together": lambda a, b, c: [*np.broadcast_arrays(a, c), *np.unstack(c, axis=1), *np.meshgrid(a[0], b[:, 1]),
                                 *np.meshgrid(a[0], b[1], a[:, 2], indexing="ij")],
    "methods": lambda a, b, c: [a.swapaxes(0, 1), a * 1.0, a.mean(0)],
    "remainders": lambda a, b, c: [np.remainder(9 * a, 2), np.fmod(9 * a, 2.5), 9 * a % -4, np.divmod(c, 0.3)[1]],
    "float_power": lambda a, b, c: np.float_power(a, 2),
}  # fmt: skip
CONSTANT = {
    "comparisons": lambda a, b, c: [np.less(a, b), np.less_equal(a, a), np.greater_equal(a, b), np.not_equal(a, b)],
    "logic": lambda a, b, c: [np.logical_and(TRUE, a > 0), np.logical_or(a > 0, TRUE), np.logical_not(a * TRUE),
                              np.logical_xor(TRUE, a > 0), np.bitwise_xor(a > 0, b > 0),
                              (a > 0) & (b > 0), (TRUE > 0) | (a > 0)],
    "any, all": lambda a, b, c: [np.any(a * TRUE), np.all(a * TRUE, axis=1), (a * TRUE).any(0), (a > -9).all(),
                                 np.count_nonzero(a * TRUE, axis=1)],
    "argmax": lambda a, b, c: [np.argmax(a), np.argmax(c, axis=1), a.argmax(1, keepdims=True), np.argmin(a, 0),
                               np.argmax(a * TRUE, axis=1), np.argmin(a * TRUE, 1)],
    "argsort": lambda a, b, c: [np.argsort(a), np.argsort(c, axis=1), np.argsort(a, None),
                                np.argsort(TRUE + 0 * a, kind="stable"), np.argsort(-TRUE + 0 * a, 0, kind="stable")],
    "orders with NaN": lambda a, b, c: [f(np.where(a > 0.5, np.nan, TRUE), axis=axis)
                                        for f in (np.sort, np.argsort) for axis in (0, 1)],
    "dtypes": lambda a, b, c: a * (np.result_type(a, np.float16) == a.dtype) + np.imag(b),
    "roundings": lambda a, b, c: [np.floor(9 * a), np.ceil(c), np.trunc(9 * b), np.rint(9 * c), 9 * a // b, a.round(1),
                                  np.around(c), np.fix(9 * a), np.floor_divide(9 * a, 2), divmod(a, 0.1)[0]],
    "sign": lambda a, b, c: np.sign(a * TRUE),
    "not finite": lambda a, b, c: [f(np.where(a > 0.5, np.inf, np.where(a < -0.5, np.nan, a)))
                                   for f in (np.isnan, np.isinf, np.isfinite)],
}  # fmt: skip
CASES = {**MOVES, **NUMBERS, **CONSTANT}


def results(f, *arrays):
    return flatten(f(*arrays))[0]


@pytest.mark.parametrize("name", CASES)
def test_a_traced_function_is_what_numpy_computes(name):
    f = CASES[name]
    block = verify(trace(f, A, B, C))
    for got, want in zip(evaluate(block, [A, B, C]), results(f, A, B, C), strict=True):
        assert got.shape == np.shape(want)
        if name in MOVES:
            np.testing.assert_array_equal(got, want)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


def squares(f):
    return lambda a, *rest: sum(((y * y).sum() for y in results(f, a, *rest)), 0.0)


@pytest.mark.parametrize("name", {**MOVES, **NUMBERS})
def test_its_gradient_is_the_finite_difference(name):
    loss = squares(CASES[name])
    direction = RNG.normal(size=A.shape)
    _, gradient = value_and_grad(lambda a: loss(a, B, C) + 0.0 * a.sum())(A)
    up, down = (loss(A + s * direction, B, C) for s in (1e-6, -1e-6))
    assert (gradient * direction).sum() == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", [*NUMBERS, *CONSTANT, "flip", "pad", "take_along_axis"])
def test_both_engines_compute_it_to_the_same_bits(name):
    block = Precision.parse("fp16.16/stochastic").apply(trace(CASES[name], A, B, C))
    arrays = [np.float32(x) for x in (A, B, C)]
    machine = Machine.build(block, Target("gc200", tiles=7))
    direct = Executable(block, machine.plan.accumulations)
    for got, want in zip(machine.run(arrays, 3), direct.run(arrays, 3), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


@pytest.mark.parametrize(
    "f, slope, ends",
    [
        (np.log1p, lambda x: 1 / (1 + x), [0, -1, np.inf, 1e30, -2, 1e-30]),
        (np.expm1, np.exp, [0, -np.inf, np.inf, 60, -90, 1e-30]),
    ],
)
def test_small_arguments_of_log1p_and_expm1_are_true_and_so_are_the_ends(f, slope, ends):
    x = np.concatenate([np.logspace(-12, 0, 200), -np.logspace(-12, -0.1, 200), ends]).astype(np.float32)
    (got,) = Executable(trace(f, x)).run([x], 0)
    gradient = trace(lambda x: value_and_grad(lambda x: f(x).sum())(x)[1], x)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, f(x.astype(np.float64)), rtol=5 * np.finfo(np.float32).eps)
        wanted = slope(x.astype(np.float64))
    few = np.isfinite(wanted) & (abs(wanted) < 1e10)
    np.testing.assert_allclose(evaluate(gradient, [x], "declared")[0][few], wanted[few], rtol=1e-5, atol=1e-30)


def test_statistics_are_float32_and_moves_keep_their_format():
    def formats(f):
        block = Precision.parse("fp16.16/nearest").apply(trace(lambda a: f(a * 2.0), A))
        return {e.output.type.format.name for e in block.equations if e.family == "norm"}

    for f in (np.var, np.std, np.linalg.norm):
        assert formats(f) == {"float32"}
    block = Precision.parse("fp16.16/nearest").apply(trace(lambda a: np.einsum("ij,kj->ik", a, a), A))
    (product,) = (e for e in block.equations if e.op not in STRUCTURE and e.op != "convert")
    assert (product.op, product.arithmetic.accumulate.name) == ("dot", "float16")


REFUSALS = {
    r"np.median cannot be traced; nn.topk orders rows": lambda a: np.median(a),
    r"np.partition cannot be traced; nn.topk": lambda a: np.partition(a, 1),
    r"np.modf cannot be traced; np.fmod\(x, 1.0\) and np.trunc": lambda a: np.modf(a),
    r"np.signbit cannot be traced; the sign of a zero is not seen": lambda a: np.signbit(a),
    r"np.searchsorted cannot be traced; np.sum\(x1 < .*counts": lambda a: np.searchsorted(a[0], a[1]),
    r"np.round of a traced value takes \(a, decimals\): .*'out'": lambda a: a.round(out=a),
    r"decimals must be an integer, not 1.5": lambda a: a.round(1.5),
    r"hold int32 numbers, not float32: with a mask .*np.where\(mask": lambda a: a[a > 0],
    r"must go forwards, not by -1: np.flip": lambda a: a[::-1],
    r"cannot be written to: np.where\(mask, value, x\)": lambda a: a.__setitem__(0, 1.0),
    r"np.take and np.take_along_axis pick": lambda a: a[np.arange(2), np.arange(2)],
    r"0.5 or -0.5, not Traced.*np.exp\(y \* np.log\(x\)\)": lambda a: a**a,
    r"np.add of a traced value takes \(operands\): .*'out'": lambda a: np.add(a, a, out=a),
    r"a power of a traced matrix is at least 1, not 0": lambda a: np.linalg.matrix_power(a[:, :3], 0),
    r"a vector product needs 3 elements along axis -1": lambda a: np.linalg.cross(a, a),
    r"np.unique cannot be traced; shapes may not depend on numbers": lambda a: np.unique(a),
    r"np.allclose cannot be traced; there are no numbers yet": lambda a: np.allclose(a, a),
    r"np.linalg.inv cannot be traced; these can: .*einsum": lambda a: np.linalg.inv(a),
    r"np.add.reduce cannot be traced; np.sum": lambda a: np.add.reduce(a),
    r"np.sum of a traced value takes \(x, axis, keepdims\): .*'dtype'": lambda a: np.sum(a, dtype=np.float32),
    r"np.exp of a traced value takes .*'where'": lambda a: np.exp(a, where=True),
    r"mode 'constant', not 'edge'": lambda a: np.pad(a, 1, mode="edge"),
    r"neither ... nor a letter twice in one operand: 'ii'": lambda a: np.einsum("ii", a),
    r"'ijk->i' does not fit operands of the shapes \(3, 4\)": lambda a: np.einsum("ijk->i", a),
    r"ord is None or 'fro', of vectors also 1, 2 or inf, not 2": lambda a: np.linalg.norm(a, 2),
    r"split: 3 equal parts of 4 there are not": lambda a: np.split(a, 3, axis=1),
    r"axis 0 of the shape \(3, 4\) has another length than 1": lambda a: np.squeeze(a, 0),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_the_rest_is_refused_with_what_to_write(message):
    with pytest.raises((TypeError, ValueError), match=message):
        trace(REFUSALS[message], A)


def test_a_product_of_two_vectors_is_a_number():
    (block,) = (trace(np.matmul, A[0], B[0]),)
    (got,) = evaluate(block, [A[0], B[0]])
    assert got.shape == ()
    assert got == pytest.approx(A[0] @ B[0])
    assert [x.shape for x in evaluate(trace(lambda a, b, c: [a[0] @ b.T, c @ a[0], a @ b[0]], A, B, C), [A, B, C])] == [
        (3,), (2, 3), (3,),
    ]  # fmt: skip
