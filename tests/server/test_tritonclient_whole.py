"""Every public method of Triton's four clients has a case here that looks at what the server answers.

What is public is read from the installed tritonclient: a method without a case fails.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import queue
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
import tritonclient.utils.shared_memory as shm
from grpc_models import HEAD, REPEAT, SLOW, put

from workbench.server import RunningServer, ServerOptions
from workbench.server.grpc_options import GrpcOptions

ARRAY = np.arange(8, dtype=np.float32).reshape(2, 4)
TOKEN = "r3po"
OWN = {"authorization": f"Bearer {TOKEN}"}
BASIC = "Basic dXNlcjp3b3Jk"  # user:word
KINDS = {"http": over_http, "http.aio": over_http_aio, "grpc": over_grpc, "grpc.aio": over_grpc_aio}
TELLS = (
    HEAD
    + """class TritonPythonModel:
    def execute(self, requests):
        said = [np.array([request.parameters().encode()], object) for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUT", each)]) for each in said]
"""
)
"""Answers with the parameters of the request, among them the headers that are forwarded."""


def public(kind: Any) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, write: Callable[..., None], start: Any) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("whole")
    write(root, "echo", "FP32", [4])
    write(root, "brief", "FP32", [4])
    write(root, "odd", "FP32", [4])
    put(root, "tells", TELLS, kind="BYTES")
    put(root, "slow", SLOW)
    put(root, "repeat", REPEAT, "model_transaction_policy { decoupled: true }")
    options = ServerOptions(
        name="whole", allow_client_shm=True, repository_token=TOKEN, exit_timeout_s=5.0,
        http_header_forward_pattern="authorization", grpc=GrpcOptions(header_forward_pattern="authorization"),
    )  # fmt: skip
    with start(root, options) as made:
        yield made


class Client:
    """One of the four; what it returns is awaited where it must be. ``used``: the methods that were called."""

    def __init__(self, kind: str, server: RunningServer) -> None:
        self.module = KINDS[kind]
        self.kind = kind
        self.grpc = kind.startswith("grpc")
        self.server = server
        url = server.grpc_url.removeprefix("grpc://") if self.grpc else server.http_url.removeprefix("http://")
        self.client = self.module.InferenceServerClient(url)
        self.used: set[str] = set()

    async def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.used.add(method)
        bound = getattr(self.client, method)
        if "as_json" in inspect.signature(bound).parameters:
            kwargs.setdefault("as_json", True)
        made = bound(*args, **kwargs)
        return await made if inspect.isawaitable(made) else made

    def tensor(self, array: Any = ARRAY, name: str = "INPUT0", datatype: str = "FP32") -> Any:
        made = self.module.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array)
        return made

    def output(self, name: str = "OUTPUT0", **options: Any) -> Any:
        return self.module.InferRequestedOutput(name, **options)

    async def told(self, **options: Any) -> dict[str, Any]:
        """What the model ``tells`` was told with a request."""
        given = self.tensor(np.array([b""], object), "IN", "BYTES")
        (said,) = (await self("infer", "tells", [given], **options)).as_numpy("OUT").tolist()
        found: dict[str, Any] = json.loads(said)
        return found

    async def settings(self, method: str, *args: Any) -> dict[str, Any]:
        """Settings by name, one value each."""
        answer = await self(method, *args)
        if not self.grpc:
            return {name: value[0] if isinstance(value, list) else value for name, value in answer.items()}
        found = {}
        for name, entry in answer["settings"].items():
            value = next(iter(entry.values()), "")
            found[name] = value[0] if isinstance(value, list) else value
        return found

    async def regions(self, memory: str, *args: Any) -> dict[str, Any]:
        answer = await self(f"get_{memory}_shared_memory_status", *args)
        rows = answer.get("regions", {}) if self.grpc else {row["name"]: row for row in answer}
        return {name: int(row["byte_size"]) for name, row in rows.items()}


def idle(server: RunningServer, model: str) -> bool:
    return server.engine.snapshot().version(model).running == 0


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 10 s")


# -- cases: each is named as the method that it is for -----------------------------------------------------------------


async def is_server_live(c: Client) -> None:
    assert await c("is_server_live") is True


async def is_server_ready(c: Client) -> None:
    assert await c("is_server_ready") is True


async def is_model_ready(c: Client) -> None:
    assert await c("is_model_ready", "echo", "1") is True
    assert await c("is_model_ready", "echo", "7") is False
    assert await c("is_model_ready", "nobody") is False


async def get_server_metadata(c: Client) -> None:
    answer = await c("get_server_metadata")
    assert answer["name"] == "triton"
    assert {"binary_tensor_data", "statistics", "trace"} <= set(answer["extensions"])


async def get_model_metadata(c: Client) -> None:
    answer = await c("get_model_metadata", "echo", "1")
    (given,) = answer["inputs"]
    assert (given["name"], given["datatype"], [int(dim) for dim in given["shape"]]) == ("INPUT0", "FP32", [-1, 4])
    with pytest.raises(Exception, match="Request for unknown model: 'nobody' is not found"):
        await c("get_model_metadata", "nobody")


async def get_model_config(c: Client) -> None:
    answer = await c("get_model_config", "echo", "1")
    assert (answer["config"] if c.grpc else answer)["max_batch_size"] == 8


async def get_model_repository_index(c: Client) -> None:
    answer = await c("get_model_repository_index")
    rows = {row["name"]: row["state"] for row in (answer["models"] if c.grpc else answer)}
    assert rows["echo"] == "READY"
    assert {"echo", "brief", "odd", "tells", "slow", "repeat"} == set(rows)


async def get_inference_statistics(c: Client) -> None:
    async def count() -> int:
        (row,) = (await c("get_inference_statistics", "echo", "1"))["model_stats"]
        return int(row["inference_stats"]["success"].get("count", 0))

    before = await count()
    await c("infer", "echo", [c.tensor()])
    assert await count() == before + 1


async def load_model(c: Client) -> None:
    with pytest.raises(Exception, match="repository's token"):
        await c("load_model", "odd")
    answer = await c("get_model_config", "odd")
    config = (answer["config"] if c.grpc else answer) | {"parameters": {"k": {"string_value": c.kind}}}
    await c("load_model", "odd", headers=OWN, config=json.dumps(config))
    answer = await c("get_model_config", "odd")
    assert (answer["config"] if c.grpc else answer)["parameters"] == {"k": {"string_value": c.kind}}
    with pytest.raises(Exception, match="failed to poll from model repository"):
        await c("load_model", "nobody", headers=OWN)


async def unload_model(c: Client) -> None:
    await c("unload_model", "brief", headers=OWN)
    assert await c("is_model_ready", "brief") is False
    with pytest.raises(Exception, match="Request for unknown model: 'brief' has no available versions"):
        await c("infer", "brief", [c.tensor()])
    await c("load_model", "brief", headers=OWN)
    assert await c("is_model_ready", "brief") is True
    await c("unload_model", "brief", headers=OWN, unload_dependents=True)
    await c("load_model", "brief", headers=OWN)


async def get_trace_settings(c: Client) -> None:
    found = await c.settings("get_trace_settings", "echo")
    assert (found["trace_level"], found["trace_rate"], found["trace_count"]) == ("OFF", "1000", "-1")


async def update_trace_settings(c: Client) -> None:
    assert (await c.settings("update_trace_settings", "echo", {"trace_rate": "7"}))["trace_rate"] == "7"
    assert (await c.settings("get_trace_settings"))["trace_rate"] == "1000", "of this model only"
    assert (await c.settings("update_trace_settings", "echo", {"trace_rate": None}))["trace_rate"] == "1000"
    with pytest.raises(Exception, match="trace file name is not given"):
        await c("update_trace_settings", None, {"trace_level": ["TIMESTAMPS"]})


async def get_log_settings(c: Client) -> None:
    found = await c.settings("get_log_settings")
    assert (found["log_info"], found["log_verbose_level"], found["log_format"]) == (True, 0, "default")


async def update_log_settings(c: Client) -> None:
    assert (await c.settings("update_log_settings", {"log_verbose_level": 2}))["log_verbose_level"] == 2
    assert c.server.api.logging.verbose
    assert (await c.settings("update_log_settings", {"log_verbose_level": 0}))["log_verbose_level"] == 0
    with pytest.raises(Exception, match="log file location can not be updated through network protocol"):
        await c("update_log_settings", {"log_file": "x"})


async def system_shared_memory(c: Client) -> None:
    key = f"/workbench-test-{secrets.token_hex(6)}"
    handle = shm.create_shared_memory_region("both", key, 64)
    try:
        shm.set_shared_memory_region(handle, [ARRAY])
        await c("register_system_shared_memory", "both", key, 64)
        assert await c.regions("system", "both") == {"both": 64}
        with pytest.raises(Exception, match="'both' already in manager"):
            await c("register_system_shared_memory", "both", key, 64)
        given, asked = c.tensor(), c.output()
        given.set_shared_memory("both", 32)
        asked.set_shared_memory("both", 32, offset=32)
        result = await c("infer", "echo", [given], outputs=[asked])
        if c.grpc:
            assert list(result.get_response().raw_output_contents) == [b""]
        else:
            assert "data" not in result.get_output("OUTPUT0")
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 4], offset=32), ARRAY)
        asked.unset_shared_memory()
        result = await c("infer", "echo", [given], outputs=[asked])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)
        await c("unregister_system_shared_memory", "both")
        assert await c.regions("system") == {}
        with pytest.raises(Exception, match="Unable to find system shared memory region: 'both'"):
            await c.regions("system", "both")
    finally:
        await c("unregister_system_shared_memory")
        shm.destroy_shared_memory_region(handle)


async def cuda_shared_memory(c: Client) -> None:
    assert await c.regions("cuda") == {}
    with pytest.raises(Exception, match="failed to register CUDA shared memory region: 'g', GPUs not supported"):
        await c("register_cuda_shared_memory", "g", b"cmF3", 0, 16)
    await c("unregister_cuda_shared_memory", "g")
    await c("unregister_cuda_shared_memory")
    with pytest.raises(Exception, match="Unable to find cuda shared memory region: 'g'"):
        await c.regions("cuda", "g")


async def infer(c: Client) -> None:
    options: dict[str, Any] = {"headers": {"x-y": "z"}, "priority": 0, "timeout": 10**7}
    if c.grpc:
        options |= {"compression_algorithm": "gzip", "client_timeout": 20.0}
    else:
        options |= {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}
        options["query_params"] = {"a": "b"}
    asked = [c.output() if c.grpc else c.output(binary_data=False)]
    result = await c(
        "infer", "echo", [c.tensor()], "1", asked, "an id", parameters={"own": 1}, **options
    )  # fmt: skip
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)
    classes = await c("infer", "echo", [c.tensor()], outputs=[c.output(class_count=1)])
    assert classes.as_numpy("OUTPUT0").ravel().tolist() == [b"3.000000:3", b"7.000000:3"]
    assert (await c.told(parameters={"own": 1, "text": "x"})) == {"own": 1, "text": "x"}
    with pytest.raises(Exception, match="unexpected shape for input 'INPUT0'"):
        await c("infer", "echo", [c.tensor(np.zeros((1, 5), np.float32))])


async def async_infer(c: Client) -> None:
    if not c.grpc:
        asked = [await c("async_infer", "echo", [c.tensor(ARRAY + number)]) for number in range(4)]
        for number, each in enumerate(asked):
            np.testing.assert_array_equal(each.get_result().as_numpy("OUTPUT0"), ARRAY + number)
        return
    answers: queue.Queue[Any] = queue.Queue()
    for number in range(4):
        await c(
            "async_infer", "echo", [c.tensor(ARRAY + number)], lambda result, error: answers.put((result, error)),
            request_id=str(number),
        )  # fmt: skip
    for _ in range(4):
        result, error = answers.get(timeout=20)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY + int(result.get_response().id))
    context = await c(
        "async_infer", "slow", [c.tensor(ARRAY[0], "IN")], lambda result, error: answers.put((result, error))
    )
    context.cancel()
    result, error = answers.get(timeout=20)
    assert (result, error.status()) == (None, "StatusCode.CANCELLED")
    await until(lambda: idle(c.server, "slow"))


async def generate_request_body(c: Client) -> None:
    body, length = await c("generate_request_body", [c.tensor()], request_id="made")
    assert json.loads(body[:length])["id"] == "made"


async def parse_response_body(c: Client) -> None:
    answer = b'{"model_name":"m","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1],"data":[2.5]}]}'
    assert (await c("parse_response_body", answer)).as_numpy("OUTPUT0") == [2.5]


def final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


async def stream(c: Client) -> None:
    """start_stream, async_stream_infer, stop_stream: in order, an error among answers, decoupled, and cut short."""
    answers: queue.Queue[Any] = queue.Queue()
    await c("start_stream", lambda result, error: answers.put((result, error)), stream_timeout=60)
    with pytest.raises(Exception, match="cannot start another stream with one already running"):
        await c("start_stream", print)
    await c("async_stream_infer", "echo", [c.tensor()], request_id="a")
    await c("async_stream_infer", "nobody", [c.tensor()], request_id="b")
    three = [c.tensor(np.array([3], np.float32), "IN")]
    await c("async_stream_infer", "repeat", three, request_id="c", enable_empty_final_response=True)
    found = [answers.get(timeout=20) for _ in range(6)]
    (error,) = [error for _, error in found if error is not None]
    assert "Request for unknown model: 'nobody' is not found" in str(error)
    said: dict[str, list[Any]] = {"a": [], "c": []}  # in order within a request
    for result in [result for result, _ in found if result is not None]:
        said[result.get_response().id].append(result)
    np.testing.assert_array_equal(said["a"][0].as_numpy("OUTPUT0"), ARRAY)
    *some, last = said["c"]
    assert [each.as_numpy("OUT").tolist() for each in some] == [[0], [1], [2]]
    assert (len(last.get_response().outputs), final(last), final(some[-1])) == (0, True, False)
    await c("stop_stream")
    await c("start_stream", lambda result, error: answers.put((result, error)))
    await c("async_stream_infer", "repeat", [c.tensor(np.array([1e9], np.float32), "IN")])
    assert answers.get(timeout=20)[1] is None
    await c("stop_stream", cancel_requests=True)
    await until(lambda: idle(c.server, "repeat"))


async def stream_infer(c: Client) -> None:
    async def requests(*counts: float) -> Any:
        for number, count in enumerate(counts):
            yield {
                "model_name": "repeat", "inputs": [c.tensor(np.array([count], np.float32), "IN")],
                "request_id": str(number),
            }  # fmt: skip

    c.used.add("stream_infer")
    answers = []
    async for result, error in c.client.stream_infer(requests(2, 1)):
        assert error is None
        answers.append((result.get_response().id, result.as_numpy("OUT").tolist()))
    assert answers == [("0", [0]), ("0", [1]), ("1", [0])]
    endless = c.client.stream_infer(requests(1e9))
    result, error = await anext(endless)
    assert error is None
    assert endless.cancel()
    with suppress(asyncio.CancelledError, StopAsyncIteration):
        while True:
            await anext(endless)
    await until(lambda: idle(c.server, "repeat"))


async def plugins(c: Client) -> None:
    assert await c("plugin") is None
    assert await c.told() == {}
    made = __import__(f"tritonclient.{c.kind}.auth", fromlist=["BasicAuth"]).BasicAuth("user", "word")
    await c("register_plugin", made)
    assert await c("plugin") is made
    assert {name.lower(): value for name, value in (await c.told()).items()} == {"authorization": BASIC}
    assert await c("is_server_live") is True
    await c("unregister_plugin")
    assert await c.told() == {}


async def close(c: Client) -> None:
    assert await c("is_server_live") is True
    await c("close")
    with pytest.raises(Exception, match="closed"):
        await c("is_server_live")


Case = Callable[[Client], Awaitable[None]]
CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        is_server_live, is_server_ready, is_model_ready, get_server_metadata, get_model_metadata, get_model_config,
        get_model_repository_index, get_inference_statistics, load_model, unload_model, get_trace_settings,
        update_trace_settings, get_log_settings, update_log_settings, infer, async_infer, generate_request_body,
        parse_response_body, stream_infer, close,
    )
} | {
    "get_system_shared_memory_status": system_shared_memory, "register_system_shared_memory": system_shared_memory,
    "unregister_system_shared_memory": system_shared_memory, "get_cuda_shared_memory_status": cuda_shared_memory,
    "register_cuda_shared_memory": cuda_shared_memory, "unregister_cuda_shared_memory": cuda_shared_memory,
    "start_stream": stream, "async_stream_infer": stream, "stop_stream": stream,
    "plugin": plugins, "register_plugin": plugins, "unregister_plugin": plugins,
}  # fmt: skip
METHODS = [(kind, name) for kind, module in KINDS.items() for name in sorted(public(module.InferenceServerClient))]


def test_no_case_is_for_a_method_that_is_none() -> None:
    assert set(CASES) == {name for _, name in METHODS}
    assert {kind for kind, _ in METHODS} == set(KINDS)


@pytest.mark.parametrize(("kind", "method"), METHODS)
def test_every_public_method(whole: RunningServer, kind: str, method: str) -> None:
    assert method in CASES, f"tritonclient.{kind} has a method {method} that has no case here"

    async def main() -> None:
        made = Client(kind, whole)
        try:
            await CASES[method](made)
            assert method in made.used
        finally:
            with suppress(Exception):
                await made("close")

    asyncio.run(main())
