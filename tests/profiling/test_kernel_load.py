"""The load on an engine in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from going_on import assert_it_went_on, going_on, shorten_silence
from served_echo import write_repository

from workbench.config import to_json
from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import InvalidRequest
from workbench.profiling import Load, Measurer, measure
from workbench.profiling.kernel_load import KernelLoad
from workbench.profiling.plan import Plan
from workbench.profiling.requests import Prepared
from workbench.profiling.samples import Samples
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.records import RecordColumns


class EngineTarget:
    """An engine as a target with protocol ``in-kernel``."""

    url = ""
    protocol = "in-kernel"

    def __init__(self, engine: InferenceEngine, root: Path) -> None:
        self.engine = engine
        self.root = root

    def statistics(self, model: str) -> Mapping[str, Any]:
        return self.engine.statistics(model)

    def model_config(self, model: str) -> Mapping[str, Any]:
        return to_json(self.engine.model_config(model))

    def model_directory(self, model: str) -> Path:
        return self.root / model

    def records(self, after: int) -> RecordColumns | None:
        return self.engine.records.read(after)

    def epoch(self, model: str) -> int | None:
        return self.engine.config_state(model).epoch

    def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
        self.engine.loop.call_soon_threadsafe(self.engine.submit, request, on_response)
        return None


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineTarget]:
    root = write_repository(tmp_path_factory.mktemp("models"))
    engine = InferenceEngine(EngineOptions(repositories=(root,), python_execution="thread"))
    engine.start()
    yield EngineTarget(engine, root)
    engine.stop()


@pytest.mark.parametrize("load", [Load.closed(4), Load.open(100)], ids=["closed", "open"])
def test_both_kinds_of_load_and_the_row_says_where_it_came_from(target: EngineTarget, load: Load) -> None:
    short = Load.from_json({**load.to_json(), "duration_s": 0.4, "warmup_s": 0.1, "min_requests": 0})
    with Measurer(target, "echo") as measurer:
        measured = measurer.run(short)
    point = measured.point
    assert point.protocol == "in-kernel"
    assert any("shares the GIL" in note for note in point.notes)
    assert point.failed == 0
    assert point.n > 15
    assert not any("counted" in reason or "lost" in reason for reason in point.reasons)
    assert sum(sum(sizes.values()) for sizes in point.batch_reasons.values()) > 5
    if load.kind == "open":
        samples = measured.samples
        assert (samples.sent >= samples.scheduled).all()
        assert point.throughput == pytest.approx(100, rel=0.5)


@pytest.mark.parametrize(("asked", "text"), [(20, "requests had failed in it"), (10**6, "nothing but errors had come")])
def test_a_counted_window_of_which_nothing_succeeds_ends(target: EngineTarget, asked: int, text: str) -> None:
    failing = threading.Event()

    class Failing(EngineTarget):
        def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
            if failing.is_set():
                raise InvalidRequest("it fails now")
            return super().submit(request, on_response)

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "window":
            failing.set()

    begin = time.monotonic()
    load = Load.closed(4, requests=asked, warmup_s=0.1, max_warmup_s=0.1)
    point = measure(Failing(target.engine, target.root), "echo", load, on_event=on_event)
    assert time.monotonic() - begin < 30
    assert not point.valid
    assert any(text in reason for reason in point.reasons), point.reasons
    assert any("it fails now" in reason for reason in point.reasons)


def test_stopping_is_at_once(target: EngineTarget) -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    begin = time.monotonic()
    point = measure(target, "echo", Load.closed(1, duration_s=30), stop=stop)
    assert time.monotonic() - begin < 5
    assert "stopped" in point.reasons[0]


def test_a_request_that_is_refused_does_not_hang(target: EngineTarget) -> None:
    class Refusing(EngineTarget):
        def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
            raise ValueError("nobody takes this")

    load = Load.closed(2, duration_s=0.2, warmup_s=0.0, min_requests=0)
    point = measure(Refusing(target.engine, target.root), "echo", load)
    assert point.n == 0
    assert point.failed > 2
    assert _only(point.errors) == "ValueError: nobody takes this"
    assert not point.valid


def test_what_was_due_in_a_window_is_in_the_books_however_long_the_thread_stood_still() -> None:
    """Else a stall at the end of a window would take away the very requests that it has delayed."""
    stood_still_ns, taken = [0], [0]

    def stand_still() -> None:
        stood_still_ns[0] += 400_000_000

    class AtOnce:
        def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
            taken[0] += 1
            on_response(InferenceResponse("m", 1))
            if taken[0] == 30:  # 0.3 s after the start; while the load waits for what is due next
                threading.Timer(0.002, stand_still).start()
            return None

    load = Load.open(100, "constant", warmup_s=0, duration_s=0.5, max_duration_s=0.5, min_requests=0, drain_s=1.0)
    prepared = Prepared((InferenceRequest("m", []),), 1, "given", plan=Plan.plain(1))
    run = KernelLoad(
        AtOnce(), prepared, load, on_event=lambda event: None, clock=lambda: time.monotonic_ns() + stood_still_ns[0]
    )
    samples = run.run()
    assert stood_still_ns[0]
    assert len(samples.scheduled) == 50
    assert samples.ok.all()
    assert (samples.done - samples.scheduled).max() > 100_000_000


class InPairs:
    """Answers two requests at a time, the one whose answer was there first after the other: two threads do so."""

    def __init__(self) -> None:
        self.here = threading.local()
        self.waiting: list[Callable[[InferenceResponse], None]] = []

    def clock(self) -> int:
        return time.monotonic_ns() - int(getattr(self.here, "ago_ns", 0))

    def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
        self.waiting.append(on_response)
        if len(self.waiting) == 2:
            pair, self.waiting = self.waiting, []
            threading.Timer(0.02, self.answer, [pair]).start()
        return None

    def answer(self, pair: Sequence[Callable[[InferenceResponse], None]]) -> None:
        for place, on_response in enumerate(pair):
            self.here.ago_ns = 5_000_000 * place
            on_response(InferenceResponse("m", 1))


def counted(target: Any, load: Load, clock: Callable[[], int] = time.monotonic_ns) -> Samples:
    prepared = Prepared((InferenceRequest("m", []),), 1, "given", plan=Plan.plain(1, streaming=load.streaming))
    return KernelLoad(target, prepared, load, on_event=lambda event: None, clock=clock).run()


def test_all_answers_that_are_counted_are_in_the_window_in_whatever_order_they_come() -> None:
    target = InPairs()
    samples = counted(target, Load.closed(2, requests=6, warmup_s=0, max_duration_s=5.0), target.clock)
    begin, end = samples.window
    assert int((samples.ok & (samples.done >= begin) & (samples.done < end)).sum()) == 6


def test_a_window_of_so_many_in_the_kernel_begins_with_an_answer_too() -> None:
    class Later:
        def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
            threading.Timer(0.1, on_response, [InferenceResponse("m", 1)]).start()
            return None

    samples = counted(Later(), Load.closed(1, requests=3, warmup_s=0.05, max_warmup_s=0.05, max_duration_s=5.0))
    begin, end = samples.window
    inside = samples.ok & (samples.done >= begin) & (samples.done < end)
    assert int(inside.sum()) == 3
    took = (samples.done - samples.sent)[inside].sum()
    assert end - begin == pytest.approx(took, rel=0.05), "three whole rounds of the client"


def test_a_window_of_so_many_ends_where_nothing_is_answered_but_errors() -> None:
    class Refusing:
        def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
            on_response(InferenceResponse("m", 1, error=InvalidRequest("this is never taken")))
            return None

    samples = counted(Refusing(), Load.closed(1, requests=50, warmup_s=0, max_duration_s=8.0))
    assert not samples.ok.any()
    assert len(samples.ok) >= 10
    assert samples.seconds < 4.0, "and not 8 s, or ten minutes where nobody says how long at most"


def test_a_window_of_so_many_ends_where_nothing_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute:
        def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
            return None

    monkeypatch.setattr("workbench.profiling.load._SILENCE_S", 0.3)
    samples = counted(Mute(), Load.closed(1, requests=50, warmup_s=0, drain_s=0.1))
    assert samples.seconds < 5.0, "and not ten minutes"
    assert "nothing had been answered" in samples.extra["fruitless"]
    waited = counted(Mute(), Load.closed(1, requests=50, warmup_s=0, drain_s=0.1, max_duration_s=1.0))
    assert waited.seconds >= 1.0
    assert "fruitless" not in waited.extra


@going_on
def test_a_window_of_so_many_goes_on_while_nothing_is_due_or_streams_go_on(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tokens:
        """Answers at once, but streams with a response every tenth of a second for two seconds."""

        def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
            for turn in range(1, 20 if load.streaming else 1):
                token = InferenceResponse("m", 1, parameters={"token": turn}, final=False)
                threading.Timer(turn / 10, on_response, [token]).start()
            threading.Timer(2.0 if load.streaming else 0.01, on_response, [InferenceResponse("m", 1)]).start()
            return None

    shorten_silence(load, monkeypatch)
    assert_it_went_on(counted(Tokens(), load), load)


def _only(errors: Mapping[str, int]) -> str:
    names: Sequence[str] = list(errors)
    assert len(names) == 1
    return names[0]
