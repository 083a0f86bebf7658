"""The two services beside Triton's own: grpc.health.v1 and grpc.reflection (v1, v1alpha), as messages made here.

They live in a pool of their own: the packages that have them ready register them for the whole process and ask for
another protobuf than Triton's client does. Fields: https://github.com/grpc/grpc-proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

_F = descriptor_pb2.FieldDescriptorProto
_KINDS = {"string": _F.TYPE_STRING, "int32": _F.TYPE_INT32, "bytes": _F.TYPE_BYTES}

_HEALTH_MESSAGES = {
    "HealthCheckRequest": ("1 string service",),
    "HealthCheckResponse": ("1 .HealthCheckResponse.ServingStatus status",),
}
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
SERVING, NOT_SERVING = 1, 2

# a leading * is a list, a leading ? a member of the message's one choice
_REFLECTION_MESSAGES = {
    "ServerReflectionRequest": (
        "1 string host", "3 ?string file_by_filename", "4 ?string file_containing_symbol",
        "5 ?.ExtensionRequest file_containing_extension", "6 ?string all_extension_numbers_of_type",
        "7 ?string list_services",
    ),
    "ExtensionRequest": ("1 string containing_type", "2 int32 extension_number"),
    "ServerReflectionResponse": (
        "1 string valid_host", "2 .ServerReflectionRequest original_request",
        "4 ?.FileDescriptorResponse file_descriptor_response",
        "5 ?.ExtensionNumberResponse all_extension_numbers_response",
        "6 ?.ListServiceResponse list_services_response", "7 ?.ErrorResponse error_response",
    ),
    "FileDescriptorResponse": ("1 *bytes file_descriptor_proto",),
    "ExtensionNumberResponse": ("1 string base_type_name", "2 *int32 extension_number"),
    "ListServiceResponse": ("1 *.ServiceResponse service",),
    "ServiceResponse": ("1 string name",),
    "ErrorResponse": ("1 int32 error_code", "2 string error_message"),
}  # fmt: skip
_CHOICE = {"ServerReflectionRequest": "message_request", "ServerReflectionResponse": "message_response"}

REFLECTION_VERSIONS = ("v1alpha", "v1")


class Protos(NamedTuple):
    """The messages of both services, and the pool that knows their files."""

    pool: descriptor_pool.DescriptorPool
    health_request: Any
    health_response: Any
    reflection_request: Any  # by version; both have the same fields
    reflection_response: Any


@cache
def protos() -> Protos:
    """Makes the messages, once."""
    pool = descriptor_pool.DescriptorPool()
    health = _file("grpc/health/v1/health.proto", "grpc.health.v1", _HEALTH_MESSAGES)
    status = health.message_type[1].enum_type.add(name="ServingStatus")
    for number, name in enumerate(_STATUSES):
        status.value.add(name=name, number=number)
    service = health.service.add(name="Health")
    service.method.add(
        name="Check",
        input_type=".grpc.health.v1.HealthCheckRequest",
        output_type=".grpc.health.v1.HealthCheckResponse",
    )
    pool.Add(health)
    requests, responses = {}, {}
    for version in REFLECTION_VERSIONS:
        package = f"grpc.reflection.{version}"
        made = _file(f"grpc/reflection/{version}/reflection.proto", package, _REFLECTION_MESSAGES)
        made.service.add(name="ServerReflection").method.add(
            name="ServerReflectionInfo",
            input_type=f".{package}.ServerReflectionRequest",
            output_type=f".{package}.ServerReflectionResponse",
            client_streaming=True,
            server_streaming=True,
        )
        pool.Add(made)
        requests[version] = _class(pool, f"{package}.ServerReflectionRequest")
        responses[version] = _class(pool, f"{package}.ServerReflectionResponse")
    return Protos(
        pool,
        _class(pool, "grpc.health.v1.HealthCheckRequest"),
        _class(pool, "grpc.health.v1.HealthCheckResponse"),
        requests,
        responses,
    )


def _class(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _file(path: str, package: str, messages: Mapping[str, tuple[str, ...]]) -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(name=path, package=package, syntax="proto3")
    for name, fields in messages.items():
        message = made.message_type.add(name=name)
        if name in _CHOICE:
            message.oneof_decl.add(name=_CHOICE[name])
        for text in fields:
            number, kind, field_name = text.split()
            field = message.field.add(name=field_name, number=int(number), label=_F.LABEL_OPTIONAL)
            if kind[0] == "*":
                field.label = _F.LABEL_REPEATED
            elif kind[0] == "?":
                field.oneof_index = 0
            plain = kind.lstrip("*?")
            if plain in _KINDS:
                field.type = _KINDS[plain]
            else:
                field.type_name = f".{package}{plain}"
                field.type = _F.TYPE_ENUM if plain.endswith("Status") else _F.TYPE_MESSAGE
    return made


def find_file(name: str) -> FileDescriptor | None:
    """A file of one of the services, by its path."""
    return next(_found(lambda pool: pool.FindFileByName(name)), None)


def find_symbol(name: str) -> FileDescriptor | None:
    """The file that declares a service, method, message or enum."""
    found = next(_found(lambda pool: pool.FindFileContainingSymbol(name)), None)
    if found is not None:
        return found
    service, _, method = name.rpartition(".")  # pools do not know methods
    found = next(_found(lambda pool: pool.FindFileContainingSymbol(service)), None)
    if found is None:
        return None
    known = [each for each in found.services_by_name.values() if each.full_name == service]
    return found if any(each.name == method for one in known for each in one.methods) else None


def _found(find: Any) -> Iterator[FileDescriptor]:
    for pool in (protos().pool, descriptor_pool.Default()):
        try:
            yield find(pool)
        except KeyError:
            continue


def with_dependencies(file: FileDescriptor) -> list[bytes]:
    """A file and all that it needs, each as a serialised ``FileDescriptorProto``."""
    found: dict[str, FileDescriptor] = {}
    open_files = [file]
    while open_files:
        each = open_files.pop()
        if each.name not in found:
            found[each.name] = each
            open_files.extend(each.dependencies)
    return [each.serialized_pb for each in found.values()]
