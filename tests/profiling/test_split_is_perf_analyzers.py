"""The real perf_analyzer measures a server through a proxy that keeps the statistics answers which it fetched.

Our split of exactly those answers is perf_analyzer's own report. A response cache is measured on the real Triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httptools
import pytest
from real_triton import real_triton

from workbench.profiling import Load, ServerTarget, measure
from workbench.profiling.server_side import ServerSide, counters_by_model, difference, of_steps

pytestmark = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(600)]

ECHO = """backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
dynamic_batching { max_queue_delay_microseconds: 2000 }
"""
MODEL = """import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.003)
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("Y", x)]) for x in inputs]
"""
CHAIN = """platform: "ensemble"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "echo" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "mid" } }
  step { model_name: "second" model_version: -1 input_map { key: "X" value: "mid" } output_map { key: "Y" value: "Y" } }
}
"""
CACHED = ECHO + "response_cache { enable: true }\n"
STEPS = {"echo": (), "cached": (), "chain": ("echo", "second")}


def repository(root: Path, **configs: str) -> Path:
    for name, config in configs.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        if name != "chain":
            (root / name / "1" / "model.py").write_text(MODEL)
    return root


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A server of the workbench: its host and port."""
    root = repository(tmp_path_factory.mktemp("models"), echo=ECHO, second=ECHO, chain=CHAIN)
    log = (tmp_path_factory.mktemp("log") / "server.log").open("w+")
    command = [sys.executable, "-m", "workbench.server", "--model-repository", str(root), "--http-port", "0"]
    command += ["--metrics-port", "0", "--grpc-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if "workbench: ready" in line), "")
        if not ready:
            log.seek(0)
            pytest.fail(f"the server did not come up: {log.read()[-2000:]}")
        found = re.search(r"http=http://([\d.]+):(\d+)", ready)
        assert found
        yield found[1], int(found[2])
    finally:
        process.terminate()
        process.wait(30)
        log.close()


class Proxy:
    """Passes bytes on in both directions and keeps the bodies of the answers to requests for statistics."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self.statistics: list[dict[str, Any]] = []
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        async def serve() -> None:
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            with contextlib.suppress(asyncio.CancelledError):
                await server.serve_forever()

        self._task = self._loop.create_task(serve())
        self._loop.run_until_complete(self._task)
        self._loop.run_until_complete(_end(asyncio.all_tasks(self._loop)))
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, down = await asyncio.open_connection(*self._to)
        listener = _Listener(self)
        with contextlib.suppress(OSError):
            await asyncio.gather(
                _pass(reader, down, httptools.HttpRequestParser(_Asked(listener))),
                _pass(upstream, writer, httptools.HttpResponseParser(listener)),
            )


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Listener:
    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.asked: list[bytes] = []
        self.body = b""

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.asked.pop(0).endswith(b"/stats"):
            self.proxy.statistics.append(json.loads(self.body))


class _Asked:
    """Which paths are asked for on a connection, in their order."""

    def __init__(self, listener: _Listener) -> None:
        self._listener = listener

    def on_url(self, url: bytes) -> None:
        self._listener.asked.append(url)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: Any) -> None:
    while data := await reader.read(65536):
        parser.feed_data(data)
        writer.write(data)
        await writer.drain()
    writer.close()


def measured(oracle: Path, address: tuple[str, int], model: str) -> tuple[str, list[dict[str, Any]]]:
    """What perf_analyzer reports, and the statistics answers that it fetched, in their order."""
    proxy = Proxy(*address)
    try:
        done = subprocess.run(
            [
                "timeout", "-s", "KILL", "400", str(oracle / "perf-analyzer"), "-m", model, "-u",
                f"127.0.0.1:{proxy.port}", "-i", "http", "--async", "--concurrency-range", "6", "-p", "1000",
                "-s", "999", "-r", "5", "-v",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        proxy.close()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    # With -v each window is told; the report of the last three merged is the last one.
    return done.stdout[done.stdout.rindex("Request concurrency: ") :], proxy.statistics


def side_of(answers: list[dict[str, Any]], model: str) -> ServerSide:
    """Our split between the first and the last of some answers."""
    first, last = (counters_by_model(answer) for answer in (answers[0], answers[-1]))
    whole, *steps = (difference(first[name], last[name]) for name in (model, *STEPS[model]))
    return of_steps(whole, steps)


def figure(text: str, name: str) -> int:
    """A number of the report; of the part before the steps of an ensemble."""
    found = re.search(rf"{name}:? (\d+)", text[text.index("Server:") :])
    assert found, text
    return int(found[1])


def same(reported_us: int, ms: float, terms: int = 1) -> bool:
    """Within 2 %, and what perf_analyzer cuts off in whole microseconds, once for each term; 0 is its word for none."""
    if math.isnan(ms):
        return reported_us == 0
    return bool(reported_us == pytest.approx(1000 * ms, rel=0.02, abs=terms))


@pytest.mark.parametrize("model", ["echo", "chain"])
def test_the_split_is_perf_analyzers_own(oracle: Path, served: tuple[str, int], model: str) -> None:
    check(oracle, served, model)


def test_the_split_of_a_cached_model_is_too(oracle: Path, tmp_path: Path) -> None:
    root = repository(tmp_path / "models", cached=CACHED)
    with real_triton(oracle, root, tmp_path / "log", ["--cache-config=local,size=1048576"]) as server:
        host, port = server.http.removeprefix("http://").split(":")
        side = check(oracle, (host, int(port)), "cached")
    assert side.cache_hits > 50  # it sends the same inputs again and again


def check(oracle: Path, address: tuple[str, int], model: str) -> ServerSide:
    text, answers = measured(oracle, address, model)
    side = side_of(answers[-4:], model)  # the edges of the last three windows, which the report is of
    assert len(answers) >= 4
    assert figure(text, "Inference count") == side.inferences
    assert figure(text, "Execution count") == side.executions
    assert figure(text, "Successful request count") == side.success > 50
    assert same(figure(text, "Avg request latency"), side.request_ms)
    assert same(figure(text, "queue"), side.queue_ms, 2)
    assert same(figure(text, "overhead"), side.overhead_ms, 5)
    if model == "chain":
        assert side.queue_ms > 1
        compute = side.compute_input_ms + side.compute_infer_ms + side.compute_output_ms
        assert same(figure(text, "compute"), compute, 6)
        assert side.compute_infer_ms > 6  # two steps of 3 ms each
        return side
    assert same(figure(text, "compute input"), side.compute_input_ms)
    assert same(figure(text, "compute infer"), side.compute_infer_ms)
    assert same(figure(text, "compute output"), side.compute_output_ms)
    if model == "cached":
        assert figure(text, "Cache hit count") == side.cache_hits
        assert figure(text, "Cache miss count") == side.cache_misses
        assert same(figure(text, "cache hit/miss"), side.spent_ms)
        assert same(figure(text, "Average Cache Hit Latency"), side.cache_hit_ms)
    return side


def test_a_point_of_an_ensemble_has_the_times_of_its_steps(served: tuple[str, int]) -> None:
    target = ServerTarget("http://{}:{}".format(*served))
    point = measure(target, "chain", Load.closed(6, duration_s=0.6, min_requests=0))
    target.close()
    assert point.compute_infer_ms > 6
    assert point.queue_ms > 1
    parts = point.queue_ms + point.compute_input_ms + point.compute_infer_ms + point.compute_output_ms
    assert point.request_ms == pytest.approx(parts + point.overhead_ms, rel=0.1)
