"""The model.py files of the topic ans: how a model may answer, from where, and in which order.

``ALONE`` are models that answer a request once, ``STREAMS`` decoupled ones: bodies of ``execute`` with the sender ``s``
of the first request and ``A``, an answer of one tensor OUT with its input. Both without a batch dimension, as the
endpoints ``generate`` and ``generate_stream`` give their inputs.

Not among them is what the real server of this release never answers: None in the list for a request whose sender was
taken and not used.
"""

from __future__ import annotations

from pathlib import Path

from models import put
from nested_models import written
from python_models import CODES, HEAD, model

_BEGIN = (
    "s = requests[0].get_response_sender()\nx = requests[0].inputs()[0].as_numpy()\n"
    "A = pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x)])\n"
    "F = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL\n"
    "def B(v):\n    return pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.full(1, v, np.float32))])\n"
    "def E(text, code=pb_utils.TritonError.INTERNAL):\n"
    "    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))\n"
    "def refused(function):\n"
    "    # what is added here is left out\n"
    "    return say(function).split(' A model that sends')[0]\n"
    "def note(value):\n" + "\n".join(f"    {line}" for line in written("said", "json.dumps(value)").splitlines()) + "\n"
)

ALONE = {
    # what execute returns
    "gives_tuple": "return (A,)",
    "gives_dict": "return {'OUT': A}",
    "gives_text": "return 'A'",
    "gives_bare": "return A",
    "gives_false": "return False",
    "gives_generator": "return (each for each in [A])",
    "gives_text_in_list": "return ['A']",
    "gives_tensor_in_list": "return [A.output_tensors()[0]]",
    "gives_error_in_list": "return [pb_utils.TritonError('bare')]",
    "gives_two": "return [A, A]",
    "gives_empty": "return []",
    "gives_no_outputs": "return [pb_utils.InferenceResponse([])]",
    "gives_unknown_output": "return [pb_utils.InferenceResponse([pb_utils.Tensor('NOPE', x)])]",
    "gives_outputs_twice": "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x), pb_utils.Tensor('OUT', "
    "x * 2)])]",
    "gives_other_type": "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x.astype(np.int64))])]",
    "gives_other_shape": "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x.reshape(1, -1, 1))])]",
    "gives_error_and_tensors": "return [pb_utils.InferenceResponse(A.output_tensors(), pb_utils.TritonError('both'))]",
    "gives_empty_text": "return [E('')]",
    "gives_long_text": "return [E('é' * 3000)]",
    # senders
    "sends_error": "s.send(E('sent', pb_utils.TritonError.NOT_FOUND), flags=F)",
    "sends_after_final": "s.send(A, flags=F)\nnote([refused(lambda: s.send(A)), refused(lambda: s.send(flags=F)), "
    "refused(lambda: s.send(A, flags=F))])",
    "sends_twice": "s.send(A)\ntold = refused(lambda: s.send(B(1)))\nnote(told)\ns.send(flags=F)",
    "sends_final_alone": "told = say(lambda: s.send(flags=F))\nnote(told)\ns.send(A, flags=F)",
    "sends_from_two": "t = requests[0].get_response_sender()\ns.send(A)\nt.send(flags=F)",
    "sends_on_thread": "t = threading.Thread(target=lambda: s.send(A, flags=F))\nt.start()\nt.join()",
    "sends_from_loop": "async def run():\n    s.send(A)\n    s.send(flags=F)\nasyncio.run(run())",
    "sends_none_in_list": "s.send(A, flags=F)\nreturn [None]",
    # exceptions
    "raises_nothing": "raise ValueError()",
    "raises_exit": "raise SystemExit('leaving')",
    "raises_chained": "try:\n    {}['k']\nexcept KeyError as error:\n    raise RuntimeError('second') from error",
    "raises_deep": "def one():\n    raise ValueError('line one\\nline two')\ndef two():\n    one()\ntwo()",
    "raises_triton_error": "raise pb_utils.TritonError('no exception')",
    "raises_not_ascii": "raise ValueError('é ☃')",
    "raises_stop": "raise StopIteration",
    "raises_assertion": "assert x.sum() < 0, 'too much'",
    "raises_after_sent": "s.send(A, flags=F)\nraise ValueError('afterwards')",
}

STREAMS = {
    "streams_three": "for v in range(3):\n    s.send(B(v))\ns.send(flags=F)",
    "streams_last_final": "s.send(B(0))\ns.send(B(1), flags=F)",
    "streams_nothing": "s.send(flags=F)",
    "streams_one": "s.send(A, flags=F)",
    "streams_after_final": "s.send(A, flags=F)\nnote([say(lambda: s.send(A)), say(lambda: s.send(flags=F))])",
    "streams_error": "s.send(E('broken', pb_utils.TritonError.UNAVAILABLE), flags=F)",
    "streams_error_then_final": "s.send(B(0))\ns.send(E('broken'))\ns.send(flags=F)",
    "streams_error_between": "s.send(B(0))\ns.send(E('broken'))\ns.send(B(2))\ns.send(flags=F)",
    "streams_list": "s.send(A, flags=F)\nreturn [A]",
    "streams_raises": "raise ValueError('at once')",
    "streams_empty_response": "s.send(pb_utils.InferenceResponse([]))\ns.send(B(1))\ns.send(flags=F)",
    "streams_on_threads": "ready = [threading.Event() for _ in range(4)]\ndef run(n):\n    ready[n].wait()\n"
    "    s.send(B(n))\n    ready[n + 1].set() if n < 3 else s.send(flags=F)\n"
    "for n in range(4):\n    threading.Thread(target=run, args=(n,)).start()\nready[0].set()",
    "streams_later": "import time\ndef run():\n    time.sleep(0.1)\n    s.send(B(1))\n    time.sleep(0.1)\n"
    "    s.send(B(2), flags=F)\nthreading.Thread(target=run).start()",
    "streams_two_senders": "t = requests[0].get_response_sender()\ns.send(B(0))\nt.send(B(1))\ns.send(B(2))\n"
    "t.send(flags=F)",
    "streams_unknown_output": "s.send(pb_utils.InferenceResponse([pb_utils.Tensor('NOPE', x)]))\ns.send(B(1), flags=F)",
    "streams_other_type": "s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x.astype(np.int64))]), flags=F)",
    "streams_many": "for v in range(500):\n    s.send(B(v))\ns.send(flags=F)",
}
_ASYNC = (
    HEAD + "\n\nclass TritonPythonModel:\n    async def execute(self, requests):\n"
    "        F = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL\n"
    "        for request in requests:\n            s = request.get_response_sender()\n            for v in range(3):\n"
    "                await asyncio.sleep(0.001)\n"
    "                s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.full(1, v, np.float32))]))\n"
    "            s.send(flags=F)\n"
)
_IN = 'input { name: "IN" data_type: TYPE_FP32 dims: -1 }\n'
_OUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: -1 }\n'
_DECOUPLED = "model_transaction_policy { decoupled: true }"


def body(code: str) -> str:
    """A model of these lines."""
    return model("\n        ".join((_BEGIN + code).splitlines()))


def build(root: Path) -> None:
    """Writes all of them."""
    codes = {
        f"streams_{code.lower()}": f"s.send(E('told', pb_utils.TritonError.{code}), flags=F)" for code in CODES
    }  # fmt: skip
    for name, code in ALONE.items():
        put(root, name, size=0, inputs=_IN, outputs=_OUT, source=body(code))
    for name, code in {**STREAMS, **codes}.items():
        put(root, name, _DECOUPLED, size=0, inputs=_IN, outputs=_OUT, source=body(code))
    put(root, "streams_awaiting", _DECOUPLED, size=0, inputs=_IN, outputs=_OUT, source=_ASYNC)
