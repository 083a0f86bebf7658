"""Each way in which a model's process can fail, injected under load: nobody notices, and nothing is left behind."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until
from fault_ledger import FAULTS, Holdings, Load, back_to, error_of, ready, request, resident
from fault_models import ANSWERED, LIMITED, NUMBERS, add_echo, add_victim

from workbench.engine import InferenceEngine
from workbench.errors import BackendError, InstanceDied

TOO_LONG = "execute took more than 1 s (WORKBENCH_EXECUTE_TIMEOUT_S): its process is ended"
GROWTH = 48 << 20
"""Bytes that a server may have grown by after it has warmed up: the rings of events and records fill meanwhile."""
MARKED = {"dies in initialize, started again": "die_in_initialize", "dies in finalize": "die_in_finalize"}
FULL_SIZE = FAULTS >= 50


@dataclass
class Scene:
    """A server under load with a model that is about to fail."""

    engine: InferenceEngine
    load: Load
    root: Path
    zombies: int
    pieces: int = 16

    def inject(self, fault: str) -> None:
        """Has the victim fail once; returns when it is well again."""
        if fault in MARKED:
            mark = self.root / "victim" / MARKED[fault]
            mark.touch()
            if fault == "dies in finalize":
                (self.root / "victim" / "1" / "model.py").touch()
                self.engine.load("victim")
            else:
                self.fail("exit")
            wait_until(lambda: not mark.exists(), 60)
        else:
            self.fail(fault)
        wait_until(ready(self.engine, "victim"), 60)
        for value in range(6):  # both instances have done something since
            answer = self.engine.infer(request("victim", value), 60)
            assert answer.outputs[0].data.tolist() == [value]

    def fail(self, fault: str) -> None:
        """Sends what the victim fails of, and looks at the answer."""
        error = error_of(self.engine, "victim", NUMBERS[fault], parameters={"pieces": self.pieces})
        if fault in ANSWERED:
            if fault == "memory":
                assert isinstance(error, BackendError)
                assert "MemoryError" in error.message
            else:
                assert error is None
        else:
            assert isinstance(error, InstanceDied), error
            expected = f"instance 'victim_0_0', message: {TOO_LONG}" if fault in LIMITED else "is not healthy."
            assert error.message.replace("victim_0_1", "victim_0_0").endswith(expected)
            assert error.hint

    def settle(self) -> Holdings:
        """What the server holds at rest; other tests' processes, which are not its own, may be there all the time."""
        wait_until(lambda: Holdings.now().zombies <= self.zombies, 20)
        return Holdings.now()


def scene(make_engine: Any, root: Path, *, limited: bool) -> Scene:
    add_victim(root, limit_s=1.0 if limited else 0.0)
    add_echo(root, "bystander")
    add_echo(root, "callee", sleep_s=0.2, instances=2)
    zombies = Holdings.now().zombies
    engine = make_engine(root)
    # of a model with a limit, the other requests could go over it on a machine that does something else
    models = ["bystander", "bystander"] if limited else ["bystander", "victim"]
    return Scene(engine, Load(engine, models), root, zombies)


def prove(scene: Scene, faults: list[str], warm_up: list[str]) -> None:
    """Injects faults under load, and looks at what is left."""
    with scene.load.running():
        for fault in warm_up:
            scene.inject(fault)
        before, memory = scene.settle(), resident()
        for fault in faults:
            scene.inject(fault)
        back_to(before)
        grown = resident() - memory
    assert not scene.load.failed, scene.load.failed[:5]
    assert scene.load.sent["bystander"] > len(faults)
    assert grown < GROWTH, f"the server has grown by {grown >> 20} MiB"
    print(f"{len(faults)} x {faults[0]}: {sum(scene.load.sent.values())} other requests, grown by {grown >> 10} KiB")


SAMPLE = (
    "segfault", "exit", "killed", "memory", "prints", "exits in a nested call", "writes garbage",
    "closes its connection", "leaves a helper",
)  # fmt: skip


def test_a_sample_of_faults(make_engine: Any, tmp_path: Path) -> None:
    prove(scene(make_engine, tmp_path, limited=False), list(SAMPLE), ["segfault", "prints"])


@pytest.mark.full
def test_each_fault_once(make_engine: Any, tmp_path: Path) -> None:
    made = scene(make_engine, tmp_path, limited=False)
    prove(made, [fault for fault in NUMBERS if fault not in LIMITED], ["segfault", "killed", "prints"])


def test_what_hangs_is_ended_by_the_limit(make_engine: Any, tmp_path: Path) -> None:
    prove(scene(make_engine, tmp_path, limited=True), ["stops"], ["hangs"])


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", [*NUMBERS, *MARKED])
def test_a_fault_again_and_again(make_engine: Any, tmp_path: Path, fault: str) -> None:
    made = scene(make_engine, tmp_path, limited=fault in LIMITED)
    if fault.startswith("prints"):
        made.pieces = 512 if FULL_SIZE else 64  # MiB on each of two streams
    prove(made, [fault] * FAULTS, [fault] * 2)


@pytest.mark.full
@pytest.mark.parametrize("fault", ["prints", "prints from Python", "prints without end of line"])
def test_a_flood_does_not_slow_the_server_down(make_engine: Any, tmp_path: Path, fault: str) -> None:
    made = scene(make_engine, tmp_path, limited=False)
    made.pieces = 64
    with made.load.running():
        made.load.times.clear()
        wait_until(lambda: len(made.load.times) > 300, 60)
        began, memory = time.perf_counter(), resident()
        made.inject(fault)
        during = made.load.median_ms(began)
        grown = resident() - memory
    calm = made.load.median_ms(until=began)
    # the model has a core for itself, and the reader of its output takes turns with the server
    assert during < 10 * calm + 20, (during, calm)
    assert grown < GROWTH, f"the server has grown by {grown >> 20} MiB"

    def lines() -> list[str]:
        return [event.text for event in made.engine.events.after() if event.model == "victim"]

    wait_until(lambda: any("dropped" in line or "left out" in line for line in lines()), 20)
    assert max(map(len, lines())) <= 20_000
