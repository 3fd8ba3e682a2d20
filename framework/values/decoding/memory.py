"""What compiled code needs and Python has no words for: memory by its address, the bits of numbers.

Only code that numba compiles can call them. They check nothing: the caller knows that the bytes exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of compiled code from one that writes its instructions."""
    made: Callable[..., Any] = intrinsic(function)
    return made


@_intrinsic
def load8(typing: Any, at: Any) -> Any:
    """Read the byte at an address; the caller has checked it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def load64(typing: Any, at: Any) -> Any:
    """Read the 8 bytes at an address, aligned or not; the caller has checked that they exist."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), generate


@_intrinsic
def store64(typing: Any, at: Any, word: Any) -> Any:
    """Write 8 bytes at an address, aligned or not; the caller has checked that they exist."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[1], pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@_intrinsic
def zero_bytes(typing: Any, word: Any) -> Any:
    """Return the number of bytes below the lowest bit of a word that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))
        return builder.lshr(zeros, ir.Constant(ir.IntType(64), 3))

    return types.int64(types.uint64), generate


@_intrinsic
def bits_of(typing: Any, number: Any) -> Any:
    """Return the bits of a float."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@_intrinsic
def high_product(typing: Any, one: Any, other: Any) -> Any:
    """Return the upper 64 bits of the product of two words."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = [builder.zext(each, ir.IntType(128)) for each in arguments]
        product = builder.lshr(builder.mul(*wide), ir.Constant(ir.IntType(128), 64))
        return builder.trunc(product, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@_intrinsic
def leading_zeros(typing: Any, word: Any) -> Any:
    """Return the number of zeros above the highest bit of a word that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@_intrinsic
def float_of(typing: Any, bits: Any) -> Any:
    """Return the float with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate
