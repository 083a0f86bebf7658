"""The model.py files of the topic py: what each calls, and what it answers with.

``SAYING`` are bodies of ``execute`` for one request ``r`` with its input ``x``: what they put into ``said`` is the
answer, as JSON. ``WHOLE`` are whole files. Addresses are taken out of texts.

Not among them is what the real server of this release does not survive, or answers with something that is no HTTP: an
error on the server's side of a metric or a load (it dies now and then), a capsule of numpy's own, ``is_cancelled`` of a
request of one's own, an error behind a response in a stream that another model
reads (it waits for ever), a list beside a response that was sent. Those texts are recorded in
``backends/test_python_utils.py`` and ``backends/test_python.py``.
"""

from __future__ import annotations

from pathlib import Path

from models import put

HEAD = '''import asyncio
import json
import os
import re
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def say(function):
    """What a call gives, or raises."""
    try:
        return plain(function())
    except Exception as error:
        return f"{type(error).__name__}: {plain(str(error))}"


def plain(value):
    return re.sub("0x[0-9a-f]+", "0x", value if isinstance(value, str) else repr(value))


def nested(model, array=None, outputs=("OUT",), **more):
    array = np.array([[1, 2]], np.float32) if array is None else array
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[pb_utils.Tensor("IN", array)], requested_output_names=list(outputs), **more
    )


def told(response):
    if response.has_error():
        return [plain(str(response.error().code())), plain(response.error().message())]
    tensors = response.output_tensors()
    decoded = lambda values: [value.decode() if isinstance(value, bytes) else value for value in values]
    return [[each.name(), decoded(each.as_numpy().ravel().tolist())] for each in tensors]
'''

SAYING = {
    # the module and its functions
    "arguments": "said = [sorted(self.args), self.args['model_instance_kind'], self.args['model_instance_device_id'], "
    "self.args['model_instance_name'], self.args['model_version'], self.args['model_name'], "
    "os.path.basename(self.args['model_repository'])]",
    "directory": "said = [os.path.relpath(pb_utils.get_model_dir(), os.path.dirname(self.args['model_repository']))]",
    "constants": "names = [n for n in dir(pb_utils) if n.startswith('TRITON') and n.isupper()]\n"
    "said = [repr(getattr(pb_utils, n)) for n in names]\n"
    "said = [each for each in said if not each.startswith('{')] + [str(pb_utils.TRITONSERVER_MEMORY_GPU)]",
    "surface": "import c_python_backend_utils as c\n"
    "def names(o):\n    found = [n for n in dir(o) if not n.startswith('_') and n not in dir(Exception)]\n"
    "    return sorted(n for n in found if n not in ('json', 'np', 'struct'))\n"
    "inner = (c.InferenceResponseSender, c.InferenceTrace, c.Metric, c.ResponseIterator)\n"
    "kinds = {k.__name__: k for k in (*vars(pb_utils).values(), *inner) if isinstance(k, type)}\n"
    "said = [names(pb_utils)] + [[k, names(kinds[k])] for k in sorted(kinds) if k not in ('InferenceResponse', "
    "'ResponseIterator')]",
    "surface_later": "import c_python_backend_utils as c\n"
    "said = [[n for n in dir(k) if not n.startswith('_')] for k in (pb_utils.InferenceResponse, c.ResponseIterator)]",
    "inner": "import c_python_backend_utils as c\n"
    "said = [c.Tensor is pb_utils.Tensor, c.MetricKind.GAUGE.name, c.MemoryType.TRITONSERVER_MEMORY_CPU.value]",
    "numbers": "said = [repr(k and np.dtype(k)) for k in map(pb_utils.triton_to_numpy_type, range(16))]\n"
    "kinds = (bool, np.bool_, np.float32, np.dtype('int8'), np.object_, np.bytes_, np.complex64, 'x')\n"
    "said += [pb_utils.numpy_to_triton_type(each) for each in kinds]",
    "strings": "said = [repr(pb_utils.triton_string_to_numpy(n)) for n in sorted(pb_utils.TRITON_STRING_TO_NUMPY)]\n"
    "said.append(say(lambda: pb_utils.triton_string_to_numpy('TYPE_BF16')))",
    "by_name": "config = json.loads(self.args['model_config'])\n"
    "said = [pb_utils.get_input_config_by_name(config, 'IN')['dims'], pb_utils.get_input_config_by_name(config, 'X'), "
    "pb_utils.get_output_config_by_name(config, 'OUT')['data_type'], pb_utils.get_output_config_by_name(config, 'X'), "
    "pb_utils.using_decoupled_model_transaction_policy(config), pb_utils.get_input_tensor_by_name(r, 'IN').shape(), "
    "repr(pb_utils.get_input_tensor_by_name(r, 'X'))]",
    "serialize": "made = pb_utils.serialize_byte_tensor(np.array([b'ab', 'c', ''], object))\n"
    "back = pb_utils.deserialize_bytes_tensor(made)\n"
    "said = [repr(made), repr(back), repr(pb_utils.serialize_byte_tensor(np.array([], object))), "
    "say(lambda: pb_utils.serialize_byte_tensor(np.ones(2)))]",
    # tensors
    "tensor": "t = pb_utils.Tensor('t', np.arange(6, dtype=np.int16).reshape(2, 3))\n"
    "said = [t.name(), t.shape(), t.is_cpu(), t.as_numpy().tolist(), str(t.as_numpy().dtype)]",
    "dtypes": "said = [[str(pb_utils.Tensor('t', np.zeros(1, d)).as_numpy().dtype) for d in "
    "'?BHIQbhilefd'], say(lambda: pb_utils.Tensor('t', np.zeros(1, complex))), say(lambda: pb_utils.Tensor('t', "
    "np.array(['x']))), say(lambda: pb_utils.Tensor('t', np.zeros(1, '>i4')))]",
    "tensor_wrong": "said = [say(lambda: pb_utils.Tensor('', x)), say(lambda: pb_utils.Tensor('t', [1])), "
    "say(lambda: pb_utils.Tensor(1, x)[0]).split('Invoked')[0], say(lambda: pb_utils.Tensor('t'))]",
    "texts": "t = pb_utils.Tensor('t', np.array(['é', b'z', 5, None], object))\n"
    "f = pb_utils.Tensor('t', np.array([b'xy', b'z']))\n"
    "said = [repr(t.as_numpy()), t.shape(), repr(f.as_numpy()), f.shape()]",
    "order": "t = pb_utils.Tensor('t', np.arange(6).reshape(2, 3).T)\n"
    "said = [t.shape(), t.as_numpy().tolist(), t.as_numpy().flags.c_contiguous, pb_utils.Tensor('t', np.array(1.0))"
    ".shape(), pb_utils.Tensor('t', np.zeros((0, 2))).shape()]",
    "shared": "a = np.ones(3)\nt = pb_utils.Tensor('t', a)\na[0] = 7\nt.as_numpy()[1] = 8\n"
    "said = [a.tolist(), t.as_numpy().tolist(), x.flags.writeable]",
    "dlpack": "t = pb_utils.Tensor('t', np.arange(4, dtype=np.float32).reshape(2, 2))\n"
    "u = pb_utils.Tensor.from_dlpack('u', t.to_dlpack())\nw = pb_utils.Tensor.from_dlpack('w', t)\n"
    "said = [type(t.to_dlpack()).__name__, t.__dlpack_device__(), u.name(), u.shape(), u.as_numpy().tolist(), "
    "w.as_numpy().tolist(), np.from_dlpack(t).tolist()]",
    "dlpack_types": "said = [np.from_dlpack(pb_utils.Tensor('t', np.ones(2, d))).dtype.name for d in '?BHIQbhilefd']",
    "dlpack_wrong": "s = pb_utils.Tensor('s', np.array([b'a'], object))\n"
    "said = [say(s.to_dlpack), say(s.__dlpack__), s.__dlpack_device__(), say(lambda: pb_utils.Tensor.from_dlpack('t', "
    "5)), say(lambda: pb_utils.Tensor.from_dlpack('', s)), say(lambda: pb_utils.Tensor.from_dlpack('t')), say(lambda: "
    "pb_utils.Tensor.from_dlpack('t', np.arange(6).reshape(2, 3).T))]",
    # errors, responses
    "error": "e = pb_utils.TritonError('m', pb_utils.TritonError.NOT_FOUND)\nd = pb_utils.TritonError(message='n')\n"
    "said = [repr(e.code()), str(e.code()), int(e.code()), e.code() == 2, e.message(), repr(d.code()), "
    "isinstance(e, Exception), issubclass(pb_utils.TritonModelException, Exception), type(e.code()).__name__]",
    "error_wrong": "said = [say(lambda: pb_utils.TritonError('m', 2)), say(pb_utils.TritonError), "
    "say(lambda: pb_utils.TritonError(None)), say(lambda: pb_utils.TritonError('a', "
    "pb_utils.TritonError.INTERNAL, 3))]",
    "response": "a = pb_utils.InferenceResponse()\nb = pb_utils.InferenceResponse([pb_utils.Tensor('t', x)], None)\n"
    "c = pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError('no'))\n"
    "said = [[n.has_error(), repr(n.error() and n.error().message()), len(n.output_tensors())] for n in (a, b, c)]\n"
    "said += [pb_utils.get_output_tensor_by_name(b, 't').name(), repr(pb_utils.get_output_tensor_by_name(b, 'u'))]",
    "response_wrong": "said = [say(lambda: pb_utils.InferenceResponse(output_tensors=v)).split(' The')[0] for v in "
    "(None, [1], 5)] + [say(lambda: pb_utils.InferenceResponse([], 'x')).split(' The')[0]]",
    # requests
    "request": "said = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), "
    "sorted(r.requested_output_names()), [t.name() for t in r.inputs()], r.is_cancelled(), type(r.trace()).__name__, "
    "r.trace().get_context()]",
    "told": "said = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), "
    "sorted(r.requested_output_names())]",
    "dtype_numbers": "said = [say(pb_utils.Tensor('t', x).triton_dtype), say(lambda: r.inputs()[0].triton_dtype())]",
    "made": "q = nested('m')\np = nested('m', request_id='me', correlation_id=5, model_version=3, flags=3, timeout=99, "
    "parameters={'a': 1, 'b': 'é', 'c': True}, preferred_memory=pb_utils.PreferredMemory("
    "pb_utils.TRITONSERVER_MEMORY_CPU, 0), trace=r.trace())\n"
    "said = [[n.request_id(), n.correlation_id(), n.flags(), n.timeout(), n.parameters(), "
    "sorted(n.requested_output_names())] for n in (q, p)]\np.set_flags(1)\nsaid += [p.flags(), nested('m', "
    "correlation_id='abc').correlation_id()]",
    "made_wrong": "said = [say(lambda: nested('m', **more)) for more in ({'correlation_id': 1.5}, "
    "{'correlation_id': -1}, {'timeout': 'x'}, {'flags': -1}, {'request_id': 1}, {'preferred_memory': 1}, "
    "{'trace': None}, {'outputs': 'OUT'})]\nsaid = [each.split('Invoked')[0] for each in said]",
    "parameters": "said = [say(lambda: nested('m', parameters=p).parameters()) for p in (None, {}, {'a': 1}, [], "
    "{1: 2}, {'a': 2.5}, {'a': None}, {'a': [1]}, {'a': {}})]",
    "positional": "q = pb_utils.InferenceRequest('id', 7, [pb_utils.Tensor('IN', x)], ['OUT'], 'echo')\n"
    "said = [q.request_id(), q.correlation_id(), say(lambda: pb_utils.InferenceRequest('id')).split('Invoked')[-1], "
    "told(q.exec())]",
    "memory": "said = [say(lambda: pb_utils.PreferredMemory(1)), say(pb_utils.PreferredMemory), say(lambda: "
    "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 'x')), type(pb_utils.PreferredMemory("
    "preferred_memory_type=pb_utils.TRITONSERVER_MEMORY_GPU, preferred_device_id=1)).__name__]",
    "flags": "said = [say(lambda: r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)), say(lambda: "
    "r.set_release_flags('x')), say(lambda: nested('m').set_flags('x')), say(lambda: nested('m').set_flags(2)), "
    "say(lambda: nested('m').set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE))]",
    "sender_wrong": "s = r.get_response_sender()\nsaid = [s.is_cancelled(), say(lambda: s.send(None)), say(lambda: "
    "s.send(5)), say(lambda: s.send(None, flags=7)), say(lambda: s.send(None, flags=1)), say(lambda: s.send(None, "
    "flags='a')).split('Invoked')[0], type(s).__name__]",
    # nested requests
    "exec": "said = [told(nested('echo').exec()), told(nested('echo', model_version=1).exec()), "
    "type(nested('echo').exec()).__name__, told(nested('echo', outputs=()).exec())]",
    "exec_failing": "said = [told(nested('nope').exec()), told(nested('echo', model_version=9).exec()), "
    "told(nested('echo', outputs=['X']).exec()), told(nested('echo', x.astype(np.int32)).exec()), "
    "told(nested('raising').exec()), told(nested('refusing').exec()), told(nested('many').exec())]",
    "exec_none": "q = pb_utils.InferenceRequest(model_name='echo', inputs=[], requested_output_names=['OUT'])\n"
    "said = [told(q.exec()), told(q.exec()), say(lambda: q.exec(decoupled=None)).split('Invoked')[0]]",
    "exec_async": "async def run():\n    future = nested('echo').async_exec()\n    first = type(future).__name__\n"
    "    each = await asyncio.gather(future, *[nested('echo').async_exec() for _ in range(5)])\n"
    "    return [first, [told(one) for one in each]]\n"
    "said = [asyncio.run(run()), say(lambda: nested('echo').async_exec())]",
    "stream": "found = nested('many').exec(decoupled=True)\n"
    "said = [type(found).__name__, [told(each) for each in found], [told(each) for each in found]]",
    "stream_half": "found = nested('many').exec(decoupled=True)\nfirst = told(next(found))\n"
    "said = [first, [told(each) for each in found], len(list(found)), say(lambda: next(found))]",
    "stream_one": "said = [[told(each) for each in nested(m).exec(decoupled=True)] for m in ('echo', 'nope', 'none', "
    "'raising')]",
    "stream_async": "async def run():\n    found = await nested('many').async_exec(decoupled=True)\n"
    "    return [told(each) for each in found]\nsaid = [asyncio.run(run())]",
    "fields_through": "q = nested('fields', request_id='inner', correlation_id=0, timeout=1000000, "
    "parameters={'a': 1, 'b': 'x', 'c': True})\nsaid = [told(q.exec())]",
    "fields": "said = [r.request_id(), r.correlation_id(), r.timeout(), r.parameters(), r.flags()]",
    "threads": "found = {}\ndef run(n):\n    found[n] = told(nested('echo', x * n).exec())\n"
    "started = [threading.Thread(target=run, args=(n,)) for n in range(4)]\n[t.start() for t in started]\n"
    "[t.join() for t in started]\nsaid = [found[n] for n in range(4)]",
    "deep": "said = [told(nested('exec').exec())]",
    # log, metrics, other models
    "log": "said = [say(lambda: pb_utils.Logger.log('a')), say(lambda: pb_utils.Logger.log('a', "
    "pb_utils.Logger.WARNING)), say(lambda: pb_utils.Logger.log(message='a', level=pb_utils.Logger.LogLevel.ERROR)), "
    "say(lambda: pb_utils.Logger.log_info(message='a')), say(lambda: pb_utils.Logger.log_warn('a')), say(lambda: "
    "pb_utils.Logger.log_error('a')), say(lambda: pb_utils.Logger.log_verbose('a')), repr(pb_utils.Logger.INFO), "
    "int(pb_utils.Logger.VERBOSE), str(pb_utils.Logger.ERROR)]",
    "log_wrong": "said = [say(lambda: pb_utils.Logger.log(5)), say(lambda: pb_utils.Logger.log('a', 'info')), "
    "say(lambda: pb_utils.Logger.log_info(5)), say(pb_utils.Logger.log_warn), say(pb_utils.Logger)]",
    "metric_wrong": "f = pb_utils.MetricFamily('py_wrong', 'd', pb_utils.MetricFamily.COUNTER)\n"
    "h = pb_utils.MetricFamily('py_wrong_h', 'd', pb_utils.MetricFamily.HISTOGRAM)\nm = f.Metric()\n"
    "said = [say(lambda: f.Metric(labels='x')), say(lambda: f.Metric(buckets=[1])), say(h.Metric), say(lambda: "
    "h.Metric(buckets=(1, 2))), say(lambda: h.Metric(buckets=['a'])), say(lambda: m.increment('x')), say(lambda: "
    "m.value(1)), say(lambda: pb_utils.MetricFamily('x', 'y')), say(lambda: pb_utils.MetricFamily('x', 'y', 0)), "
    "say(lambda: pb_utils.MetricFamily(1, 'y', pb_utils.MetricFamily.GAUGE)), repr(pb_utils.MetricFamily.COUNTER)]\n"
    "del f\nsaid += [say(lambda: m.increment(1)), say(m.value), say(lambda: m.set(1)), say(lambda: m.observe(1))]",
    "loading": "import time\ndef gone():\n    for _ in range(500):\n        if not pb_utils.is_model_ready('other'):\n"
    "            return True\n        time.sleep(0.01)\n"
    "said = [pb_utils.is_model_ready('other'), say(lambda: pb_utils.load_model('other')), "
    "pb_utils.is_model_ready('other'), pb_utils.is_model_ready(model_name='other', model_version='1'), "
    "pb_utils.is_model_ready('other', '2'), told(nested('other').exec()), say(lambda: pb_utils.unload_model('other')), "
    "gone(), told(nested('other').exec()), say(lambda: pb_utils.unload_model(model_name='nope', "
    "unload_dependents=True)), pb_utils.is_model_ready('nope')]",
    "loading_changed": "config = json.loads(self.args['model_config'])\nconfig['name'] = 'other'\n"
    "config['output'][0]['data_type'] = 'TYPE_FP32'\nconfig['max_batch_size'] = 3\nconfig['instance_group'] = []\n"
    "source = b'import triton_python_backend_utils as p\\nclass TritonPythonModel:\\n    def execute(self, rs):\\n"
    '        return [p.InferenceResponse([p.Tensor("OUT", r.inputs()[0].as_numpy() + 40)]) for r in rs]\\n\'\n'
    "said = [say(lambda: pb_utils.load_model('other', config=json.dumps(config), files={'file:1/model.py': source})), "
    "told(nested('other').exec()), say(lambda: pb_utils.unload_model('other'))]",
    "loading_wrong": "said = [say(lambda: pb_utils.load_model('m', files='x')), say(lambda: pb_utils.load_model('m', "
    "files={'a': 'x'})), say(lambda: pb_utils.load_model('m', 3)), say(pb_utils.is_model_ready), say(lambda: "
    "pb_utils.is_model_ready('m', 1)), say(lambda: pb_utils.unload_model(5))]",
    # the configuration in the making
    "config": "c = pb_utils.ModelConfig(json.dumps({'name': 'm', 'max_batch_size': 0, 'input': [], 'output': []}))\n"
    "c.set_max_batch_size(4)\nc.set_dynamic_batching()\nc.set_model_transaction_policy({'decoupled': True})\n"
    "c.add_input({'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [1]})\n"
    "c.add_input({'name': 'B', 'data_type': 'TYPE_FP32', 'dims': [-1], 'optional': True})\n"
    "c.add_output({'name': 'C', 'data_type': 'TYPE_INT8', 'dims': [2]})\nsaid = [c.as_dict()]",
    "config_wrong": "c = pb_utils.ModelConfig(json.dumps({'name': 'm', 'max_batch_size': 8, 'input': [{'name': 'A', "
    "'data_type': 'TYPE_FP32', 'dims': [1]}], 'output': [{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [1]}], "
    "'sequence_batching': {}, 'model_transaction_policy': {'decoupled': False}}))\n"
    "bad = ({'name': 'A'}, {'data_type': 'TYPE_FP32', 'dims': [1]}, {'name': 'A', 'dims': [1]}, {'name': 'A', "
    "'data_type': 'TYPE_FP32', 'dims': [1], 'no': 1}, {'name': 'A', 'data_type': 'TYPE_FP16', 'dims': [1]}, "
    "{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [2]})\n"
    "said = [say(lambda: f(dict(b))) for f in (c.add_input, c.add_output) for b in bad]\n"
    "said += [say(lambda: c.set_max_batch_size(4)), say(c.set_dynamic_batching), say(lambda: "
    "c.set_model_transaction_policy({'decoupled': True})), say(lambda: c.set_model_transaction_policy({'x': 1}))]",
}

_ECHO = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', r.inputs()[0].as_numpy() * 2)]) for r in requests]"
COUNTS = """if not hasattr(self, "families"):
    kinds = pb_utils.MetricFamily
    self.families = [
        kinds("py_jobs", "Jobs done", kinds.COUNTER),
        kinds(name="py_level", description="Level", kind=kinds.GAUGE),
        kinds("py_took", "Took", kinds.HISTOGRAM),
    ]
    jobs, level, took = self.families
    labels = {"b": "x", "a": 'q"\\\\'}
    bounds = [0.1, 1, 10]
    self.metrics = [jobs.Metric(labels=labels), level.Metric(), took.Metric({"m": "n"}, bounds), jobs.Metric(labels)]
a, b, c, d = self.metrics
said = [a.increment(2.5), d.increment(1), b.set(7), b.increment(-2.5)] + [c.observe(v) for v in (0.05, 1, 5, 50)]
said += [a.value(), b.value(), d.value()]"""


TIDY = "\n    def finalize(self):\n        del self.metrics, self.families\n"


def model(execute: str, initialize: str = "self.args = args", rest: str = "") -> str:
    """A whole file from the bodies of its methods."""
    return (
        f"{HEAD}\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        {initialize}\n\n"
        f"    def execute(self, requests):\n        {execute}\n{rest}"
    )


def saying(code: str, rest: str = "") -> str:
    """A file that answers with what ``code`` has put into ``said``."""
    lines = "\n".join("            " + line for line in code.splitlines())
    return model(
        f"out = []\n        for r in requests:\n            x = r.inputs()[0].as_numpy()\n{lines}\n"
        "            text = np.array([[json.dumps(said)]], dtype=object)\n"
        "            out.append(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', text)]))\n        return out",
        rest=rest,
    )


_FINAL = "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"
_SENDER = "s = requests[0].get_response_sender()"
_DECOUPLED = "model_transaction_policy { decoupled: true }"
_ANSWER = "pb_utils.InferenceResponse([pb_utils.Tensor('OUT', requests[0].inputs()[0].as_numpy())])"
_FAIL = "pb_utils.InferenceResponse(error=pb_utils.TritonError('because', pb_utils.TritonError.{}))"
CODES = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"]

WHOLE: dict[str, tuple[str, str]] = {
    "echo": (model(_ECHO), ""),
    "other": (model(_ECHO), ""),
    "raising": (model("raise ValueError('not this')"), ""),
    "refusing": (model("return [" + _FAIL.format("NOT_FOUND") + "]"), ""),
    **{
        f"code_{code.lower()}": (model("return [" + _FAIL.format(code) + "]"), "")
        for code in CODES
    },
    "waits_for_it": (
        HEAD + "\n\nclass TritonPythonModel:\n    async def execute(self, requests):\n"
        f"        await asyncio.sleep(0.01)\n        {_ECHO}\n",
        "",
    ),
    "static": (
        HEAD + f"\n\nclass TritonPythonModel:\n    @staticmethod\n    def execute(requests):\n        {_ECHO}\n",
        "",
    ),
    "bare": (
        "import triton_python_backend_utils as pb_utils\n\n\nclass Base:\n    def execute(self, requests):\n"
        f"        {_ECHO}\n\n\nclass TritonPythonModel(Base):\n    pass\n",
        "",
    ),
    "says_none": (model(f"{_SENDER}\n        s.send({_ANSWER}, flags={_FINAL})"), ""),
    "says_late": (model(f"{_SENDER}\n        s.send({_ANSWER})\n        s.send(flags={_FINAL})"), ""),
    "prunes": (
        model(
            "made = [pb_utils.Tensor(n, np.ones((1, 2), np.float32)) for n in ('OUT', 'X')]\n"
            "        return [pb_utils.InferenceResponse(made)]"
        ),
        "",
    ),
    "tells": (model("return [pb_utils.InferenceResponse([], pb_utils.TritonError('told'))]"), ""),
    "model_exception": (model("raise pb_utils.TritonModelException('mine')"), ""),
    "ends": (model(_ECHO, rest="\n    def finalize(self):\n        raise RuntimeError('at the end')\n"), ""),
    "is_ready": (model(_ECHO, rest="\n    def is_ready(self):\n        return True\n"), ""),
    "is_not_ready": (model(_ECHO, rest="\n    def is_ready(self):\n        return False\n"), ""),
    "import_raises": ("raise RuntimeError('at import')\n", ""),
    "import_missing": ("import nonexistent_xyz\n", ""),
    "no_class": ("class Other:\n    pass\n", ""),
    "initialize_raises": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('i')\n",
        "",
    ),
    "many": (
        model(
            f"{_SENDER}\n        for v in requests[0].inputs()[0].as_numpy()[0]:\n"
            "            s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', v.reshape(1, 1))]))\n"
            f"        s.send(flags={_FINAL})"
        ),
        _DECOUPLED,
    ),
    "none": (model(f"{_SENDER}\n        s.send(flags={_FINAL})"), _DECOUPLED),
}  # fmt: skip

_IN = 'input { name: "IN" data_type: TYPE_FP32 dims: -1 }\n'
_OUT = 'output {{ name: "OUT" data_type: {} dims: -1 }}\n'


def build(root: Path) -> None:
    """Writes all of them."""
    files = {name: saying(code) for name, code in {**SAYING, "counts": COUNTS}.items()}
    files["counts_tidy"] = saying(COUNTS.replace("py_", "py_tidy_"), TIDY)
    for name, source in files.items():
        put(root, name, inputs=_IN, outputs=_OUT.format("TYPE_STRING"), source=source)
    for name, (source, extra) in WHOLE.items():
        put(root, name, extra, inputs=_IN, outputs=_OUT.format("TYPE_FP32"), source=source)
