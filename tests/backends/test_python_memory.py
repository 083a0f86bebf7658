"""Whose memory is it: what a model writes to is its own, in a process and on a thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from python_host import Host, answer, body, open_model

DECOUPLED = "model_transaction_policy { decoupled: true }"
SIZES = [2, 100_000]  # in a message, and in memory that is shared with the process
NESTED = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        buffer = np.zeros((1, 2), np.float32)
        calls = []
        for value in range(4):
            buffer[:] = value
            calls.append(pb_utils.InferenceRequest(model_name='slow', requested_output_names=['OUT'],
                                                   inputs=[pb_utils.Tensor('IN', buffer)]).async_exec())
            await asyncio.sleep(0.05)
        buffer[:] = 9
        got = [float(r.output_tensors()[0].as_numpy()[0, 0]) for r in await asyncio.gather(*calls)]
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([got], np.float32))]) for _ in requests]
"""


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("size", SIZES)
def test_a_model_that_writes_to_its_input_changes_nobody_elses(
    host: Host, tmp_path: Path, mode: str, size: int
) -> None:
    model = open_model(host, tmp_path, "m", body("x *= -1\n" + answer()), "", mode)
    array = np.ones((1, size), np.float32)
    for _ in range(2):
        assert model.run(array).one().as_numpy("OUT")[0, 0] == -1
        assert (array == 1).all()


@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("size", SIZES)
def test_answers_stay_as_they_are_when_the_model_uses_its_memory_again(
    host: Host, tmp_path: Path, mode: str, size: int
) -> None:
    code = "if not hasattr(self, 'buffer'): self.buffer = np.zeros_like(x)\nself.buffer[:] = x\n" + answer(
        "self.buffer"
    )
    model = open_model(host, tmp_path, "m", body(code), "", mode)
    answers = [model.run(np.full((1, size), value, np.float32)).one() for value in range(4)]
    assert [float(each.as_numpy("OUT")[0, -1]) for each in answers] == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("size", SIZES)
def test_responses_of_a_stream_may_share_one_buffer(host: Host, tmp_path: Path, mode: str, size: int) -> None:
    code = (
        "sender = r.get_response_sender(); buffer = np.zeros_like(x)\n"
        "for value in range(4):\n"
        "    buffer[:] = value\n"
        "    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', buffer)]))\n"
        "sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)\n"
        "out = None"
    )
    model = open_model(host, tmp_path, "m", body(code), DECOUPLED, mode)
    sent = [each for each in model.run(np.zeros((1, size), np.float32)).all() if each.outputs]
    assert [float(each.as_numpy("OUT")[0, -1]) for each in sent] == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_nested_requests_may_share_one_buffer(host: Host, tmp_path: Path, mode: str) -> None:
    open_model(host, tmp_path, "slow", body("time.sleep(0.1)\n" + answer()), "", mode)
    model = open_model(host, tmp_path, "caller", NESTED, "", mode)
    assert model.run(np.zeros((1, 2), np.float32)).one().as_numpy("OUT").tolist() == [[0, 1, 2, 3]]
