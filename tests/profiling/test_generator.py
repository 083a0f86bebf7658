from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import grpc
import psutil
import pytest
from going_on import assert_it_went_on, going_on, shorten_silence
from scripted_target import ScriptedServer

from workbench.errors import ConnectionFailed, InternalError
from workbench.profiling.arrivals import arrivals
from workbench.profiling.driver import GeneratorProcess, Job
from workbench.profiling.generators import Generators
from workbench.profiling.http_load import http_messages
from workbench.profiling.load import Load
from workbench.profiling.plan import Plan
from workbench.profiling.recorder import Recorder
from workbench.profiling.runner import LoadRun, MakeTransport
from workbench.profiling.samples import Samples

HEADERS = {"Content-Type": "application/json"}

PARENT = """
import sys, threading
from workbench.profiling.arrivals import arrivals
from workbench.profiling.driver import GeneratorProcess, Job
from workbench.profiling.http_load import http_messages
from workbench.profiling.load import Load
url = sys.argv[1]
generator = GeneratorProcess()
generator.start()
job = Job(Load.closed(2, duration_s=60), url, "http", http_messages(url, "/v2/models/m/infer", [({}, b"x")]))
generator.run(job, lambda event: print(generator.pid, flush=True))
"""


def job(server: ScriptedServer, load: Load) -> Job:
    return Job(load, server.url, "http", http_messages(server.url, "/v2/models/m/infer", [(HEADERS, b"{}")]))


def gone(pid: int, within_s: float = 5.0) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        process.wait(within_s)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_one_process_serves_one_run_after_the_other() -> None:
    with ScriptedServer() as server, GeneratorProcess() as generator:
        generator.start()
        pid = generator.pid
        for concurrency in (1, 4):
            samples = generator.run(
                job(server, Load.closed(concurrency, duration_s=0.1, warmup_s=0)), lambda event: None
            )
            assert samples.extra["connections"] == concurrency
            assert samples.ok.all()
            assert (samples.done >= samples.sent).all()
            assert (samples.sent >= samples.scheduled).all()
        assert generator.pid == pid
    assert pid is not None
    assert gone(pid)


def test_a_generator_forgets_the_requests_of_the_runs_before() -> None:
    """A long sweep is many runs of one process, which must not keep the messages and stamps of each."""
    load = Load.closed(1, duration_s=0.02, max_duration_s=0.02, warmup_s=0, min_requests=0)
    used = []
    with ScriptedServer() as server, GeneratorProcess() as generator:
        messages = http_messages(server.url, "/v2/models/m/infer", [(HEADERS, b"x" * 1_000_000)] * 32)
        for _ in range(8):
            generator.run(Job(load, server.url, "http", messages), lambda event: None)
            assert generator.pid is not None
            used.append(psutil.Process(generator.pid).memory_info().rss)
    assert used[-1] - used[1] < 3 * 32_000_000, used


def test_a_killed_generator_is_a_clear_error() -> None:
    with ScriptedServer() as server, GeneratorProcess() as generator:
        generator.start()
        pid = generator.pid
        assert pid is not None

        def kill(event: object) -> None:
            os.kill(pid, signal.SIGKILL)

        with pytest.raises(InternalError, match=r"load generator ended during a run \(exit code -9\)"):
            generator.run(job(server, Load.closed(1, duration_s=20)), kill)
        # and the next run starts a new one
        samples = generator.run(job(server, Load.closed(1, duration_s=0.05, warmup_s=0)), lambda event: None)
        assert samples.ok.all()


def test_the_generator_dies_with_its_parent() -> None:
    with ScriptedServer() as server:
        parent = subprocess.Popen([sys.executable, "-c", PARENT, server.url], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        assert gone(pid)


def test_stop_is_heard_in_the_middle_of_a_burst() -> None:
    with ScriptedServer(lambda n: 0.05) as server, GeneratorProcess() as generator:
        stop = threading.Event()

        def on_event(event: dict[str, object]) -> None:
            if event["event"] == "progress" and event["answered"]:
                stop.set()

        begin = time.monotonic()
        samples = generator.run(job(server, Load.open(500, duration_s=30)), on_event, stop)
        assert time.monotonic() - begin < 5
    assert samples.stopped
    assert samples.ok.sum() > 1


def test_a_stop_right_behind_the_start_is_not_forgotten() -> None:
    with ScriptedServer() as server, GeneratorProcess() as generator:
        generator.start()
        stop = threading.Event()
        stop.set()
        begin = time.monotonic()
        samples = generator.run(job(server, Load.open(500, duration_s=30)), lambda event: None, stop)
        assert time.monotonic() - begin < 5
    assert samples.stopped


def test_an_interrupted_run_leaves_no_generator_behind() -> None:
    with ScriptedServer() as server:
        generator = GeneratorProcess()
        generator.start()
        pid = generator.pid

        def interrupt(event: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            generator.run(job(server, Load.closed(1, duration_s=30)), interrupt)
        assert pid is not None
        assert gone(pid)
        generator.close()


def test_requests_above_the_limit_are_failed_not_queued() -> None:
    with ScriptedServer(lambda n: 0.5) as server, GeneratorProcess() as generator:
        load = Load.open(1000, duration_s=0.2, warmup_s=0, min_requests=0, max_in_flight=20)
        samples = generator.run(job(server, load), lambda event: None)
    assert server.received == 20
    assert samples.errors() == {"not sent: 20 requests were under way already": len(samples.sent) - 20}


def test_an_unreachable_server_is_said_so() -> None:
    with ScriptedServer() as server:
        pass
    with GeneratorProcess() as generator, pytest.raises(ConnectionFailed, match="no server answers at"):
        generator.run(job(server, Load.closed(1)), lambda event: None)


def _grpc_server() -> tuple[str, Callable[[], object]]:
    """One that answers every ModelInfer, and how to end it."""
    server = grpc.server(ThreadPoolExecutor(4))
    answer = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": answer})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return f"grpc://127.0.0.1:{port}", lambda: server.stop(0)


@pytest.mark.parametrize(
    ("protocol", "generators"),
    [("http", 1), pytest.param("http", 2, marks=pytest.mark.full), pytest.param("grpc", 1, marks=pytest.mark.full)],
)
def test_a_server_that_is_lost_in_the_middle_ends_the_run_in_words(
    protocol: Literal["http", "grpc"], generators: int
) -> None:
    """Not at the end of the window, however long that is."""
    if protocol == "http":
        scripted = ScriptedServer(lambda n: 0.002)
        url, end = scripted.url, scripted.close
        messages = http_messages(url, "/v2/models/m/infer", [(HEADERS, b"{}")])
    else:
        url, end = _grpc_server()  # type: ignore[assignment]
        messages = [b""]
    began = time.monotonic()

    def kill(event: dict[str, object]) -> None:
        if event["event"] == "window":
            end()

    load = Load.closed(2, duration_s=60, warmup_s=0.2, max_warmup_s=0.2, generators=generators)
    with Generators() as processes:
        samples = processes.run(Job(load, url, protocol, messages), kill)
    assert time.monotonic() - began < 20
    assert re.search(r"the server was lost .* [1-9]\d* requests had been answered", samples.extra["server_lost"])
    assert samples.ok.sum() > 0  # what was measured is kept
    assert 0 < samples.seconds < 15


class OneHalf:
    """A transport without a socket, one half of which cannot connect."""

    spare, unreachable, connections = 0, "Connection refused", 1

    def __init__(self, recorder: Recorder, on_done: Callable[[int, str | None], None]) -> None:
        self.recorder, self.on_done = recorder, on_done

    async def open(self, connections: int) -> None:
        pass

    def send(self, number: int, message: bytes, streaming: bool) -> None:
        self.recorder.sent[number] = self.recorder.clock()
        asyncio.get_running_loop().call_later(0.01, self.on_done, number, "no" if number % 2 else None)

    async def close(self) -> None:
        pass


class Mute(OneHalf):
    """One that takes requests and answers none."""

    unreachable = ""

    def send(self, number: int, message: bytes, streaming: bool) -> None:
        self.recorder.sent[number] = self.recorder.clock()


def half_answered(load: Load, make: MakeTransport = OneHalf) -> Samples:
    run = LoadRun(load, Plan.plain(1, streaming=load.streaming), [b""], arrivals(load), make, lambda event: None)
    return asyncio.run(run.run())


def test_a_window_of_so_many_ends_where_nothing_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.profiling.load._SILENCE_S", 0.3)
    samples = half_answered(Load.closed(2, requests=50, warmup_s=0, drain_s=0.1), Mute)
    assert samples.seconds < 5.0, "and not ten minutes"
    assert "nothing had been answered" in samples.extra["fruitless"]
    waited = half_answered(Load.closed(2, requests=50, warmup_s=0, drain_s=0.1, max_duration_s=1.0), Mute)
    assert waited.seconds >= 1.0
    assert "fruitless" not in waited.extra


class Tokens(Mute):
    """One that answers requests at once, but streams with a response every tenth of a second for two seconds."""

    def send(self, number: int, message: bytes, streaming: bool) -> None:
        super().send(number, message, streaming)
        call_later = asyncio.get_running_loop().call_later
        for turn in range(1, 20 if streaming else 1):
            call_later(turn / 10, lambda: self.recorder.respond(number, self.recorder.clock()))
        call_later(2.0 if streaming else 0.01, self.on_done, number, None)


@going_on
def test_a_window_of_so_many_goes_on_while_nothing_is_due_or_streams_go_on(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_silence(load, monkeypatch)
    assert_it_went_on(half_answered(load, Tokens), load)


def test_connections_that_are_refused_beside_one_that_answers_end_no_run() -> None:
    """A proxy's limit, or a full backlog: what is answered is measured, the rest is counted as failed."""
    load = Load.closed(2, duration_s=3.5, warmup_s=0, min_requests=0, max_duration_s=3.5)
    samples = half_answered(load)
    assert samples.seconds >= 3.5
    assert samples.ok.sum() > 10


def test_what_was_due_in_a_window_is_in_the_books_however_late_the_timer() -> None:
    """Else the last arrivals of a window, all of a very short one, were as if they had never been."""
    length = {"warmup_s": 0.01, "max_warmup_s": 0.01, "duration_s": 0.0001, "max_duration_s": 0.0001}
    for _ in range(20):
        samples = half_answered(Load.open(5000, "constant", **length, min_requests=0))
        begin, end = samples.window
        due = 1 + (end - begin - 1) // 200_000  # a window may end late, too
        assert ((samples.scheduled >= begin) & (samples.scheduled < end)).sum() == min(due, 1)


def test_a_server_that_closes_every_connection_is_still_measured() -> None:
    """Connection: close after each answer, as some proxies do."""
    import socketserver

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 128
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as closing:
        threading.Thread(target=closing.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{closing.server_address[1]}"
        with GeneratorProcess() as generator:
            load = Load.closed(2, duration_s=0.2, warmup_s=0, min_requests=0)
            samples = generator.run(
                Job(load, url, "http", http_messages(url, "/v2/models/m/infer", [({}, b"")])), lambda event: None
            )
        closing.shutdown()
    assert len(samples.sent) > 10
    assert samples.ok.mean() > 0.95
