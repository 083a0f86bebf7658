"""The model.py files of the topic bls: models that ask models of every kind, and what comes back to them.

``CALLS`` are bodies of ``execute`` for one request ``r`` with its input ``x`` (see ``python_models.saying``); ``REST``
are the models that they ask, as source, configuration and data type of the output.
"""

from __future__ import annotations

from pathlib import Path

from models import GATED, put, put_ensemble, step
from python_models import HEAD, model, saying

POLICY = (
    "dynamic_batching {{ default_queue_policy {{ timeout_action: REJECT default_timeout_microseconds: 300000 "
    "allow_timeout_override: {} }} }}"
)
_LATER = """found = {}
def run(n, name, **more):
    found[n] = told(nested(name, request_id=str(n), **more).exec())
started = [threading.Thread(target=run, args=(n, *a), kwargs=k) for n, (a, k) in enumerate(asked)]
[t.start() for t in started]
[t.join() for t in started]
said = [found[n] for n in range(len(asked))]"""
_WRITE = "with open(os.path.join(os.path.dirname(self.args['model_repository']), {!r}), 'w') as f:\n    f.write({})\n"


def written(name: str, text: str) -> str:
    """Lines that write a text into a file beside the models, in one piece."""
    return _WRITE.format(name + ".part", text) + (
        f"os.rename(*[os.path.join(os.path.dirname(self.args['model_repository']), n) for n in ('{name}.part', "
        f"'{name}')])\n"
    )


CALLS = {
    # timeouts, full queues
    "ask_queued": "asked = [(('overridable',), dict(timeout=50000)), (('overridable',), dict(timeout=9000000)), "
    "(('overridable',), {}), (('stubborn',), dict(timeout=50000)), (('stubborn',), {})]\n" + _LATER,
    "ask_patient": "asked = [(('patient',), dict(timeout=1000)), (('unbatched',), dict(timeout=1000))]\n" + _LATER,
    "ask_full": "said = [told(nested('narrow', request_id='second').exec())]",
    # cancellation
    "ask_left": written("ask_left.begun", "''")
    + "answer = told(nested('unbatched', request_id='inner').exec())\ns = r.get_response_sender()\n"
    "import time\nfor _ in range(500):\n    if r.is_cancelled():\n        break\n    time.sleep(0.01)\n"
    + written("ask_left.ended", "json.dumps([r.is_cancelled(), s.is_cancelled(), answer])")
    + "said = []",
    "ask_cancelled": "async def run():\n    q = nested('unbatched', parameters={'wait': 300}, request_id='inner')\n"
    "    try:\n        await asyncio.wait_for(q.async_exec(), 0.05)\n    except Exception as error:\n"
    "        first = type(error).__name__\n    t = asyncio.ensure_future(wrap(nested('echo')))\n    t.cancel()\n"
    "    each = await asyncio.gather(t, wrap(nested('echo')), return_exceptions=True)\n"
    "    return [first, type(each[0]).__name__, told(each[1])]\n"
    "async def wrap(q):\n    return await q.async_exec()\nsaid = [asyncio.run(run())]",
    "ask_broken_off": "import gc\nfound = nested('counted').exec(decoupled=True)\nfirst = told(next(found))\n"
    "del found\ngc.collect()\nsaid = [first, told(nested('echo').exec())]",
    "ask_untouched": "found = nested('counted').exec(decoupled=True)\ndel found\nsaid = [told(nested('echo').exec())]",
    "ask_two_streams": "a, b = nested('many').exec(decoupled=True), nested('many', x * 10).exec(decoupled=True)\n"
    "said = [[told(p), told(q)] for p, q in zip(a, b)]",
    # whom it asks
    "ask_ensemble": "said = [told(nested('chain').exec()), told(nested('chain', request_id='i', parameters={'a': 1})"
    ".exec()), [told(e) for e in nested('chain').exec(decoupled=True)], told(nested('chain_raising').exec()), "
    "told(nested('chain', model_version=2).exec()), told(nested('chain', outputs=['MID']).exec())]",
    # 2.51 sends an empty response after the last one, or not: whether its last step's end comes with it is chance
    "ask_stream_ensemble": "said = [told(nested('chain_many').exec()), [told(e) for e in nested('chain_many')"
    ".exec(decoupled=True) if e.has_error() or e.output_tensors()]]",
    "ask_sequence": "def go(flags, id=7):\n    return told(nested('tells_sequence', correlation_id=id, flags=flags)"
    ".exec())\nsaid = [go(1), go(0), go(2), go(3), go(0), go(0, 0), go(1, 0), go(1, 2**63), go(3, 2**63)]",
    "ask_sequence_in_string": "def go(flags, id):\n    return told(nested('tells_string', correlation_id=id, "
    "flags=flags).exec())\nsaid = [go(3, ''), go(0, 'unknown')]",
    "ask_flags_set": "q = nested('tells_sequence', correlation_id=11)\nq.set_flags(pb_utils."
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)\np = nested('tells_sequence', correlation_id=11, flags=pb_utils."
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)\nsaid = [told(q.exec()), q.flags(), told(p.exec()), told(p.exec())]",
    "ask_nobody": "said = [told(nested(n).exec()) for n in ('nope', 'at_home', 'broken', '')] + [told(nested('nope', "
    "model_version=3).exec()), [told(e) for e in nested('at_home').exec(decoupled=True)]]",
    "ask_wrong": "tensors = lambda **more: [pb_utils.Tensor(n, a) for n, a in more.items()]\n"
    "def go(*inputs, outputs=('OUT',)):\n    return told(pb_utils.InferenceRequest(model_name='echo', "
    "inputs=list(inputs), requested_output_names=list(outputs)).exec())\n"
    "f = np.float32\nsaid = [go(*tensors(IN=np.ones((9, 2), f))), go(*tensors(IN=np.ones(2, f))), "
    "go(*tensors(X=np.ones((1, 2), f))), "
    "go(*tensors(IN=np.ones((1, 2), np.float64))), go(*tensors(IN=np.ones((1, 1, 2), f))), "
    "go(*tensors(IN=np.zeros((0, 2), f))), go(*tensors(IN=np.array([[b'a']], object))), "
    "go(*tensors(IN=np.ones((1, 2), f)), outputs=['OUT', 'OUT'])]",
    "ask_extra": "inputs = [pb_utils.Tensor(n, x) for n in ('IN', 'X')]\nsaid = [told(pb_utils.InferenceRequest("
    "model_name='echo', inputs=inputs, requested_output_names=['OUT']).exec())]",
    "ask_two_outputs": "said = [told(nested('two', outputs=o).exec()) for o in (['OUT'], ['X'], ['OUT', 'X'], [])]",
    "ask_large": "big = np.arange(300000, dtype=np.float32).reshape(2, -1)\nfound = nested('echo', big).exec()\n"
    "said = [found.output_tensors()[0].as_numpy()[:, -1].tolist(), found.output_tensors()[0].shape()]",
    "ask_texts": "texts = np.array([['é', ''], ['b' * 3000, 'z']], object)\nfound = nested('texts', texts).exec()\n"
    "said = [told(found)[0][1][:2], found.output_tensors()[0].shape(), len(told(found)[0][1][2])]",
    "ask_fields": "def go(**more):\n    return told(nested('tells', **more).exec())\n"
    "said = [go(), go(request_id='inner'), go(request_id='é'), go(correlation_id=5), go(correlation_id=2**64 - 1), "
    "go(timeout=77), go(flags=3), go(flags=1, correlation_id=4), go(trace=r.trace()), go(model_version=1), "
    "go(model_version=-1), go(preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)), "
    "go(outputs=['X', 'OUT'])]",
    "ask_parameters": "def go(p):\n    return say(lambda: told(nested('tells', parameters=p).exec())[0][1])\n"
    "said = [go({'a': 1}), go({'a': -5, 'b': True, 'c': False, 'd': 'é', 'e': ''}), go({'a': 2**62}), go({'z': 1, "
    "'a': 2}), go({}), go(None)]",
    "ask_string_id": "said = [told(nested('tells', correlation_id=i).exec())[0][1][0][:9] for i in ('abc', 'x' * 128)]",
    "ask_again": "q = nested('tells', request_id='one', timeout=5, parameters={'a': 1})\n"
    "said = [told(q.exec()), told(q.exec()), [told(e) for e in q.exec(decoupled=True)]]",
    "ask_many_threads": "asked = [(('echo',), dict(array=x * n)) for n in range(16)]\n" + _LATER,
}
"""Models that ask others, and say what they got."""

_VERSIONS = (
    "said = [self.args['model_version']]\nif self.args['model_version'] == '2':\n"
    "    said.append(told(nested('versions', model_version=1).exec()))\n"
    "    said.append(told(nested('versions', model_version=9).exec()))"
)
_TELLS = (
    "said = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), "
    "sorted(r.requested_output_names()), r.trace().get_context()]"
)
_CONTROLS = (
    "said = {t.name(): t.as_numpy().ravel().tolist() for t in r.inputs()}\n"
    "said = [sorted(said.items()), r.correlation_id(), r.flags()]"
)
_ECHO = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', r.inputs()[0].as_numpy() * 2)]) for r in requests]"
_FINAL = "flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"
_DECOUPLED = "model_transaction_policy { decoupled: true }"
_COUNTED = (
    "n, s = 0, requests[0].get_response_sender()\n        for v in range(5):\n"
    "            s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.full((1, 1), v, np.float32))]))\n"
    f"            n += 1\n        s.send({_FINAL})\n        "
) + "\n        ".join(written("counted.seen", "json.dumps(n)").splitlines())
_MANY = (
    "s = requests[0].get_response_sender()\n        for v in requests[0].inputs()[0].as_numpy()[0]:\n"
    "            s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', v.reshape(1, 1))]))\n"
    f"        s.send({_FINAL})"
)
_GATHERS = (
    HEAD + "\n\nclass TritonPythonModel:\n    async def one(self, r):\n"
    "        a, b = await asyncio.gather(nested('echo', r.inputs()[0].as_numpy()).async_exec(), "
    "nested('echo').async_exec())\n"
    "        out = a.output_tensors()[0].as_numpy() + b.output_tensors()[0].as_numpy()\n"
    "        return pb_utils.InferenceResponse([pb_utils.Tensor('OUT', out)])\n\n"
    "    async def execute(self, requests):\n        return await asyncio.gather(*map(self.one, requests))\n"
)
_CORO = HEAD + "\n\nclass TritonPythonModel:\n    async def execute(self, requests):\n        "
_LAST = "\n    def finalize(self):\n" + "".join(
    f"        {line}\n"
    for line in (
        "said = say(lambda: told(nested('echo').exec()))\n" + written("finalizing.said", "json.dumps(said)")
    ).splitlines()
)
F, S = "TYPE_FP32", "TYPE_STRING"

REST: dict[str, tuple[str, str, str]] = {
    "echo": (model(_ECHO), "", F),
    "at_home": (model(_ECHO), "", F),
    "broken": ("import nonexistent_xyz\n", "", F),
    "overridable": (GATED, POLICY.format("true"), F),
    "stubborn": (GATED, POLICY.format("false"), F),
    "patient": (GATED, "dynamic_batching { }", F),
    "unbatched": (GATED, "", F),
    "narrow": (GATED, "dynamic_batching { default_queue_policy { max_queue_size: 1 } }", F),
    "counted": (model(_COUNTED), _DECOUPLED, F),
    "many": (model(_MANY), _DECOUPLED, F),
    "raising": (model("raise ValueError('not this')"), "", F),
    "tells": (saying(_TELLS), 'output { name: "X" data_type: TYPE_FP32 dims: 1 }', S),
    "tells_sequence": (
        saying(_CONTROLS),
        "sequence_batching { "
        'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } '
        'control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } } '
        'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }',
        S,
    ),
    "tells_string": (saying(_CONTROLS), "sequence_batching { }", S),
    "two": (
        model(
            "made = [pb_utils.Tensor(n, np.ones((1, 2), np.float32)) for n in ('OUT', 'X')]\n"
            "        return [pb_utils.InferenceResponse(made) for _ in requests]"
        ),
        'output { name: "X" data_type: TYPE_FP32 dims: -1 }',
        F,
    ),
    "gathers": (_GATHERS, "", F),
    "coroutine_raises": (_CORO + "raise ValueError('in a coroutine')\n", "", F),
    "coroutine_wrong": (_CORO + "return 5\n", "", F),
    "finalizing": (model(_ECHO, rest=_LAST), "", F),
    "initializing": (
        model(_ECHO, "self.args = args\n        raise ValueError(say(lambda: told(nested('echo').exec())))"),
        "",
        F,
    ),
}
_IN = 'input { name: "IN" data_type: TYPE_FP32 dims: -1 }\n'
_OUT = 'output {{ name: "OUT" data_type: {} dims: -1 }}\n'


def build(root: Path) -> None:
    """Writes all of them."""
    for name, code in CALLS.items():
        put(root, name, inputs=_IN, outputs=_OUT.format(S), source=saying(code))
    for name, (source, extra, kind) in REST.items():
        put(root, name, extra, inputs=_IN, outputs=_OUT.format(kind), source=source)
    put(
        root, "versions", "version_policy { all { } }", inputs=_IN, outputs=_OUT.format(S), source=saying(_VERSIONS),
        versions=("1", "2"),
    )  # fmt: skip
    put(root, "texts", inputs=_IN.replace(F, S), outputs=_OUT.format(S), source=model(_ECHO.replace(" * 2", "")))
    tensors = {"inputs": _IN, "outputs": _OUT.format(F)}
    for name, first in (("chain", "echo"), ("chain_raising", "raising"), ("chain_many", "many")):
        steps = (step(first, {"IN": "IN"}, {"OUT": "MID"}), step("echo", {"IN": "MID"}, {"OUT": "OUT"}))
        put_ensemble(root, name, *steps, extra=_DECOUPLED if first == "many" else "", **tensors)
