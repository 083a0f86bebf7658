"""What Triton's clients offer beside their methods: tensors, results, calls under way, keep-alive, TLS, plugins."""

from __future__ import annotations

import asyncio
import queue
import secrets
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
import tritonclient.utils.shared_memory as shm
from certificates import write_certificates
from grpc_models import ECHO, SLOW, put
from tritonclient.grpc._client import CallContext
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException

from workbench.server import RunningServer, ServerOptions
from workbench.server.access import GRPC_PREFIX, parse_restrictions
from workbench.server.arguments import parse
from workbench.server.grpc_arguments import grpc_options
from workbench.server.grpc_options import GrpcOptions, KeepAlive

ARRAY = np.arange(8, dtype=np.float32).reshape(2, 4)
OPTIONS = ServerOptions(name="parts", allow_client_shm=True, exit_timeout_s=5.0)
MODULES = {"http": over_http, "grpc": over_grpc}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, write: Callable[..., None]) -> Path:
    made = tmp_path_factory.mktemp("parts")
    write(made, "echo", "FP32", [4])
    put(made, "slow", SLOW)
    put(made, "rows", ECHO)
    return made


@pytest.fixture(scope="module")
def served(root: Path, start: Any) -> Iterator[RunningServer]:
    with start(root, OPTIONS) as made:
        yield made


class Parts:
    """A client, and the methods of tensors, results and calls that were used with it."""

    def __init__(self, kind: str, server: RunningServer) -> None:
        self.module = MODULES[kind]
        self.kind = kind
        address = server.grpc_url if kind == "grpc" else server.http_url
        self.client = self.module.InferenceServerClient(address.partition("://")[2])
        self.used: dict[str, set[str]] = {}

    def __call__(self, part: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        self.used.setdefault(type(part).__name__, set()).add(method)
        return getattr(part, method)(*args, **kwargs)


def use(p: Parts, region: Any) -> None:
    given, asked = p.module.InferInput("INPUT0", [1, 4], "FP32"), p.module.InferRequestedOutput("OUTPUT0")
    assert (p(given, "name"), p(given, "datatype"), list(p(given, "shape"))) == ("INPUT0", "FP32", [1, 4])
    assert p(asked, "name") == "OUTPUT0"
    assert p(given, "set_shape", [2, 4]) is given
    assert p(given, "set_data_from_numpy", ARRAY) is given
    result = p.client.infer("echo", [given], outputs=[asked], request_id="r")
    np.testing.assert_array_equal(p(result, "as_numpy", "OUTPUT0"), ARRAY)
    assert p(result, "as_numpy", "OTHER") is None
    response, output = p(result, "get_response"), p(result, "get_output", "OUTPUT0")
    if p.kind == "grpc":
        assert (response.id, output.datatype, list(output.shape)) == ("r", "FP32", [2, 4])
        assert p(result, "get_response", as_json=True)["id"] == "r"
    else:
        assert (response["id"], output["datatype"], output["shape"]) == ("r", "FP32", [2, 4])
        again = p(result, "from_response_body", b'{"outputs":[{"name":"O","datatype":"FP32","shape":[1],"data":[2]}]}')
        assert again.as_numpy("O") == [2]
    shm.set_shared_memory_region(region, [ARRAY + 1])
    p(given, "set_shared_memory", "region", 32)
    p(asked, "set_shared_memory", "region", 32, offset=32)
    p.client.infer("echo", [given], outputs=[asked])
    np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, [2, 4], offset=32), ARRAY + 1)
    p(asked, "unset_shared_memory")
    np.testing.assert_array_equal(p.client.infer("echo", [given], outputs=[asked]).as_numpy("OUTPUT0"), ARRAY + 1)

    late = p.module.InferInput("IN", [4], "FP32")
    late.set_data_from_numpy(ARRAY[0])
    if p.kind == "http":
        call = p.client.async_infer("slow", [late])
        with pytest.raises(InferenceServerException, match="failed to obtain inference response"):
            p(call, "get_result", block=False)
        np.testing.assert_array_equal(p(call, "get_result", timeout=20).as_numpy("OUT"), ARRAY[0])
        return
    answers: queue.Queue[Any] = queue.Queue()
    call = p.client.async_infer("slow", [late], lambda result, error: answers.put(error))
    p(call, "cancel")
    assert answers.get(timeout=20).status() == "StatusCode.CANCELLED"


@pytest.mark.parametrize("kind", MODULES)
def test_every_method_of_tensors_results_and_calls(served: RunningServer, kind: str) -> None:
    p = Parts(kind, served)
    key = f"/workbench-test-{secrets.token_hex(6)}"
    region = shm.create_shared_memory_region("region", key, 64)
    try:
        p.client.register_system_shared_memory("region", key, 64)
        use(p, region)
    finally:
        p.client.unregister_system_shared_memory()
        p.client.close()
        shm.destroy_shared_memory_region(region)
    call = CallContext if kind == "grpc" else over_http.InferAsyncRequest
    for part in (p.module.InferInput, p.module.InferRequestedOutput, p.module.InferResult, call):
        public = {name for name in dir(part) if not name.startswith("_")}
        assert p.used[part.__name__] == public, f"every method of {part.__name__} has its line here"


async def executions(client: Any) -> int:
    return int((await client.get_inference_statistics("slow")).model_stats[0].execution_count)


def test_a_request_that_its_task_gives_up_is_cancelled(served: RunningServer) -> None:
    async def main() -> None:
        given = over_grpc.InferInput("IN", [4], "FP32")
        given.set_data_from_numpy(ARRAY[0])
        async with over_grpc_aio.InferenceServerClient(served.grpc_url.removeprefix("grpc://")) as client:
            before = await executions(client)
            tasks = [asyncio.create_task(client.infer("slow", [given])) for _ in range(20)]
            await asyncio.sleep(0)
            while served.engine.snapshot().version("slow").running == 0:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            assert all(
                isinstance(each, asyncio.CancelledError)
                for each in await asyncio.gather(*tasks, return_exceptions=True)
            )
            np.testing.assert_array_equal((await client.infer("slow", [given])).as_numpy("OUT"), ARRAY[0])
            assert await executions(client) - before < 10, "of 21: those that waited were not executed"

    asyncio.run(main())


@pytest.mark.parametrize("module", [over_grpc, over_grpc_aio])
def test_keep_alive_options(root: Path, start: Any, module: Any) -> None:
    """The client asks ten times while it waits: who is not answered gives the call up."""
    keep = KeepAlive(permit_without_calls=True, min_recv_ping_interval_without_data_ms=10)
    options = module.KeepAliveOptions(
        keepalive_time_ms=100, keepalive_timeout_ms=2000, keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )  # fmt: skip

    async def main(url: str) -> Any:
        given = [over_grpc.InferInput("IN", [4], "FP32").set_data_from_numpy(ARRAY[0])]
        client = module.InferenceServerClient(url, keepalive_options=options)
        for _ in range(4):
            made = client.infer("slow", given)
            result = await made if module is over_grpc_aio else made
        closed = client.close()
        if closed is not None:
            await closed
        return result.as_numpy("OUT")

    with start(root, replace(OPTIONS, grpc=GrpcOptions(keep_alive=keep))) as server:
        np.testing.assert_array_equal(asyncio.run(main(server.grpc_url.removeprefix("grpc://"))), ARRAY[0])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("module", [over_grpc, over_grpc_aio])
def test_tls(root: Path, start: Any, certificates: Path, module: Any) -> None:
    folder = certificates
    flags = [
        "--model-repository=.", "--grpc-use-ssl-mutual=true", f"--grpc-server-cert={folder / 'server.pem'}",
        f"--grpc-server-key={folder / 'server.key'}", f"--grpc-root-cert={folder / 'root.pem'}", "--grpc-port=0",
    ]  # fmt: skip
    roots, key, chain = (str(folder / name) for name in ("root.pem", "client.key", "client.pem"))
    whole = grpc.ssl_channel_credentials(
        *((folder / name).read_bytes() for name in ("root.pem", "client.key", "client.pem"))
    )

    async def live(url: str, **options: Any) -> bool:
        client = module.InferenceServerClient(url, **options)
        try:
            made = client.is_server_live(client_timeout=20.0)
            return bool(await made if module is over_grpc_aio else made)
        finally:
            closed = client.close()
            if closed is not None:
                await closed

    with start(root, replace(OPTIONS, grpc=grpc_options(parse(flags)))) as server:
        url = server.grpc_url.removeprefix("grpcs://")
        assert asyncio.run(live(url, ssl=True, root_certificates=roots, private_key=key, certificate_chain=chain))
        assert asyncio.run(live(url, creds=whole))
        for wrong in ({"ssl": True, "root_certificates": roots}, {}):
            with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
                asyncio.run(live(url, **wrong))


def test_http_has_no_tls_and_says_so_at_once(served: RunningServer) -> None:
    """Triton serves HTTP in the clear: a client that wants TLS is refused without waiting, and others are served."""
    address = served.http_url.removeprefix("http://")
    with (
        closing(over_http.InferenceServerClient(address, ssl=True, insecure=True)) as client,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        client.is_server_live()
    with closing(over_http.InferenceServerClient(address)) as client:
        assert client.is_server_live()


def test_a_plugin_brings_the_header_that_is_asked_for(root: Path, start: Any) -> None:
    """BasicAuth in front of a restricted API, over both protocols."""
    http = parse_restrictions(["statistics:authorization=Basic dXNlcjp3b3Jk"], "http-restricted-api", "api")
    pairs = parse_restrictions(["statistics:pass=word"], "grpc-restricted-protocol", "protocol", GRPC_PREFIX)
    with start(root, replace(OPTIONS, http_restricted=http, grpc=GrpcOptions(restricted=pairs))) as server:
        for module, plugin in ((over_http, BasicAuth("user", "word")), (over_grpc, Pass())):
            url = (server.http_url if module is over_http else server.grpc_url).partition("://")[2]
            with closing(module.InferenceServerClient(url)) as client:
                with pytest.raises(InferenceServerException, match="restricted"):
                    client.get_inference_statistics("echo")
                client.register_plugin(plugin)
                assert client.get_inference_statistics("echo")
                client.unregister_plugin()
                with pytest.raises(InferenceServerException, match="restricted"):
                    client.get_inference_statistics("echo")


class Pass(over_grpc.InferenceServerClientPlugin):  # type: ignore[misc]
    def __call__(self, request: Any) -> None:
        request.headers[f"{GRPC_PREFIX}pass"] = "word"
