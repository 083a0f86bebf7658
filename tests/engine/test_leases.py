"""A model taken for a sweep: kept apart from others, put back when the holder lets go, falls silent or is dead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from asking import wait_until
from onnx_models import add_model, request

from workbench.config import Edit
from workbench.errors import ConfigError, InvalidRequest, NotFound, NotReady
from workbench.records import Holder

DELAY = "dynamic_batching.max_queue_delay_microseconds"
ME = Holder.this_process("a sweep of mine").to_json()


def edit(value: int, path: str = DELAY) -> list[Edit]:
    return [Edit(path, "set", value)]


def delay(engine: Any) -> int:
    return int(engine.model_config("double").dynamic_batching.max_queue_delay_microseconds)


def test_what_was_applied_comes_back_to_the_byte(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    engine.configure("double", edit(123))  # applied, not saved
    before = engine.config_state("double")
    lease = engine.lease("double", ME, 60.0)
    engine.configure("double", [Edit("dynamic_batching", "remove"), *edit(4, "max_batch_size")], lease=lease)
    engine.configure("double", edit(7), lease=lease)
    assert engine.config_state("double").text != before.text
    engine.release_lease("double", lease)
    after = engine.config_state("double")
    assert (after.text, after.dirty) == (before.text, True)
    assert engine.leases() == []
    engine.release_lease("double", lease)  # a second time: nothing to do
    engine.infer(request())


def test_nobody_else_changes_a_model_that_is_taken(repository: Path, make_engine: Any) -> None:
    add_model(repository, "spare")
    engine = make_engine(repository)
    before = engine.config_state("double").text
    lease = engine.lease("double", ME, 60.0)
    assert engine.leases()[0]["holder"]["doing"] == "a sweep of mine"
    for change in (
        lambda: engine.lease("double", ME, 60.0),
        lambda: engine.configure("double", edit(5)),
        lambda: engine.save("double"),
        lambda: engine.revert("double"),
    ):
        with pytest.raises(NotReady, match=r"'double' is being swept by process .*a sweep of mine"):
            change()
    assert engine.configure("double", edit(5), dry_run=True).dirty
    engine.configure("spare", edit(5))  # another one is free
    assert engine.config_state("double").text == before
    engine.release_lease("double", lease)
    engine.configure("double", edit(5))
    assert delay(engine) == 5


def test_a_silent_holder_loses_the_model_and_its_configuration_comes_back(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    before = engine.config_state("double").text
    lease = engine.lease("double", ME, 0.3)
    engine.configure("double", edit(5), lease=lease)
    wait_until(lambda: not engine.leases())
    assert engine.config_state("double").text == before
    for late in (
        lambda: engine.configure("double", edit(6), lease=lease),
        lambda: engine.renew_lease("double", lease),
    ):
        with pytest.raises(NotReady, match="not yours any more"):
            late()
    assert engine.config_state("double").text == before
    texts = [event.text for event in engine.events.after(-1) if event.kind == "lease"]
    assert any("no sign of life for 0.3 s" in text and "is put back" in text for text in texts)


def test_signs_of_life_keep_a_model(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    lease = engine.lease("double", ME, 0.4)
    engine.configure("double", edit(5), lease=lease)
    seen = []

    def renewed() -> bool:
        engine.renew_lease("double", lease)
        seen.append(delay(engine))
        return len(seen) > 40  # far longer than the lease without signs of life

    wait_until(renewed)
    assert set(seen) == {5}
    engine.release_lease("double", lease)


def test_a_dead_holder_is_found_at_once(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    before = engine.config_state("double").text
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        created = psutil.Process(other.pid).create_time()
        theirs = {**ME, "pid": other.pid, "created": created}
        lease = engine.lease("double", theirs, 600.0)
        engine.configure("double", edit(5), lease=lease)
        with pytest.raises(NotReady, match=f"process {other.pid} "):
            engine.lease("double", ME, 60.0)
        other.kill()
        other.wait()
    mine = engine.lease("double", ME, 60.0)
    assert engine.config_state("double").text == before
    engine.release_lease("double", mine)


def test_a_holder_elsewhere_is_not_taken_for_dead(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    theirs = {**ME, "pid": 4_000_000, "place": "another machine"}
    lease = engine.lease("double", theirs, 60.0)
    with pytest.raises(NotReady, match="process 4000000 on another machine"):
        engine.lease("double", ME, 60.0)
    engine.release_lease("double", lease)


def test_what_somebody_loads_meanwhile_is_not_undone(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    file = repository / "double" / "config.pbtxt"
    lease = engine.lease("double", ME, 60.0)
    engine.configure("double", edit(5), lease=lease)
    file.write_text(file.read_text().replace("max_batch_size: 8", "max_batch_size: 2"))
    engine.load("double")  # Triton's own call: the file wins
    engine.release_lease("double", lease)
    assert engine.model_config("double").max_batch_size == 2
    # and edits after such a load are undone to what was loaded
    lease = engine.lease("double", ME, 60.0)
    engine.configure("double", edit(5), lease=lease)
    file.write_text(file.read_text().replace("max_batch_size: 2", "max_batch_size: 3"))
    engine.load("double")
    engine.configure("double", edit(6), lease=lease)
    engine.release_lease("double", lease)
    assert engine.config_state("double").text == file.read_text()
    lease = engine.lease("double", ME, 60.0)
    engine.configure("double", edit(5), lease=lease)
    engine.unload("double")
    engine.release_lease("double", lease)
    engine.load("double")
    assert engine.config_state("double").text == file.read_text()


def test_a_refused_edit_leaves_the_lease_and_the_model_as_they_were(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    before = engine.config_state("double").text
    lease = engine.lease("double", ME, 60.0)
    with pytest.raises(ConfigError):
        engine.configure("double", edit(-1, "max_batch_size"), lease=lease)
    engine.configure("double", edit(5), lease=lease)
    engine.release_lease("double", lease)
    assert engine.config_state("double").text == before


@pytest.mark.parametrize(
    ("model", "holder", "ttl_s", "kind", "text"),
    [
        ("nope", ME, 5.0, NotFound, "'nope' is not found"),
        ("double", ME, 0.0, InvalidRequest, "from 0.05 to 600 s, got 0"),
        ("double", ME, float("nan"), InvalidRequest, "from 0.05 to 600 s"),
        ("double", {"pid": 1}, 5.0, InvalidRequest, "must say pid, created and place"),
        ("double", None, 5.0, InvalidRequest, "must say pid, created and place"),
    ],
)
def test_what_cannot_be_taken_is_said(
    repository: Path, make_engine: Any, model: str, holder: Any, ttl_s: float, kind: type[Exception], text: str
) -> None:
    engine = make_engine(repository)
    with pytest.raises(kind, match=text):
        engine.lease(model, holder, ttl_s)
    assert engine.leases() == []
