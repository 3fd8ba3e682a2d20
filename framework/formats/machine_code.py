"""Machine code of compiled functions: made once by numba, and loaded from a file without it.

Importing numba and its first call cost half a second of each start, and 60 MB of each process; loading what
it has compiled costs 40 ms. A file holds for one source, one version of LLVM and one kind of processor.
"""

from __future__ import annotations

import ctypes
import os
import pkgutil
import tempfile
import zlib
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from .memory import define_intrinsics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

Int: TypeAlias = Any
"""A 64-bit integer of compiled code: `int` and `np.int64` are the same there, but not to a type checker."""

Ints: TypeAlias = Any
"""An array of `Int`."""


class Parameter(NamedTuple):
    """An array that is contiguous in C's order; without dimensions a 64-bit integer."""

    dtype: np.dtype[Any]
    dimensions: int


BYTES: Final = Parameter(np.dtype(np.uint8), 1)
INT32S: Final = Parameter(np.dtype(np.int32), 1)
INT64S: Final = Parameter(np.dtype(np.int64), 1)
INT32_TABLE: Final = Parameter(np.dtype(np.int32), 2)
INT64_TABLE: Final = Parameter(np.dtype(np.int64), 2)
NUMBER: Final = Parameter(np.dtype(np.int64), 0)

Signature: TypeAlias = "Sequence[Parameter | tuple[Parameter, ...]]"
"""The parameters of a function; several arrays may be one, a named tuple."""

_TYPE: Final = object.__basicsize__ - 8
_DATA: Final = object.__basicsize__
_DIMENSIONS: Final = _DATA + 8
_SHAPE: Final = _DATA + 16
_DTYPE: Final = _DATA + 40
_FLAGS: Final = _DATA + 48
"""Where an array object has its type, the address of its data, the number of its dimensions, the addresses of
its shape and of its dtype, and its flags."""

_BYTE_ORDER, _TYPE_NUMBER = _DATA + 10, _DATA + 12
"""Where a dtype has them."""

_SWAPPED: Final = ord(">")
_REFUSED: Final = -100

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "_nrt": False}
"""Without numba's run time: the code allocates nothing, and needs no other code."""


_CALLED: Final[list[tuple[Callable[..., Any], bool]]] = []


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that kernels call: it is compiled with them. numba is not imported for that."""
    _CALLED.append((function, False))
    return function


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function as `compiled` does; its code becomes part of its caller's."""
    _CALLED.append((function, True))
    return function


def _register() -> None:
    """Let numba know the functions that kernels call."""
    extending: Any = import_module("numba.extending")
    define_intrinsics()
    while _CALLED:
        function, inline = _CALLED.pop()
        extending.register_jitable(**_OPTIONS, forceinline=inline)(function)


class Kernel:
    """A function of machine code, which runs without the GIL. Thread-safe."""

    def __init__(self, name: str, signature: Signature, address: int) -> None:
        self._name = name
        parameters = _flat(signature)
        self._arrays = [(at, *each) for at, each in enumerate(parameters) if each.dimensions]
        kinds = [ctypes.py_object if each.dimensions else ctypes.c_int64 for each in parameters]
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.py_object, *kinds)(address)

    def __call__(self, *arguments: int | NDArray[Any]) -> None:
        """Run it; it writes its results into arrays. The arguments of a group are given one by one.

        Raises:
            TypeError: an argument does not fit its parameter.
            IndexError: an index is outside its array; only with NUMBA_BOUNDSCHECK.
        """
        status = self._call(np.ndarray, *arguments)
        if status == _REFUSED:
            raise TypeError(f"{self._name}: {self._refused(arguments)}")
        if status:
            raise IndexError(f"{self._name}: an index is outside its array")

    def _refused(self, arguments: Sequence[Any]) -> str:
        """Return which argument does not fit its parameter."""
        for at, dtype, dimensions in self._arrays:
            array: Any = arguments[at]
            if type(array) is not np.ndarray:
                return f"argument {at}: not an array"
            if array.dtype != dtype or array.ndim != dimensions or not array.flags.c_contiguous:
                return f"argument {at}: not a {dtype} array in C's order"
        return "an argument does not fit"


def _flat(grouped: Signature) -> list[Parameter]:
    """Return parameters one by one."""
    flat: list[Parameter] = []
    for each in grouped:
        flat += (each,) if isinstance(each, Parameter) else each
    return flat


def _entry(name: str, function: str, parameters: Sequence[Parameter]) -> str:
    """Return the assembly of a C function that takes arrays as the objects that they are in Python.

    It refuses other objects, and arrays that do not fit their parameters. It calls as numba calls: where to
    put the result, and an error; of an array its owners (none), number of items, size of an item, address,
    shape and strides. Those are in the header of each array object (`PyArrayObject_fields` and
    `PyArray_Descr` in numpy's C API). Its first parameter is the type of arrays.
    """
    lines, passed, types = [], ["ptr %ignored", "ptr %ignored"], ["ptr", "ptr"]
    are_arrays, fit = ["%arrays = icmp eq i1 true, true"], ["%fits = icmp eq i1 true, true"]
    is_array, fits = "%arrays", "%fits"
    for at, (dtype, dimensions) in enumerate(parameters):
        if not dimensions:
            passed.append(f"i64 %p{at}")
            types.append("i64")
            continue
        are_arrays += [
            f"%type_at{at} = getelementptr i8, ptr %p{at}, i64 {_TYPE}",
            f"%type{at} = load ptr, ptr %type_at{at}",
            f"%is_type{at} = icmp eq ptr %type{at}, %array_type",
            f"%arrays{at} = and i1 {is_array}, %is_type{at}",
        ]
        is_array = f"%arrays{at}"
        fit += [
            f"%nd_at{at} = getelementptr i8, ptr %p{at}, i64 {_DIMENSIONS}",
            f"%nd{at} = load i32, ptr %nd_at{at}",
            f"%is_nd{at} = icmp eq i32 %nd{at}, {dimensions}",
            f"%flags_at{at} = getelementptr i8, ptr %p{at}, i64 {_FLAGS}",
            f"%flags{at} = load i32, ptr %flags_at{at}",
            f"%in_order{at} = trunc i32 %flags{at} to i1",
            f"%dtype_at{at} = getelementptr i8, ptr %p{at}, i64 {_DTYPE}",
            f"%dtype{at} = load ptr, ptr %dtype_at{at}",
            f"%order_at{at} = getelementptr i8, ptr %dtype{at}, i64 {_BYTE_ORDER}",
            f"%order{at} = load i8, ptr %order_at{at}",
            f"%is_native{at} = icmp ne i8 %order{at}, {_SWAPPED}",
            f"%number_at{at} = getelementptr i8, ptr %dtype{at}, i64 {_TYPE_NUMBER}",
            f"%number{at} = load i32, ptr %number_at{at}",
            f"%is_number{at} = icmp eq i32 %number{at}, {dtype.num}",
            f"%one{at} = and i1 %is_nd{at}, %in_order{at}",
            f"%two{at} = and i1 %is_native{at}, %is_number{at}",
            f"%three{at} = and i1 %one{at}, %two{at}",
            f"%fits{at} = and i1 {fits}, %three{at}",
        ]
        fits = f"%fits{at}"
        lines += [
            f"%data_at{at} = getelementptr i8, ptr %p{at}, i64 {_DATA}",
            f"%data{at} = load ptr, ptr %data_at{at}",
            f"%shape_at{at} = getelementptr i8, ptr %p{at}, i64 {_SHAPE}",
            f"%shape{at} = load ptr, ptr %shape_at{at}",
        ]
        stride: int | str = dtype.itemsize
        sizes: list[str] = []
        strides: list[str] = []
        items = "1"
        for axis in reversed(range(dimensions)):
            own = f"{at}_{axis}"
            lines += [
                f"%size_at{own} = getelementptr i64, ptr %shape{at}, i64 {axis}",
                f"%size{own} = load i64, ptr %size_at{own}",
                f"%items{own} = mul i64 {items}, %size{own}",
                f"%next{own} = mul i64 {stride}, %size{own}",
            ]
            sizes.insert(0, f"i64 %size{own}")
            strides.insert(0, f"i64 {stride}")
            stride, items = f"%next{own}", f"%items{own}"
        passed += ["ptr null", "ptr null", f"i64 {items}", f"i64 {dtype.itemsize}"]
        passed += [f"ptr %data{at}", *sizes, *strides]
        types += ["ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (2 * dimensions)]
    kinds = [f"{'ptr' if each.dimensions else 'i64'} %p{at}" for at, each in enumerate(parameters)]
    joint = chr(10)
    return f"""
        declare i32 @"{function}"({", ".join(types)})
        define i32 @{_symbol(name)}({", ".join(["ptr %array_type", *kinds])}) {{
          {joint.join(are_arrays)}
          br i1 {is_array}, label %check, label %refuse
        check:
          {joint.join(fit)}
          br i1 {fits}, label %call, label %refuse
        call:
          %ignored = alloca ptr
          {joint.join(lines)}
          %status = call i32 @"{function}"({", ".join(passed)})
          ret i32 %status
        refuse:
          ret i32 {_REFUSED}
        }}"""


def load(
    module: str, signatures: Mapping[str, Signature], depends_on: Sequence[str] = ()
) -> dict[str, Kernel]:
    """Load functions of a module as machine code.

    The file with the code is below NUMBA_CACHE_DIR, or beside the source, or else in the user's cache
    directory. Where none can be written, every process compiles, which takes seconds.

    Args:
        module: its full name; the functions return nothing.
        signatures: by name, the parameters of each function.
        depends_on: full names of modules whose functions or constants are compiled in.
    """
    key = _key(module, signatures, depends_on)
    code = None if key is None else _read(key)
    if code is None:
        code = _compile(module, signatures)
        if key is not None:
            _write(key, code)
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return {
        name: Kernel(name, parameters, engine.get_function_address(_symbol(name)))
        for name, parameters in signatures.items()
    }


_engines: Final[list[llvm.ExecutionEngine]] = []
"""They own the code."""


def _symbol(name: str) -> str:
    return f"kmr_{name}"


def _machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        llvm.get_host_cpu_name(), features, opt=3, codemodel="jitdefault", jit=True
    )


def _engine() -> llvm.ExecutionEngine:
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


def _compile(module: str, signatures: Mapping[str, Signature]) -> bytes:
    """Return an object file that needs no other code but the C library's."""
    numba: Any = import_module("numba")
    source = import_module(module)
    _register()
    machine = _machine()
    linked = llvm.parse_assembly("")
    linked.triple = machine.triple
    for name, parameters in signatures.items():
        types = [_type(numba, each) for each in parameters]
        function = numba.njit(
            [numba.void(*types)], no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS
        )(getattr(source, name))
        (overload,) = function.overloads.values()
        (assembly,) = function.inspect_llvm().values()
        called = overload.fndesc.llvm_func_name
        part = llvm.parse_assembly(assembly)
        entry = llvm.parse_assembly(_entry(name, called, _flat(parameters)))
        is_called, calls = (
            str(each.get_function(called).global_value_type) for each in (part, entry)
        )
        if is_called != calls:
            raise RuntimeError(f"{name}: this version of numba calls functions in another way")
        linked.link_in(part)
        linked.link_in(entry)
    missing = [f.name for f in linked.functions if f.is_declaration and not _is_known(f.name)]
    if missing:
        raise RuntimeError(f"{module}: the code needs functions of numba ({', '.join(missing)})")
    code: bytes = machine.emit_object(linked)
    return code


def _type(numba: Any, parameter: Any) -> Any:
    if not isinstance(parameter, Parameter):
        return numba.types.NamedTuple([_type(numba, each) for each in parameter], type(parameter))
    if not parameter.dimensions:
        return numba.int64
    return numba.types.Array(numba.from_dtype(parameter.dtype), parameter.dimensions, "C")


def _is_known(name: str) -> bool:
    return name.startswith("llvm.") or name in ("memset", "memcpy", "memmove")


def _key(module: str, signatures: Mapping[str, Signature], depends_on: Sequence[str]) -> str | None:
    """Return a name for the code of these sources on this machine; None: the sources cannot be read."""
    parts = [llvmlite.__version__, llvm.get_process_triple(), llvm.get_host_cpu_name()]
    parts += [llvm.get_host_cpu_features().flatten(), os.environ.get("NUMBA_BOUNDSCHECK", "")]
    parts.append(repr(signatures))
    sources = []
    for name in (module, *depends_on, __name__, define_intrinsics.__module__):
        package, _, file = name.rpartition(".")
        try:
            source = pkgutil.get_data(package, f"{file}.py")
        except OSError:
            return None
        if source is None:
            return None
        sources.append(source)
    whole = b"\0".join([*sources, *(part.encode() for part in parts)])
    return f"{module.rpartition('.')[2]}-{len(whole):x}-{zlib.crc32(whole):08x}.o"


def _directories() -> Iterator[Path]:
    if "NUMBA_CACHE_DIR" in os.environ:
        yield Path(os.environ["NUMBA_CACHE_DIR"])
    yield Path(__file__).with_name("__pycache__")
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kmr"


def _read(key: str) -> bytes | None:
    """Return the code, if its checksum says that it is whole."""
    for directory in _directories():
        with suppress(OSError):
            stored = (directory / key).read_bytes()
            if zlib.crc32(stored[4:]) == int.from_bytes(stored[:4], "big"):
                return stored[4:]
    return None


def _write(key: str, code: bytes) -> None:
    for directory in _directories():
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                file.write(zlib.crc32(code).to_bytes(4, "big") + code)
            Path(file.name).replace(directory / key)  # whole, also beside other processes
            return
