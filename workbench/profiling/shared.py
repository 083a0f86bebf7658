"""Tensors of a load in system shared memory: perf_analyzer's ``--shared-memory system``.

All inputs lie in one region, written once before the load; each output of each model has one place that the requests
write over each other, as nobody reads them (perf_analyzer does the same).
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Mapping, Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from workbench.client import connect
from workbench.errors import Unsupported, WorkbenchError
from workbench.profiling.target import Target
from workbench.protocol.binary import to_buffer
from workbench.protocol.datatypes import BY_CONFIG, BY_WIRE
from workbench.protocol.tensors import InferenceRequest, Tensor

_ALIGN = 64

Place = dict[str, Any]
"""Region, offset and size as a request's parameters name them."""


class SharedTensors:
    """One region on this machine, registered at the server while it is open.

    Args:
        target: the server, on this machine.
        requests: whose inputs to lay down.
        output_bytes: room for an output whose shape is not known.

    Raises:
        Unsupported: the server shares no memory, or is on another machine.
    """

    def __init__(self, target: Target, requests: Sequence[InferenceRequest], output_bytes: int) -> None:
        self._name = f"workbench_load_{secrets.token_hex(6)}"
        self._places: dict[int, Place] = {}
        self._outputs: dict[str, dict[str, Place]] = {}
        size = self._lay_out(target, requests, output_bytes)
        self._memory = SharedMemory(self._name, create=True, size=max(1, size))
        self._client = connect(target.url)
        try:
            for request in requests:
                for tensor in request.inputs:
                    place = self._places[id(tensor.data)]
                    at, length = place["shared_memory_offset"], place["shared_memory_byte_size"]
                    memory = self._memory.buf
                    assert memory is not None  # it is open
                    memory[at : at + length] = bytes(to_buffer(tensor))
            self._client.register_system_shared_memory(self._name, f"/{self._name}", max(1, size))
        except WorkbenchError as error:
            self.close()
            raise Unsupported(
                f"the load cannot share memory with the server: {error.message}",
                where=target.url,
                hint="the server must run on this machine; ours with --allow-client-shm=true",
            ) from error
        except BaseException:
            self.close()
            raise

    def place_of(self, tensor: Tensor) -> Place:
        """Where an input lies."""
        return self._places[id(tensor.data)]

    def outputs_of(self, model: str) -> Mapping[str, Place]:
        """Where the outputs of a model go."""
        return self._outputs[model]

    def close(self) -> None:
        """Unregisters and removes the region."""
        with contextlib.suppress(WorkbenchError):
            self._client.unregister_system_shared_memory(self._name)
        self._client.close()
        self._memory.close()
        with contextlib.suppress(FileNotFoundError):
            self._memory.unlink()

    def __enter__(self) -> SharedTensors:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lay_out(self, target: Target, requests: Sequence[InferenceRequest], output_bytes: int) -> int:
        at = 0
        rows: dict[str, int] = {}
        for request in requests:
            for tensor in request.inputs:
                if id(tensor.data) not in self._places:
                    size = len(bytes(to_buffer(tensor)))
                    self._places[id(tensor.data)] = self._place(at, size)
                    at += -(-size // _ALIGN) * _ALIGN
            first = request.inputs[0].shape[0] if request.inputs and request.inputs[0].shape else 1
            rows[request.model_name] = max(rows.get(request.model_name, 1), first)
        for model, most in rows.items():
            config = target.model_config(model)
            batch = most if int(config.get("max_batch_size", 0) or 0) else 1
            self._outputs[model] = {}
            for output in config.get("output", ()):
                size = _output_size(output, batch) or output_bytes
                self._outputs[model][str(output["name"])] = self._place(at, size)
                at += -(-size // _ALIGN) * _ALIGN
        return at

    def _place(self, offset: int, size: int) -> Place:
        return {
            "shared_memory_region": self._name, "shared_memory_offset": offset, "shared_memory_byte_size": size
        }  # fmt: skip


def _output_size(output: Mapping[str, Any], rows: int) -> int:
    """In bytes; 0 where the configuration does not say it."""
    row = BY_CONFIG.get(str(output["data_type"])) or BY_WIRE.get(str(output["data_type"]))
    dims = [int(dim) for dim in output.get("dims", ())]
    if row is None or row.wire == "BYTES" or -1 in dims:
        return 0
    return rows * math.prod(dims) * row.itemsize
