"""Requests made of other requests: where their time goes, and what bytes are moved for them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from ensembles import chain_config
from onnx_models import add_model

import workbench as wb
from workbench.backends.base import Traffic
from workbench.errors import Unsupported
from workbench.session.kernel import Engine
from workbench.session.pipelines import PARTS
from workbench.session.remote import TritonServer, WorkbenchServer

TWICE = chain_config("twice", "double", "spare")
PYTHON = """\
name: "{name}"
backend: "python"
max_batch_size: 0
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
ECHO = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", x)]) for x in found]
"""
ASKS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy().reshape(1, 4)
            for model in ("double", "spare"):
                tensors = [pb_utils.Tensor("x", x)]
                nested = pb_utils.InferenceRequest(model_name=model, requested_output_names=["y"], inputs=tensors)
                x = nested.exec().output_tensors()[0].as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", x.reshape(4))]))
        return responses
"""
ROW = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``twice``, an ensemble of ``double`` and ``spare``; ``asks``, which asks the two; ``echo``, a Python model."""
    root = tmp_path_factory.mktemp("pipelines") / "models"
    root.mkdir()
    add_model(root, "double")
    add_model(root, "spare")
    for name, text, source in (
        ("twice", TWICE, ""),
        ("echo", PYTHON.format(name="echo"), ECHO),
        ("asks", PYTHON.format(name="asks"), ASKS),
    ):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
        if source:
            (root / name / "1" / "model.py").write_text(source)
    return root


@pytest.fixture(scope="module")
def served(pipelines: Path, module_state: None) -> Iterator[WorkbenchServer]:
    """The pipelines in a background process."""
    with wb.serve(pipelines) as server:
        yield server


def moved(server: Any, model: str, before: pd.DataFrame) -> dict[str, int]:
    """What has been counted for a model since."""
    row = (server.traffic() - before).loc[model]
    return {str(column): int(value) for column, value in row.items()}


def exchange(server: WorkbenchServer, model: str, body: bytes) -> tuple[int, int]:
    """One inference over a socket of our own: bytes sent and received, all of them."""
    address = urlsplit(server.url)
    line = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {address.netloc}\r\n"
    head = f"{line}Content-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((address.hostname, address.port or 80)) as connection:
        connection.sendall(head + body)
        answer = b""
        while not answer.partition(b"\r\n\r\n")[1]:
            answer += connection.recv(65536)
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        total = len(answer.partition(b"\r\n\r\n")[0]) + 4 + length
        while len(answer) < total:
            answer += connection.recv(65536)
    return len(head) + len(body), len(answer)


@pytest.mark.parametrize("model", ["double", "twice", "nowhere"])
def test_bytes_on_the_wire_are_those_that_a_client_sends_and_gets(served: WorkbenchServer, model: str) -> None:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4.5]}]
    before = served.traffic()
    totals = [exchange(served, model, json.dumps({"inputs": inputs, "id": "x" * 300 * n}).encode()) for n in range(3)]
    if model == "nowhere":
        assert model not in served.traffic().index
        return
    found = moved(served, model, before)
    assert (found["requests"], found["received"], found["sent"]) == (3, *map(sum, zip(*totals, strict=True)))
    # A step of an ensemble is no request of a client.
    assert moved(served, "spare", before)["requests"] == 0


@pytest.mark.parametrize("count", [4, 5_000, 500_000], ids=["in a message", "larger", "in shared memory"])
def test_bytes_to_and_from_a_models_process(served: WorkbenchServer, count: int) -> None:
    before = served.traffic()
    answer = served.infer("echo", {"x": np.arange(count, dtype=np.float32)})
    assert answer["y"].shape == (count,)
    found = moved(served, "echo", before)
    for way in ("to_processes", "from_processes"):
        assert 4 * count < found[way] < 4 * count + 1000  # the tensor once, and what describes it
    assert (found["handed_on"], found["copied"]) == (0, 0)
    assert moved(served, "double", before)["to_processes"] == 0  # an instance on a thread


def test_a_model_that_asks_others_moves_every_tensor_through_its_process(served: WorkbenchServer) -> None:
    before = served.traffic()
    assert served.infer("asks", {"x": ROW[0]})["y"].tolist() == [4.0] * 4
    found = moved(served, "asks", before)
    # x and two answers go in, two questions and y come out
    assert found["to_processes"] > 3 * ROW.nbytes
    assert found["from_processes"] > 3 * ROW.nbytes
    assert found["requests"] == 1


def test_an_ensemble_hands_tensors_on_and_copies_none(served: WorkbenchServer) -> None:
    before = served.traffic()
    for _ in range(5):
        assert served.infer("twice", {"x": ROW})["y"].tolist() == [[4.0] * 4]
    found = moved(served, "twice", before)
    assert found["handed_on"] == 5 * 3 * ROW.nbytes  # to two steps, and in the answer
    assert found["copied"] == found["to_processes"] == found["from_processes"] == 0


def test_memory_that_is_not_the_same_counts_as_copied() -> None:
    traffic, array = Traffic(), np.zeros((1, 4), np.float32)
    traffic.hand_on(array, array)
    traffic.hand_on(array, array.reshape(4))
    assert (traffic.handed_on, traffic.copied) == (32, 0)
    traffic.hand_on(array, array.copy())
    traffic.hand_on(np.array([b"abc", b""], np.object_), np.array([b"abc", b""], np.object_))
    assert (traffic.handed_on, traffic.copied) == (51, 19)


def test_an_ensembles_time_is_that_of_its_steps(served: WorkbenchServer) -> None:
    for _ in range(20):
        served.infer("twice", {"x": ROW})
    for _ in range(30):
        served.infer("spare", {"x": ROW})  # requests of others are not the ensemble's
    frame = served.breakdown("twice")
    assert list(frame.index) == ["double", "spare", "(between them)", "twice"]
    assert frame["calls"].tolist() == [1.0] * 4
    parts, whole = frame.iloc[:-1], frame.iloc[-1]
    assert parts["total_ms"].sum() == pytest.approx(whole["total_ms"])
    assert parts["share"].sum() == pytest.approx(1)
    for step in ("double", "spare"):
        row = frame.loc[step]
        assert 0 < sum(row[part] for part in PARTS) <= row["total_ms"] < whole["total_ms"]


def test_so_is_that_of_a_model_that_asks_others(served: WorkbenchServer) -> None:
    for _ in range(5):
        served.infer("asks", {"x": ROW[0]})
    frame = served.breakdown("asks")
    assert list(frame.index) == ["double", "spare", "(between them)", "asks"]
    assert frame["calls"].tolist() == [1.0] * 4


def test_only_the_last_seconds_are_looked_at(served: WorkbenchServer) -> None:
    served.infer("twice", {"x": ROW})
    assert served.breakdown("twice", seconds=600).loc["double", "calls"] == 1
    nothing = served.breakdown("twice", seconds=0)
    assert nothing.loc["double", "calls"] == 0
    assert np.isnan(nothing.loc["twice", "total_ms"])


def test_a_kernels_engine_counts_what_moves_inside(pipelines: Path) -> None:
    with Engine(pipelines, models=("twice", "echo")) as server:
        before = server.traffic()
        server.infer("twice", {"x": ROW})
        server.infer("echo", {"x": ROW[0]})
        found = moved(server, "twice", before)
        assert (found["requests"], found["handed_on"], found["copied"]) == (0, 3 * ROW.nbytes, 0)
        assert moved(server, "echo", before)["to_processes"] == 0  # a Python model on a thread of this kernel


def test_a_remote_triton_counts_nothing_and_says_so(served: WorkbenchServer) -> None:
    with wb.connect(served.url) as remote:
        assert isinstance(remote, TritonServer)
        with pytest.raises(Unsupported, match="does not count the bytes"):
            remote.traffic()
        with pytest.raises(Unsupported, match="no per-request records"):
            remote.breakdown("twice")
