"""What a model.py finds in ``triton_python_backend_utils`` beside tensors and requests: metrics, loading, DLPack.

Texts are recorded from a real Triton 2.51, which answers the same calls alike but that its own process dies of some.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from python_host import Host, Model, answer, body, open_model

from workbench.backends.custom_metrics import CustomMetrics, FamilyValues

Opener = Callable[..., Model]
SAY = """
def say(function):
    try:
        return str(function())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
SAID = "\nout.append(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x)], parameters={'said': said}))"


@pytest.fixture(params=["process", "thread"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    host = Host()

    def opener(source: str, name: str = "m") -> Model:
        return open_model(host, tmp_path, name, SAY + source, mode=request.param)

    yield opener
    host.close()


def said(opened: Opener, code: str, before: str = "") -> str:
    """What the code makes of ``said``."""
    response = opened(before + body(code + SAID)).run(np.ones((1, 2), np.float32)).one()
    return str(response.parameters["said"])


def all_said(opened: Opener, calls: Iterable[str], before: str = "") -> list[str]:
    """What each of the calls gives, or raises."""
    made = ", ".join(f"say(lambda: {call})" for call in calls)
    found: list[str] = json.loads(said(opened, f"said = json.dumps([{made}])", before))
    return found


FAMILIES = """
counter = pb_utils.MetricFamily("jobs_total", "Jobs", pb_utils.MetricFamily.COUNTER)
gauge = pb_utils.MetricFamily(name="level", description="Level", kind=pb_utils.MetricFamily.GAUGE)
histogram = pb_utils.MetricFamily("took", "Took", pb_utils.MetricFamily.HISTOGRAM)
c, g = counter.Metric(labels={"b": "x", "a": "y"}), gauge.Metric()
h = histogram.Metric(labels={"m": "n"}, buckets=[0.5, 1])
"""


def test_metrics_stand_where_the_model_put_them(opened: Opener) -> None:
    code = "c.increment(2.5); c.increment(1); g.set(7); g.increment(-2); [h.observe(v) for v in (0.1, 1, 9)]\n"
    model = opened(FAMILIES + body(code + "said = str((c.value(), g.value()))" + SAID))
    response = model.run(np.ones((1, 2), np.float32)).one()
    assert response.parameters["said"] == "(3.5, 5.0)"
    assert model.host.metrics.values() == [
        FamilyValues("jobs_total", "counter", "Jobs", (("", (("a", "y"), ("b", "x")), 3.5),)),
        FamilyValues("level", "gauge", "Level", (("", (), 5.0),)),
        FamilyValues(
            "took",
            "histogram",
            "Took",
            (
                ("_count", (("m", "n"),), 3.0),
                ("_sum", (("m", "n"),), 10.1),
                ("_bucket", (("m", "n"), ("le", "0.5")), 1.0),
                ("_bucket", (("m", "n"), ("le", "1")), 2.0),
                ("_bucket", (("m", "n"), ("le", "+Inf")), 3.0),
            ),
        ),
    ]
    model.close()
    assert model.host.metrics.values() == []


_KIND = "Failed to {} metric value: Failed to process the request for model 'm_0', message: TRITONSERVER_METRIC_KIND_{}"
REFUSED = {
    "c.increment(-1)": _KIND.format(
        "increment", "COUNTER can only be incremented monotonically by non-negative values."
    ),
    "c.set(1)": _KIND.format("set", "COUNTER does not support Set"),
    "c.observe(1)": _KIND.format("observe", "COUNTER does not support Observe"),
    "g.observe(1)": _KIND.format("observe", "GAUGE does not support Observe"),
    "h.value()": _KIND.format("get", "HISTOGRAM does not support Value"),
    "h.set(1)": _KIND.format("set", "HISTOGRAM does not support Set"),
    "h.increment(1)": _KIND.format("increment", "HISTOGRAM does not support Increment"),
    "counter.Metric(labels='x')": "Failed to create metric. Labels must be a dictionary.",
    "counter.Metric(buckets=[1])": "Failed to create metric. Unexpected buckets found.",
    "histogram.Metric()": "Failed to create metric. Missing required buckets.",
    "histogram.Metric(buckets=(1, 2))": "Failed to create metric. Buckets must be a list.",
    "histogram.Metric(buckets=[2, 1])": "Error when creating Metric: Failed to process the request for model 'm_0', "
    "message: Bucket Boundaries must be strictly sorted",
    "counter.Metric(labels={'a-b': 'x'})": "Error when creating Metric: Failed to process the request for model "
    "'m_0', message: Invalid label name",
    "counter.Metric(labels={'a': 1})": "Error when creating Metric: Failed to process the request for model 'm_0', "
    "message: attempt to access JSON non-string as string",
    "pb_utils.MetricFamily('no name', 'd', pb_utils.MetricFamily.GAUGE)": "Error when creating MetricFamily: Failed "
    "to process the request for model 'm_0', message: Invalid metric name",
    "pb_utils.MetricFamily('level', 'd', pb_utils.MetricFamily.COUNTER)": "Error when creating MetricFamily: Failed "
    "to process the request for model 'm_0', message: Family name already exists with different type",
}


def test_what_a_metric_cannot_do_is_refused_in_triton_s_words(opened: Opener) -> None:
    assert all_said(opened, REFUSED, FAMILIES) == [f"TritonModelException: {why}" for why in REFUSED.values()]


def test_a_family_takes_its_metrics_with_it_and_gives_its_name_free(opened: Opener) -> None:
    before = "family = pb_utils.MetricFamily('once', 'd', pb_utils.MetricFamily.GAUGE)\nmetric = family.Metric()\n"
    code = """
global family
del family
first = say(lambda: metric.set(1))
again = pb_utils.MetricFamily('once', 'e', pb_utils.MetricFamily.COUNTER)
kept.append((again, again.Metric()))
said = first
"""
    text = said(opened, code, before + "kept = []\n")
    assert text == (
        "TritonModelException: Failed to set metric value: Invalid metric operation as the corresponding "
        "'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER its corresponding "
        "'Metric' objects have been deleted."
    )


def test_models_share_a_metric_of_the_same_name_and_labels(opened: Opener) -> None:
    first = opened(FAMILIES + body("c.increment(1)\n" + answer()), "first")
    second = opened(FAMILIES + body("c.increment(2)\n" + answer()), "second")
    for model in (first, second, first):
        model.run(np.ones((1, 2), np.float32)).one()
    metrics: CustomMetrics = first.host.metrics

    def jobs() -> list[float]:
        return [row[2] for family in metrics.values() if family.name == "jobs_total" for row in family.rows]

    assert jobs() == [4.0]
    first.close()
    assert jobs() == [4.0]
    second.close()
    assert jobs() == []


@pytest.mark.parametrize("name", ["nv_inference_count", "nv_model_load_duration_secs"])
def test_a_name_of_the_server_s_own_keeps_its_kind(name: str) -> None:
    metrics = CustomMetrics()
    metrics.reserve({"nv_inference_count": "counter", "nv_model_load_duration_secs": "gauge"})
    with pytest.raises(Exception, match="Family name already exists with different type"):
        metrics.family(name, "", "histogram")


def test_models_are_loaded_unloaded_and_asked_for(opened: Opener) -> None:
    code = (
        "pb_utils.load_model('m'); pb_utils.load_model('m', config='{}', files={'file:1/a': b'x'})\n"
        "pb_utils.unload_model('m'); pb_utils.unload_model(model_name='n', unload_dependents=True)\n"
        "ready = pb_utils.is_model_ready\n"
        "said = str([ready('m'), ready('m', '1'), ready('m', model_version='2'), ready('n')])"
    )
    model = opened(body(code + SAID))
    response = model.run(np.ones((1, 2), np.float32)).one()
    assert response.parameters["said"] == "[True, True, False, False]"
    assert model.host.loads == [("m", None, {}), ("m", "{}", {"file:1/a": b"x"})]
    assert model.host.unloads == [("m", False), ("n", True)]


_ASKED = "TritonModelException: Failed to {}: Failed to process the request for model 'm_0', message: {}"
_VERSION = "failed to get model version from specified version string '{}'{}, version should be an integral value > 0"


UNLOADABLE = {
    "pb_utils.load_model('nope')": _ASKED.format(
        "load model", "failed to load 'nope', failed to poll from model repository"
    ),
    "pb_utils.is_model_ready('m', 'x')": _ASKED.format(
        "check model readiness", _VERSION.format("x", " (details: stol)")
    ),
    "pb_utils.is_model_ready('m', '-4')": _ASKED.format("check model readiness", _VERSION.format("-4", "")),
    "pb_utils.load_model('m', files='x')": "TritonModelException: failed to load model 'm', files should be a "
    "dictionary of file paths and file contents",
    "pb_utils.load_model('m', files={'a': 'x'})": "TypeError: Object of type 'str' is not an instance of 'bytes'",
    "pb_utils.is_model_ready('m', 1)": "TypeError: is_model_ready(): incompatible function arguments. The following "
    "argument types are supported:\n    1. (model_name: str, model_version: str = '') -> bool\n\nInvoked with: 'm', 1",
}


def test_what_cannot_be_loaded_is_refused_in_triton_s_words(opened: Opener) -> None:
    assert all_said(opened, UNLOADABLE) == list(UNLOADABLE.values())


TORCH = "import torch\nfrom torch.utils import dlpack\n"


def test_dlpack_goes_to_torch_and_back(opened: Opener) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    code = """
there = [dlpack.from_dlpack(pb_utils.Tensor("t", x).to_dlpack()), torch.from_dlpack(pb_utils.Tensor("t", x)),
         torch.from_dlpack(r.inputs()[0])]
back = [pb_utils.Tensor.from_dlpack("t", t + 1) for t in there]
back.append(pb_utils.Tensor.from_dlpack("t", dlpack.to_dlpack(there[0] + 1)))
there[0] *= 5
out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate([t.as_numpy() for t in back] + [x]))]))
"""
    response = opened(TORCH + body(code)).run(np.array([[1, 2]], np.float32)).one()
    assert response.as_numpy("OUT").tolist() == [[2, 3]] * 4 + [[5, 10]], "the memory is the same, not a copy"


def test_dlpack_carries_every_type_but_strings(opened: Opener) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    code = """
types = "bool uint8 int8 int16 int32 int64 float16 float32 float64 bfloat16".split()
made = [pb_utils.Tensor.from_dlpack("t", torch.ones(2, 3).to(getattr(torch, name))) for name in types]
back = [str(torch.from_dlpack(tensor).dtype)[6:] for tensor in made]
said = json.dumps([back == types, [tensor.triton_dtype() for tensor in made], [t.is_cpu() for t in made].count(True),
    [tensor.as_numpy().tolist() == [[1, 1, 1]] * 2 for tensor in made].count(True), made[0].__dlpack_device__()])
"""
    assert said(opened, code, TORCH) == "[true, [1, 2, 6, 7, 8, 9, 10, 11, 12, 14], 10, 10, [1, 0]]"


UNCARRIED = {
    "pb_utils.Tensor('s', np.array([b'a'], object)).to_dlpack()": "DLPack does not have support for string tensors.",
    "pb_utils.Tensor.from_dlpack('t', np.arange(6).reshape(2, 3).T)": "DLPack tensor is not contiguous. Only "
    "contiguous DLPack tensors that are stored in C-Order are supported.",
    "pb_utils.Tensor.from_dlpack('', np.arange(6))": "Tensor name cannot be an empty string.",
    "pb_utils.Tensor.from_dlpack('t', 5)": "Provided tensor is not supported. Tensor must be a DLPack capsule         "
    "or have `__dlpack__` and `__dlpack_device__` attributes",
    "(lambda c: [pb_utils.Tensor.from_dlpack('t', c) for _ in range(2)])(pb_utils.Tensor('t', x).to_dlpack())": "The "
    "DLPack capsule has been used already.",
    "pb_utils.Tensor.from_dlpack('t', np.ones(2, np.complex64))": "DLPack type code 5 of 64 bits and 1 lanes is not "
    "supported.",
}


def test_what_dlpack_cannot_carry_is_refused(opened: Opener) -> None:
    assert all_said(opened, UNCARRIED) == [f"TritonModelException: {text}" for text in UNCARRIED.values()]


def test_dlpack_does_not_mind_who_else_uses_capsules(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library in the same process may declare the types of Python's own functions as it needs them."""
    monkeypatch.setattr(ctypes.pythonapi.PyCapsule_GetPointer, "argtypes", [ctypes.py_object, ctypes.c_char_p])
    assert all_said(opened, UNCARRIED) == [f"TritonModelException: {text}" for text in UNCARRIED.values()]


def test_the_module_has_every_name_of_triton_s(opened: Opener) -> None:
    names = """InferenceRequest InferenceResponse Logger MetricFamily ModelConfig PreferredMemory
        TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
        TRITONSERVER_REQUEST_FLAG_SEQUENCE_START TRITONSERVER_REQUEST_RELEASE_ALL
        TRITONSERVER_REQUEST_RELEASE_RESCHEDULE TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITON_STRING_TO_NUMPY Tensor
        TritonError TritonModelException deserialize_bytes_tensor get_input_config_by_name get_input_tensor_by_name
        get_model_dir get_output_config_by_name get_output_tensor_by_name is_model_ready json load_model np
        numpy_to_triton_type serialize_byte_tensor struct triton_string_to_numpy triton_to_numpy_type unload_model
        using_decoupled_model_transaction_policy"""
    code = "said = str([name for name in NAMES if not hasattr(pb_utils, name)])"
    assert said(opened, code, f"NAMES = {names.split()!r}\n") == "[]"


def test_async_exec_is_under_way_before_it_is_awaited(opened: Opener) -> None:
    opened(body("open(OUT, 'w').close()\n" + answer()).replace("OUT, 'w'", "__file__ + '.ran', 'w'"), "other")
    code = """
import asyncio
async def run():
    inputs = [pb_utils.Tensor("IN", x)]
    made = pb_utils.InferenceRequest(model_name="other", inputs=inputs, requested_output_names=["OUT"])
    future = made.async_exec()
    ran = os.path.join(os.path.dirname(__file__), "..", "..", "other", "1", "model.py.ran")
    while not os.path.exists(ran):
        time.sleep(0.01)
    return type(future).__name__, (await future).has_error()
said = str(asyncio.run(run()))
"""
    assert said(opened, code) == "('Future', False)"


def test_the_responses_of_a_nested_request_can_be_gone_through_again(opened: Opener) -> None:
    opened(body(answer("x * 2")), "other")
    code = """
made = pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", x)], requested_output_names=["OUT"])
found = made.exec(decoupled=True)
first, second = [r.output_tensors()[0].as_numpy().tolist() for r in found], [len(r.output_tensors()) for r in found]
said = str((first, second, say(lambda: next(found))))
"""
    said_ = said(opened, code)
    assert said_ == "([[[2.0, 2.0]]], [1], 'StopIteration: Iteration is done for the responses.')"
