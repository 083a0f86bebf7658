"""auto_complete_config of Python models: with a file, and with the override of a load, on both sides."""

from __future__ import annotations

import json
from typing import Any

import completing_models
from harness import HEAVY, Case, Sides, Talk, Topic

pytestmark = HEAVY
TOPIC = Topic("auto", "Configurations that models complete", options=())
case = TOPIC.case
build = completing_models.build
SHOWN = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy", "parameters")


def shown(talk: Talk, *names: str) -> None:
    """Notes what these models' configurations say where a model may complete them."""
    for name in names:
        status, found = talk.ask("GET", f"/v2/models/{name}/config")
        parts = {key: found.get(key) for key in SHOWN} if status == 200 else found
        talk.note(f"config {name}", (status, parts))


def loads(talk: Talk, *names: str) -> None:
    """Loads each, and notes its configuration and its metadata."""
    for name in names:
        talk.load(name)
        shown(talk, name)
        talk.call("GET", f"/v2/models/{name}")


def override(**fields: Any) -> str:
    """A configuration as a load takes it."""
    return json.dumps({"backend": "python", **fields})


TENSORS = {
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}],
}


@case("auto-01 a file that says nothing: tensors, batch, scheduler, policy, optional inputs")
def everything(talk: Talk) -> None:
    loads(talk, "everything", "decoupled", "optional")
    talk.infer("everything")
    talk.infer("optional", {"IN": [1, 2]})


@case("auto-02 a file that says a part of it")
def part(talk: Talk) -> None:
    loads(talk, "larger", "outputs_alone", "repeats_the_file", "delays")


@case("auto-03 by parameters of the file, by the files beside the model; lines in the log")
def by_what_is_there(talk: Talk) -> None:
    loads(talk, "by_parameter", "by_its_files", "says")


@case("auto-04 an override that says nothing, or a part, is completed too; without one the file counts again")
def overridden(talk: Talk) -> None:
    talk.load("larger", config=override())
    shown(talk, "larger")
    talk.load("larger", config=override(max_batch_size=12))
    shown(talk, "larger")
    talk.load("larger", config=override(max_batch_size=16, **TENSORS))
    shown(talk, "larger")
    talk.infer("larger")
    talk.load("larger")
    shown(talk, "larger")


@case("auto-05 an override that contradicts the model is refused, the model serves on")
def contradicted(talk: Talk) -> None:
    talk.load("larger")
    talk.load("larger", config=override(max_batch_size=32))
    wrong = {**TENSORS, "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [5]}]}
    talk.load("larger", config=override(**wrong))
    talk.load("larger", config=override(sequence_batching={}, **TENSORS))
    shown(talk, "larger")
    talk.infer("larger")


@case("auto-06 an override with parameters that the model reads")
def parameters(talk: Talk) -> None:
    talk.load("by_parameter", config=override(parameters={"size": {"string_value": "9"}}))
    shown(talk, "by_parameter")
    talk.load("by_parameter", config=override(parameters={"size": {"string_value": "many"}}))
    shown(talk, "by_parameter")
    talk.load("by_parameter", config=override())


@case("auto-07 what is refused: no ModelConfig, an exception")
def refused(talk: Talk) -> None:
    loads(talk, "gives_none", "gives_dict", "raises", "raises_deep", "no_dims")


@case("auto-08 what is refused: against the file")
def against(talk: Talk) -> None:
    loads(talk, "other_dims", "other_type", "smaller", "against_sequences", "against_policy")


@case("auto-09 a model that completes nothing; a function that is none")
def without(talk: Talk) -> None:
    loads(talk, "nothing_at_all", "all_in_the_file", "no_static", "no_function")


@case("auto-10 inherited, as a method of the class")
def inherited(talk: Talk) -> None:
    loads(talk, "inherits")
    talk.infer("inherits")


@case("auto-11 the dictionary that it gets; nested requests")
def gets(talk: Talk) -> None:
    loads(talk, "everything", "as_dict", "asks")


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
