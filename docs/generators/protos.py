"""docs/protos.md: every service, message and enum with the comments of the .proto files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

PROTOS = Path(__file__).parents[2] / "protos"
PACKAGE = ".antiphon.v1."
# Field numbers within descriptor.proto, of which source locations' paths are made.
FILE_MESSAGE, FILE_ENUM, FILE_SERVICE = 4, 5, 6
MESSAGE_FIELD, ENUM_VALUE, SERVICE_METHOD = 2, 2, 2

HEADER = """# The contract

Generated from the comments in `protos/antiphon/v1/*.proto` by `make docs`; do not edit.

Every server also answers `grpc.health.v1.Health`. Errors are canonical gRPC codes with
`google.rpc.BadRequest` or `google.rpc.ErrorInfo` (domain `antiphon.v1`, see
[ErrorReason](#errorreason)) in their details.
"""


def page() -> str:
    """The page as Markdown."""
    files = sorted(descriptors(), key=lambda file: (not file.service, file.name))
    parts = [HEADER, contents(files)]
    for file in files:
        comments = Comments(file)
        parts += [service(item, comments, i) for i, item in enumerate(file.service)]
        messages = [message(item, comments, i) for i, item in enumerate(file.message_type)]
        enums = [enum(item, comments, i) for i, item in enumerate(file.enum_type)]
        if not file.service:
            parts.append(f"## Shared messages\n\n`{file.name}`\n")
        parts += messages + enums
    return "\n".join(parts)


def descriptors() -> Sequence[FileDescriptorProto]:
    """Parses the .proto files, comments included."""
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    includes = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        flags = ["--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["", f"-I{PROTOS}", f"-I{includes}", *flags, *names]) != 0:
            raise SystemExit("protoc failed")
        return FileDescriptorSet.FromString(out.read_bytes()).file


class Comments:
    """The comment in front of each element, by its path in the file's descriptor."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.by_path = {
            tuple(location.path): " ".join(location.leading_comments.split())
            for location in file.source_code_info.location
            if location.leading_comments
        }

    def __call__(self, *path: int) -> str:
        return self.by_path[path]


def contents(files: Sequence[FileDescriptorProto]) -> str:
    """A table of all RPCs."""
    rows = ["| service | RPC | request | response |", "|---|---|---|---|"]
    for file in files:
        for item in file.service:
            for rpc in item.method:
                request = ("stream of " * rpc.client_streaming) + link(rpc.input_type)
                response = ("stream of " * rpc.server_streaming) + link(rpc.output_type)
                name = f"[{item.name}](#{item.name.lower()})"
                rows.append(f"| {name} | `{rpc.name}` | {request} | {response} |")
    return "\n".join(rows) + "\n"


def service(item: ServiceDescriptorProto, comments: Comments, index: int) -> str:
    """A service and its RPCs."""
    lines = [f"## {item.name}", "", comments(FILE_SERVICE, index), ""]
    for i, rpc in enumerate(item.method):
        text = comments(FILE_SERVICE, index, SERVICE_METHOD, i)
        lines.append(f"- **{rpc.name}**: {text}")
    return "\n".join([*lines, ""])


def message(item: DescriptorProto, comments: Comments, index: int) -> str:
    """A message and its fields."""
    lines = [f"### {item.name}", "", comments(FILE_MESSAGE, index), ""]
    if item.field:
        lines += ["| # | field | type | meaning |", "|---|---|---|---|"]
    lines += [
        f"| {field.number} | `{field.name}` | {type_name(field, item)} | {cell(text)} |"
        for field, text in fields(item, comments, index)
    ]
    return "\n".join([*lines, ""])


def fields(
    item: DescriptorProto, comments: Comments, index: int
) -> Iterator[tuple[FieldDescriptorProto, str]]:
    """The fields with their comments."""
    for i, field in enumerate(item.field):
        text = comments(FILE_MESSAGE, index, MESSAGE_FIELD, i)
        if field.HasField("oneof_index") and not field.proto3_optional:
            text = f"{text} (One of `{item.oneof_decl[field.oneof_index].name}`.)"
        yield field, text


def enum(item: EnumDescriptorProto, comments: Comments, index: int) -> str:
    """An enum and its values."""
    lines = [f"### {item.name}", "", comments(FILE_ENUM, index), ""]
    lines += ["| # | value | meaning |", "|---|---|---|"]
    lines += [
        f"| {value.number} | `{value.name}` | {cell(comments(FILE_ENUM, index, ENUM_VALUE, i))} |"
        for i, value in enumerate(item.value)
    ]
    return "\n".join([*lines, ""])


def type_name(field: FieldDescriptorProto, owner: DescriptorProto) -> str:
    """The type as in the .proto file, linked where it is one of ours."""
    for nested in owner.nested_type:
        if nested.options.map_entry and field.type_name.endswith(f".{owner.name}.{nested.name}"):
            key, value = (type_name(part, nested) for part in nested.field)
            return f"map of {key} to {value}"
    if field.type_name:
        name = link(field.type_name)
    else:
        name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def link(type_name: str) -> str:
    """A link to a message or enum of this page; the plain name for others."""
    if not type_name.startswith(PACKAGE):
        return f"`{type_name.removeprefix('.')}`"
    name = type_name.removeprefix(PACKAGE)
    return f"[{name}](#{name.lower()})"


def cell(text: str) -> str:
    """Text that does not break a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")
