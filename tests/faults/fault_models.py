"""A repository whose models fail on demand: an input asks for the fault."""

from __future__ import annotations

from pathlib import Path

PIECE = 1 << 20
DIES = 66

# What a model does when it is asked to, by the number in its input. It can use the modules imported below, x (the
# input), r (the request), fd (its end of the connection to the server), self.
FAULTS = {
    "segfault": "ctypes.string_at(0)",
    "abort": "os.abort()",
    "exit": "os._exit(3)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "memory": """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
try:
    hoard = [bytearray(1 << 20) for _ in range(1000)]
finally:
    hoard = None
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""",
    "starves its answer": """
import resource
answer = np.zeros(1 << 24, np.float32)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
""",
    "hangs": "while True: time.sleep(60)",
    "hangs with the GIL": "re.match(r'(a+)+b', 'a' * 64)",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)",
    "prints": f"""
piece = (b"z" * 127 + b"\\n") * ({PIECE} // 128)
for _ in range(int(r.parameters and json.loads(r.parameters()).get("pieces", 16))):
    os.write(1, piece)
    os.write(2, piece)
""",
    "prints without end of line": f"""
for _ in range(int(r.parameters and json.loads(r.parameters()).get("pieces", 16))):
    os.write(1, b"z" * {PIECE})
    sys.stderr.write("z" * {PIECE})
""",
    "prints from Python": f"""
for _ in range(int(r.parameters and json.loads(r.parameters()).get("pieces", 16)) * {PIECE} // 1024):
    print("z" * 1023)
    print("z" * 1023, file=sys.stderr)
""",
    "exits in a nested call": """
threading.Timer(0.02, os._exit, (4,)).start()
request = pb_utils.InferenceRequest(
    model_name="callee", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", x)])
request.exec()
""",
    "exits with nested calls open": """
requests = [pb_utils.InferenceRequest(
    model_name="callee", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", x)]) for _ in range(5)]
for request in requests:
    threading.Thread(target=request.exec).start()
time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL)
""",
    "writes garbage": "os.write(fd, os.urandom(1 << 14)); time.sleep(60)",
    "writes half a frame": "os.write(fd, struct.pack('<IIBBHIQ', 64, 0, 13, 0, 0x4257, 0, 0) + b'xyz'); os._exit(1)",
    "writes a frame of nonsense": (
        "os.write(fd, struct.pack('<IIBBHIQ', 5, 0, 13, 0, 0x4257, 0, 0) + marshal.dumps(7, 2)); time.sleep(60)"
    ),
    "closes its connection": "socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_WR); time.sleep(60)",
    "leaves a helper": """
if not os.fork():
    time.sleep(60)
    os._exit(0)
os._exit(5)
""",
    "closes its descriptor": "os.close(fd); time.sleep(60)",
}
NUMBERS = {name: 100 + index for index, name in enumerate(FAULTS)}

ANSWERED = {"memory", "prints", "prints without end of line", "prints from Python"}
"""Faults of which a model does not die: it answers, with an error or as ever."""

LIMITED = {"hangs", "hangs with the GIL", "stops"}
"""Faults that nothing but the limit on ``execute`` ends."""

_HEAD = """
import ctypes, json, marshal, os, re, signal, socket, struct, sys, threading, time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

fd = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else -1
HERE = Path(__file__).parents[1]


def mark(name):
    # whether a mark lies in the model's directory; it is taken away
    try:
        (HERE / name).unlink()
    except FileNotFoundError:
        return False
    return True

"""


def _indented(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.strip("\n").splitlines())


def _victim() -> str:
    branches = "\n".join(
        f"        if number == {NUMBERS[name]}:\n{_indented(code, 12)}" for name, code in FAULTS.items()
    )
    return (
        _HEAD
        + f"""
class TritonPythonModel:
    def initialize(self, args):
        if mark("die_in_initialize"):
            os._exit(9)
        if mark("fail_in_initialize"):
            raise ValueError("not now")
        if mark("hang_in_initialize"):
            time.sleep(60)

    def execute(self, requests):
        return [self.one(r) for r in requests]

    def one(self, r):
        x = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
        answer = x
        number = int(x[0])
{branches}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)])

    def finalize(self):
        if mark("die_in_finalize"):
            os.kill(os.getpid(), signal.SIGSEGV)
"""
    )


_ECHO = (
    _HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            time.sleep(SLEEP)
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
        return out
"""
)

_CALLER = (
    _HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(r) for r in requests]

    def one(self, r):
        answer = pb_utils.InferenceRequest(
            model_name="CALLEE", requested_output_names=["OUT"], inputs=[pb_utils.get_input_tensor_by_name(r, "IN")]
        ).exec()
        return pb_utils.InferenceResponse(error=answer.error()) if answer.has_error() else answer
"""
)

_COUNT = (
    _HEAD
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.counts = {}

    def execute(self, requests):
        out = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            if x[0] == DIES:
                os._exit(7)
            count = self.counts[r.correlation_id()] = self.counts.get(r.correlation_id(), 0) + 1
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(1, count, np.float32))]))
        return out
"""
)

_STREAM = (
    _HEAD
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            threading.Thread(target=self.answer, args=(r.get_response_sender(), int(x[0]))).start()

    def answer(self, sender, number):
        for index in range(100 if number == 3 else 5):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(1, index, np.float32))]))
            if number == 1 and index == 2:
                os._exit(6)
            if number == 2 and index == 2:
                self.kept.append(sender)  # and never sends the last one
                return
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)

_CONFIG = """backend: "python"
max_batch_size: 0
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def parameter(key: str, value: object) -> str:
    """A line for ``config.pbtxt``."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def put(root: Path, name: str, source: str, config: str = "") -> Path:
    """Writes a model; gives its directory."""
    version = root / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(source)
    (version.parent / "config.pbtxt").write_text(_CONFIG + config)
    return version.parent


def add_victim(root: Path, name: str = "victim", *, instances: int = 2, limit_s: float = 1.0, config: str = "") -> Path:
    """The model with the faults. ``limit_s`` is how long a batch may take."""
    limit = parameter("WORKBENCH_EXECUTE_TIMEOUT_S", limit_s) if limit_s else ""
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}\n"
    return put(root, name, _victim(), group + limit + config)


def add_echo(root: Path, name: str, *, sleep_s: float = 0.0, instances: int = 1) -> Path:
    """A model that answers with its input, after a while."""
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}\n"
    return put(root, name, _ECHO.replace("SLEEP", str(sleep_s)), group)


def add_stream(root: Path, name: str = "stream", *, limit_s: float = 0.0) -> Path:
    """A decoupled model: five responses, 100 for an input of 3; 1 makes it die after three, 2 fall silent."""
    limit = parameter("WORKBENCH_EXECUTE_TIMEOUT_S", limit_s) if limit_s else ""
    return put(root, name, _STREAM, "model_transaction_policy { decoupled: true }\n" + limit)


def add_caller(root: Path, name: str, callee: str) -> Path:
    """A model that passes its request on to another one, and that one's answer back."""
    return put(root, name, _CALLER.replace("CALLEE", callee))


def add_counter(root: Path, name: str, *, instances: int) -> Path:
    """A sequence model: answers with how many requests of the sequence there were; an input of DIES ends it."""
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}\n"
    batching = "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"
    return put(root, name, _COUNT.replace("DIES", str(DIES)), group + batching)
