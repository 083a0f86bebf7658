"""Server reflection: what grpcurl and other generic clients ask to learn which calls there are.

Triton 2.51 has none; the protocol is gRPC's (https://github.com/grpc/grpc/blob/master/doc/server-reflection.md).
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FileDescriptor

from workbench.errors import WorkbenchError
from workbench.server.grpc_call import Call
from workbench.server.grpc_codec import parse
from workbench.server.grpc_message import STOPPING, UNAVAILABLE, status_number
from workbench.server.grpc_protos import (
    REFLECTION_VERSIONS,
    find_file,
    find_symbol,
    protos,
    with_dependencies,
)

SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    *(f"grpc.reflection.{version}.ServerReflection" for version in REFLECTION_VERSIONS),
)
_NOT_FOUND = 5


class ReflectionCall:
    """A ServerReflectionInfo call: each question is answered at once."""

    def __init__(self, call: Call, version: str) -> None:
        self._call = call
        self._version = version

    def message(self, data: memoryview) -> None:
        """A question."""
        self._call.pass_over(data.nbytes)
        made = protos()
        try:
            request = parse(made.reflection_request[self._version], data)
        except WorkbenchError as error:
            self._call.finish(status_number(error.code), error.message)
            return
        answer = made.reflection_response[self._version](valid_host=request.host)
        answer.original_request.CopyFrom(request)
        _answer(request, answer)
        self._call.send(self._call.frame([answer.SerializeToString()]))

    def half_closed(self) -> None:
        """No more questions."""
        self._call.finish()

    def gone(self) -> None:
        """Nothing is under way."""

    def drained(self) -> None:
        """Nothing is held back: answers are as many as questions, which flow control bounds."""

    def stopping(self) -> None:
        """Every question has been answered."""
        self._call.finish(UNAVAILABLE, STOPPING)


def _answer(request: Any, answer: Any) -> None:
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        for name in SERVICES:
            answer.list_services_response.service.add(name=name)
    elif kind == "file_by_filename":
        _give_file(answer, find_file(request.file_by_filename))
    elif kind == "file_containing_symbol":
        _give_file(answer, find_symbol(request.file_containing_symbol))
    elif kind == "all_extension_numbers_of_type":
        if find_symbol(request.all_extension_numbers_of_type) is None:
            _not_found(answer)
        else:  # proto3: there are none
            answer.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
    else:
        _not_found(answer)


def _give_file(answer: Any, file: FileDescriptor | None) -> None:
    if file is None:
        _not_found(answer)
    else:
        answer.file_descriptor_response.file_descriptor_proto.extend(with_dependencies(file))


def _not_found(answer: Any) -> None:
    answer.error_response.error_code = _NOT_FOUND
    answer.error_response.error_message = "not found"
