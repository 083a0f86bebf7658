"""Ensembles on both sides: the flow of tensors, what steps are told, errors, streams, loading, counts.

Not compared: a branch that fails while another one runs, which ends 2.51 with a signal now and then.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from harness import HEAVY, PATIENCE_S, Case, Sides, Talk, Topic
from models import put, put_ensemble, step

pytestmark = HEAVY
TOPIC = Topic("ens", "Ensembles")
case = TOPIC.case

PLUS = '''import triton_python_backend_utils as pb


class TritonPythonModel:
    """OUT is IN + 1; 13 is an error, 20 has no output."""

    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb.get_input_tensor_by_name(request, "IN").as_numpy()
            if given.ravel()[0] == 13:
                answers.append(pb.InferenceResponse(error=pb.TritonError("thirteen")))
            elif given.ravel()[0] == 20:
                answers.append(pb.InferenceResponse([]))
            else:
                answers.append(pb.InferenceResponse([pb.Tensor("OUT", given + 1)]))
        return answers
'''
TELL = '''import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """OUT tells what the request says, TELLS is passed on behind it."""

    def execute(self, requests):
        answers = []
        for request in requests:
            told = pb.get_input_tensor_by_name(request, "TOLD")
            before = json.loads(told.as_numpy().ravel()[0]) if told is not None else []
            shape = [pb.get_input_tensor_by_name(request, "IN").as_numpy().shape[0], 1]
            says = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
                    json.loads(request.parameters() or "{}"), sorted(request.requested_output_names())]
            array = np.full(shape, json.dumps([*before, says]), dtype=np.object_)
            answers.append(pb.InferenceResponse([pb.Tensor("OUT", array)]))
        return answers
'''
JOIN = '''import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """OUT is IN + 10 * MORE, where MORE is given; 100 more where it is not; 55 is an error."""

    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb.get_input_tensor_by_name(request, "IN").as_numpy()
            more = pb.get_input_tensor_by_name(request, "MORE")
            made = given + 100 if more is None else given + 10 * more.as_numpy()
            if made.ravel()[0] == 55:
                answers.append(pb.InferenceResponse(error=pb.TritonError("fifty-five")))
                continue
            answers.append(pb.InferenceResponse([pb.Tensor("OUT", made.astype(np.float32))]))
        return answers
'''
COUNT = '''import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """As many responses as IN says, each with its number; 7 breaks off with an error after three."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            given = pb.get_input_tensor_by_name(request, "IN").as_numpy()
            count = int(given.ravel()[0])
            for index in range(count):
                if count == 7 and index == 3:
                    time.sleep(1)
                    sender.send(pb.InferenceResponse(error=pb.TritonError("seven")))
                    break
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.full_like(given, index))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
'''
X = 'input { name: "X" data_type: TYPE_FP32 dims: 2 }\n'
TOLD = 'output { name: "OUT" data_type: TYPE_STRING dims: 1 }\n'
DECOUPLED = "model_transaction_policy { decoupled: true }"
FULL = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
LEVELS = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
HASTY = (
    "dynamic_batching { default_queue_policy { default_timeout_microseconds: 300000 allow_timeout_override: true } }"
)
TWICE = "2.51 counts a failed request of an ensemble twice"
ANSWERED = "2.51's Python backend counts a request that it answers with an error as a success"


def y(*names: str, kind: str = "TYPE_FP32 dims: 2") -> str:
    return "".join(f'output {{ name: "{name}" data_type: {kind} }}\n' for name in names or ("Y",))


def one(model: str, source: str, target: str, version: int = -1, names: tuple[str, str] = ("IN", "OUT")) -> str:
    return step(model, {names[0]: source}, {names[1]: target}, version)


def build(root: Path) -> None:
    def ensemble(name: str, *steps: str, outputs: str = "", **fields: Any) -> None:
        put_ensemble(root, name, *steps, **{"size": 4, "inputs": X} | fields, outputs=outputs or y())

    def plus(name: str, size: int = 4, **fields: Any) -> None:
        put(root, name, size=size, source=PLUS, **fields)

    for name in ("a", "b", "c", "g", "p", "q", "r", "s"):
        plus(name)
    plus("small", 2)
    plus("plain", 0)
    plus("versions", versions=("1", "2"), extra="version_policy { all { } }")
    (root / "versions" / "2" / "model.py").write_text(PLUS.replace("given + 1", "given + 1000"))
    plus("broken")
    (root / "broken" / "1" / "model.py").write_text("raise ValueError('at import')")
    plus("bad_config")
    (root / "bad_config" / "config.pbtxt").write_text("max_batch_size: {")
    told = """input { name: "IN" data_type: TYPE_FP32 dims: 2 }
    input { name: "TOLD" data_type: TYPE_STRING dims: 1 optional: true }
    """
    put(root, "tell", size=4, source=TELL, inputs=told, outputs=TOLD)
    more = 'input { name: "IN" data_type: TYPE_FP32 dims: 2 } input { name: "MORE" data_type: TYPE_FP32 dims: 2 %s }\n'
    put(root, "join", size=4, source=JOIN, inputs=more % "")
    put(root, "maybe", size=4, source=JOIN, inputs=more % "optional: true")
    put(root, "count", DECOUPLED, size=4, source=COUNT)
    put(root, "count_two", DECOUPLED, size=4, source=COUNT)
    put(root, "breaks", DECOUPLED, size=4, source=COUNT)
    scalar = 'input { name: "IN" data_type: TYPE_FP32 dims: 2 reshape { shape: [ 1, 2 ] } }\n'
    put(
        root,
        "shaped",
        size=4,
        source=PLUS,
        inputs=scalar,
        outputs=scalar.replace("input", "output").replace("IN", "OUT"),
    )
    for name, extra in (("g1", ""), ("g2", ""), ("full", FULL), ("levels", LEVELS), ("hasty", HASTY)):
        put(root, name, extra, size=1)

    ensemble("chain", one("a", "X", "t"), one("b", "t", "Y"))
    ensemble("backwards", one("b", "t", "Y"), one("a", "X", "t"))
    ensemble("same", one("a", "X", "t"), one("a", "t", "u"), one("a", "u", "Y"))
    ensemble("forked", one("a", "X", "Y"), one("b", "X", "Z"), outputs=y("Y", "Z"))
    ensemble("inner", one("a", "X", "t"), one("b", "t", "Y"), outputs=y("Y", "t"))
    joined = step("join", {"IN": "t", "MORE": "u"}, {"OUT": "Y"})
    ensemble("diamond", one("a", "X", "t"), one("b", "X", "u"), joined)
    ensemble("three", one("a", "X", "t"), one("b", "t", "u"), one("c", "u", "Y"))
    last = step("a", {"IN": "v"}, {"OUT": "Y"})
    ensemble("joined", one("b", "X", "t"), one("c", "X", "u"), joined.replace('"Y"', '"v"'), last)
    ensemble("optional", one("a", "X", "t"), one("b", "X", "u"), joined.replace("join", "maybe"))
    ensemble("aside", one("g1", "X", "t"), one("g2", "X", "u"), joined, size=1)
    ensemble("mixed", one("plain", "X", "t"), one("b", "t", "Y"), size=0)
    ensemble("mixed_too", one("b", "X", "t"), one("plain", "t", "Y"), size=0)
    ensemble("mixed_up", one("b", "X", "t"), one("plain", "t", "Y"), size=1)
    ensemble("reshaped", one("shaped", "X", "t"), one("a", "t", "Y"))
    ensemble("nested", one("chain", "X", "t", names=("X", "Y")), one("c", "t", "Y"))
    second = step("tell", {"IN": "X", "TOLD": "t"}, {"OUT": "Y"})
    ensemble("told", one("tell", "X", "t"), second, outputs=y(kind="TYPE_STRING dims: 1"))
    ensemble("first", one("versions", "X", "Y", 1))
    ensemble("latest", one("versions", "X", "Y"))
    ensemble("to_full", one("g1", "X", "t"), one("full", "t", "Y"), size=1)
    ensemble("to_levels", one("g1", "X", "t"), one("levels", "t", "Y"), size=1)
    ensemble("to_hasty", one("hasty", "X", "Y"), size=1)
    # models of their own: 2.51 does not let go of some that an ensemble's failed request has used
    ensemble("pq", one("p", "X", "t"), one("q", "t", "Y"))
    ensemble("pqr", one("pq", "X", "t", names=("X", "Y")), one("r", "t", "Y"))
    ensemble("ss", one("s", "X", "t"), one("s", "t", "Y"))
    ensemble("stream_breaks", one("breaks", "X", "t"), one("g", "t", "Y"))
    ensemble("stream", one("count", "X", "t"), one("a", "t", "Y"))
    ensemble("stream_last", one("a", "X", "t"), one("count", "t", "Y"))
    ensemble("stream_both", one("count", "X", "t"), step("join", {"IN": "t", "MORE": "X"}, {"OUT": "Y"}))
    ensemble("streams", one("count", "X", "t"), one("count_two", "X", "u"), joined)
    ensemble("missing", one("a", "X", "t"), one("nope", "t", "Y"))
    ensemble("on_bad", one("bad_config", "X", "Y"))
    ensemble("on_broken", one("broken", "X", "Y"))
    ensemble("above", one("on_broken", "X", "Y", names=("X", "Y")))
    ensemble("second", one("a", "X", "Y", 2))
    ensemble("on_small", one("small", "X", "Y"))
    ensemble("no_input", one("a", "X", "Y", names=("NOPE", "OUT")))
    ensemble("no_output", one("a", "X", "Y", names=("IN", "NOPE")))
    ensemble("types", one("tell", "X", "Y"))
    ensemble("shapes", one("a", "X", "Y"), outputs=y(kind="TYPE_FP32 dims: 3"))
    ensemble("circle", one("circle", "X", "Y", names=("X", "Y")))
    ensemble("round", one("about", "X", "Y", names=("X", "Y")))
    ensemble("about", one("round", "X", "Y", names=("X", "Y")))
    value = "data_type: TYPE_FP32 dims: 2 zero_data: true"
    warmup = f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "X" value {{ {value} }} }} }}'
    ensemble("warm", one("a", "X", "Y"), extra=warmup)
    ensemble("grouped", one("a", "X", "Y"), extra="instance_group { count: 2 }")
    ensemble("batched", one("a", "X", "Y"), extra="dynamic_batching { }")
    ensemble("unused", one("a", "X", "Y"), one("b", "X", "t"))
    ensemble("written_twice", one("a", "X", "Y"), one("b", "X", "Y"))
    ensemble("unwritten", one("a", "t", "Y"), one("b", "X", "u"))


def x(value: float = 1, rows: int = 1) -> dict[str, Any]:
    return {"X": [[value, value]] * rows if rows else [value, value]}


def body(id: str, value: float = 1, **fields: Any) -> dict[str, Any]:
    return Talk.body(x(value), id=id, **fields)


PARTS = {
    "chain": "a b", "backwards": "a b", "same": "a", "forked": "a b", "inner": "a b", "diamond": "a b join",
    "three": "a b c", "joined": "a b c join", "optional": "a b maybe", "aside": "g1 g2 join", "mixed": "plain b",
    "mixed_too": "plain b", "mixed_up": "plain b", "reshaped": "shaped a", "nested": "a b c chain", "told": "tell",
    "first": "versions", "latest": "versions", "to_full": "g1 full", "to_levels": "g1 levels", "to_hasty": "hasty",
    "stream": "count a", "stream_breaks": "breaks g", "stream_last": "a count", "stream_both": "count join",
}  # fmt: skip


def load(talk: Talk, *ensembles: str) -> None:
    """Loads ensembles after what they are made of, so that the end of the case unloads all of it."""
    for name in dict.fromkeys(part for each in ensembles for part in PARTS[each].split()):
        talk.load(name)
    for name in ensembles:
        talk.load(name)


def generate(talk: Talk, model: str, value: float, **parameters: Any) -> None:
    """Asks for a stream of responses and notes all of it."""
    text = json.dumps({"X": [value, value], "id": "q", **parameters})
    made = urllib.request.Request(f"{talk.side.at.http}/v2/models/{model}/generate_stream", text.encode())
    try:
        with urllib.request.urlopen(made, timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().split("\n\n")
            said: Any = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    except urllib.error.HTTPError as error:
        said = [error.code, error.read().decode()]
    talk.note(f"{model} streams {value:g}", said)


@case(
    "ens-01 a chain: rows, a step's error, a step without its output",
    rules=("5.2", "5.6"),
    differs={"chain/1 fail": TWICE, "stats a": ANSWERED, "stats b": ANSWERED},
)
def chain(talk: Talk) -> None:
    load(talk, "chain")
    for value, rows in ((1, 1), (1, 3), (1, 5), (13, 1), (12, 1), (20, 1), (19, 1)):
        talk.infer("chain", x(value, rows))
    talk.infer("chain", x(rows=0))
    for model in ("chain", "a", "b"):
        talk.stats(model)


@case("ens-02 branches run side by side and are joined", rules=("5.2",))
def aside(talk: Talk) -> None:
    load(talk, "aside")
    sent = talk.send("aside", talk.body(x(), id="hold", hold=True))
    for model in ("g1", "g2"):
        talk.running(model, "hold")
    talk.release(sent, on="g2")
    talk.release(sent, on="g1")
    talk.answers(sent)
    load(talk, "diamond")
    talk.infer("diamond", x(2, 3))
    for model in ("aside", "diamond", "a", "b", "join"):
        talk.stats(model)


@case(
    "ens-03 only what the wanted outputs need is executed",
    rules=("5.2",),
    differs={
        "Z first": "2.51 gives the outputs of an ensemble in the order of a hash table",
        "models/inner": "2.51 finds a dead end where a wanted output is also the input of a step; it is none",
        "stats inner": "the same",
        "stats a": "the same",
        "stats b": "the same",
    },
)
def pruned(talk: Talk) -> None:
    load(talk, "forked")
    for outputs in (["Z"], ["Y"], ["nope"]):
        talk.infer("forked", x(), outputs=outputs)
    status, answered = talk.ask("POST", "/v2/models/forked/infer", talk.body(x(), outputs=["Z", "Y"]))
    talk.note("Z first", [each["name"] for each in answered["outputs"]])
    talk.note("both", (status, sorted(answered["outputs"], key=lambda each: str(each["name"]))))
    for model in ("forked", "a", "b"):
        talk.stats(model)
    load(talk, "inner")
    for name in ("t", "Y"):
        talk.infer("inner", x(), outputs=[name])
    talk.stats("inner")
    talk.stats("a")
    talk.stats("b")


@case("ens-04 between models that batch and models that do not", rules=("5.3",))
def bridged(talk: Talk) -> None:
    for model in ("mixed", "mixed_too", "mixed_up", "reshaped"):
        load(talk, model)
        for rows in (0, 1, 2):
            talk.infer(model, x(rows=rows))
    for model in ("mixed", "mixed_too", "reshaped", "plain", "b", "shaped"):
        talk.stats(model)


@case("ens-05 every step is told the id, the sequence, the timeout, the parameters", rules=("5.4",))
def told(talk: Talk) -> None:
    load(talk, "told")
    talk.infer("told", x(rows=2))
    talk.infer("told", x(), id="")
    talk.infer("told", x(), sequence_id=7, sequence_start=True, priority=2, own="x", n=3, f=1.5, yes=True)
    talk.infer("told", x(), sequence_id="seven", sequence_end=True, timeout=1000000)
    talk.infer("told", x(), outputs=["Y"], timeout=5000000, priority=1)
    talk.stats("told")
    talk.stats("tell")


@case(
    "ens-06 what is wrong with a request, in the ensemble's words",
    rules=("5.6",),
    differs={"q X[1,2] Z[1,2]": "2.51 names the inputs in the order of a hash table"},
)
def refused(talk: Talk) -> None:
    load(talk, "chain")
    talk.infer("chain", {"X": [[1, 2, 3]]})
    talk.infer("chain", {"X": [[1, 2]] * 5})
    talk.infer("chain", {"IN": [[1, 2]]})
    talk.infer("chain", {"X": [[1, 2]], "Z": [[1, 2]]})
    talk.infer("chain", {})
    talk.infer("chain", {"X": np.array([[1, 2]], np.int32)})
    talk.infer("chain", x(), outputs=["t"])
    talk.call("POST", "/v2/models/chain/versions/2/infer", talk.body(x()))
    talk.call("GET", "/v2/models/chain")
    talk.stats("chain")


@case(
    "ens-07 one answer to an error, and what comes behind is not begun",
    rules=("5.6",),
    differs={"three/1 fail": TWICE, "joined/1 fail": TWICE, "stats b": ANSWERED, "stats join": ANSWERED},
)
def behind_an_error(talk: Talk) -> None:
    load(talk, "three", "joined")
    talk.infer("three", x(12))
    talk.infer("joined", x(4))
    for model in ("three", "b", "c", "joined", "join", "a"):
        talk.stats(model)


@case(
    "ens-08 an output that a step does not give: an optional input goes on, others are at a dead end",
    rules=("5.4", "5.6"),
)
def not_given(talk: Talk) -> None:
    load(talk, "optional")
    load(talk, "diamond")
    load(talk, "same")
    for model in ("optional", "diamond", "same"):
        for value in (1, 20, 19):
            talk.infer(model, x(value))


@case(
    "ens-09 ensembles within ensembles",
    rules=("5.1", "5.6"),
    differs={"/1 fail": TWICE, "stats a": ANSWERED, "stats c": ANSWERED},
)
def nested(talk: Talk) -> None:
    load(talk, "nested")
    talk.infer("nested", x(5, 2))
    for value in (13, 12, 11, 20, 19, 18):
        talk.infer("nested", x(value))
    for model in ("nested", "chain", "a", "c"):
        talk.stats(model)


@case("ens-10 decoupled steps: each of their responses goes on by itself", rules=("5.5",))
def streams(talk: Talk) -> None:
    for model in ("stream", "stream_last", "stream_both"):
        load(talk, model)
        for value in (3, 1, 0):
            generate(talk, model, value)
        talk.infer(model, x())
        config = talk.ask("GET", f"/v2/models/{model}/config")[1]
        talk.note(f"{model} policy", config.get("model_transaction_policy"))
    for model in ("stream", "count", "a", "join"):
        talk.stats(model)


@case("ens-11 a decoupled step that breaks off", rules=("5.5", "5.6"))
def stream_fails(talk: Talk) -> None:
    load(talk, "stream_breaks")
    generate(talk, "stream_breaks", 7)


@case("ens-12 inputs of two decoupled producers", rules=("5.5",))
def two_streams(talk: Talk) -> None:
    for model in ("count", "count_two", "join"):
        talk.load(model)
    talk.load("streams")
    generate(talk, "streams", 2)


@case("ens-13 a step's queue is full", rules=("5.8", "2.6"), differs={"to_full/1 fail": TWICE})
def full(talk: Talk) -> None:
    load(talk, "to_full")
    held = talk.hold("full", inputs={"IN": [[1, 2]]})
    sent = talk.queue("to_full", body("r0"), body("r1"), on="full")
    talk.infer("to_full", x(), id="r2")
    talk.release(held)
    talk.answers(held, *sent)
    for model in ("to_full", "g1", "full"):
        talk.stats(model)


@case("ens-14 the priority of the request holds in a step", rules=("5.4", "2.2"))
def priorities(talk: Talk) -> None:
    load(talk, "to_levels")
    held = talk.hold("levels", inputs={"IN": [[1, 2]]})
    sent = talk.queue("to_levels", *(body(f"p{p}", priority=p) for p in (3, 0, 2, 1)), on="levels")
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches("levels")
    for model in ("to_levels", "levels"):
        talk.stats(model)


@case("ens-15 the timeout of the request holds in a step", rules=("5.4", "2.4"), differs={"to_hasty/1 fail": TWICE})
def timeouts(talk: Talk) -> None:
    load(talk, "to_hasty")
    held = talk.hold("hasty", inputs={"IN": [[1, 2]]})
    sent = [talk.send("to_hasty", body(f"t{t}", timeout=t)) for t in (0, 50000)]
    talk.answers(*sent)
    talk.release(held)
    talk.answers(held)
    for model in ("to_hasty", "hasty"):
        talk.stats(model)


@case("ens-16 steps of one model; versions of a step", rules=("5.1",))
def versions(talk: Talk) -> None:
    for model in ("same", "backwards", "first", "latest"):
        load(talk, model)
        talk.infer(model, x(5))
    for model in ("same", "a", "versions"):
        talk.stats(model)


@case("ens-17 what it depends on is not there, or does not load", rules=("5.10",))
def dependencies(talk: Talk) -> None:
    talk.load("a")
    for model in ("missing", "on_bad", "on_broken", "above", "second"):
        talk.load(model)
    for model in ("on_broken", "above"):
        talk.infer(model, x())
        talk.call("GET", f"/v2/models/{model}/ready")
    rows = talk.ask("POST", "/v2/repository/index", {"ready": False})[1]
    names = ("missing", "on_bad", "on_broken", "above", "second", "bad_config", "broken")
    talk.note("index", [row for row in rows if row["name"] in names])


@case("ens-18 what does not fit its steps", rules=("5.1", "5.10"))
def misfits(talk: Talk) -> None:
    for model in ("a", "small", "tell"):
        talk.load(model)
    for model in ("on_small", "no_input", "no_output", "types", "shapes", "circle", "round"):
        talk.load(model)
        talk.call("GET", f"/v2/models/{model}/ready")


@case("ens-19 configurations that are refused", rules=("5.1",))
def bad_configs(talk: Talk) -> None:
    for model in ("warm", "grouped", "batched", "unused", "written_twice", "unwritten"):
        talk.load(model)


@case("ens-20 composing models are loaded with it; it goes and comes back with them", rules=("5.9",))
def life(talk: Talk) -> None:
    talk.load("pqr")
    for model in ("pqr", "pq", "p"):
        talk.call("GET", f"/v2/models/{model}/ready")
    talk.load("q")
    talk.unload("q")
    talk.until(lambda: talk.ask("GET", "/v2/models/pqr/ready")[0] == 400, "pqr is still ready")
    for model in ("pqr", "pq"):
        talk.infer(model, x())
    talk.load("q")
    talk.infer("pqr", x())
    talk.load("pqr")
    talk.infer("pqr", x())
    talk.unload("pqr", unload_dependents=True)
    talk.until(lambda: talk.ask("GET", "/v2/models/r/ready")[0] == 400, "r is still ready")
    for model in ("pqr", "pq", "p", "q", "r"):
        talk.call("GET", f"/v2/models/{model}/ready")


@case("ens-21 a step that is loaded anew", rules=("5.9",))
def reloaded(talk: Talk) -> None:
    talk.load("s")
    talk.load("ss")
    talk.infer("ss", x())
    source = talk.root / "s" / "1" / "model.py"
    source.write_text(PLUS.replace("given + 1", "given + 5"))
    talk.load("s")
    talk.infer("ss", x())
    talk.stats("ss")
    talk.stats("s")
    source.write_text(PLUS)
    talk.load("s")
    talk.infer("ss", x())


@case(
    "ens-22 configuration and metadata",
    rules=("5.1",),
    differs={"chain/config": "max_inflight_requests came with 25.12; configurations here have every field"},
)
def shown(talk: Talk) -> None:
    for model in ("chain", "told", "stream"):
        load(talk, model)
        talk.call("GET", f"/v2/models/{model}")
    talk.call("GET", "/v2/models/chain/config")


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
