"""The schema of ``inference.ModelConfig`` as plain, typed Python objects.

The proto classes come from tritonclient (a second copy would collide in one process) and are imported when first
needed: that import costs about 0.2 s, because tritonclient's package imports grpc.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from google.protobuf import descriptor as _descriptor

Message = Any
"""An ``inference.ModelConfig`` (or a message inside one); tritonclient has no types for them."""

Kind = Literal["int32", "uint32", "int64", "uint64", "float", "double", "bool", "string", "enum", "message"]

_KINDS: dict[int, Kind] = {
    _descriptor.FieldDescriptor.TYPE_INT32: "int32",
    _descriptor.FieldDescriptor.TYPE_UINT32: "uint32",
    _descriptor.FieldDescriptor.TYPE_INT64: "int64",
    _descriptor.FieldDescriptor.TYPE_UINT64: "uint64",
    _descriptor.FieldDescriptor.TYPE_FLOAT: "float",
    _descriptor.FieldDescriptor.TYPE_DOUBLE: "double",
    _descriptor.FieldDescriptor.TYPE_BOOL: "bool",
    _descriptor.FieldDescriptor.TYPE_STRING: "string",
    _descriptor.FieldDescriptor.TYPE_ENUM: "enum",
    _descriptor.FieldDescriptor.TYPE_MESSAGE: "message",
}

INTEGER_LIMITS: dict[str, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
"""Lowest and highest value of each integer kind."""


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum: values by name and names by value."""

    name: str
    numbers: dict[str, int]
    names: dict[int, str]


@dataclass(frozen=True, slots=True, eq=False)
class FieldType:
    """One field of a message.

    ``presence`` is true where being set to the default differs from being absent (messages and members of a oneof).
    ``siblings`` are the other members of the field's oneof.
    """

    name: str
    camel: str
    kind: Kind
    index: int
    repeated: bool
    is_map: bool
    presence: bool
    oneof: str | None
    siblings: tuple[str, ...]
    enum: EnumType | None
    message: MessageType | None

    @property
    def default(self) -> object:
        """What an absent scalar reads as (an enum by its name)."""
        if self.kind == "string":
            return ""
        if self.kind == "bool":
            return False
        if self.kind in ("float", "double"):
            return 0.0
        if self.enum is not None:
            return self.enum.names[0]
        return 0

    @property
    def body(self) -> MessageType:
        """The message type of a message field."""
        assert self.message is not None, f"{self.name} is not a message"
        return self.message


@dataclass(frozen=True, slots=True, eq=False)
class MessageType:
    """A message: its fields by name, in the order of the proto file; ``is_entry`` for the entries of a map."""

    full_name: str
    is_entry: bool = False
    fields: dict[str, FieldType] = field(default_factory=dict)

    def find(self, name: str) -> FieldType | None:
        """The field of that name, also by its JSON (camel-case) name."""
        found = self.fields.get(name)
        if found is None:
            found = next((each for each in self.fields.values() if each.camel == name), None)
        return found


def _enum(descriptor: Any) -> EnumType:
    numbers = {value.name: value.number for value in descriptor.values}
    names: dict[int, str] = {}
    for name, number in numbers.items():
        names.setdefault(number, name)
    return EnumType(descriptor.name, numbers, names)


def _is_repeated(descriptor: Any) -> bool:
    repeated = getattr(descriptor, "is_repeated", None)  # protobuf 6; `label` is deprecated there
    return bool(descriptor.label == 3 if repeated is None else repeated)


def _field(descriptor: Any, index: int, known: dict[str, MessageType]) -> FieldType:
    oneof = descriptor.containing_oneof
    inner = descriptor.message_type
    return FieldType(
        name=descriptor.name,
        camel=descriptor.camelcase_name,
        kind=_KINDS[descriptor.type],
        index=index,
        repeated=_is_repeated(descriptor),
        is_map=inner is not None and inner.GetOptions().map_entry,
        presence=descriptor.has_presence,
        oneof=oneof.name if oneof is not None else None,
        siblings=tuple(each.name for each in oneof.fields if each.name != descriptor.name) if oneof is not None else (),
        enum=_enum(descriptor.enum_type) if descriptor.enum_type is not None else None,
        message=_message(inner, known) if inner is not None else None,
    )


def _message(descriptor: Any, known: dict[str, MessageType]) -> MessageType:
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    made = known[descriptor.full_name] = MessageType(descriptor.full_name, descriptor.GetOptions().map_entry)
    for index, each in enumerate(descriptor.fields):
        made.fields[each.name] = _field(each, index, known)
    return made


@cache
def pb() -> Any:
    """tritonclient's ``model_config_pb2``, imported on first use."""
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2


def enum_name(kind: Any, number: int) -> str:
    """The name of an enum's value, such as ``TYPE_FP32`` of ``pb().DataType``; "" for a number that has none.

    As in C++, and so in Triton's texts: proto3's enums are open, a file may have any number.
    """
    value = kind.DESCRIPTOR.values_by_number.get(number)
    return "" if value is None else str(value.name)


@cache
def types() -> dict[str, MessageType]:
    """Every message type that a ModelConfig can hold, by full name."""
    known: dict[str, MessageType] = {}
    _message(pb().ModelConfig.DESCRIPTOR, known)
    return known


def root() -> MessageType:
    """The schema of ``inference.ModelConfig``."""
    return types()["inference.ModelConfig"]


def type_of(message: Message) -> MessageType:
    """The schema of a message."""
    return types()[message.DESCRIPTOR.full_name]
