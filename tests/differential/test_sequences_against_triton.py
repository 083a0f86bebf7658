"""Sequence batching on both sides: rows and control inputs, the backlog, idle sequences, states, iterative ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import HEAVY, Case, Sides, Talk, Topic
from models import put

pytestmark = HEAVY
TOPIC = Topic("seq", "Sequence batcher")
case = TOPIC.case

TOLD = '''import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """OUT tells the correlation id, the flags, the control inputs and the sum of IN since START.

    The request parameter hold waits for the file MODEL.ID.open beside the models.
    """

    def initialize(self, args):
        config = json.loads(args["model_config"])["sequence_batching"]
        self.inputs = [each["name"] for each in config.get("control_input", [])]
        self.inputs += [each["input_name"] for each in config.get("state", [])]
        self.name = args["model_name"]
        self.root = os.path.dirname(args["model_repository"].rstrip("/"))
        self.sums = {}

    def execute(self, requests):
        with open(os.path.join(self.root, self.name + ".batches"), "a") as file:
            file.write(json.dumps([request.request_id() for request in requests]) + "\\n")
        return [self.one(request) for request in requests]

    def one(self, request):
        given = pb.get_input_tensor_by_name(request, "IN").as_numpy()
        path = os.path.join(self.root, self.name + "." + request.request_id() + ".open")
        held = json.loads(request.parameters() or "{}").get("hold")
        for _ in range(60000 if held else 0):
            if os.path.exists(path):
                break
            time.sleep(0.001)
        seen = []
        for name in self.inputs:
            array = pb.get_input_tensor_by_name(request, name).as_numpy()
            seen.append([name, str(array.dtype), list(array.shape), str(array.ravel()[0])])
        key = request.correlation_id()
        if request.flags() & 1:
            self.sums[key] = 0
        self.sums[key] = self.sums.get(key, 0) + float(given.ravel()[0])
        text = json.dumps([key, request.flags(), seen, self.sums[key], float(given.ravel()[0])])
        return pb.InferenceResponse([pb.Tensor("OUT", np.full(given.shape[:-1] + (1,), text, dtype=np.object_))])
'''
STATES = (
    TOLD.replace(
        'pb.Tensor("OUT", np.full(given.shape[:-1] + (1,), text, dtype=np.object_))',
        'pb.Tensor("OUT", np.full(given.shape[:-1] + (1,), text, dtype=np.object_)), *self.states(request, given)',
    )
    + """
    def states(self, request, given):
        old = pb.get_input_tensor_by_name(request, "SUM").as_numpy()
        return [pb.Tensor("SUM_OUT", (old + given.ravel()[0]).astype(old.dtype))]
"""
)
AGAIN = '''import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """Gives a request back as often as IN says (9: with a response, which is an error); OUT tells what was seen."""

    def initialize(self, args):
        self.decoupled = pb.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))
        self.seen = {}

    def execute(self, requests):
        answers = [self.one(request) for request in requests]
        return None if self.decoupled else answers

    def one(self, request):
        times = int(pb.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[0])
        seen = self.seen.setdefault(request.request_id(), [])
        seen.append(request.flags())
        last = len(seen) > times
        text = json.dumps([seen, bool(request.correlation_id())])
        answer = pb.InferenceResponse([pb.Tensor("OUT", np.array([[text]], dtype=np.object_))])
        if last:
            del self.seen[request.request_id()]
        else:
            request.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        if self.decoupled:
            flags = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            request.get_response_sender().send(answer, flags=flags)
            return None
        return answer if last or times == 9 else None
'''
IN = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 }\n'
OUT = 'output { name: "OUT" data_type: TYPE_STRING dims: 1 }\n'
LONG = "max_sequence_idle_microseconds: 60000000\n"
SHORT = "max_sequence_idle_microseconds: 700000\n"
ITERATIVE = "iterative_sequence: true\n"
DECOUPLED = "model_transaction_policy { decoupled: true }"


def control(name: str, kind: str, value: str) -> str:
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {value} }} }}\n'


FLAGS = (
    control("START", "START", "int32_false_true: [ 0, 1 ]")
    + control("END", "END", "fp32_false_true: [ -1, 2 ]")
    + control("READY", "READY", "bool_false_true: [ false, true ]")
)
STATE = 'state { input_name: "SUM" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: 1 %s }\n'
ZERO = 'initial_state { name: "init" data_type: TYPE_FP32 dims: 1 zero_data: true }'
FILE = 'initial_state { name: "init" data_type: TYPE_FP32 dims: 1 data_file: "start" }'
REFUSED = {
    "bad_pair": "direct { }\n" + control("START", "START", "int32_false_true: [ 0 ]"),
    "bad_kinds": "direct { }\n" + control("A", "START", "int32_false_true: [ 0, 1 ]") * 2,
    "bad_corrid": "direct { }\n" + control("C", "CORRID", "data_type: TYPE_FP32"),
    "bad_share": "direct { minimum_slot_utilization: 1.5 }",
    "bad_preferred": "oldest { preferred_batch_size: 9 }",
    "bad_initial": STATE % 'initial_state { name: "init" data_type: TYPE_INT32 dims: 1 zero_data: true }',
    "bad_dims": STATE % 'initial_state { name: "init" data_type: TYPE_FP32 dims: 2 zero_data: true }',
    "bad_data": STATE % 'initial_state { name: "init" data_type: TYPE_FP32 dims: 1 }',
    "bad_file": STATE % FILE,
    "bad_growable": STATE % "use_growable_memory: true",
}


def build(root: Path) -> None:
    def add(name: str, text: str, *, source: str = TOLD, size: int = 4, extra: str = "", **fields: Any) -> None:
        put(
            root,
            name,
            f"sequence_batching {{ {text} }}\n{extra}",
            source=source,
            size=size,
            inputs=IN,
            outputs=OUT,
            **fields,
        )

    id64 = control("ID", "CORRID", "data_type: TYPE_UINT64")
    add("direct", LONG + "direct { }\n" + FLAGS + id64)
    add("plain", LONG + "direct { }\n" + FLAGS + id64, size=0)
    add("two", LONG + "direct { }\n", size=2, count=2)
    add("oldest", LONG + "oldest { max_candidate_sequences: 4 }\n" + FLAGS)
    add("few", LONG + "oldest { max_candidate_sequences: 2 }\n")
    add(
        "preferring",
        LONG + "oldest { max_candidate_sequences: 4 preferred_batch_size: 3 max_queue_delay_microseconds: 400000 }\n",
    )
    add("waiting", LONG + "direct { max_queue_delay_microseconds: 2500000 minimum_slot_utilization: 0.75 }\n")
    add("strings", LONG + "direct { }\n" + control("ID", "CORRID", "data_type: TYPE_STRING"))
    add("narrow", LONG + "direct { }\n" + control("ID", "CORRID", "data_type: TYPE_INT32"))
    add("bare", LONG)
    add("one", LONG + "direct { }\n", size=1)
    add("idle", SHORT + "direct { }\n", size=1)
    add("idle_oldest", SHORT + "oldest { max_candidate_sequences: 1 }\n")
    for name, initial in (("zero", ZERO), ("file", FILE), ("short_file", FILE)):
        add(name, LONG + "direct { }\n" + FLAGS + STATE % initial, source=STATES)
        (root / name / "initial_state").mkdir()
        content = np.array([1000] if name == "file" else [], np.float32).tobytes()
        (root / name / "initial_state" / "start").write_bytes(content)
    add("state_oldest", LONG + "oldest { max_candidate_sequences: 4 }\n" + STATE % ZERO, source=STATES)
    add("wrong_state", LONG + STATE.replace("SUM_OUT", "OTHER") % ZERO, source=STATES)
    add("again", ITERATIVE, source=AGAIN)
    add("again_one", ITERATIVE, source=AGAIN, size=1)
    add("stream", ITERATIVE, source=AGAIN, extra=DECOUPLED)
    for name, text in REFUSED.items():
        add(name, text)


def body(value: float, id: str = "q", rows: int = 1, **parameters: Any) -> dict[str, Any]:
    return Talk.body({"IN": [[value]] * rows}, id=id, **parameters)


def step(talk: Talk, model: str, value: float, sequence: int | str, marks: str = "", **fields: Any) -> None:
    """One request of a sequence; ``marks``: s for START, e for END."""
    flags = {name: True for name, mark in (("sequence_start", "s"), ("sequence_end", "e")) if mark in marks}
    talk.infer(model, {"IN": [[value]]}, sequence_id=sequence, **flags, **fields)


def all_flags() -> Iterator[str]:
    yield from ("s", "", "e", "se")


def starting(sequence: int, id: str, **fields: Any) -> dict[str, Any]:
    return body(sequence, id, sequence_id=sequence, sequence_start=True, **fields)


@case("seq-01 direct: rows, all control inputs, START and END together", rules=("3.4", "3.5", "3.9"))
def direct(talk: Talk) -> None:
    talk.load("direct")
    for marks in all_flags():
        step(talk, "direct", 2, 42, marks)
    for sequence in (1, 2, 3):
        step(talk, "direct", sequence, sequence, "s")
    for sequence in (3, 1, 2, 3):
        step(talk, "direct", sequence, sequence)
    for sequence in (2, 1, 3):
        step(talk, "direct", 9, sequence, "e")
    talk.stats("direct")


@case("seq-02 direct: a null row below a ready one", rules=("3.5", "3.9"))
def null_rows(talk: Talk) -> None:
    talk.load("direct")
    for sequence in (1, 2, 3, 4):
        step(talk, "direct", sequence, sequence, "s")
    for sequence in (1, 2):
        step(talk, "direct", 5, sequence, "e")
    step(talk, "direct", 6, 4)
    step(talk, "direct", 6, 9, "s")
    step(talk, "direct", 6, 9)
    talk.batches("direct")
    talk.stats("direct")


@case("seq-03 oldest: one request of a sequence at a time, several sequences together", rules=("3.6",))
def oldest(talk: Talk) -> None:
    talk.load("oldest")
    held = talk.hold("oldest", inputs={"IN": [[1]]}, sequence_id=9, sequence_start=True)
    sent = talk.queue("oldest", *(starting(n, f"s{n}") for n in (1, 2, 3)))
    sent += talk.queue("oldest", *(body(n, f"t{n}", sequence_id=n) for n in (1, 2, 3)))
    sent += talk.queue("oldest", *(body(n, f"e{n}", sequence_id=n, sequence_end=True) for n in (3, 2, 1)))
    talk.release(held)
    talk.answers(held, *sent)
    # how the later requests meet is chance: each is queued when the one before it in its sequence has been released
    found = [json.loads(line) for line in (talk.root / "oldest.batches").read_text().splitlines()]
    talk.note("first batches", found[:2])
    talk.note("of one sequence at a time", max(Counter(id[1] for id in batch).most_common(1)[0][1] for batch in found))
    talk.note("order in a sequence", sorted((id for batch in found for id in batch), key=lambda id: id[1]))


@case("seq-04 oldest: more sequences than candidates wait, whole", rules=("3.4", "3.6"))
def few(talk: Talk) -> None:
    talk.load("few")
    for sequence in (1, 2):
        step(talk, "few", 1, sequence, "s")
    waiting = talk.queue("few", starting(3, "third"), body(3, "third_end", sequence_id=3, sequence_end=True))
    step(talk, "few", 1, 1)
    step(talk, "few", 1, 2, "e")
    talk.answers(*waiting)
    step(talk, "few", 1, 1, "e")
    talk.stats("few")


@case("seq-05 oldest: preferred sizes and delay of the inner batcher", rules=("3.6", "1.4"))
def preferring(talk: Talk) -> None:
    talk.load("preferring")
    held = talk.hold("preferring", inputs={"IN": [[1]]}, sequence_id=9, sequence_start=True)
    sent = talk.queue("preferring", *(starting(n, f"s{n}") for n in (1, 2, 3)))
    talk.release(held)
    talk.answers(held, *sent)
    step(talk, "preferring", 1, 2)
    talk.batches("preferring")
    talk.stats("preferring")


@case("seq-06 direct: minimum_slot_utilization waits for so many slots, or for the delay", rules=("3.5",))
def utilization(talk: Talk) -> None:
    talk.load("waiting")
    sent = [talk.send("waiting", starting(n, f"s{n}")) for n in (1, 2, 3)]
    talk.answers(*sent)
    step(talk, "waiting", 1, 1)
    talk.batches("waiting")
    talk.stats("waiting")


@case("seq-07 no batching: controls have the shape [1]", rules=("3.9",))
def no_batching(talk: Talk) -> None:
    talk.load("plain")
    for marks in all_flags():
        talk.infer("plain", {"IN": [2]}, sequence_id=7, sequence_start="s" in marks, sequence_end="e" in marks)
    talk.infer("plain", {"IN": [2]}, sequence_id=7)
    talk.stats("plain")


@case(
    "seq-08 string ids, with and without a control for them",
    rules=("3.3",),
    differs={
        'strings/infer q IN[1,1] {"sequence_id": "forty-two"': "2.51's Python backend counts the string "
        "of a correlation id twice and fails the request",
        'strings/infer q IN[1,1] {"sequence_id": 5': "the same; later releases check the type as is done here",
        "stats strings": "what failed there has succeeded here",
    },
)
def strings(talk: Talk) -> None:
    talk.load("bare")
    talk.load("strings")
    for marks in all_flags():
        step(talk, "bare", 2, "forty-two", marks)
    step(talk, "bare", 2, "42", "s")
    step(talk, "bare", 2, 42, "s")
    step(talk, "bare", 3, "42", "e")
    step(talk, "bare", 3, 42, "e")
    step(talk, "strings", 2, "forty-two", "se")
    step(talk, "strings", 2, 5, "s")
    step(talk, "strings", 2, "five")
    talk.stats("bare")
    talk.stats("strings")


@case(
    "seq-09 integer ids that do not fit their control, or the largest there is",
    rules=("3.3", "3.9"),
    differs={
        '"sequence_id": "five"': "2.51 copies the bytes of a string into the integer, later releases check the type "
        "as is done here",
        "stats narrow": "that request succeeded there",
    },
)
def integers(talk: Talk) -> None:
    talk.load("narrow")
    for sequence in (2**31 - 1, 2**31 + 5, 2**32 + 5, 2**63 - 1, "five"):
        step(talk, "narrow", 1, sequence, "se")
    talk.load("direct")
    for sequence in (2**63 - 1, 2**63 + 1, 2**64 - 1):
        step(talk, "direct", 1, sequence, "se")
    talk.stats("narrow")


@case("seq-10 what is refused, in words", rules=("3.1", "3.2"))
def refusals(talk: Talk) -> None:
    talk.load("direct")
    talk.infer("direct", {"IN": [[1]]})
    step(talk, "direct", 1, 0, "s")
    step(talk, "direct", 1, "", "s")
    step(talk, "direct", 1, 5)
    step(talk, "direct", 1, 5, "e")
    step(talk, "direct", 1, -5, "s")
    step(talk, "direct", 1, True, "s")
    for rows in (2, 5):
        talk.infer("direct", {"IN": [[1]] * rows}, sequence_id=6, sequence_start=True)
    talk.infer("direct", {"IN": [[1, 2]]}, sequence_id=6, sequence_start=True)
    talk.infer("direct", {"IN": [[1]]}, sequence_id=6, sequence_start="yes")
    talk.stats("direct")


@case("seq-11 a second START on a live id goes on in its slot; after END the id is free", rules=("3.4",))
def started_twice(talk: Talk) -> None:
    talk.load("direct")
    step(talk, "direct", 1, 1, "s")
    step(talk, "direct", 1, 2, "s")
    step(talk, "direct", 7, 1, "s")
    step(talk, "direct", 1, 1)
    step(talk, "direct", 1, 1, "e")
    step(talk, "direct", 1, 1)
    step(talk, "direct", 1, 1, "s")
    talk.stats("direct")


@case("seq-12 the backlog: whole sequences, first come first served", rules=("3.4",))
def backlog(talk: Talk) -> None:
    talk.load("one")
    held = talk.hold("one", inputs={"IN": [[1]]}, sequence_id=1, sequence_start=True)
    sent = talk.queue("one", starting(2, "b1"), starting(3, "c1"), body(2, "b2", sequence_id=2))
    sent += talk.queue("one", body(3, "c2", sequence_id=3, sequence_end=True))
    sent += talk.queue("one", body(2, "b3", sequence_id=2, sequence_end=True))
    sent += talk.queue("one", body(1, "a2", sequence_id=1, sequence_end=True))
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches("one")
    talk.stats("one")


@case("seq-13 a timeout counts in the backlog only", rules=("3.8",))
def backlog_timeout(talk: Talk) -> None:
    talk.load("one")
    step(talk, "one", 1, 1, "s", timeout=1000)
    sent = [talk.send("one", starting(2, "late", timeout=300000))]
    talk.answers(*sent)
    talk.infer("one", {"IN": [[1]]}, sequence_id=2)
    step(talk, "one", 1, 1, "e")
    step(talk, "one", 1, 2, "se")
    talk.stats("one")


@case("seq-14 of a sequence in the backlog the smallest timeout counts, for all its requests", rules=("3.8",))
def backlog_timeouts(talk: Talk) -> None:
    talk.load("one")
    step(talk, "one", 1, 1, "s")
    sent = talk.queue("one", starting(2, "b1"), body(2, "b2", sequence_id=2, timeout=400000), starting(3, "c1"))
    talk.answers(*sent[:2])
    step(talk, "one", 1, 1, "e")
    talk.answers(sent[2])
    talk.stats("one")


@case("seq-15 an idle sequence gives its slot to the backlog, and is unknown then", rules=("3.7",))
def idle(talk: Talk) -> None:
    for name in ("idle", "idle_oldest"):
        talk.load(name)
        step(talk, name, 1, 1, "s")
        step(talk, name, 2, 2, "s")
        step(talk, name, 1, 1)
        step(talk, name, 2, 2, "e")
        talk.stats(name)


@case("seq-16 two instances: slots are taken from the lowest number on", rules=("3.4",))
def two_instances(talk: Talk) -> None:
    talk.load("two")
    for sequence in range(1, 5):
        step(talk, "two", sequence, sequence, "s")
    waiting = talk.queue("two", starting(5, "fifth"))
    step(talk, "two", 1, 3, "e")
    talk.answers(*waiting)
    for sequence in (1, 2, 4, 5):
        step(talk, "two", sequence, sequence, "e")
    talk.stats("two")


@case("seq-17 implicit states: zeros, then what the response before said", rules=("3.10",))
def zero_states(talk: Talk) -> None:
    for name in ("zero", "state_oldest"):
        talk.load(name)
        for sequence in (1, 2):
            step(talk, name, 10 * sequence, sequence, "s")
        for value in (1, 2):
            for sequence in (2, 1):
                step(talk, name, value, sequence)
        step(talk, name, 5, 1, "s")
        step(talk, name, 5, 1, "e")
        step(talk, name, 5, 3, "s")
        talk.infer(name, {"IN": [[5]]}, sequence_id=3, outputs=["SUM_OUT"])
        talk.infer(name, {"IN": [[5]]}, sequence_id=3, outputs=["OUT"])
        step(talk, name, 5, 3)
        talk.stats(name)


@case(
    "seq-18 implicit states: the file of an initial state; one that is too short; an output that is no state",
    rules=("3.10",),
)
def file_states(talk: Talk) -> None:
    talk.load("file")
    for sequence in (1, 2):
        step(talk, "file", sequence, sequence, "s")
        step(talk, "file", sequence, sequence)
    step(talk, "file", 1, 1, "se")
    talk.load("short_file")
    talk.load("wrong_state")
    step(talk, "wrong_state", 1, 1, "s")
    step(talk, "wrong_state", 1, 1)


@case(
    "seq-19 configurations that are refused at load",
    rules=("3.3", "3.9", "3.10"),
    differs={
        "bad_growable": "2.51 loads it and writes its refusal to the log at each sequence's start, whose model then "
        "gets no state; here the load fails with that text"
    },
)
def refused_at_load(talk: Talk) -> None:
    for name in REFUSED:
        talk.load(name)


FAILS = "2.51 counts the null request that ends an iterative sequence as a failure; nobody's request failed"


@case(
    "seq-20 iterative: executed until it is not given back; flags and counts",
    rules=("3.11",),
    differs={"again/1 fail": FAILS},
)
def iterative(talk: Talk) -> None:
    talk.load("again")
    for times in (0, 3):
        talk.infer("again", {"IN": [[times]]}, id=f"r{times}")
    step(talk, "again", 2, 5, "s")
    step(talk, "again", 2, 7)
    talk.infer("again", {"IN": [[9]]}, id="both")
    talk.stats("again")


@case("seq-21 iterative: requests take turns in one slot each", rules=("3.11",), differs={"again_one/1 fail": FAILS})
def iterative_queue(talk: Talk) -> None:
    talk.load("again_one")
    talk.together("again_one", [Talk.body({"IN": [[times]]}, id=f"r{times}") for times in (3, 1, 2)])
    talk.stats("again_one")


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
