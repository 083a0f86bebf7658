"""What a serialized DALI pipeline says of itself, read from its bytes: no framework is needed.

The file is a protobuf message. Field numbers (seen in files of DALI 1.50 to 2.4): PipelineDef.num_threads 1,
batch_size 2, op 5, pipe_outputs 7, device_id 8; OpDef.name 1, output 3, args 4; InputOutput.name 1, device 2, dtype 5,
ndim 6; Argument.name 1, ints 4. A later field of the same number replaces an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workbench.backends.protobuf_wire import fields, text
from workbench.errors import InvalidRequest

CPU_ONLY = -99999
"""``device_id`` of a pipeline that uses no GPU."""

DATATYPES = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BOOL")
"""v2 names by DALI's numbers of data types."""

_DEVICE_KEY = bytes([8 << 3])


@dataclass(frozen=True, slots=True)
class DaliTensor:
    """An input or output: ``datatype`` is a v2 name, "" where the pipeline does not say; ``ndim`` is without the batch
    dimension, -1 where it does not say."""

    name: str
    datatype: str
    ndim: int


@dataclass(frozen=True, slots=True)
class DaliFile:
    """A serialized pipeline."""

    content: bytes
    inputs: tuple[DaliTensor, ...]
    outputs: tuple[DaliTensor, ...]
    max_batch_size: int

    def on(self, device_id: int) -> bytes:
        """The pipeline for another device, ``CPU_ONLY`` among them."""
        return self.content + _DEVICE_KEY + _varint(device_id)


def read_dali(content: bytes) -> DaliFile:
    """Reads a serialized pipeline.

    Raises:
        InvalidRequest: it is none, or it takes its input by other operators than fn.external_source.
    """
    inputs, outputs, batch = [], [], 0
    try:
        for number, part in fields(content, 0, len(content)):
            if number == 2 and isinstance(part, int):
                batch = part
            elif number == 5 and isinstance(part, tuple):
                operator = text(content, part, 1)
                if operator in ("ExternalSource", "_ExternalSource"):
                    inputs.append(_input(content, part))
                elif "inputs__" in operator:
                    raise InvalidRequest(
                        f"the pipeline takes its input by {operator.replace('__', '.')}",
                        hint="here it is fn.external_source that feeds a pipeline",
                    )
            elif number == 7 and isinstance(part, tuple):
                outputs.append(_output(content, part))
    except (IndexError, ValueError) as error:
        raise InvalidRequest(f"it is no serialized pipeline: {error}") from error
    if not outputs or not batch:
        raise InvalidRequest("it is no serialized pipeline: it names no outputs")
    return DaliFile(content, tuple(inputs), tuple(outputs), batch)


def _input(content: bytes, operator: tuple[int, int]) -> DaliTensor:
    name = next((text(content, span, 1) for span in _spans(content, operator, 3)), "")
    arguments: dict[str, int] = {}
    for span in _spans(content, operator, 4):
        for number in _ints(content, span, 4):
            arguments[text(content, span, 1)] = number
    return DaliTensor(name, _datatype(arguments.get("dtype", -1)), arguments.get("ndim", -1))


def _output(content: bytes, span: tuple[int, int]) -> DaliTensor:
    dtype, ndim = (next(iter(_ints(content, span, number)), -1) for number in (5, 6))
    return DaliTensor(text(content, span, 1), _datatype(dtype), ndim)


def _datatype(number: int) -> str:
    return DATATYPES[number] if 0 <= number < len(DATATYPES) else ""


def _spans(content: bytes, span: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
    return (part for number, part in fields(content, *span) if number == wanted and isinstance(part, tuple))


def _ints(content: bytes, span: tuple[int, int], wanted: int) -> Iterator[int]:
    for number, part in fields(content, *span):
        if number == wanted and isinstance(part, int):
            yield part - 2**64 if part >= 2**63 else part


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
