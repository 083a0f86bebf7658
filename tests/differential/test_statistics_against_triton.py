"""Statistics on both sides: what is counted where, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import HEAVY, Case, Sides, Talk, Topic
from models import GATED, put, put_ensemble, step

pytestmark = HEAVY
TOPIC = Topic("stat", "Statistics")
case = TOPIC.case

ANSWERS_ERROR = "2.51's Python backend counts a request that it answers with an error as a success"
WARMUP = """model_warmup {
  name: "w" batch_size: 2 count: 3 inputs { key: "IN" value { data_type: TYPE_FP32 dims: 2 zero_data: true } }
}"""
CHAIN = (step("first", {"IN": "IN"}, {"OUT": "t"}), step("second", {"IN": "t"}, {"OUT": "OUT"}))


ODD = {
    "few": "answers[:-1]",
    "many": "answers + answers",
    "tuple": "tuple(answers)",
    "other": '["x" for _ in answers]',
    "dtype": '[pb.InferenceResponse([pb.Tensor("OUT", np.zeros((1, 2), np.int64))]) for _ in answers]',
    "name": '[pb.InferenceResponse([pb.Tensor("NOPE", np.zeros((1, 2), np.float32))]) for _ in answers]',
    "shape": '[pb.InferenceResponse([pb.Tensor("OUT", np.zeros((1, 5), np.float32))]) for _ in answers]',
}
"""What execute returns, by the request parameter ``as``; None, or a list of None, hangs 2.51."""
RETURNS_ODD = GATED.replace(
    "        return answers\n",
    "".join(f'        if asked[0].get("as") == "{how}":\n            return {made}\n' for how, made in ODD.items())
    + "        return answers\n",
)


def build(root: Path) -> None:
    put(root, "plain")
    put(root, "batched", "dynamic_batching { }", size=4)
    put(
        root,
        "raises",
        "dynamic_batching { }",
        source=GATED.replace("asked = [", 'raise RuntimeError("always")\n        asked = ['),
    )
    put(root, "limited", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }", size=1)
    put(root, "impatient", "dynamic_batching { default_queue_policy { default_timeout_microseconds: 300000 } }", size=1)
    put(root, "versions", "version_policy { all { } }", versions=("1", "2", "7"))
    put(root, "warm", WARMUP)
    put(root, "two", count=2)
    put(root, "zero", size=0)
    put(root, "first")
    put(root, "second", "dynamic_batching { }")
    put_ensemble(root, "chain", *CHAIN)
    put(root, "broken", source="raise ValueError('at import')")
    put(root, "never")
    put(root, "odd", "dynamic_batching { }", source=RETURNS_ODD)


def bodies(*rows: int, **fields: Any) -> list[dict[str, Any]]:
    return [Talk.body({"IN": [[index, 0]] * each}, id=chr(97 + index), **fields) for index, each in enumerate(rows)]


@case("stat-01 requests of several rows: inferences, executions, a histogram of batch sizes", rules=("11.1", "11.2"))
def rows(talk: Talk) -> None:
    talk.load("plain")
    talk.stats("plain")
    for count in (1, 3, 1, 2):
        talk.infer("plain", {"IN": [[1, 2]] * count})
    talk.stats("plain")
    talk.metrics("plain")


@case("stat-02 requests that share a batch: one execution, its size the sum of rows", rules=("11.1", "11.2", "11.5"))
def shared_batch(talk: Talk) -> None:
    talk.load("batched")
    held = talk.hold("batched")
    sent = talk.queue("batched", *bodies(1, 2, 1, 1))
    talk.release(held)
    talk.answers(held, *sent)
    talk.stats("batched")
    talk.metrics("batched")


@case("stat-03 a model that raises: every request of the batch has failed, the execution is counted", rules=("11.3",))
def raises(talk: Talk) -> None:
    talk.load("raises")
    talk.infer("raises", id="a")
    talk.infer("raises", {"IN": [[1, 2]] * 3}, id="b")
    talk.stats("raises")
    talk.metrics("raises")


@case(
    "stat-04 a model that answers one request of a batch with an error",
    rules=("11.3",),
    differs=dict.fromkeys(
        [
            "batched/1 success", "batched/1 fail", "batched/1 queue", "batched/1 compute", "inference_count",
            "metrics batched count", "metrics batched request_failure BACKEND", "metrics batched request_success",
        ],
        ANSWERS_ERROR,
    ),
)  # fmt: skip
def answers_error(talk: Talk) -> None:
    talk.load("batched")
    held = talk.hold("batched")
    sent = talk.queue("batched", *bodies(1), talk.body(id="bad", do="error"), talk.body(id="good"))
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches("batched")
    talk.stats("batched")
    talk.metrics("batched")


@case("stat-05 what is refused before it is queued is counted nowhere", rules=("11.3", "2.6"))
def refused(talk: Talk) -> None:
    talk.load("limited")
    talk.infer("limited", {"IN": [[1, 2, 3]]})
    talk.infer("limited", {"IN": [[1, 2]] * 2})
    talk.infer("limited", {"OTHER": [[1, 2]]})
    talk.infer("limited", {})
    talk.infer("limited", {"IN": [["a", "b"]]})
    talk.infer("limited", outputs=["OTHER"])
    talk.stats("limited")
    held = talk.hold("limited")
    sent = talk.queue("limited", talk.body(id="a"), talk.body(id="b"))
    talk.release(held)
    talk.answers(held, *sent)
    talk.stats("limited")
    talk.metrics("limited")


@case("stat-06 a timeout in the queue is a failure, by reason REJECTED", rules=("11.3", "2.5"))
def timed_out(talk: Talk) -> None:
    talk.load("impatient")
    held = talk.hold("impatient")
    sent = talk.queue("impatient", talk.body(id="a"), talk.body(id="b"))
    for each in sent:
        assert each.ended.wait(30)
    talk.release(held)
    talk.answers(held, *sent)
    talk.stats("impatient")
    talk.metrics("impatient")


@case("stat-07 an answer without outputs is a success", rules=("11.1",))
def no_outputs(talk: Talk) -> None:
    talk.load("plain")
    talk.infer("plain", do="nothing")
    talk.stats("plain")


@case("stat-08 a reload begins anew; a load that changes nothing, and a failed one, do not", rules=("11.9",))
def reload(talk: Talk) -> None:
    talk.load("plain")
    talk.infer("plain")
    talk.load("plain")
    talk.stats("plain")
    path = talk.root / "plain" / "1" / "model.py"
    path.write_text("raise ValueError('not this one')")
    talk.load("plain")
    talk.infer("plain")
    talk.stats("plain")
    path.write_text(GATED)
    talk.load("plain")
    talk.stats("plain")
    talk.infer("plain")
    talk.stats("plain")


@case("stat-09 another number of instances, changed in place, keeps the counts", rules=("11.9",))
def in_place(talk: Talk) -> None:
    talk.load("two")
    talk.load("two")  # a full reload in Triton: the first load has left a __pycache__ in the version's directory
    talk.infer("two")
    path = talk.root / "two" / "config.pbtxt"
    path.write_text(path.read_text().replace("count: 2", "count: 1"))
    talk.load("two")
    talk.infer("two")
    talk.stats("two")
    talk.metrics("two")
    path.write_text(path.read_text().replace("count: 1", "count: 2"))


@case("stat-10 unknown, never loaded, failed and unloaded models and versions: texts", rules=("11.8",))
def unknown(talk: Talk) -> None:
    talk.load("plain")
    talk.load("broken")
    talk.unload("plain")
    for model in ("nope", "never", "broken", "plain"):
        talk.stats(model)
        talk.stats(model, "1")
        talk.infer(model)
        talk.infer(f"{model}/versions/1")
    talk.load("plain")
    for version in ("9", "0", "-1", "x"):
        talk.stats("plain", version)
        talk.call("POST", f"/v2/models/plain/versions/{version}/infer", talk.body())
    talk.stats("plain", "1")


@case("stat-11 versions count apart; without a version the highest answers", rules=("11.8",))
def versions(talk: Talk) -> None:
    talk.load("versions")
    for name in ("versions", "versions/versions/2", "versions/versions/2", "versions/versions/1"):
        talk.call("POST", f"/v2/models/{name}/infer", talk.body())
    for version in ("", "1", "2", "7"):
        talk.stats("versions", version)


@case("stat-12 an ensemble counts its own requests, its steps theirs", rules=("11.6",))
def ensemble(talk: Talk) -> None:
    for name in ("first", "second", "chain"):
        talk.load(name)
    for count in (1, 3, 2):
        talk.infer("chain", {"IN": [[1, 2]] * count})
    talk.infer("second")
    for name in ("chain", "first", "second"):
        talk.stats(name)
        talk.metrics(name)


TWICE = "2.51 counts the failure of an ensemble twice"


@case(
    "stat-13 an ensemble of which a step raises",
    rules=("11.6", "5.6"),
    differs={"chain/1 fail": TWICE, "metrics chain request_failure": TWICE},
)
def ensemble_fails(talk: Talk) -> None:
    for name in ("first", "second", "chain"):
        talk.load(name)
    talk.infer("chain", do="raise")
    talk.infer("chain")
    for name in ("chain", "first", "second"):
        talk.stats(name)
        talk.metrics(name)


@case("stat-14 warm-up runs are counted", rules=("11.2",))
def warm(talk: Talk) -> None:
    talk.load("warm")
    talk.stats("warm")
    talk.infer("warm")
    talk.stats("warm")
    talk.metrics("warm")


@case("stat-15 a model without a batch dimension: each request is one inference", rules=("11.1",))
def no_batch_dimension(talk: Talk) -> None:
    talk.load("zero")
    talk.infer("zero", {"IN": [1, 2]})
    talk.infer("zero", {"IN": [3, 4]})
    talk.stats("zero")
    talk.metrics("zero")


@case("stat-16 all models' statistics: those that are ready, and no others", rules=("11.8",))
def all_models(talk: Talk) -> None:
    for name in ("plain", "versions", "broken"):
        talk.load(name)
    talk.infer("plain")
    settled = sorted((row["name"], row["version"]) for row in talk.ask("GET", "/v2/models/stats")[1]["model_stats"])
    talk.note(
        "who is in /v2/models/stats", [row for row in settled if row[0] in ("plain", "versions", "broken", "never")]
    )
    talk.stats("plain")


@case(
    "stat-17 a reloaded model's counters of failures",
    rules=("11.9",),
    differs={"after": "Triton never removes the failure counters of a model, here they go with it as all others do"},
)
def failure_counters(talk: Talk) -> None:
    talk.load("raises")
    before = talk.counter("raises", "request_failure BACKEND")
    talk.infer("raises")
    talk.until(lambda: talk.counter("raises", "request_failure BACKEND") > before, "the failure is not counted")
    talk.note("counted", talk.counter("raises", "request_failure BACKEND") - before)
    talk.unload("raises")
    talk.load("raises")
    talk.note("after", talk.counter("raises", "request_failure BACKEND") > 0)


@case(
    "stat-18 execute returns too few, too many, something else, tensors that do not fit: texts, counts", rules=("11.3",)
)
def odd_answers(talk: Talk) -> None:
    talk.load("odd")
    for how in ODD:
        talk.infer("odd", **{"as": how})
    held = talk.hold("odd")
    sent = talk.queue("odd", talk.body(id="a", **{"as": "few"}), talk.body(id="b"))
    talk.release(held)
    talk.answers(held, *sent)
    talk.stats("odd")
    talk.metrics("odd")


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
