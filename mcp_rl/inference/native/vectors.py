"""The innermost loops of the native forward pass, written as LLVM vector operations that Numba compiles.

Numba's own loops are vectorised only where LLVM can prove that arrays do not overlap, and keep no sums in registers
across loops. Each function here takes pointers to float32, from `at`, and reads and writes exactly what its docstring
says. All sums have a fixed order that depends on the lengths alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLOAT = ir.FloatType()
INDEX = ir.IntType(64)
POINTER = types.CPointer(types.float32)
LANES = 16 if "+avx512f" in (config.CPU_FEATURES or binding.get_host_cpu_features().flatten()) else 8
"""Numbers in a register, or in two where they hold four."""
PANEL = 64 if LANES == 16 else 16
"""Outputs of a linear layer that are computed together."""
WIDE = 2 * LANES
"""Outputs of a product of many rows that are computed together; divides `compiling.PAGE`."""
_LINE = 16
"""Numbers in a line of the processor's cache."""
BLOCK = 64
"""Numbers of which `exponentials` writes one sum."""
_LN2 = 0.693359375, -2.12194440e-4
"""ln 2 as a sum of two numbers, the first of few bits (Cephes, Moshier 1992, expf)."""
_EXP = 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
"""Coefficients of (exp(r) - 1 - r) / r² for |r| < ln 2 / 2 (Cephes, expf)."""
LOWEST = -87.0
"""Exponents below it give 0."""


def _index(number: int) -> Any:
    return ir.Constant(INDEX, number)


def _vector(lanes: int) -> Any:
    return ir.VectorType(FLOAT, lanes)


def _constant(number: float, lanes: int) -> Any:
    return ir.Constant(_vector(lanes), [float(np.float32(number))] * lanes)


class _Code:
    """Writes vector operations to a function that Numba is compiling."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def place(self, pointer: Any, *terms: Any) -> Any:
        """Return the pointer moved by the sum of some numbers of floats."""
        total = terms[0]
        for term in terms[1:]:
            total = self.builder.add(total, term)
        return self.builder.gep(pointer, [total])

    def load(self, pointer: Any, lanes: int) -> Any:
        value = self.builder.load(self.builder.bitcast(pointer, _vector(lanes).as_pointer()))
        value.align = 4
        return value

    def store(self, value: Any, pointer: Any) -> None:
        self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer())).align = 4

    def splat(self, number: Any, lanes: int) -> Any:
        """Return a vector of one number."""
        vector = self.builder.insert_element(
            ir.Constant(_vector(lanes), ir.Undefined), number, ir.Constant(ir.IntType(32), 0)
        )
        return self._chosen(vector, [0] * lanes)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """Return x y + z, rounded once."""
        return self.call("llvm.fma", x, y, z)

    def call(self, name: str, *arguments: Any) -> Any:
        kind = arguments[0].type
        full, known = f"{name}.v{kind.count}f32", self.builder.module.globals
        function = known.get(full) or ir.Function(
            self.builder.module, ir.FunctionType(kind, [kind] * len(arguments)), full
        )
        return self.builder.call(function, list(arguments))

    def folded(self, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
        """Join the halves of a vector until one number is left."""
        lanes = vector.type.count
        while lanes > 1:
            lanes //= 2
            vector = join(self._chosen(vector, range(lanes)), self._chosen(vector, range(lanes, 2 * lanes)))
        return self.builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    def larger(self, x: Any, y: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", x, y), x, y)

    def exp(self, x: Any) -> Any:
        """Return e to the power of x <= 88, within two units in the last place; 0 below `LOWEST`."""
        builder, lanes = self.builder, x.type.count
        low = builder.fcmp_ordered("<", x, _constant(LOWEST, lanes))
        x = builder.select(low, _constant(LOWEST, lanes), x)
        power = self.call("llvm.rint", builder.fmul(x, _constant(1 / np.log(2), lanes)))
        for part in _LN2:
            x = self.multiply_add(power, _constant(-part, lanes), x)
        total = _constant(_EXP[0], lanes)
        for coefficient in _EXP[1:]:
            total = self.multiply_add(total, x, _constant(coefficient, lanes))
        total = builder.fadd(self.multiply_add(total, builder.fmul(x, x), x), _constant(1, lanes))
        whole = ir.VectorType(ir.IntType(32), lanes)
        exponent = builder.add(builder.fptosi(power, whole), ir.Constant(whole, [127] * lanes))
        scale = builder.bitcast(builder.shl(exponent, ir.Constant(whole, [23] * lanes)), _vector(lanes))
        return builder.select(low, _constant(0, lanes), builder.fmul(total, scale))

    def exp_of_negative(self, x: Any) -> Any:
        """Return e to the power of -x, or of -`LOWEST` where that is less."""
        lanes = x.type.count
        negative = self.builder.fsub(_constant(0, lanes), x)
        high = self.builder.fcmp_ordered(">", negative, _constant(-LOWEST, lanes))
        return self.exp(self.builder.select(high, _constant(-LOWEST, lanes), negative))

    def sum(self, lanes: int) -> Any:
        """Return a place for a running sum, in a register in the end."""
        return cgutils.alloca_once_value(self.builder, _constant(0, lanes))

    def in_steps(self, count: Any, step: Callable[..., None]) -> None:
        """Call step(lanes, *terms of the place) for whole vectors of `count` numbers, and for each that is left."""
        builder, lanes = self.builder, _index(LANES)
        with cgutils.for_range(builder, builder.udiv(count, lanes)) as loop:
            step(LANES, builder.mul(loop.index, lanes))
        left = builder.urem(count, lanes)
        with cgutils.for_range(builder, left) as loop:
            step(1, builder.sub(count, left), loop.index)

    def _chosen(self, vector: Any, lanes: Sequence[int]) -> Any:
        places = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
        return self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


@intrinsic
def start(context: Any, array: Any) -> Any:
    """Return a pointer to the first entry of an array."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, values[0]).data

    return POINTER(array), write


@intrinsic
def at(context: Any, pointer: Any, offset: Any) -> Any:
    """Return a pointer moved by `offset` numbers."""
    return POINTER(POINTER, types.intp), lambda _, builder, __, values: builder.gep(values[0], [values[1]])


@intrinsic
def pointer_to(context: Any, address: Any) -> Any:
    """Return a pointer to an address."""
    return POINTER(types.intp), lambda _, builder, __, values: builder.inttoptr(values[0], FLOAT.as_pointer())


@intrinsic
def fetched(context: Any, x: Any, count: Any) -> Any:
    """Have the cache lines of x [count], a multiple of 16, read without waiting for them; nothing happens where no
    memory is."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, count) = _Code(builder), values
        word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        with cgutils.for_range(builder, builder.udiv(count, _index(_LINE))) as loop:
            place = builder.bitcast(code.place(x, builder.mul(loop.index, _index(_LINE))), byte)
            builder.call(function, [place, *(ir.Constant(word, n) for n in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(POINTER, types.intp), write


def _tile(rows: int, lanes: int) -> Any:
    @intrinsic
    def tile(context: Any, x: Any, weights: Any, inputs: Any, base: Any, out: Any) -> Any:
        """Write base[r] + Σ x[r, k] weights[k] to out[r] for some rows r, each of `lanes` numbers.

        x: a pointer, and the numbers from one row and from one input to the next; the others: a pointer, and the
        numbers from one row to the next. `base` may be `out`.
        """

        def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            code, (x, weights, inputs, base, out) = _Code(builder), values
            x, x_row, x_step = cgutils.unpack_tuple(builder, x)
            (weights, weight_row), (base, base_row), (out, out_row) = (
                cgutils.unpack_tuple(builder, pair) for pair in (weights, base, out)
            )
            sums = [code.sum(lanes) for _ in range(rows)]
            with cgutils.for_range(builder, inputs) as loop:
                weight = code.load(code.place(weights, builder.mul(loop.index, weight_row)), lanes)
                step = builder.mul(loop.index, x_step)
                for row, total in enumerate(sums):
                    number = code.splat(builder.load(code.place(x, step, builder.mul(x_row, _index(row)))), lanes)
                    builder.store(code.multiply_add(number, weight, builder.load(total)), total)
            for row, total in enumerate(sums):
                first = code.load(code.place(base, builder.mul(base_row, _index(row))), lanes)
                code.store(builder.fadd(first, builder.load(total)), code.place(out, builder.mul(out_row, _index(row))))
            return context.get_dummy_value()

        rows_of = types.Tuple((POINTER, types.intp))
        return types.void(types.Tuple((POINTER, types.intp, types.intp)), rows_of, types.intp, rows_of, rows_of), write

    return tile


tile_of_6, tile_of_4, tile_of_2, tile_of_1 = (_tile(rows, PANEL) for rows in (6, 4, 2, 1))
TALL = 12 if LANES == 16 else 6
"""Rows of `tall`, whose sums fill the registers."""
tall, low, double, flat = (_tile(rows, WIDE) for rows in (TALL, 4, 2, 1))
flat_of_8, flat_of_1 = _tile(1, 8), _tile(1, 1)


@intrinsic
def largest(context: Any, x: Any, blocks: Any) -> Any:
    """Return the largest of x [blocks, BLOCK]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, blocks) = _Code(builder), values
        top = cgutils.alloca_once_value(builder, _constant(-np.inf, BLOCK))
        with cgutils.for_range(builder, blocks) as loop:
            block = code.load(code.place(x, builder.mul(loop.index, _index(BLOCK))), BLOCK)
            builder.store(code.larger(block, builder.load(top)), top)
        return code.folded(builder.load(top), code.larger)

    return types.float32(POINTER, types.intp), write


@intrinsic
def exponentials(context: Any, x: Any, blocks: Any, top: Any, out: Any, sums: Any) -> Any:
    """Write exp(x - top) of x [blocks, BLOCK] to out, which may be x, and the sum of each block to sums [blocks]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, blocks, top, out, sums) = _Code(builder), values
        with cgutils.for_range(builder, blocks) as loop:
            first = builder.mul(loop.index, _index(BLOCK))
            shifted = builder.fsub(code.load(code.place(x, first), BLOCK), code.splat(top, BLOCK))
            powers = code.exp(shifted)
            code.store(powers, code.place(out, first))
            builder.store(code.folded(powers, builder.fadd), code.place(sums, loop.index))
        return context.get_dummy_value()

    return types.void(POINTER, types.intp, types.float32, POINTER, POINTER), write


@intrinsic
def gated(context: Any, gate: Any, up: Any, blocks: Any, out: Any) -> Any:
    """Write silu(gate) up = gate up / (1 + exp(-gate)) to out; each [blocks, WIDE]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (gate, up, blocks, out) = _Code(builder), values
        with cgutils.for_range(builder, blocks) as loop:
            first = builder.mul(loop.index, _index(WIDE))
            g = code.load(code.place(gate, first), WIDE)
            share = builder.fdiv(g, builder.fadd(_constant(1, WIDE), code.exp_of_negative(g)))
            code.store(builder.fmul(share, code.load(code.place(up, first), WIDE)), code.place(out, first))
        return context.get_dummy_value()

    return types.void(POINTER, POINTER, types.intp, POINTER), write


@intrinsic
def gated_back(context: Any, gate: Any, up: Any, gradient: Any, blocks: Any, gate_out: Any, up_out: Any) -> Any:
    """Write the gradients of gate and up to two places, for the gradient of silu(gate) up, which is replaced by
    silu(gate) up itself; each [blocks, WIDE]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (gate, up, gradient, blocks, gate_out, up_out) = _Code(builder), values
        with cgutils.for_range(builder, blocks) as loop:
            first = builder.mul(loop.index, _index(WIDE))
            g, u, d = (code.load(code.place(side, first), WIDE) for side in (gate, up, gradient))
            one = _constant(1, WIDE)
            share = builder.fdiv(one, builder.fadd(one, code.exp_of_negative(g)))
            silu = builder.fmul(g, share)
            slope = builder.fmul(share, builder.fadd(one, builder.fmul(g, builder.fsub(one, share))))
            code.store(builder.fmul(builder.fmul(d, u), slope), code.place(gate_out, first))
            code.store(builder.fmul(d, silu), code.place(up_out, first))
            code.store(builder.fmul(silu, u), code.place(gradient, first))
        return context.get_dummy_value()

    return types.void(POINTER, POINTER, POINTER, types.intp, POINTER, POINTER), write


@intrinsic
def dot(context: Any, x: Any, y: Any, count: Any) -> Any:
    """Return Σ x y of x and y [count]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, y, count) = _Code(builder), values
        of_vectors, rest = code.sum(LANES), code.sum(1)

        def add(lanes: int, *place: Any) -> None:
            total = of_vectors if lanes > 1 else rest
            first, second = (code.load(code.place(side, *place), lanes) for side in (x, y))
            builder.store(code.multiply_add(first, second, builder.load(total)), total)

        code.in_steps(count, add)
        return builder.fadd(
            code.folded(builder.load(of_vectors), builder.fadd), code.folded(builder.load(rest), builder.fadd)
        )

    return types.float32(POINTER, POINTER, types.intp), write


@intrinsic
def scaled(context: Any, x: Any, gain: Any, factor: Any, count: Any, out: Any) -> Any:
    """Write x gain factor to out, each [count]; out may be x."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, gain, factor, count, out) = _Code(builder), values

        def step(lanes: int, *place: Any) -> None:
            part = builder.fmul(code.load(code.place(x, *place), lanes), code.splat(factor, lanes))
            part = builder.fmul(part, code.load(code.place(gain, *place), lanes))
            code.store(part, code.place(out, *place))

        code.in_steps(count, step)
        return context.get_dummy_value()

    return types.void(POINTER, POINTER, types.float32, types.intp, POINTER), write


@intrinsic
def copied(context: Any, x: Any, count: Any, out: Any) -> Any:
    """Write x to out, each [count]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, count, out) = _Code(builder), values
        code.in_steps(
            count, lambda lanes, *place: code.store(code.load(code.place(x, *place), lanes), code.place(out, *place))
        )
        return context.get_dummy_value()

    return types.void(POINTER, types.intp, POINTER), write


@intrinsic
def filled(context: Any, out: Any, count: Any, number: Any) -> Any:
    """Write a number to out [count]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (out, count, number) = _Code(builder), values
        code.in_steps(count, lambda lanes, *place: code.store(code.splat(number, lanes), code.place(out, *place)))
        return context.get_dummy_value()

    return types.void(POINTER, types.intp, types.float32), write


@intrinsic
def scattered(context: Any, x: Any, count: Any, out: Any, step: Any) -> Any:
    """Write x [count] to every `step`-th number of out."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, count, out, step) = _Code(builder), values
        with cgutils.for_range(builder, count) as loop:
            number = builder.load(code.place(x, loop.index))
            builder.store(number, code.place(out, builder.mul(loop.index, step)))
        return context.get_dummy_value()

    return types.void(POINTER, types.intp, POINTER, types.intp), write


@intrinsic
def rotated(context: Any, x: Any, cos: Any, sin: Any, half: Any, factor: Any, out: Any) -> Any:
    """Write x, turned by cosines and sines and times a factor, to out, which may be x: out[k] = (x[k] cos[k] +
    x[k + half] sin[k]) factor, and likewise for k + half. x, cos, sin, out: [2 half]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, cos, sin, half, factor, out) = _Code(builder), values

        def step(lanes: int, *place: Any) -> None:
            sides = place, (*place, half)
            scale = code.splat(factor, lanes)
            low, high = (code.load(code.place(x, *side), lanes) for side in sides)
            for side, first, second in ((sides[0], low, high), (sides[1], high, low)):
                of_first = builder.fmul(first, code.load(code.place(cos, *side), lanes))
                of_second = builder.fmul(second, code.load(code.place(sin, *side), lanes))
                code.store(builder.fmul(builder.fadd(of_first, of_second), scale), code.place(out, *side))

        code.in_steps(half, step)
        return context.get_dummy_value()

    return types.void(POINTER, POINTER, POINTER, types.intp, types.float32, POINTER), write


@intrinsic
def added(context: Any, x: Any, count: Any, out: Any) -> Any:
    """Add x to out, each [count]."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, count, out) = _Code(builder), values

        def step(lanes: int, *place: Any) -> None:
            target = code.place(out, *place)
            code.store(builder.fadd(code.load(target, lanes), code.load(code.place(x, *place), lanes)), target)

        code.in_steps(count, step)
        return context.get_dummy_value()

    return types.void(POINTER, types.intp, POINTER), write


@intrinsic
def times(context: Any, x: Any, factor: Any, blocks: Any) -> Any:
    """Multiply x [blocks, BLOCK] by a number."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, (x, factor, blocks) = _Code(builder), values
        with cgutils.for_range(builder, blocks) as loop:
            place = code.place(x, builder.mul(loop.index, _index(BLOCK)))
            code.store(builder.fmul(code.load(place, BLOCK), code.splat(factor, BLOCK)), place)
        return context.get_dummy_value()

    return types.void(POINTER, types.float32, types.intp), write
