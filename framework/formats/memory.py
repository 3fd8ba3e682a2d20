"""What compiled code needs and Python has no words for: memory by its address, the bits of numbers.

Only compiled code can call these functions. They check nothing: the caller knows that the bytes exist.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from llvmlite import ir

if TYPE_CHECKING:
    from collections.abc import Callable

_WORD: Final = ir.IntType(64)
_WIDE: Final = ir.IntType(128)
_BLOCK: Final = ir.VectorType(ir.IntType(8), 32)
_FIRST: Final = ir.Constant(ir.IntType(32), 0)


def load8(at: Any) -> Any:
    """Read the byte at an address."""


def load64(at: Any) -> Any:
    """Read the 8 bytes at an address, aligned or not."""


def store8(at: Any, byte: Any) -> None:
    """Write the lowest byte of a word to an address."""


def store64(at: Any, word: Any) -> None:
    """Write 8 bytes at an address, aligned or not."""


def copy32(to: Any, at: Any) -> None:
    """Copy the 32 bytes at an address to another; they may overlap."""


def equal_bytes(at: Any, byte: Any) -> Any:
    """Return a bit for each of the 32 bytes at an address: whether it equals `byte`."""


def bytes_below(at: Any, byte: Any) -> Any:
    """Return a bit for each of the 32 bytes at an address: whether it is less than `byte`."""


def trailing_zeros(word: Any) -> Any:
    """Return the number of zeros below the lowest bit of a word; 64 if it is 0."""


def leading_zeros(word: Any) -> Any:
    """Return the number of zeros above the highest bit of a word that is not 0."""


def high_product(one: Any, other: Any) -> Any:
    """Return the upper 64 bits of the product of two words."""


def bits_of(number: Any) -> Any:
    """Return the bits of a float."""


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _write_load8(builder: Any, at: Any) -> Any:
    return builder.zext(builder.load(_pointer(builder, at, 8)), _WORD)


def _write_load64(builder: Any, at: Any) -> Any:
    return builder.load(_pointer(builder, at, 64), align=1)


def _write_store8(builder: Any, at: Any, byte: Any) -> None:
    builder.store(builder.trunc(byte, ir.IntType(8)), _pointer(builder, at, 8))


def _write_store64(builder: Any, at: Any, word: Any) -> Any:
    builder.store(word, _pointer(builder, at, 64), align=1)


def _write_copy32(builder: Any, to: Any, at: Any) -> None:
    block = builder.load(builder.inttoptr(at, _BLOCK.as_pointer()), align=1)
    builder.store(block, builder.inttoptr(to, _BLOCK.as_pointer()), align=1)


def _writer_of_marks(relation: str) -> Callable[..., Any]:
    def write(builder: Any, at: Any, byte: Any) -> Any:
        block = builder.load(builder.inttoptr(at, _BLOCK.as_pointer()), align=1)
        one = builder.insert_element(
            ir.Constant(_BLOCK, ir.Undefined), builder.trunc(byte, ir.IntType(8)), _FIRST
        )
        all_ = builder.shuffle_vector(
            one, one, ir.Constant(ir.VectorType(ir.IntType(32), 32), None)
        )
        marks = builder.icmp_unsigned(relation, block, all_)
        return builder.zext(builder.bitcast(marks, ir.IntType(32)), _WORD)

    return write


def _write_trailing_zeros(builder: Any, word: Any) -> Any:
    return builder.cttz(word, ir.Constant(ir.IntType(1), 0))


def _write_leading_zeros(builder: Any, word: Any) -> Any:
    return builder.ctlz(word, ir.Constant(ir.IntType(1), 1))


def _write_high_product(builder: Any, one: Any, other: Any) -> Any:
    product = builder.mul(builder.zext(one, _WIDE), builder.zext(other, _WIDE))
    return builder.trunc(builder.lshr(product, ir.Constant(_WIDE, 64)), _WORD)


def _write_bits_of(builder: Any, number: Any) -> Any:
    return builder.bitcast(number, _WORD)


_INTRINSICS: Final[dict[Callable[..., Any], tuple[Callable[..., Any], str, tuple[str, ...]]]] = {
    load8: (_write_load8, "int64", ("int64",)),
    load64: (_write_load64, "uint64", ("int64",)),
    store8: (_write_store8, "void", ("int64", "int64")),
    store64: (_write_store64, "void", ("int64", "uint64")),
    copy32: (_write_copy32, "void", ("int64", "int64")),
    equal_bytes: (_writer_of_marks("=="), "uint64", ("int64", "int64")),
    bytes_below: (_writer_of_marks("<"), "uint64", ("int64", "int64")),
    trailing_zeros: (_write_trailing_zeros, "int64", ("uint64",)),
    leading_zeros: (_write_leading_zeros, "int64", ("uint64",)),
    high_product: (_write_high_product, "uint64", ("uint64", "uint64")),
    bits_of: (_write_bits_of, "int64", ("float64",)),
}
"""The functions, what writes their instructions, and their types."""


def define_intrinsics() -> None:
    """Register the functions of this module with numba; further calls do nothing."""
    types: Any = import_module("numba.core.types")
    extending: Any = import_module("numba.extending")
    while _INTRINSICS:
        function, (write, result, parameters) = _INTRINSICS.popitem()
        signature = getattr(types, result)(*(getattr(types, each) for each in parameters))
        overload = extending.overload(function, jit_options={"nogil": True, "_nrt": False})
        overload(
            _one(extending, signature, write)
            if len(parameters) == 1
            else _two(extending, signature, write)
        )


def _generator(write: Callable[..., Any]) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        written = write(builder, *arguments)
        return context.get_dummy_value() if written is None else written

    return generate


def _one(extending: Any, signature: Any, write: Callable[..., Any]) -> Callable[[Any], Any]:
    @extending.intrinsic  # type: ignore[untyped-decorator]
    def code(typing: Any, first: Any) -> Any:
        return signature, _generator(write)

    def choose(first: Any) -> Any:
        def call(first: Any) -> Any:
            return code(first)

        return call

    return choose


def _two(extending: Any, signature: Any, write: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    @extending.intrinsic  # type: ignore[untyped-decorator]
    def code(typing: Any, first: Any, second: Any) -> Any:
        return signature, _generator(write)

    def choose(first: Any, second: Any) -> Any:
        def call(first: Any, second: Any) -> Any:
            return code(first, second)

        return call

    return choose
