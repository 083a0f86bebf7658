"""Every public method of Triton's HTTP clients, the blocking one and the one for asyncio, does its work here."""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http
from tritonclient.http import aio
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import shared_memory as shm

from workbench.server import RunningServer, ServerOptions

ARRAY = np.arange(8, dtype=np.float32).reshape(2, 4)
TOKEN = "r3po"


@pytest.fixture(scope="module")
def whole(repository: Path, start: Any) -> Iterator[RunningServer]:
    options = ServerOptions(name="whole", allow_client_shm=True, repository_token=TOKEN, exit_timeout_s=5.0)
    with start(repository, options) as made:
        yield made


class Watched:
    """A client; what it returns is awaited where it must be. ``used`` are the names of its methods that were called."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.used: set[str] = set()

    async def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.used.add(method)
        made = getattr(self.client, method)(*args, **kwargs)
        return await made if inspect.isawaitable(made) else made


def tensor(array: np.ndarray[Any, Any] = ARRAY) -> Any:
    made = http.InferInput("INPUT0", [1], "FP32")
    made.set_shape(list(array.shape))
    made.set_data_from_numpy(array)
    return made


async def use(call: Watched) -> None:
    for method in ("is_server_live", "is_server_ready"):
        assert await call(method) is True
    assert await call("is_model_ready", "echo", "1") is True
    assert await call("is_model_ready", "nobody") is False
    assert (await call("get_server_metadata"))["extensions"]
    assert (await call("get_model_metadata", "echo", "1"))["inputs"][0]["shape"] == [-1, 4]
    assert (await call("get_model_config", "echo"))["max_batch_size"] == 8
    assert {row["name"] for row in await call("get_model_repository_index")} >= {"echo", "texts"}
    assert (await call("get_inference_statistics", "echo"))["model_stats"]

    own = {"Authorization": f"Bearer {TOKEN}"}
    with pytest.raises(Exception, match="repository's token"):
        await call("unload_model", "halves")
    await call("unload_model", "halves", headers=own)
    assert await call("is_model_ready", "halves") is False
    config = (await call("get_model_config", "plain")) | {"parameters": {"k": {"string_value": "v"}}}
    await call("load_model", "plain", headers=own, config=json.dumps(config))
    assert (await call("get_model_config", "plain"))["parameters"] == {"k": {"string_value": "v"}}
    await call("load_model", "halves", headers=own)
    assert await call("is_model_ready", "halves") is True

    for changed in ({"trace_rate": "7", "trace_level": ["OFF"]}, {"trace_rate": None, "trace_level": None}):
        await call("update_trace_settings", "echo", changed)
    assert (await call("get_trace_settings", "echo"))["trace_level"] == ["OFF"]
    before = await call("get_log_settings")
    assert (await call("update_log_settings", {"log_verbose_level": 2}))["log_verbose_level"] == 2
    assert await call("update_log_settings", {"log_verbose_level": before["log_verbose_level"]}) == before

    asked = [http.InferRequestedOutput("OUTPUT0", binary_data=False)]
    result = await call(
        "infer", "echo", [tensor()], "1", asked, "an id", query_params={"a": "b"}, headers={"X-Y": "z"}, timeout=10**7,
        request_compression_algorithm="gzip", response_compression_algorithm="gzip", parameters={"own": 1},
    )  # fmt: skip
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)
    assert result.get_response()["id"] == "an id"
    assert result.get_output("OUTPUT0")["datatype"] == "FP32"
    body, length = await call("generate_request_body", [tensor()], request_id="made")
    assert json.loads(body[:length])["id"] == "made"
    answer = b'{"model_name":"m","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1],"data":[2.5]}]}'
    assert (await call("parse_response_body", answer)).as_numpy("OUTPUT0") == [2.5]

    await shared(call)
    assert await call("plugin") is None
    await call("register_plugin", BasicAuth("user", "word"))
    assert await call("is_server_live") is True
    await call("unregister_plugin")


async def shared(call: Watched) -> None:
    key = f"/workbench-test-{secrets.token_hex(6)}"
    handle = shm.create_shared_memory_region("both", key, 64)
    try:
        shm.set_shared_memory_region(handle, [ARRAY])
        await call("register_system_shared_memory", "both", key, 64)
        assert (await call("get_system_shared_memory_status", "both"))[0]["byte_size"] == 64
        given = tensor()
        given.set_shared_memory("both", 32)
        asked = http.InferRequestedOutput("OUTPUT0")
        asked.set_shared_memory("both", 32, offset=32)
        await call("infer", "echo", [given], outputs=[asked])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 4], offset=32), ARRAY)
        asked.unset_shared_memory()
        result = await call("infer", "echo", [given], outputs=[asked])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)
        await call("unregister_system_shared_memory", "both")
        assert await call("get_system_shared_memory_status") == []
    finally:
        shm.destroy_shared_memory_region(handle)
    assert await call("get_cuda_shared_memory_status") == []
    with pytest.raises(Exception, match="GPUs not supported"):
        await call("register_cuda_shared_memory", "g", b"raw", 0, 16)
    await call("unregister_cuda_shared_memory")


@pytest.mark.parametrize("kind", [http, aio], ids=["blocking", "asyncio"])
def test_every_public_method(whole: RunningServer, kind: Any) -> None:
    async def main() -> None:
        call = Watched(kind.InferenceServerClient(whole.http_url.removeprefix("http://")))
        await use(call)
        if kind is http:
            results = [await call("async_infer", "echo", [tensor(ARRAY + number)]) for number in range(4)]
            for number, result in enumerate(results):
                np.testing.assert_array_equal(result.get_result().as_numpy("OUTPUT0"), ARRAY + number)
        await call("close")
        public = {name for name in dir(kind.InferenceServerClient) if not name.startswith("_")}
        assert call.used == public

    asyncio.run(main())
