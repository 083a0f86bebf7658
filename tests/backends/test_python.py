"""What a model.py meets: pb_utils, the rules of execute, errors in Triton's words; in a process and on a thread alike.

The texts were recorded from the real tritonserver (Triton 2.51), see test_python_oracle.py, which compares both.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from python_host import Host, Model, answer, body, open_model, request

from workbench.errors import BackendError, Code, WorkbenchError

X = np.array([[1, 2]], np.float32)
DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture(params=["process", "thread"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Opener:
    """Opens models in this test's directory and mode, and closes them."""

    def __init__(self, host: Host, root: Path, mode: str) -> None:
        self.host, self.root, self.mode = host, root, mode
        self.models: list[Model] = []

    def __call__(self, source: str, config: str = "", name: str = "m") -> Model:
        self.models.append(open_model(self.host, self.root, name, source, config, self.mode))
        return self.models[-1]


@pytest.fixture
def opened(host: Host, tmp_path: Path, mode: str) -> Iterator[Opener]:
    opener = Opener(host, tmp_path, mode)
    yield opener
    for model in opener.models:
        model.close()


def failure(model: Model, *arrays: Any) -> str:
    with pytest.raises(BackendError) as caught:
        model.run(*(arrays or (X,))).one()
    return caught.value.message


# Tensors


def test_a_batch_is_answered_request_by_request(opened: Opener) -> None:
    model = opened(body(answer("x * 2")))
    batch = model.run(X, np.zeros((3, 5), np.float32), np.full((1, 1), 7, np.float32), id="r")
    assert batch.one(0).as_numpy("OUT").tolist() == [[2, 4]]
    assert batch.one(1).as_numpy("OUT").shape == (3, 5)
    assert batch.one(2).as_numpy("OUT").tolist() == [[14]]
    assert batch.one(0).id == "r"
    assert batch.finished.wait(20)
    assert batch.finishes == 1
    execution = batch.execution
    assert execution.compute_start <= execution.input_end <= execution.output_start


@pytest.mark.parametrize(
    "array",
    [
        np.array([[True, False]]),
        np.array([[1, 255]], np.uint8),
        np.array([[-1, 2**62]], np.int64),
        np.array([[1.5]], np.float16),
        np.array([[1e300]], np.float64),
        np.array([[1.5, -2]], ml_dtypes.bfloat16),
        np.array([[b"", "é€".encode(), b"\x00\xff" * 1000]], object),
        np.zeros((1, 0), np.float32),
        np.zeros((2, 0), object),
        np.arange(60_000, dtype=np.float32).reshape(2, 30_000),
        np.arange(24, dtype=np.int32).reshape(4, 6).T,
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_every_data_type_passes_unchanged_both_ways(opened: Opener, array: Any) -> None:
    model = opened(body(answer("x")))
    got = model.run(array).one().as_numpy("OUT")
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert np.array_equal(got, array)


def test_many_sizes_in_one_batch_keep_apart(opened: Opener) -> None:
    model = opened(body(answer("x + 1")))
    rng = np.random.default_rng(1)
    for total in (10, 3000, 40_000):
        arrays = [rng.random((1, int(n)), dtype=np.float32) for n in rng.integers(0, total, 12)]
        batch = model.run(*arrays)
        for index, array in enumerate(arrays):
            assert np.array_equal(batch.one(index).as_numpy("OUT"), array + 1)


def test_inputs_may_be_written_to_and_kept(opened: Opener) -> None:
    code = """
kept = getattr(self, "kept", None)
before = 0.0 if kept is None else float(kept.sum())
x += 1
self.kept = x
"""
    model = opened(body(code + answer("np.array([[before]], np.float32)")))
    big = np.ones((1, 100_000), np.float32)
    big.setflags(write=False)
    assert model.run(big).one().as_numpy("OUT").item() == 0
    assert model.run(big * 5).one().as_numpy("OUT").item() == 200_000
    assert model.run(big).one().as_numpy("OUT").item() == 600_000


def test_answers_stay_valid_while_later_batches_run(opened: Opener) -> None:
    model = opened(body(answer("x")))
    arrays = [np.full((1, 50_000), i, np.float32) for i in range(24)]
    kept = [model.run(array).one().as_numpy("OUT") for array in arrays]
    for i, array in enumerate(kept):
        assert array.shape == (1, 50_000)
        assert (array == i).all()


# Errors of execute: (code of the model, config, the text of Triton)

NUMBER = "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
TEXTS = {
    "raises": (
        body("def inner():\n    raise KeyError('boom')\ninner()"),
        "",
        r"KeyError: 'boom'\n\nAt:\n  \S*/m/1/model\.py\(10\): inner\n  \S*/m/1/model\.py\(11\): execute\n",
    ),
    "model exception": (
        body("raise pb_utils.TritonModelException('tme')"),
        "",
        r"TritonModelException: tme\n\nAt:\n  \S*/m/1/model\.py\(9\): execute\n",
    ),
    "TritonError is no exception": (
        body("raise pb_utils.TritonError('x')"),
        "",
        r"TypeError: exceptions must derive from BaseException\n\nAt:\n  \S*/m/1/model\.py\(9\): execute\n",
    ),
    "sys.exit": (body("sys.exit(3)"), "", r"SystemExit: 3\n\nAt:\n  \S*/m/1/model\.py\(9\): execute\n"),
    "too many": (
        body("out += [pb_utils.InferenceResponse([]), pb_utils.InferenceResponse([])]"),
        "",
        re.escape(NUMBER + "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n"),
    ),
    "wrong element": (
        body("out.append('x')"),
        "",
        re.escape(
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'."
        ),
    ),
    "a tensor without its response": (
        body("out.append(pb_utils.Tensor('OUT', np.zeros(1)))"),
        "",
        re.escape(
            "Expected an 'InferenceResponse' object in the execute function return list, found type "
            "'<class 'c_python_backend_utils.Tensor'>'."
        ),
    ),
    "a request as the answer": (
        body("out.append(r)"),
        "",
        re.escape(
            "Expected an 'InferenceResponse' object in the execute function return list, found type "
            "'<class 'c_python_backend_utils.InferenceRequest'>'."
        ),
    ),
    "a response without a list": (
        body("return pb_utils.InferenceResponse([])"),
        "",
        re.escape(
            "Expected a list in the execute return, found type '<class 'c_python_backend_utils.InferenceResponse'>'."
        ),
    ),
    "no list": (
        body("return {}"),
        "",
        re.escape("Expected a list in the execute return, found type '<class 'dict'>'."),
    ),
    "no execute": (
        "class TritonPythonModel:\n    pass\n",
        "",
        r"Python model \S*/m/1/model\.py does not implement `execute` method\.",
    ),
    "decoupled returns": (
        body(answer()),
        DECOUPLED,
        re.escape("Python model 'm' is using the decoupled mode and the execute function must return None."),
    ),
    "decoupled raises": (body("raise RuntimeError('x')"), DECOUPLED, r"RuntimeError: x\n\nAt:\n.*execute\n"),
    "str() of an element raises": (
        "class Bad:\n    def __str__(self): raise ValueError('no text')\n"
        + body(answer("np.array([Bad()], dtype=object)")),
        "",
        r"ValueError: no text\n\nAt:\n.*__str__\n.*execute\n|ValueError: no text\n\nAt:\n.*__str__\n",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_execute_does_wrong_fails_the_batch_in_tritons_words(opened: Opener, case: str) -> None:
    source, config, pattern = TEXTS[case]
    model = opened(source, config)
    text = failure(model)
    head = "Failed to process the request(s) for model 'm_0', message: "
    assert text.startswith(head)
    assert re.fullmatch(pattern, text[len(head) :]), text
    assert failure(model) == text, "and it goes on serving"


def test_the_whole_batch_fails_when_execute_raises(opened: Opener) -> None:
    model = opened(body("if x[0, 0] == 2: raise ValueError('two')\n" + answer()))
    batch = model.run(X, X + 1, X)
    for index in range(3):
        with pytest.raises(BackendError, match="ValueError: two"):
            batch.one(index)
    assert model.run(X).one().as_numpy("OUT").tolist() == X.tolist()


# F26: three separate messages, each with the model, the instance and the way out


def test_none_returned_and_nothing_sent_says_so_where_triton_hangs(opened: Opener) -> None:
    text = failure(opened(body("pass").replace("return out", "return None")))
    assert "Expected a list in the execute return, found type '<class 'NoneType'>'." in text
    for part in ("model 'm'", "instance 'm_0'", "returned None", "`model_transaction_policy { decoupled: true }`"):
        assert part in text


def test_none_in_the_list_is_the_same_fault(opened: Opener) -> None:
    text = failure(opened(body("out.append(None)")))
    assert "sent no response for request 1" in text


def test_a_second_response_without_decoupled_says_so(opened: Opener) -> None:
    code = "s = r.get_response_sender()\n" + 2 * "s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x)]))\n"
    text = failure(opened(body(code).replace("return out", "return None")))
    assert "Unable to send response. Non-decoupled model cannot send more than one response." in text
    for part in ("model 'm'", "instance 'm_0'", "`model_transaction_policy { decoupled: true }`"):
        assert part in text


# Response senders

SEND = "s = r.get_response_sender()\ns.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x * 3)]){})\n"
FINAL = ", flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"


@pytest.mark.parametrize("flags", [FINAL, ""])
@pytest.mark.parametrize("returned", ["None", "[None]"])
def test_a_model_that_is_not_decoupled_may_use_a_sender_once(opened: Opener, flags: str, returned: str) -> None:
    model = opened(body(SEND.format(flags)).replace("return out", f"return {returned}"))
    assert model.run(X).one().as_numpy("OUT").tolist() == [[3, 6]]


def test_response_and_final_flag_may_be_sent_apart(opened: Opener) -> None:
    code = SEND.format("") + f"s.send({FINAL[2:]})"
    model = opened(body(code).replace("return out", "return None"))
    assert model.run(X).one().as_numpy("OUT").tolist() == [[3, 6]]


def test_a_final_flag_alone_is_refused(opened: Opener) -> None:
    text = failure(opened(body(f"r.get_response_sender().send({FINAL[2:]})\nout.append(None)")))
    assert "Non-decoupled model cannot send complete final before sending a response." in text


def test_a_sender_may_answer_after_execute_has_returned(opened: Opener) -> None:
    code = f"""
def later(s, x):
    time.sleep(0.1)
    s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x * 3)]){FINAL})
threading.Thread(target=later, args=(r.get_response_sender(), x)).start()
"""
    model = opened(body(code).replace("return out", "return None"))
    batch = model.run(X, X + 1)
    assert batch.one(0).as_numpy("OUT").tolist() == [[3, 6]]
    assert batch.one(1).as_numpy("OUT").tolist() == [[6, 9]]
    assert batch.finished.wait(20)
    assert batch.finishes == 1


def test_a_dropped_sender_is_an_error_where_triton_hangs(opened: Opener) -> None:
    model = opened(body("r.get_response_sender()").replace("return out", "return None"))
    assert "the response sender was dropped" in failure(model)


def test_decoupled_sends_any_number_also_after_execute(opened: Opener) -> None:
    code = f"""
def later(s, n):
    for i in range(n):
        s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([[i]], np.float32))]))
    s.send({FINAL[2:]})
threading.Thread(target=later, args=(r.get_response_sender(), int(x[0, 0]))).start()
"""
    model = opened(body(code).replace("return out", "return None"), DECOUPLED)
    batch = model.run(*(np.array([[n]], np.float32) for n in (0, 1, 5)))
    for index, count in enumerate((0, 1, 5)):
        responses = batch.all(index)
        assert [r.final for r in responses] == [False] * count + [True]
        assert [r.as_numpy("OUT").item() for r in responses[:-1]] == list(range(count))
        assert responses[-1].outputs == []
    assert batch.finished.wait(20)
    assert batch.finishes == 1


def test_a_closed_sender_refuses(opened: Opener) -> None:
    code = f"""
s = r.get_response_sender()
s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x)]){FINAL})
try:
    s.send({FINAL[2:]})
except pb_utils.TritonModelException as error:
    pb_utils.Logger.log_error(str(error))
"""
    model = opened(body(code).replace("return out", "return None"), DECOUPLED)
    assert len(model.run(X).all()) == 1
    opened.host.wait(lambda: any("Response sender has been closed." in line[1] for line in opened.host.logs))


def test_cancellation_is_seen_by_the_model(opened: Opener) -> None:
    model = opened(body(answer("np.array([[r.is_cancelled(), r.get_response_sender().is_cancelled()]], np.float32)")))
    batch = model.begin([request("m", {"IN": X}), request("m", {"IN": X})], None, lambda index: index == 1)
    assert batch.one(0).as_numpy("OUT").tolist() == [[0, 0]]
    assert batch.one(1).as_numpy("OUT").tolist() == [[1, 1]]


# Responses


@pytest.mark.parametrize("code", list(Code))
def test_an_error_response_keeps_its_code(opened: Opener, code: Code) -> None:
    error = f"pb_utils.TritonError('not today', pb_utils.TritonError.{code.name})"
    model = opened(body(f"out.append(pb_utils.InferenceResponse(error={error}))"))
    with pytest.raises(WorkbenchError) as caught:
        model.run(X).one()
    assert (caught.value.message, caught.value.code) == ("not today", code)
    assert caught.value.reason == "BACKEND"


def test_one_request_may_fail_alone(opened: Opener) -> None:
    bad = "out.append(pb_utils.InferenceResponse([], pb_utils.TritonError('no')))"
    model = opened(body(f"if x[0, 0] == 2:\n    {bad}\nelse:\n    {answer()}"))
    batch = model.run(X, X + 1, X)
    batch.one(0), batch.one(2)
    with pytest.raises(BackendError, match=r"^no$|no"):
        batch.one(1)


def test_only_the_outputs_asked_for_are_sent(opened: Opener) -> None:
    from workbench.protocol.tensors import RequestedOutput

    outputs = 'output { name: "B" data_type: TYPE_FP32 dims: [-1] }'
    code = "out.append(pb_utils.InferenceResponse([pb_utils.Tensor(n, x) for n in ('OUT', 'B', 'NOPE')]))"
    model = opened(body(code), outputs)
    assert [t.name for t in model.run(X).one().outputs] == ["OUT", "B"]
    assert [t.name for t in model.run(X, outputs=[RequestedOutput("B")]).one().outputs] == ["B"]


def test_response_parameters_reach_the_client(opened: Opener) -> None:
    given = {"a": 1, "b": "s", "c": True}
    model = opened(body(f"out.append(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x)], parameters={given!r}))"))
    assert dict(model.run(X).one().parameters) == given


# What a request and the module say: expressions evaluated in the model

PROBE = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        out = []
        for r in requests:
            code = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy().reshape(-1)[0].decode()
            try:
                text = repr(eval(code, {**globals(), "r": r, "self": self}))
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text.encode()], dtype=object))]))
        return out
"""


@pytest.fixture(scope="module", params=["process", "thread"])
def probe(host: Host, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Any]:
    model = open_model(host, tmp_path_factory.mktemp("probe"), "probe", PROBE, mode=request.param)

    def ask(code: str, **fields: Any) -> str:
        got = model.run(np.array([[code.encode()]], object), **fields).one()
        return str(got.as_numpy("OUT")[0].decode())

    yield ask
    model.close()


# Recorded from Triton 2.51 with the same model; where it differs the reason stands beside it.
PROBES = {
    "sorted(self.args)": (
        "['model_config', 'model_instance_device_id', 'model_instance_kind', 'model_instance_name', 'model_name', "
        "'model_repository', 'model_version']"
    ),
    "{type(v) for v in self.args.values()}": "{<class 'str'>}",
    "self.args['model_instance_kind']": "'CPU'",
    "self.args['model_instance_name']": "'probe_0'",
    "self.args['model_instance_device_id']": "'0'",
    "self.args['model_version']": "'1'",
    "json.loads(self.args['model_config'])['max_batch_size']": "64",
    "r.request_id()": "'rid'",
    "r.correlation_id()": "7",
    "r.flags()": "3",
    "r.timeout()": "1000000",
    "r.parameters()": """'{"str":"a","int":3,"bool":true}'""",
    "r.requested_output_names()": "{'OUT'}",
    "r.is_cancelled()": "False",
    "[t.name() for t in r.inputs()]": "['IN']",
    "r.inputs()[0].shape()": "[1, 1]",
    "r.inputs()[0].is_cpu()": "True",
    "r.inputs()[0].as_numpy().dtype": "dtype('O')",
    "r.inputs()[0].triton_dtype()": "13",  # raises a TypeError in 2.51
    "pb_utils.get_input_tensor_by_name(r, 'NOPE')": "None",
    "pb_utils.Tensor('a', np.array(['x','y']))": "TritonModelException: NumPy dtype is not supported.",
    "pb_utils.Tensor('a', np.array([1+2j]))": "TritonModelException: NumPy dtype is not supported.",
    "pb_utils.Tensor('a', np.array([1],dtype='>i4'))": "TritonModelException: NumPy dtype is not supported.",
    "pb_utils.Tensor('a', np.array([b'x',b'y'])).as_numpy()": "array([b'x', b'y'], dtype='|S1')",
    "pb_utils.Tensor('a', np.array(3,dtype=np.int64)).shape()": "[]",
    "pb_utils.Tensor('a', [1,2])": (
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:\n"
        "    1. c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)\n\nInvoked with: 'a', [1, 2]"
    ),
    "pb_utils.InferenceResponse([], pb_utils.TritonError('x')).has_error()": "True",
    "pb_utils.InferenceResponse([]).error()": "None",
    "pb_utils.InferenceResponse().output_tensors()": "[]",
    "int(pb_utils.TritonError('x').code())": "1",
    "pb_utils.TritonError('x', pb_utils.TritonError.CANCELLED).message()": "'x'",
    "pb_utils.TritonModelException('x')": "TritonModelException('x')",
    "pb_utils.InferenceRequest(model_name='m', inputs=[], requested_output_names=['o'], parameters={'a':[1]})": (
        "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'list'>"
    ),
    "pb_utils.InferenceRequest(model_name='m', inputs=[], requested_output_names=['o'], "
    "parameters={'a':1,'b':True,'c':'s'}).parameters()": """'{"a": 1, "b": true, "c": "s"}'""",
    "pb_utils.triton_string_to_numpy('TYPE_FP32')": "<class 'numpy.float32'>",
    "pb_utils.triton_string_to_numpy('TYPE_STRING')": "<class 'numpy.object_'>",
    "pb_utils.triton_string_to_numpy('FP32')": "KeyError: 'FP32'",
    "pb_utils.numpy_to_triton_type(np.float32)": "11",
    "pb_utils.numpy_to_triton_type(np.bytes_)": "13",
    "pb_utils.numpy_to_triton_type(np.object_)": "13",
    "pb_utils.numpy_to_triton_type(np.str_)": "None",
    "pb_utils.numpy_to_triton_type(np.complex64)": "None",
    "pb_utils.triton_to_numpy_type(11)": "<class 'numpy.float32'>",
    "pb_utils.triton_to_numpy_type(13)": "<class 'numpy.object_'>",
    "pb_utils.triton_to_numpy_type(99)": "None",
    "pb_utils.serialize_byte_tensor(np.array([b'ab','c'],dtype=object))": r"b'\x02\x00\x00\x00ab\x01\x00\x00\x00c'",
    "pb_utils.serialize_byte_tensor(np.array([1],dtype=np.int32))": "None",
    "pb_utils.serialize_byte_tensor(np.zeros([0],dtype=object))": "()",
    r"pb_utils.deserialize_bytes_tensor(b'\x02\x00\x00\x00ab')": "array([b'ab'], dtype=object)",
    "pb_utils.get_input_config_by_name(json.loads(self.args['model_config']), 'IN')['data_type']": "'TYPE_FP32'",
    "pb_utils.get_output_config_by_name(json.loads(self.args['model_config']), 'NOPE')": "None",
    "pb_utils.using_decoupled_model_transaction_policy(json.loads(self.args['model_config']))": "False",
    "(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, "
    "pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)": "(1, 1, 2)",
    "r.get_response_sender().send(None, flags=7)": (
        "TritonModelException: Unable to send response. Unsupported flag provided."
    ),
    "r.get_response_sender().send()": (
        "TritonModelException: Inference Response object must be provided when the response flags is set to zero."
    ),
    "pb_utils.Logger.log_info('x')": "None",
    "__import__('triton_python_backend_utils') is pb_utils": "True",
}


@pytest.mark.parametrize("code", PROBES)
def test_pb_utils_answers_as_in_triton(probe: Any, code: str) -> None:
    fields = {
        "id": "rid",
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": True,
        "timeout": 1_000_000,
        "parameters": {"str": "a", "int": 3, "bool": True, "priority": 3},
    }
    assert probe(code, **fields) == PROBES[code]


# Nested requests

NESTED = """
inputs = [pb_utils.Tensor({input!r}, x)]
q = pb_utils.InferenceRequest(model_name={model!r}, requested_output_names=["OUT"], inputs=inputs)
p = q.exec()
if p.has_error(): raise pb_utils.TritonModelException(p.error().message())
""" + answer("pb_utils.get_output_tensor_by_name(p, 'OUT').as_numpy() + 1")


def test_exec_runs_another_model(opened: Opener) -> None:
    opened(body(answer("x * 2")), name="inner")
    outer = opened(body(NESTED.format(model="inner", input="IN")))
    big = np.ones((1, 200_000), np.float32)
    batch = outer.run(X, big)
    assert batch.one(0).as_numpy("OUT").tolist() == [[3, 5]]
    assert (batch.one(1).as_numpy("OUT") == 3).all()


@pytest.mark.parametrize(
    ("model", "name", "text"),
    [
        (
            "nope",
            "IN",
            "Model nope - Error when running inference: Failed for execute the inference request. "
            "Model 'nope' is not ready.",
        ),
        (
            "inner",
            "XX",
            "Model inner - Error when running inference: unexpected inference input 'XX' for model 'inner'",
        ),
        ("inner", "IN", "Failed to process the request(s) for model 'inner_0', message: ValueError: boom"),
        (
            "many",
            "IN",
            "Model many - Error when running inference: Model many is using the decoupled. The current BLS request "
            "call doesn't support models using the decoupled transaction policy. Please use",
        ),
    ],
)
def test_exec_gives_errors_in_tritons_words(opened: Opener, model: str, name: str, text: str) -> None:
    opened(body("raise ValueError('boom')"), name="inner")
    code = SEND.format("") + f"s.send({FINAL[2:]})"
    opened(body(code).replace("return out", "return None"), DECOUPLED, name="many")
    assert f"message: TritonModelException: {text}" in failure(opened(body(NESTED.format(model=model, input=name))))


def test_exec_of_a_decoupled_model_gives_an_iterator(opened: Opener) -> None:
    code = f"""
s = r.get_response_sender()
for i in range(3): s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x * i)]))
s.send({FINAL[2:]})
"""
    opened(body(code).replace("return out", "return None"), DECOUPLED, name="many")
    outer = """
q = pb_utils.InferenceRequest(model_name="many", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", x)])
got = [p.output_tensors()[0].as_numpy() for p in q.exec(decoupled=True) if p.output_tensors()]
"""
    model = opened(body(outer + answer("np.concatenate(got)")))
    assert model.run(X).one().as_numpy("OUT").tolist() == [[0, 0], [1, 2], [2, 4]]


def test_nested_requests_of_several_threads_run_at_once(opened: Opener) -> None:
    opened(body(answer("x * 2")), name="inner")
    code = """
def call(n):
    inputs = [pb_utils.Tensor("IN", x + n)]
    q = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["OUT"], inputs=inputs)
    got[n] = q.exec().output_tensors()[0].as_numpy()
got = {}
threads = [threading.Thread(target=call, args=(n,)) for n in range(16)]
for t in threads: t.start()
for t in threads: t.join()
"""
    model = opened(body(code + answer("np.concatenate([got[n] for n in range(16)])")))
    for _ in range(5):
        got = model.run(X).one().as_numpy("OUT")
        assert got.tolist() == [[2 + 2 * n, 4 + 2 * n] for n in range(16)]


def test_async_execute_gathers_nested_requests(opened: Opener) -> None:
    opened(body(answer("x * 2")), name="inner")
    source = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        calls = [pb_utils.InferenceRequest(model_name="inner", requested_output_names=["OUT"],
                 inputs=[pb_utils.Tensor("IN", x + n)]).async_exec() for n in range(8)]
        got = [p.output_tensors()[0].as_numpy() for p in await asyncio.gather(*calls)]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(got))])]
"""
    got = opened(source).run(X).one().as_numpy("OUT")
    assert got.tolist() == [[2 + 2 * n, 4 + 2 * n] for n in range(8)]


# Loading


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        (
            "raise RuntimeError('at import')\n",
            r"RuntimeError: at import\n\nAt:\n  \S*/m/1/model\.py\(4\): <module>\n  <frozen importlib",
        ),
        (
            "import nonexistent_xyz\n",
            r"ModuleNotFoundError: No module named 'nonexistent_xyz'\n\nAt:\n  \S*/m/1/model\.py\(4\): <module>",
        ),
        ("class Other: pass\n", r"AttributeError: module '1\.model' has no attribute 'TritonPythonModel'$"),
        ("def f(:\n", r"SyntaxError: .* \(model\.py, line 4\)$"),
        (
            "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('in initialize')\n",
            r"ValueError: in initialize\n\nAt:\n  \S*/m/1/model\.py\(6\): initialize\n$",
        ),
    ],
    ids=["import raises", "import missing", "no class", "syntax", "initialize raises"],
)
def test_a_model_that_cannot_start_fails_the_load_in_tritons_words(opened: Opener, source: str, pattern: str) -> None:
    with pytest.raises(BackendError) as caught:
        opened(source)
    assert re.match(pattern, caught.value.message), caught.value.message
    assert caught.value.code is Code.INTERNAL


def test_a_missing_file_is_named(host: Host, tmp_path: Path, mode: str) -> None:
    from python_host import context

    with pytest.raises(BackendError, match=r"Python model file not found in '.*/gone/1/model\.py'"):
        Model(host, context(host, tmp_path, "gone", None, mode=mode))


def test_another_file_name_may_be_configured(host: Host, tmp_path: Path, mode: str) -> None:
    from python_host import HEADER

    version = tmp_path / "named" / "1"
    version.mkdir(parents=True)
    (version / "other.py").write_text(HEADER + body(answer("x + 5")))
    model = open_model(host, tmp_path, "named", "raise RuntimeError", 'default_model_filename: "other.py"', mode)
    assert model.run(X).one().as_numpy("OUT").tolist() == [[6, 7]]
    model.close()


def test_helper_modules_beside_the_model_are_its_own(host: Host, tmp_path: Path, mode: str) -> None:
    before = set(sys.modules)
    models = []
    for name, value in (("one", 1), ("two", 2)):
        version = tmp_path / name / "1"
        (version / "package").mkdir(parents=True)
        (version / "helper.py").write_text(f"import triton_python_backend_utils as pb_utils\nVALUE = {value}\n")
        (version / "package" / "__init__.py").write_text("from package.part import PART\n")
        (version / "package" / "part.py").write_text("import helper\nPART = helper.VALUE * 10\n")
        (version.parent / "shared_helper.py").write_text(f"VALUE = {value * 100}\n")
        source = "import helper, package.part\nfrom package import PART\nimport os.path\n" + body(
            "from shared_helper import VALUE as late\n" + answer("x * 0 + helper.VALUE + package.part.PART + late")
        )
        models.append(open_model(host, tmp_path, name, source, mode=mode))
    assert [m.run(X).one().as_numpy("OUT")[0, 0] for m in models] == [111, 222]
    for model in models:
        model.close()
    left = [name for name in set(sys.modules) - before if "workbench_model" in name or name in ("helper", "package")]
    assert not left
    assert not [place for place in sys.path if str(tmp_path) in place]


def test_finalize_is_called_once_at_the_end(opened: Opener, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    model = opened(
        body(answer())
        + f"    def finalize(self):\n        open({str(mark)!r}, 'a').write('x')\n        print('bye', flush=True)\n"
    )
    model.run(X).one()
    model.close()
    assert mark.read_text() == "x"


def test_a_finalize_that_raises_is_logged(opened: Opener) -> None:
    model = opened(body(answer()) + "    def finalize(self):\n        raise ValueError('late')\n")
    model.close()
    opened.host.wait(lambda: any("finalize of 'm_0' failed: ValueError: late" in line[1] for line in opened.host.logs))


def test_logs_reach_the_server_with_their_level(opened: Opener) -> None:
    code = "\n".join(f"pb_utils.Logger.log_{n}('{opened.mode} {n}')" for n in ("info", "warn", "error", "verbose"))
    opened(body(code + "\n" + answer())).run(X).one()
    wanted = {("info", "info"), ("warning", "warn"), ("error", "error"), ("verbose", "verbose")}
    expected = {(level, f"{opened.mode} {name}", "m_0") for level, name in wanted}
    opened.host.wait(lambda: expected <= set(opened.host.logs))


def test_execution_mode_parameter_wins_and_nonsense_is_refused(host: Host, tmp_path: Path) -> None:
    from python_host import context

    def config(value: str) -> str:
        return f'parameters {{ key: "WORKBENCH_EXECUTION" value {{ string_value: "{value}" }} }}'

    model = open_model(host, tmp_path, "t", body(answer("x * 0 + os.getpid()")), config("thread"), "process")
    import os

    assert model.instance.kind == "thread"
    assert model.run(np.zeros((1, 1), np.float64)).one().as_numpy("OUT").item() == os.getpid()
    model.close()
    with pytest.raises(BackendError, match="is 'fork', expected 'process' or 'thread'"):
        Model(host, context(host, tmp_path, "u", body(answer()), config("fork")))


def test_config_json_is_handed_on_as_it_is(probe: Any) -> None:
    assert json.loads(eval(probe("self.args['model_config']")))["name"] == "probe"
