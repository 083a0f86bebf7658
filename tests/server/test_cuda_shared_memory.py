"""CUDA shared memory against a stand-in of the driver's library: there is no GPU where this runs.

The stand-in (compiled here) keeps "GPU memory" on the heap under handles that a test makes up, and counts what is open.
What a real driver does with them is not tried.
"""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http

from workbench.errors import InvalidRequest, NotFound
from workbench.server import RunningServer, ServerOptions
from workbench.server.cuda_memory import CudaDriver
from workbench.server.shared_memory import SharedMemory

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { char reserved[64]; } Handle;
static char *memory[16]; static size_t sizes[16]; static int opened, current;
int stand_in_make(int n, size_t size) { memory[n] = calloc(1, size); sizes[n] = size; return 0; }
char *stand_in_memory(int n) { return memory[n]; }
int stand_in_opened(void) { return opened; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal == 0 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = memory; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(void *context) { current++; return context == memory ? 0 : 201; }
int cuCtxPopCurrent_v2(void **context) { current--; return 0; }
int cuIpcOpenMemHandle_v2(uint64_t *address, Handle handle, unsigned flags) {
    if (!current) return 201;
    int n = handle.reserved[0];
    if (strcmp(handle.reserved + 1, "stand-in") || n < 0 || n > 15 || !memory[n]) return 1;
    opened++; *address = (uint64_t) memory[n]; return 0;
}
int cuIpcCloseMemHandle(uint64_t address) { opened--; return 0; }
int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
    for (int n = 0; n < 16; n++) if (memory[n] == (char *) address) { *base = address; *size = sizes[n]; return 0; }
    return 1;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *) from, size); return current ? 0 : 201; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *) to, from, size); return 0; }
int cuGetErrorString(int code, const char **text) {
    *text = code == 101 ? "invalid device ordinal" : code == 201 ? "invalid device context" : "invalid argument";
    return 0;
}
"""


class StandIn:
    """The library, and the memory in it as numpy sees it."""

    def __init__(self, folder: Path) -> None:
        source, self.path = folder / "driver.c", folder / "driver.so"
        source.write_text(SOURCE)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(self.path), str(source)], check=True)
        self.library = ctypes.CDLL(str(self.path))
        self.library.stand_in_memory.restype = ctypes.c_void_p

    def make(self, number: int, size: int) -> bytes:
        """Allocates; gives the handle."""
        self.library.stand_in_make(number, ctypes.c_size_t(size))
        return bytes([number]) + b"stand-in".ljust(63, b"\0")

    def array(self, number: int, count: int) -> Any:
        address = self.library.stand_in_memory(number)
        return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32)

    @property
    def opened(self) -> int:
        gc.collect()
        return int(self.library.stand_in_opened())


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    return StandIn(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def memory(gpu: StandIn) -> SharedMemory:
    return SharedMemory(True, lambda: CudaDriver(str(gpu.path)))


@pytest.fixture(scope="module")
def served(gpu: StandIn, start: Callable[..., Any], repository: Path) -> Iterator[RunningServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.server.cuda_memory._LIBRARY", str(gpu.path))
        patch.setattr(CudaDriver.__init__, "__defaults__", (str(gpu.path),))
        with start(repository, ServerOptions(name="gpu", allow_client_shm=True, exit_timeout_s=5.0)) as server:
            yield server


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_inputs_and_outputs_in_a_gpus_memory(served: RunningServer, gpu: StandIn, protocol: str) -> None:
    module: Any = over_http if protocol == "http" else over_grpc
    url = served.http_url if protocol == "http" else served.grpc_url
    client = module.InferenceServerClient(url.partition("://")[2])
    handle = gpu.make(3, 64)
    gpu.array(3, 16)[:] = np.arange(16)
    client.register_cuda_shared_memory("gpu", b64encode(handle), 0, 64)
    status = client.get_cuda_shared_memory_status()
    if protocol == "http":
        assert status == [{"name": "gpu", "device_id": 0, "byte_size": 64}]
        assert client.get_system_shared_memory_status() == []
    else:
        assert (status.regions["gpu"].byte_size, status.regions["gpu"].device_id) == (64, 0)
    asked = module.InferInput("INPUT0", [1, 4], "FP32")
    asked.set_shared_memory("gpu", 16, 16)
    wanted = module.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("gpu", 16, 32)
    client.infer("echo", [asked], outputs=[wanted])
    assert gpu.array(3, 16).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 12, 13, 14, 15]
    asked.set_shared_memory("gpu", 16, 56)
    with pytest.raises(Exception, match="Invalid offset \\+ byte size for shared memory region: 'gpu'"):
        client.infer("echo", [asked])
    client.unregister_cuda_shared_memory("gpu")
    assert gpu.opened == 0
    with pytest.raises(Exception, match="Unable to find"):
        client.infer("echo", [asked])
    client.close()


def test_regions_of_both_kinds_are_kept_apart(memory: SharedMemory, gpu: StandIn) -> None:
    memory.register_cuda("a", gpu.make(1, 16), 0, 16)
    memory.register_cuda("b", gpu.make(2, 32), 0, 32)
    assert memory.largest == 32
    assert [row["name"] for row in memory.status("cuda")] == ["a", "b"]
    memory.unregister("system")
    with pytest.raises(NotFound, match="'a' is registered as CUDA shared memory, not system shared memory"):
        memory.status("system", "a")
    target = memory.target("a", 0, 16)
    memory.unregister("cuda")
    assert memory.status("cuda") == []
    assert gpu.opened == 1, "what a request uses stays until that ends"
    target.write("OUTPUT0", np.ones(4, np.float32).data.cast("B"))
    assert gpu.array(1, 4).tolist() == [1, 1, 1, 1]
    del target
    assert gpu.opened == 0


def test_what_cannot_be_registered(memory: SharedMemory, gpu: StandIn) -> None:
    handle = gpu.make(4, 16)
    for given, device, size, text in (
        (b"short", 0, 16, "failed to open CUDA IPC handle: a CUDA IPC handle has 64 bytes, this one has 5"),
        (bytes(64), 0, 16, "failed to open CUDA IPC handle: cuIpcOpenMemHandle_v2: invalid argument"),
        (handle, 7, 16, "failed to open CUDA IPC handle: cuDeviceGet: invalid device ordinal"),
        (handle, 0, 17, "invalid args"),
        (handle, 0, 0, "invalid args"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            memory.register_cuda("g", given, device, size)
        assert raised.value.message == f"failed to register CUDA shared memory region: 'g': {text}"
        del raised  # it holds the frames of what was tried
    assert gpu.opened == 0
    assert memory.status("cuda") == []


def test_bodies_that_register_nothing(served: RunningServer, http: Callable[..., Any]) -> None:
    path = "/v2/cudasharedmemory/region/x/register"
    good = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 4}
    for change, text in (
        ({"raw_handle": None}, "no 'b64' field in 'raw_handle'"),
        ({"raw_handle": {"b64": "!"}}, "no base64"),
        ({"device_id": -1}, "unsigned"),
        ({"byte_size": "4"}, "unsigned"),
        ({}, "a CUDA IPC handle has 64 bytes, this one has 3"),
    ):
        answer = http(served, "POST", path, good | change)
        assert answer.status in (400, 500)
        assert text in answer.json["error"]
    for name in good:
        answer = http(served, "POST", path, {key: value for key, value in good.items() if key != name})
        assert (answer.status, answer.json["error"]) == (400, f"Shared memory register request has no '{name}' field")
