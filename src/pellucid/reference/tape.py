"""Reverse-mode differentiation of plain NumPy code.

A `Var` holds an array and implements NumPy's own functions, so the definitions of this package run
unchanged on arrays and on variables. Each operation records, for each of its arguments, how to compute that
argument's gradient from the gradient of the result; `gradient` applies these records from last to first.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = Any  # an ndarray or a Var: every function of this package takes both

_order = itertools.count()


class Var(np.lib.mixins.NDArrayOperatorsMixin):
    """An array with a record of its origin: `parents` holds (argument, gradient of result -> gradient of argument)."""

    def __init__(self, value: Any, parents: tuple = ()):
        self.value = np.asarray(value, np.float64)
        self.parents = parents
        self.order = next(_order)

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    T = property(lambda self: np.swapaxes(self, -1, -2))

    def __array__(self, *args, **kwargs):
        raise TypeError("a variable of the tape was used where an array is needed: pass constant(x)")

    def __len__(self):
        return len(self.value)

    def __getitem__(self, index):
        def back(g):
            out = np.zeros(self.shape)
            np.add.at(out, index, g)
            return out

        return Var(self.value[index], ((self, back),))

    def reshape(self, *shape):
        return np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype):
        return self

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        values = [constant(x) for x in inputs]
        if ufunc in COMPARISONS:
            return ufunc(*values)
        if method != "__call__" or kwargs or ufunc not in DERIVATIVES:
            raise TypeError(f"{ufunc.__name__} has no derivative here: add it to DERIVATIVES")
        rules = DERIVATIVES[ufunc]
        if any(isinstance(x, Var) for x in inputs[len(rules) :]):
            raise TypeError(f"{ufunc.__name__} has no derivative here with respect to its last argument")
        out = np.asarray(ufunc(*values), np.float64)
        return Var(out, _parents(inputs, values, out, rules))

    def __array_function__(self, function, types, args, kwargs):
        if function not in FUNCTIONS:
            raise TypeError(f"{function.__name__} has no derivative here: add it to FUNCTIONS")
        return FUNCTIONS[function](*args, **kwargs)


def constant(x: Array) -> Any:
    """The array of a variable, which carries no gradient; anything else unchanged."""
    return x.value if isinstance(x, Var) else x


def real(x: Array) -> Array:
    """The argument in float64; variables are in float64 already."""
    return x if isinstance(x, Var) else np.asarray(x, np.float64)


def gradient(
    f: Callable[[dict[str, Array]], Array], arguments: Mapping[str, np.ndarray]
) -> tuple[float, dict[str, np.ndarray]]:
    """f(arguments), a single number, and its derivative with respect to each argument.

    Two names of one array object are one variable: both have the sum of the two derivatives.
    """
    shared = {id(a): Var(a) for a in arguments.values()}
    variables = {name: shared[id(a)] for name, a in arguments.items()}
    result = f(variables)
    if not isinstance(result, Var) or result.size != 1:
        raise ValueError("gradient needs a function whose value is one number that depends on its arguments")
    grads = backward(result)
    gradients = {name: grads.get(v.order, np.zeros(v.shape)) for name, v in variables.items()}
    return float(result.value), gradients


def backward(result: Var) -> dict[int, np.ndarray]:
    """The derivative of `result` with respect to every variable that it depends on, by order of creation."""
    reached, ahead = {}, [result]
    while ahead:
        v = ahead.pop()
        if v.order not in reached:
            reached[v.order] = v
            ahead += [parent for parent, _ in v.parents]
    grads = {result.order: np.ones(result.shape)}
    # a result is created after its arguments, so from last to first every gradient is complete when it is used
    for order in sorted(reached, reverse=True):
        for parent, back in reached[order].parents:
            grads[parent.order] = grads.get(parent.order, 0) + back(grads[order])
    return grads


def _parents(inputs, values, out, rules) -> tuple:
    """The (argument, backward step) pairs of an elementwise operation or a matrix product."""

    def step(k, rule):
        return inputs[k], lambda g: _unbroadcast(rule(g, out, *values), np.shape(values[k]))

    return tuple(step(k, rule) for k, rule in enumerate(rules) if isinstance(inputs[k], Var))


def _unbroadcast(g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sum of g over the axes along which an argument of `shape` was repeated."""
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    repeated = tuple(k for k, n in enumerate(shape) if n == 1 and g.shape[k] != 1)
    return g.sum(axis=repeated, keepdims=True) if repeated else g


def _matmul_gradient_left(g: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The gradient of a from the gradient of a @ b; a vector on either side is one row or one column."""
    return g[..., None] * b if b.ndim == 1 else g @ np.swapaxes(b, -1, -2)


def _matmul_gradient_right(g: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The gradient of b from the gradient of a @ b."""
    if b.ndim == 1:
        return g[..., None] * a
    return a[:, None] * g[..., None, :] if a.ndim == 1 else np.swapaxes(a, -1, -2) @ g


COMPARISONS = {np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal, np.isfinite}

#: ufunc -> for each argument, (gradient of the result, result, arguments...) -> gradient of that argument
DERIVATIVES: dict[Any, tuple[Callable, ...]] = {
    np.add: (lambda g, y, a, b: g, lambda g, y, a, b: g),
    np.subtract: (lambda g, y, a, b: g, lambda g, y, a, b: -g),
    np.multiply: (lambda g, y, a, b: g * b, lambda g, y, a, b: g * a),
    np.true_divide: (lambda g, y, a, b: g / b, lambda g, y, a, b: -g * y / b),
    np.power: (lambda g, y, a, b: g * b * a ** (b - 1.0),),
    np.negative: (lambda g, y, a: -g,),
    np.exp: (lambda g, y, a: g * y,),
    np.log: (lambda g, y, a: g / a,),
    # a gradient of 0 stays 0, also where v = 0: (x - mu) / (sqrt(v) + eps) has a derivative at v = 0 (E-51)
    np.sqrt: (lambda g, y, a: np.divide(g, 2 * y, out=np.zeros_like(y), where=g != 0),),
    np.square: (lambda g, y, a: 2 * g * a,),
    np.tanh: (lambda g, y, a: g * (1 - y * y),),
    np.maximum: (lambda g, y, a, b: g * (a > b), lambda g, y, a, b: g * (b >= a)),
    np.matmul: (lambda g, y, a, b: _matmul_gradient_left(g, a, b), lambda g, y, a, b: _matmul_gradient_right(g, a, b)),
}


def _sum(x, axis=None, keepdims=False):
    def back(g):
        if axis is not None and not keepdims:
            g = np.expand_dims(g, axis)
        return np.broadcast_to(g, x.shape)

    return Var(np.sum(x.value, axis=axis, keepdims=keepdims), ((x, back),))


def _mean(x, axis=None, keepdims=False):
    total = _sum(x, axis, keepdims)
    return total * (total.size / x.size)


def _select(condition, a, b):
    condition = constant(condition)
    out = np.where(condition, constant(a), constant(b))
    rules = (lambda g, y, a, b: np.where(condition, g, 0.0), lambda g, y, a, b: np.where(condition, 0.0, g))
    return Var(out, _parents((a, b), (constant(a), constant(b)), out, rules))


def _concatenate(arrays, axis=0):
    values = [constant(a) for a in arrays]
    ends = np.cumsum([v.shape[axis] for v in values])
    parts = [(a, k) for k, a in enumerate(arrays) if isinstance(a, Var)]
    return Var(
        np.concatenate(values, axis),
        tuple((a, lambda g, k=k: np.split(g, ends[:-1], axis)[k]) for a, k in parts),
    )


def _stack(arrays, axis=0):
    parts = [(a, k) for k, a in enumerate(arrays) if isinstance(a, Var)]
    return Var(
        np.stack([constant(a) for a in arrays], axis),
        tuple((a, lambda g, k=k: np.take(g, k, axis)) for a, k in parts),
    )


def _einsum(spec, *operands):
    """np.einsum with an explicit output, where each letter of an argument is also in the result or another argument."""
    values = [constant(x) for x in operands]
    letters, result = spec.replace(" ", "").split("->")
    letters = letters.split(",")

    def step(k):
        others = [x for n, x in enumerate(values) if n != k]
        back = ",".join([result, *(s for n, s in enumerate(letters) if n != k)]) + "->" + letters[k]
        return operands[k], lambda g: np.einsum(back, g, *others)

    steps = tuple(step(k) for k, x in enumerate(operands) if isinstance(x, Var))
    return Var(np.einsum(spec, *values), steps)


def _reshape(x, shape):
    return Var(np.reshape(x.value, shape), ((x, lambda g: np.reshape(g, x.shape)),))


def _swapaxes(x, i, j):
    return Var(np.swapaxes(x.value, i, j), ((x, lambda g: np.swapaxes(g, i, j)),))


def _broadcast_to(x, shape):
    return Var(np.broadcast_to(x.value, shape), ((x, lambda g: _unbroadcast(g, x.shape)),))


FUNCTIONS: dict[Any, Callable] = {
    np.sum: _sum,
    np.mean: _mean,
    np.where: _select,
    np.concatenate: _concatenate,
    np.stack: _stack,
    np.einsum: _einsum,
    np.reshape: _reshape,
    np.swapaxes: _swapaxes,
    np.broadcast_to: _broadcast_to,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
}
