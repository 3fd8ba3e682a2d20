"""Protobuf schemas: parsed by protoc, from the text of a .proto file or from a file descriptor in base64."""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys
import tempfile
from functools import cached_property
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ..error_codes import invalid_schema
from .protobuf_compatibility import Files, incompatibilities
from .protobuf_text import default_json_name, proto_text
from .schema_types import ParsedSchema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

    from .schema_types import Dependency


_NAME: Final = "default.proto"
"""The name of the file: a schema has none."""
_SECONDS: Final = 10


class ProtobufSchema(ParsedSchema):
    """A schema of Protobuf: one file; `file` is its descriptor.

    Text: see `protobuf_text`, without comments. The file may import its dependencies by their names,
    `google/protobuf/*.proto`, and `google/type/*.proto` where the googleapis-common-protos are installed.
    """

    def __init__(self, text: str, dependencies: Sequence[Dependency] = ()) -> None:
        """Raises RequestRefused if the schema is invalid."""
        self._dependencies = dependencies
        serialized = _descriptor(text)
        if serialized is not None:
            imports = "".join(f'import "{name}";\n' for name in serialized.dependency)
            imported = compile_files(f'syntax = "proto3";\n{imports}', dependencies)[:-1]
            text = _text(serialized, imported)
        *self._imported, self.file = compile_files(text, dependencies)
        if serialized is not None and not _equal(self.file, serialized):
            raise invalid_schema("the descriptor has no equal text; send the .proto file")
        self._given = text
        self._files = Files([*self._imported, self.file])

    @cached_property
    def text(self) -> str:
        """As it was given, if it has something that we cannot write."""
        text = _text(self.file, self._imported)
        if text == self._given or _equal(self.file, compile_files(text, self._dependencies)[-1]):
            return text
        return self._given

    def normalized(self) -> str:
        """The text is in its normal form."""
        return self.text

    def incompatibilities(self, writer: ParsedSchema) -> list[str]:
        assert isinstance(writer, ProtobufSchema)  # noqa: S101  the caller compares the types
        return incompatibilities(self._files, writer._files)  # noqa: SLF001  of the same class

    def serialized(self) -> str:
        """Return the file descriptor in base64."""
        return base64.b64encode(self.file.SerializeToString()).decode()


def _descriptor(text: str) -> FileDescriptorProto | None:
    """Return the descriptor in a base64 text; None for the text of a .proto file."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


def compile_files(text: str, dependencies: Sequence[Dependency]) -> list[FileDescriptorProto]:
    """Return the descriptors of the files that the text imports, directly or not, and its own, the last.

    Runs protoc for about 0.1 s. Raises RequestRefused if a file is invalid, or an import missing.
    """
    with tempfile.TemporaryDirectory(prefix="kmr-registry-") as directory:
        root, out = Path(directory, "files"), Path(directory, "out")
        for name, content in (*dependencies, (_NAME, text)):
            path = PurePosixPath(name)
            file = root / path
            try:
                if path.is_absolute() or ".." in path.parts or not path.parts:
                    raise ValueError
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
            except (OSError, ValueError) as error:
                # Such as a NUL, a name of 300 letters, or a file where another name needs a directory.
                raise invalid_schema(
                    f"the reference name {name!r} is not the path of an import"
                ) from error
        command = [sys.executable, "-I", "-m", "grpc_tools.protoc", f"-I{root}", *_includes()]
        command += ["--include_imports", f"--descriptor_set_out={out}", str(root / _NAME)]
        try:
            done = subprocess.run(  # noqa: S603  no part of it is a client's
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise invalid_schema(f"protoc takes more than {_SECONDS} seconds") from None
        if done.returncode:
            reason = done.stderr.replace(f"{root}/", "").replace(f"{_NAME}:", "line ").strip()
            raise invalid_schema(reason or f"protoc ended with {done.returncode}")
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def _includes() -> Iterator[str]:
    """Yield the directories of the files that come with Protobuf."""
    import google

    yield f"-I{resources.files('grpc_tools') / '_proto'}"
    for each in google.__path__:
        if Path(each, "type", "date.proto").exists():
            yield f"-I{Path(each).parent}"


def _text(file: FileDescriptorProto, imported: Sequence[FileDescriptorProto]) -> str:
    pool = DescriptorPool()
    try:
        for each in (*imported, file):
            pool.AddSerializedFile(each.SerializeToString())
        pool.FindFileByName(file.name)
    except (TypeError, KeyError, ValueError) as error:
        raise invalid_schema(f"the descriptor is not valid: {error}") from error
    return proto_text(file, pool)


def _equal(one: FileDescriptorProto, other: FileDescriptorProto) -> bool:
    return _comparable(one) == _comparable(other)


def _comparable(file: FileDescriptorProto) -> bytes:
    """Return the descriptor's bytes without file name, positions in the source and usual JSON names."""
    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("source_code_info")
    copy.name = ""
    if copy.syntax == "proto2":
        copy.ClearField("syntax")
    for field in _fields(copy):
        if field.json_name == default_json_name(field.name):
            field.ClearField("json_name")
    return copy.SerializePartialToString(deterministic=True)


def _fields(parent: FileDescriptorProto | DescriptorProto) -> Iterator[FieldDescriptorProto]:
    yield from parent.extension
    if isinstance(parent, FileDescriptorProto):
        messages = parent.message_type
    else:
        yield from parent.field
        messages = parent.nested_type
    for each in messages:
        yield from _fields(each)
