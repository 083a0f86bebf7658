"""The samples ``router`` and ``generator`` in the real Triton, their model.py and configurations as they are."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs_onnx import on_the_python_backend

import workbench as wb
from workbench.profiling import Load, ServerTarget, measure
from workbench.session.remote import TritonServer, WorkbenchServer

pytestmark = [pytest.mark.oracle, pytest.mark.full, pytest.mark.timeout(400)]

MODELS = ["router", "magika", "magika_small", "generator"]


@pytest.fixture(scope="module")
def ours(sample_repository: Path) -> Iterator[WorkbenchServer]:
    with wb.serve(sample_repository, models=MODELS, name=None) as server:
        yield server


@pytest.fixture(scope="module")
def theirs(
    ours: WorkbenchServer, tmp_path_factory: pytest.TempPathFactory, start_triton: Callable[..., Any]
) -> Iterator[Any]:
    """Their export in the real Triton: its addresses."""
    made = ours.export(tmp_path_factory.mktemp("samples") / "bundle", models=MODELS)
    for name in ("magika", "magika_small"):
        on_the_python_backend(made.repository / name)
    with start_triton(made.repository) as running:
        yield running


@pytest.fixture(scope="module")
def remote(theirs: Any) -> Iterator[TritonServer]:
    with wb.connect(theirs.http) as server:
        assert isinstance(server, TritonServer)
        yield server


@pytest.mark.parametrize("parameters", [{}, {"threshold": 0}, {"threshold": "0.95"}, {"threshold": 1.1}])
def test_the_cascade_answers_the_same(
    ours: WorkbenchServer, remote: TritonServer, sample_repository: Path, parameters: dict[str, Any]
) -> None:
    data = json.loads((sample_repository / "router" / "example_inputs.json").read_text())["data"]
    rows = np.array([entry["bytes"] for entry in data], np.int32)
    here, there = (server.infer("router", {"bytes": rows}, parameters=parameters) for server in (ours, remote))
    assert here["escalated"].tolist() == there["escalated"].tolist()
    np.testing.assert_allclose(here["target_label"], there["target_label"], atol=1e-5)


def test_the_cascade_refuses_the_same(ours: WorkbenchServer, remote: TritonServer) -> None:
    said = []
    for server in (ours, remote):
        with pytest.raises(wb.WorkbenchError) as caught:
            server.infer("router", {"bytes": np.zeros((1, 2048), np.int32)}, parameters={"threshold": "high"})
        said.append((caught.value.code, caught.value.message))
    assert said[0] == said[1]


def test_escalations_are_counted_in_both(ours: WorkbenchServer, theirs: Any, remote: TritonServer) -> None:
    before = _counted(ours.metrics_url), _counted(theirs.metrics)
    for server in (ours, remote):
        server.infer("router", {"bytes": np.full((3, 2048), 256, np.int32)}, parameters={"threshold": 1.1})
        server.infer("router", {"bytes": np.full((2, 2048), 256, np.int32)}, parameters={"threshold": 0})
    after = _counted(ours.metrics_url), _counted(theirs.metrics)
    for then, now in zip(before, after, strict=True):
        assert {name: now[name] - then.get(name, 0) for name in now} == {"magika": 3, "magika_small": 2}


def _counted(url: str) -> dict[str, float]:
    lines = urllib.request.urlopen(url, timeout=10).read().decode().splitlines()
    found = [line for line in lines if line.startswith("router_rows{")]
    return {line.split('answered_by="')[1].split('"')[0]: float(line.split()[-1]) for line in found}


@pytest.mark.parametrize(
    "body",
    [
        {"text_input": "What is the capital of France?"},
        {"text_input": "Tell me a story.", "max_tokens": 20, "temperature": 0.8, "seed": 3},
        {"text_input": "Write hello in Japanese.", "max_tokens": 12},
        {"text_input": "What is the capital of France?", "stop": ["France"], "parameters": {"max_tokens": 40}},
    ],
)
def test_the_generator_streams_the_same_tokens(ours: WorkbenchServer, theirs: Any, body: dict[str, Any]) -> None:
    here, there = _events(ours.url, body), _events(theirs.http, body)
    assert len(here) > 2
    assert here == there


def test_the_generator_refuses_the_same(ours: WorkbenchServer, theirs: Any) -> None:
    for body in ({"text_input": "x", "max_tokens": 0}, {"text_input": "word " * 3000}):
        said = [_refused(url, body) for url in (ours.url, theirs.http)]
        assert said[0] == said[1]


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{url}/v2/models/generator/generate_stream", json.dumps(body).encode())
    return urllib.request.urlopen(request, timeout=60)


def _events(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with _post(url, body) as answer:
        return [json.loads(line[5:]) for line in answer if line.startswith(b"data:")]


def _refused(url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        _post(url, body)
    return caught.value.code, caught.value.read()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_streams_of_a_real_triton_are_measured(theirs: Any, sample_repository: Path, protocol: str) -> None:
    url = theirs.http if protocol == "http" else theirs.grpc
    target = ServerTarget(url, repositories=[sample_repository])
    point = measure(target, "generator", Load.closed(2, duration_s=3, warmup_s=0.5, min_requests=4))
    target.close()
    assert point.failed == 0
    assert point.protocol == protocol
    assert not any("counted" in reason for reason in point.reasons)  # its statistics and our answers agree
    assert 5 < point.responses_per_request <= 32
    assert 1 < point.between_responses_p50_ms < point.first_response_p50_ms < point.p50_ms
    assert point.responses_per_s > 2


def test_what_is_measured_over_grpc_fails_in_words(theirs: Any) -> None:
    target = ServerTarget(theirs.grpc)
    inputs = {"text_input": ["x"], "max_tokens": [0]}
    point = measure(target, "generator", Load.closed(1, duration_s=0.5, min_requests=0), inputs=inputs)
    target.close()
    assert point.n == 0
    assert list(point.errors) == ["max_tokens must be at least 1, got 0"]
