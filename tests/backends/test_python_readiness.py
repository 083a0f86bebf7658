"""``is_ready`` of Python models in the kernel: who asks it, what it may do, and that nothing is held up by it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from asked_models import SOURCE, AskedModel
from asking import Children, wait_until
from engine_fixtures import EngineFactory

from workbench.backends import python_readiness
from workbench.engine import InferenceEngine
from workbench.errors import InvalidRequest
from workbench.protocol.tensors import InferenceRequest, Tensor

X = np.array([[1, 2]], np.float32)


@pytest.fixture(params=["process", "thread"])
def start(request: pytest.FixtureRequest, make_engine: EngineFactory, tmp_path: Path) -> Callable[..., InferenceEngine]:
    return lambda **options: make_engine(tmp_path, python_execution=request.param, **options)


@pytest.fixture
def start_process(make_engine: EngineFactory, tmp_path: Path) -> Callable[..., InferenceEngine]:
    return lambda **options: make_engine(tmp_path, **options)


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> float:
    assert python_readiness.LIMIT_S == 5.0, "Triton's"
    monkeypatch.setattr(python_readiness, "LIMIT_S", 0.2)
    return 0.2


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def ask_for(model: str, x: np.ndarray = X) -> InferenceRequest:
    return InferenceRequest(model, inputs=[Tensor("IN", "FP32", x.shape, x)])


def logged(engine: InferenceEngine, part: str, level: str) -> list[str]:
    return [each.text for each in engine.events.after() if part in each.text and each.level == level]


def test_the_model_decides_and_may_change_its_mind(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    model, other = AskedModel(tmp_path), AskedModel(tmp_path, "other")
    engine = start()
    for ready in (True, False, True):
        model.says(str(ready))
        assert engine.is_model_ready("m") is engine.is_model_ready("m", 1) is ready
        assert engine.is_ready() is ready, "the server is ready when all models are"
        assert engine.is_model_ready("other")
        assert engine.serves("m")
        assert [row["state"] for row in engine.repository_index()] == ["READY", "READY"], "states are no readiness"
        assert engine.infer(ask_for("m"), 10).as_numpy("OUT").tolist() == X.tolist()
    assert not engine.is_model_ready("m", 2)
    assert other.calls


def test_a_server_that_is_not_strict_asks_nobody(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    model = AskedModel(tmp_path, says="False")
    assert start(strict_readiness=False).is_ready()
    assert not model.calls


@pytest.mark.parametrize(
    ("says", "text"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero\n\nAt:\n  <string>(1): <module>\n"),
        ("1", "is_ready() must return a boolean value"),
        ("None", "is_ready() must return a boolean value"),
        ("np.bool_(True)", "is_ready() must return a boolean value"),
        ("exit()", "SystemExit: "),
    ],
)
def test_what_goes_wrong_in_it_is_no_and_told_once(
    start: Callable[..., InferenceEngine], tmp_path: Path, says: str, text: str
) -> None:
    model = AskedModel(tmp_path, says=says)
    engine = start()
    for _ in range(3):
        assert not engine.is_model_ready("m")
    (told,) = logged(engine, "is_ready of 'm_0'", "warning")
    assert told.startswith(f"is_ready of 'm_0' failed: {text}")
    model.says("True")
    assert engine.is_model_ready("m")


def test_the_verbose_log_has_the_reason_in_tritons_words(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    AskedModel(tmp_path, says="False")
    engine = start()
    assert not engine.is_model_ready("m")
    assert not logged(engine, "ready", "verbose"), "what fails is asked again and again: not without being told to"
    engine.log_settings.verbose_level = 1
    assert not engine.is_model_ready("m")
    assert not engine.is_ready()
    why = "Model 'm_0' is not ready (user-defined check failed)."
    assert logged(engine, "ready", "verbose") == [
        f"Model 'm' version 1 is not ready: {why}",
        "Model 'm' version 1 is in READY lifecycle state but failed runtime readiness check during server readiness "
        f"evaluation: {why}",
    ]


def test_it_may_be_a_coroutine_on_the_loop_of_execute(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    source = (
        SOURCE.replace("    def execute(self", "    async def execute(self")
        .replace(
            "        return [self.answer",
            "        self.loop = asyncio.get_running_loop()\n        return [await self.answer",
        )
        .replace("    def answer(self", "    async def answer(self")
        .replace('wait_for("executed")', 'await wait_async_for("executed")')
        .replace("    def is_ready(self", "    async def is_ready(self")
    )
    model = AskedModel(tmp_path, says="self.loop is asyncio.get_running_loop()", source=source)
    engine = start()
    engine.infer(ask_for("m"), 10)
    assert engine.is_model_ready("m"), "what a coroutine of execute has bound to its loop may be used"
    done = threading.Event()
    engine.post(ask_for("m", -X), lambda response: done.set())
    wait_until(lambda: model.has("executing"))
    assert engine.is_model_ready("m")
    assert not done.is_set()
    model.let("executed")
    assert done.wait(10)
    assert engine.infer(ask_for("m"), 10).outputs


def test_it_answers_while_execute_runs(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    model = AskedModel(tmp_path)
    engine = start()
    done = threading.Event()
    engine.post(ask_for("m", -X), lambda response: done.set())
    wait_until(lambda: model.has("executing"))
    assert engine.is_model_ready("m")
    model.says("False")
    assert not engine.is_model_ready("m")
    assert not done.is_set()
    model.let("executed")
    assert done.wait(10)


def test_one_that_hangs_meets_the_limit_and_holds_nothing_up(
    start: Callable[..., InferenceEngine], tmp_path: Path, short_limit: float
) -> None:
    model = AskedModel(tmp_path, says="wait_for('open')")
    AskedModel(tmp_path, "other")
    engine = start()
    for _ in range(3):
        assert not engine.is_model_ready("m")
        assert engine.infer(ask_for("m"), 10).outputs
        assert engine.is_model_ready("other")
    assert model.calls == 1, "one call is under way, and that one is waited for"
    assert logged(engine, "is_ready of 'm_0'", "warning") == [
        f"is_ready of 'm_0' has not returned within {short_limit} s"
    ]
    model.let("open")
    wait_until(lambda: engine.is_model_ready("m"))


def test_who_asks_meanwhile_shares_the_answer(
    start: Callable[..., InferenceEngine], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    model = AskedModel(tmp_path, says="wait_for('open')")
    engine = start()
    asked = [pool.submit(engine.is_model_ready, "m") for _ in range(6)]
    wait_until(lambda: model.calls > 0)
    answered = threading.Event()
    engine.loop.call_soon_threadsafe(answered.set)
    assert answered.wait(10), "the loop goes on"
    assert not any(each.done() for each in asked)
    model.let("open")
    assert all(each.result(10) for each in asked)
    assert model.calls < 6, "a call a client"


def test_each_instance_is_asked(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    model = AskedModel(tmp_path, config="instance_group { count: 3 kind: KIND_CPU }")
    engine = start()
    assert engine.is_model_ready("m")
    assert model.calls == 3
    model.says("self.instance != 'm_0_1'")
    assert not engine.is_model_ready("m")
    assert model.calls == 5, "the third one is asked no more"


def test_the_method_counts_that_is_there_after_initialize(
    start: Callable[..., InferenceEngine], tmp_path: Path
) -> None:
    source = SOURCE.replace("    def is_ready(self", "    def asked(self").replace(
        '        self.instance = args["model_instance_name"]\n', "        self.is_ready = self.asked\n"
    ).replace("        called()\n", "        called()\n        del self.is_ready\n")  # fmt: skip
    model = AskedModel(tmp_path, says="False", source=source)
    engine = start()
    assert not engine.is_model_ready("m")
    assert engine.is_model_ready("m"), "the method is gone"
    assert model.calls == 1


def test_a_model_without_it_is_asked_nothing(
    children: Children, start_process: Callable[..., InferenceEngine], tmp_path: Path
) -> None:
    AskedModel(tmp_path, source=SOURCE.replace("def is_ready", "def no_such"))
    engine = start_process()
    version = engine.snapshot().version("m")
    (child,) = children()
    threads = child.num_threads()
    for _ in range(20):
        assert engine.is_model_ready("m")
        assert engine.is_ready()
    assert engine.snapshot().version("m").traffic == version.traffic, "nothing was sent to the process"
    assert child.num_threads() == threads


def test_another_model_asks_it(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    model = AskedModel(tmp_path)
    source = SOURCE.replace('pb_utils.Tensor("OUT", x)', "pb_utils.Tensor(\"OUT\", x * pb_utils.is_model_ready('m'))")
    AskedModel(tmp_path, "asks", source=source)
    engine = start()
    for ready in (True, False):
        model.says(str(ready))
        assert engine.infer(ask_for("asks"), 10).as_numpy("OUT").tolist() == (X * ready).tolist()


def test_an_ensemble_that_is_loaded_is_ready(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    AskedModel(tmp_path, says="False")
    (tmp_path / "chain" / "1").mkdir(parents=True)
    (tmp_path / "chain" / "config.pbtxt").write_text(
        'platform: "ensemble"\nmax_batch_size: 8\ninput { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "B" data_type: TYPE_FP32 dims: [ -1 ] }\nensemble_scheduling { step { model_name: "m" '
        'model_version: -1 input_map { key: "IN" value: "A" } output_map { key: "OUT" value: "B" } } }\n'
    )
    engine = start()
    assert engine.is_model_ready("chain")
    assert not engine.is_model_ready("m")


def test_a_dead_process_is_not_ready_and_a_new_one_is_asked_again(
    children: Children, start_process: Callable[..., InferenceEngine], tmp_path: Path
) -> None:
    source = SOURCE.replace("def initialize(self, args):", "def initialize(self, args):\n        wait_for('start')")
    model = AskedModel(tmp_path, says="wait_for('open')", source=source, config="instance_group { count: 2 }")
    model.let("start")
    engine = start_process()
    (model.directory / "start").unlink()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.is_model_ready, "m")
        wait_until(lambda: model.calls > 0)
        killed = children()
        for child in killed:
            os.kill(child.pid, signal.SIGKILL)
        assert not asked.result(4), "whoever waits is told as soon as the process is gone, not at the limit"
    wait_until(lambda: not any(each.healthy for each in engine.snapshot().version("m").instances))
    assert not engine.is_model_ready("m")
    assert not engine.is_ready()
    assert model.calls == 1
    model.let("start")
    model.let("open")
    wait_until(lambda: engine.is_model_ready("m"))
    assert engine.is_ready()


def test_one_dead_instance_makes_a_model_unready_though_the_others_serve(
    children: Children, start_process: Callable[..., InferenceEngine], tmp_path: Path
) -> None:
    source = SOURCE.replace("def is_ready", "def no_such").replace(
        "def initialize(self, args):", "def initialize(self, args):\n        wait_for('start')"
    )
    model = AskedModel(tmp_path, source=source, config="instance_group { count: 2 }")
    model.let("start")
    engine = start_process()
    (model.directory / "start").unlink()
    os.kill(children()[0].pid, signal.SIGKILL)
    wait_until(lambda: not engine.is_model_ready("m"))
    assert engine.infer(ask_for("m"), 10).outputs
    model.let("start")
    wait_until(lambda: engine.is_model_ready("m"))


def test_one_that_ends_the_process_is_no_and_the_process_comes_back(
    start_process: Callable[..., InferenceEngine], tmp_path: Path
) -> None:
    model = AskedModel(tmp_path, says="os._exit(3)")
    engine = start_process()
    assert not engine.is_model_ready("m")
    model.says("True")
    wait_until(lambda: engine.is_model_ready("m"))


def test_unloading_does_not_wait_for_it(
    start: Callable[..., InferenceEngine], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    model = AskedModel(tmp_path, says="wait_for('open')")
    engine = start()
    asked = pool.submit(engine.is_model_ready, "m")
    wait_until(lambda: model.calls > 0)
    engine.unload("m")
    assert not asked.result(4)
    wait_until(lambda: [row["state"] for row in engine.repository_index()] == ["UNAVAILABLE"])
    assert engine.is_ready(), "it was unloaded on purpose"
    model.let("open")
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "workbench-ready"])


def test_stopping_the_engine_answers_who_waits(
    start: Callable[..., InferenceEngine], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    model = AskedModel(tmp_path, says="wait_for('open')")
    engine = start()
    asked = pool.submit(engine.is_model_ready, "m")
    wait_until(lambda: model.calls > 0)
    engine.stop(5)
    assert not asked.result(10)
    assert not engine.is_model_ready("m")
    model.let("open")


def test_on_the_loop_it_is_to_be_awaited(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    AskedModel(tmp_path)
    engine = start()
    raised: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            engine.is_model_ready("m")
        except InvalidRequest as error:
            raised.append(error)
        done.set()

    engine.loop.call_soon_threadsafe(ask)
    assert done.wait(10)
    assert "blocks" in str(raised[0])
