"""A trace keeps what requests said, in a file that only its owner reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workbench.profiling.trace import Trace
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor


def ask(front: str, output: RequestedOutput) -> InferenceRequest:
    return InferenceRequest("m", [Tensor.from_numpy("x", np.ones((1, 2), np.float32))], [output], front=front)


def test_how_a_request_came_and_what_it_asked_of_its_outputs_are_in_the_file(tmp_path: Path) -> None:
    classes, plain = RequestedOutput("y", {"classification": 2}), RequestedOutput("y")
    sent = [ask("http", plain), ask("grpc", plain), ask("http", classes), ask("http", plain)]
    path = Trace.of(enumerate(sent)).save(tmp_path / "a.trace.npz")
    assert path.stat().st_mode & 0o777 == 0o600
    trace = Trace.load(path)
    assert trace.class_of.tolist() == [0, 1, 2, 0]
    assert [kind.name for kind in trace.classes] == ["m http", "m grpc", "m http (2)"]
    made = [trace.request(number, 0) for number in trace.class_of]
    assert [each.front for each in made] == ["http", "grpc", "http", "http"]
    assert [dict(each.outputs[0].parameters) for each in made] == [{}, {}, {"classification": 2}, {}]


def test_a_file_that_others_could_read_is_closed_to_them_when_it_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.trace.npz"
    path.touch(0o644)
    Trace.of([(0, ask("http", RequestedOutput("y")))]).save(path)
    assert path.stat().st_mode & 0o777 == 0o600
