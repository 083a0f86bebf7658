"""Memory that a client shares with the server, over HTTP and in the module that both front ends use."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http
from tritonclient.utils import shared_memory as shm

from workbench.errors import AlreadyExists, InternalError, InvalidRequest, NotFound, Unsupported, WorkbenchError
from workbench.server import RunningServer, ServerOptions
from workbench.server.shared_memory import SharedMemory

ARRAY = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture(scope="module")
def sharing(repository: Path, start: Any) -> Iterator[RunningServer]:
    with start(repository, ServerOptions(name="sharing", allow_client_shm=True, exit_timeout_s=5.0)) as made:
        yield made


@pytest.fixture
def client(sharing: RunningServer) -> Iterator[Any]:
    made = http.InferenceServerClient(sharing.http_url.removeprefix("http://"))
    yield made
    made.unregister_system_shared_memory()
    made.close()


@pytest.fixture
def memory() -> SharedMemory:
    return SharedMemory(allowed=True)


@pytest.fixture
def create() -> Iterator[Callable[[int], tuple[str, Path]]]:
    """``create(size)``: a POSIX shared memory object; gives its key and its file."""
    made: list[Path] = []

    def new(size: int) -> tuple[str, Path]:
        path = Path("/dev/shm") / f"workbench-test-{secrets.token_hex(6)}"
        path.write_bytes(bytes(size))
        made.append(path)
        return f"/{path.name}", path

    yield new
    for path in made:
        path.unlink(missing_ok=True)


def shared_io(region: str, size: int, *, output: str = "", at: int = 0) -> tuple[list[Any], list[Any]]:
    tensor = http.InferInput("INPUT0", [4, 4], "FP32")
    tensor.set_shared_memory(region, size)
    asked = http.InferRequestedOutput("OUTPUT0")
    if output:
        asked.set_shared_memory(output, size, offset=at)
    return [tensor], [asked]


def test_inputs_and_outputs_go_through_shared_memory(client: Any) -> None:
    key = f"/workbench-test-{secrets.token_hex(6)}"
    handle = shm.create_shared_memory_region("region", key, 2 * ARRAY.nbytes)
    try:
        shm.set_shared_memory_region(handle, [ARRAY])
        client.register_system_shared_memory("region", key, 2 * ARRAY.nbytes)
        status = client.get_system_shared_memory_status()
        assert status == [{"name": "region", "key": key, "offset": 0, "byte_size": 2 * ARRAY.nbytes}]
        assert client.get_system_shared_memory_status("region") == status
        result = client.infer(
            "echo",
            *shared_io("region", ARRAY.nbytes, output="region", at=ARRAY.nbytes)[:1],
            outputs=shared_io("region", ARRAY.nbytes, output="region", at=ARRAY.nbytes)[1],
        )
        assert result.get_output("OUTPUT0") == {"name": "OUTPUT0", "datatype": "FP32", "shape": [4, 4]}
        written = shm.get_contents_as_numpy(handle, np.float32, [4, 4], offset=ARRAY.nbytes)
        np.testing.assert_array_equal(written, ARRAY)
        client.unregister_system_shared_memory("region")
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(Exception, match="Unable to find shared memory region: 'region'"):
            client.infer("echo", shared_io("region", ARRAY.nbytes)[0])
    finally:
        shm.destroy_shared_memory_region(handle)


def test_strings_and_large_tensors(client: Any, create: Callable[[int], tuple[str, Path]]) -> None:
    words = np.array([["a", "ünï", ""]], dtype=object)
    raw = b"".join(len(w.encode()).to_bytes(4, "little") + w.encode() for w in words.reshape(-1))
    key, path = create(len(raw))
    path.write_bytes(raw)
    client.register_system_shared_memory("words", key, len(raw))
    tensor = http.InferInput("INPUT0", [1, 3], "BYTES")
    tensor.set_shared_memory("words", len(raw))
    answer = client.infer("texts", [tensor]).as_numpy("OUTPUT0")
    assert [item.decode() for item in answer.reshape(-1)] == ["a", "ünï", ""]

    numbers = np.arange(1 << 19, dtype=np.int64)  # 4 MiB: read and written off the loop
    key, path = create(2 * numbers.nbytes)
    path.write_bytes(numbers.tobytes() + bytes(numbers.nbytes))
    client.register_system_shared_memory("numbers", key, 2 * numbers.nbytes)
    tensor = http.InferInput("INPUT0", [1, numbers.size], "INT64")
    tensor.set_shared_memory("numbers", numbers.nbytes)
    asked = http.InferRequestedOutput("OUTPUT0")
    asked.set_shared_memory("numbers", numbers.nbytes, offset=numbers.nbytes)
    client.infer("ints", [tensor], outputs=[asked])
    assert path.read_bytes()[numbers.nbytes :] == numbers.tobytes()


def test_what_does_not_fit_is_refused_and_the_server_stays(
    client: Any, sharing: RunningServer, http: Callable[..., Any], create: Callable[[int], tuple[str, Path]]
) -> None:
    key, path = create(4096)
    client.register_system_shared_memory("small", key, 4096)

    def ask(parameters: dict[str, Any], output: dict[str, Any] | None = None) -> tuple[int, str]:
        entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": parameters}
        body: dict[str, Any] = {"inputs": [entry]}
        if output is not None:
            body["outputs"] = [{"name": "OUTPUT0", "parameters": output}]
        answer = http(sharing, "POST", "/v2/models/echo/infer", body)
        return answer.status, answer.json.get("error", "")

    small = {"shared_memory_region": "small", "shared_memory_byte_size": 16}
    assert ask(small)[0] == 200
    assert ask(small | {"shared_memory_offset": 4096}) == (400, "Invalid offset for shared memory region: 'small'")
    text = "Invalid offset + byte size for shared memory region: 'small'"
    assert ask(small | {"shared_memory_offset": 4090}) == (400, text)
    assert ask(small | {"shared_memory_offset": 1, "shared_memory_byte_size": 2**64 - 1})[0] == 400
    assert ask(small | {"shared_memory_offset": -1})[0] == 500
    assert ask(small | {"shared_memory_byte_size": 12})[0] == 400, "not what the shape needs"
    assert ask(small | {"shared_memory_region": 7})[0] == 500
    assert ask(small, small | {"shared_memory_byte_size": 15}) == (
        500,
        "shared memory size specified with the request for output 'OUTPUT0' (15 bytes) should be at least 16 bytes to "
        "hold the results",
    )
    both = small | {"classification": 2}
    assert ask(small, both) == (400, "Output can't set both 'shared_memory_region' and 'classification'")
    os.truncate(path, 8)  # as creating it anew with a smaller size does
    assert ask(small) == (400, text)
    assert http(sharing, "GET", "/v2/health/live").status == 200


def test_what_may_be_registered(memory: SharedMemory, create: Callable[[int], tuple[str, Path]]) -> None:
    key, path = create(8192)
    memory.register_system("r", key, 4096, 4096)
    refused: list[tuple[tuple[str, str, int, int], type[WorkbenchError], str]] = [
        (("r", key, 0, 16), AlreadyExists, "shared memory region 'r' already in manager"),
        (("", key, 0, 16), InvalidRequest, "'region name' is necessary to register system shared memory region"),
        (("x", key, 0, 8193), InvalidRequest, "failed to register shared memory region 'x': invalid args"),
        (("x", key, 2**63, 2**63), InvalidRequest, "failed to register shared memory region 'x': invalid args"),
        (("x", "/", 0, 1), InvalidRequest, "cannot register shared memory region 'x' - invalid shm key '/'"),
        (("x", "", 0, 1), InvalidRequest, "cannot register shared memory region 'x' - invalid shm key ''"),
        (
            ("x", "//triton_python_backend_shm_region_1", 0, 1),
            InvalidRequest,
            "cannot register shared memory region 'x' with key '//triton_python_backend_shm_region_1' as the key "
            "contains the reserved prefix 'triton_python_backend_shm_region_'",
        ),
    ]
    for key in (
        "/no-such-object",
        "/../etc/passwd",
        "../../etc/passwd",
        "a/b",
        "/..",
        "/.",
        "a\0b",
        "\ud800",
        "x" * 300,
    ):
        refused.append((("x", key, 0, 1), InternalError, f"Unable to open shared memory region: '{key}'"))
    for arguments, kind, text in refused:
        with pytest.raises(kind) as caught:
            memory.register_system(*arguments)
        assert caught.value.message == text
    link = path.with_name(path.name + "-link")
    link.symlink_to("/etc/hostname")
    try:
        with pytest.raises(InternalError, match="Unable to open"):
            memory.register_system("x", link.name, 0, 1)
    finally:
        link.unlink()
    assert [row["name"] for row in memory.status("system")] == ["r"]


def test_a_region_in_use_outlives_its_name(memory: SharedMemory, create: Callable[[int], tuple[str, Path]]) -> None:
    key, path = create(4096)
    memory.register_system("r", key, 0, 4096)
    target = memory.target("r", 8, 4)
    memory.unregister("system")
    memory.unregister("system", "nobody")
    path.unlink()
    again, second = create(4096)
    memory.register_system("r", again, 0, 4096)
    target.write("OUT", b"over")
    assert second.read_bytes()[8:12] == bytes(4), "not the region that has the name now"
    assert memory.largest == 4096
    memory.unregister("system", "r")
    assert memory.largest == 0
    with pytest.raises(NotFound, match="Unable to find system shared memory region: 'r'"):
        memory.status("system", "r")


def test_open_files_are_bounded_and_given_back(
    memory: SharedMemory, create: Callable[[int], tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (32, 32))
    key, path = create(4096)

    def held() -> int:
        return sum(os.path.realpath(each) == str(path) for each in Path("/proc/self/fd").iterdir())

    for number in range(8):
        memory.register_system(f"r{number}", key, 0, 16)
    with pytest.raises(WorkbenchError, match="8 regions are registered"):
        memory.register_system("more", key, 0, 16)
    assert held() == 8
    memory.unregister("system")
    assert held() == 0


def test_cuda_memory_is_refused_in_words(client: Any, memory: SharedMemory) -> None:
    assert client.get_cuda_shared_memory_status() == []
    with pytest.raises(Exception, match="failed to register CUDA shared memory region: 'r', GPUs not supported"):
        client.register_cuda_shared_memory("r", b"raw", 0, 16)
    client.unregister_cuda_shared_memory("r")
    client.unregister_cuda_shared_memory()
    with pytest.raises(NotFound, match="Unable to find cuda shared memory region: 'r'"):
        memory.status("cuda", "r")


def test_nothing_without_the_switch(create: Callable[[int], tuple[str, Path]]) -> None:
    memory = SharedMemory()
    key, _ = create(4096)
    for attempt in (
        lambda: memory.register_system("r", key, 0, 16),
        lambda: memory.register_cuda("r", b"", 0, 16),
        lambda: memory.unregister("system"),
        lambda: memory.read("r", 0, 1),
        lambda: memory.target("r", 0, 1),
    ):
        with pytest.raises(Unsupported, match="Start the server with '--allow-client-shm=true' to enable"):
            attempt()
    assert memory.status("system") == []
