"""Instance groups on both sides: how many there are, what they are called and told, how they change.

Host policies, devices that are not there and Python-based backends: ``engine/test_placement_against_triton.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import HEAVY, Case, Sides, Talk, Topic
from models import put

pytestmark = HEAVY
TOPIC = Topic("inst", "Instance groups")
case = TOPIC.case

WHO = '''import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """OUT is what the instance was told when it was made.

    The request parameter hold waits for the file MODEL.ID.open beside the models.
    """

    def initialize(self, args):
        self.told = {key: args[key] for key in args if key not in ("model_config", "model_repository")}
        self.told["repository"] = os.path.basename(args["model_repository"].rstrip("/"))
        self.told["groups"] = [
            [group["name"], group["kind"], group["count"], group["gpus"], group["passive"]]
            for group in json.loads(args["model_config"])["instance_group"]
        ]
        self.root = os.path.dirname(args["model_repository"].rstrip("/"))
        if os.path.exists(os.path.join(self.root, args["model_instance_name"] + ".fails")):
            raise RuntimeError("not this one: " + args["model_instance_name"])

    def execute(self, requests):
        with open(os.path.join(self.root, self.told["model_name"] + ".batches"), "a") as file:
            file.write(json.dumps([request.request_id() for request in requests]) + "\\n")
        answers = []
        for request in requests:
            path = os.path.join(self.root, self.told["model_name"] + "." + request.request_id() + ".open")
            for _ in range(60000 if json.loads(request.parameters() or "{}").get("hold") else 0):
                if os.path.exists(path):
                    break
                time.sleep(0.001)
            shape = [pb.get_input_tensor_by_name(request, "IN").as_numpy().shape[0], 1]
            array = np.full(shape, json.dumps(self.told, sort_keys=True), dtype=np.object_)
            answers.append(pb.InferenceResponse([pb.Tensor("OUT", array)]))
        return answers
'''
OUT = 'output { name: "OUT" data_type: TYPE_STRING dims: 1 }\n'
CPU = "kind: KIND_CPU"
GROUPS = {
    "none": "",
    "empty": "instance_group { }",
    "three": f"instance_group {{ {CPU} count: 3 }}",
    "zero": f"instance_group {{ {CPU} count: 0 }}",
    "auto": "instance_group { count: 2 kind: KIND_AUTO }",
    "as_model": "instance_group { count: 2 kind: KIND_MODEL }",
    "named": f'instance_group {{ name: "group" {CPU} count: 2 }}',
    "several": f'instance_group [ {{ {CPU} }}, {{ name: "more" {CPU} count: 2 }}, {{ {CPU} }} ]',
    "same_name": f'instance_group {{ name: "twin" {CPU} }} instance_group {{ name: "twin" {CPU} }}',
    "dotted": f'instance_group {{ name: "a.b_0" {CPU} }}',
    "kinds": f"instance_group {{ {CPU} }} instance_group {{ kind: KIND_MODEL }}",
    "on_gpu": "instance_group { kind: KIND_GPU }",
    "cpu_gpus": f"instance_group {{ {CPU} gpus: 0 }}",
    "model_gpus": "instance_group { kind: KIND_MODEL gpus: 0 }",
    "negative": f"instance_group {{ {CPU} count: -1 }}",
    "passive": f"instance_group {{ {CPU} }} instance_group {{ {CPU} passive: true }}",
    "changing": f"instance_group {{ {CPU} count: 1 }}",
    "busy": f"instance_group {{ {CPU} count: 2 }} dynamic_batching {{ }}",
    "fails": f"instance_group {{ {CPU} count: 2 }}",
    "versions": f"instance_group {{ {CPU} count: 2 }} version_policy {{ all {{ }} }}",
    "warm": f'instance_group {{ {CPU} count: 3 }} model_warmup {{ name: "w" batch_size: 2 count: 2 '
    'inputs { key: "IN" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }',
}


def build(root: Path) -> None:
    for name, groups in GROUPS.items():
        versions = ("1", "2") if name == "versions" else ("1",)
        put(root, name, groups, size=4, count=0, outputs=OUT, source=WHO, versions=versions)


def who(talk: Talk, model: str, count: int, label: str = "") -> None:
    """Keeps ``count`` instances busy at once and notes what all of them have been told."""
    held = [talk.hold(model, f"h{index}") for index in range(count)]
    talk.release(*held)
    told = []
    for each in held:
        assert each.ended.wait(30)
        assert each.answer is not None
        answer: Any = each.answer[1]
        told.append(json.loads(answer["outputs"][0]["data"][0]))
    talk.note(f"{label or model} instances", sorted(told, key=lambda each: str(each["model_instance_name"])))


def groups_of(talk: Talk, model: str) -> None:
    """Notes the groups of the completed configuration."""
    status, config = talk.ask("GET", f"/v2/models/{model}/config")
    talk.note(f"{model} groups", (status, config.get("instance_group", config)))


def one_kind(*models: str) -> Any:
    def run(talk: Talk) -> None:
        for model, count in zip(models[::2], models[1::2], strict=True):
            talk.load(model)
            groups_of(talk, model)
            who(talk, model, int(count))

    return run


case("inst-01 no group, an empty one, a count of 0")(one_kind("none", "1", "empty", "1", "zero", "1"))
case("inst-02 a count of 3: names, kind and device of each")(one_kind("three", "3"))
case("inst-03 KIND_AUTO without a GPU, KIND_MODEL")(one_kind("auto", "2", "as_model", "2"))
case("inst-04 a group with a name, several groups")(one_kind("named", "2", "several", "4"))
case("inst-05 groups of one name, of a name with a dot, of two kinds")(
    one_kind("same_name", "2", "dotted", "1", "kinds", "2")
)
case("inst-06 passive instances get no requests")(one_kind("passive", "1"))


@case("inst-07 groups that are refused")
def refused(talk: Talk) -> None:
    for model in ("on_gpu", "cpu_gpus", "model_gpus", "negative"):
        talk.load(model)


@case("inst-08 more instances in place, and fewer: what runs goes on, counts stay")
def more(talk: Talk) -> None:
    # which of equal instances stay is chance in 2.51; here it is those whose names the configuration has
    talk.load("changing")
    path = talk.root / "changing" / "config.pbtxt"
    before = path.read_text()
    talk.infer("changing", id="before")
    talk.stats("changing")
    held = talk.hold("changing", "long")
    path.write_text(before.replace("count: 1", "count: 3"))
    talk.load("changing")
    who(talk, "changing", 2, "two beside the busy one")
    talk.release(held)
    talk.answers(held)
    groups_of(talk, "changing")
    path.write_text(before)
    talk.load("changing")
    groups_of(talk, "changing")
    for index in range(3):
        talk.note(f"after {index}", talk.ask("POST", "/v2/models/changing/infer", talk.body(id=f"after{index}"))[0])
    talk.stats("changing")


@case("inst-09 every instance takes from the one queue")
def one_queue(talk: Talk) -> None:
    talk.load("busy")
    held = [talk.hold("busy", "h0"), talk.hold("busy", "h1")]
    sent = talk.queue("busy", *(talk.body(id=f"r{index}") for index in range(3)))
    talk.release(held[1])
    for each in (held[1], *sent):
        assert each.ended.wait(30)
    talk.release(held[0])
    assert held[0].ended.wait(30)
    talk.note("answered", [each.answer and each.answer[0] for each in (*held, *sent)])
    talk.stats("busy")


@case("inst-10 one instance that cannot be made fails the load")
def one_fails(talk: Talk) -> None:
    mark = talk.root / "fails_0_1.fails"
    mark.touch()
    talk.load("fails")
    talk.call("GET", "/v2/models/fails/ready")
    mark.unlink()
    talk.load("fails")
    who(talk, "fails", 2)


@case("inst-11 every version has instances of its own")
def versions(talk: Talk) -> None:
    talk.load("versions")
    for version in ("1", "2"):
        status, answer = talk.ask("POST", f"/v2/models/versions/versions/{version}/infer", talk.body())
        told = json.loads(answer["outputs"][0]["data"][0])
        talk.note(f"version {version}", (status, told["model_version"], told["model_instance_name"].rpartition("_")[0]))
    talk.stats("versions", "1")


@case("inst-12 each instance is warmed up")
def warm(talk: Talk) -> None:
    talk.load("warm")
    talk.stats("warm")
    who(talk, "warm", 3)


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
