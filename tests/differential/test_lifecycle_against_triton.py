"""The life of models on both sides: loading, failing, reloading, unloading; states, texts, what still answers.

Known differences, and so not in the scripts: a missing model.py, and a warm-up that fails, hang or end the process
there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from harness import HEAVY, Case, Sides, Talk, Topic
from models import GATED, put

pytestmark = HEAVY
TOPIC = Topic("life", "Life of models", options=())
case = TOPIC.case

ECHO = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        given = [pb.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUT", array)]) for array in given]
"""
CONFIG = """backend: "python"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
instance_group { kind: KIND_CPU }
"""
WARMUP = """model_warmup {
  name: "w" batch_size: 2 count: 3
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: 2 zero_data: true } }
}
"""
IN_INIT = ECHO.replace(
    "    def execute", "    def initialize(self, args):\n        raise RuntimeError('in init')\n\n    def execute"
)
IN_EXECUTE = ECHO.replace("        given", "        raise RuntimeError('in execute')\n        given")


def build(root: Path) -> None:
    def add(
        name: str, config: str | None = CONFIG, source: str | None = ECHO, versions: tuple[str, ...] = ("1",)
    ) -> None:
        (root / name).mkdir(parents=True)
        if config is not None:
            (root / name / "config.pbtxt").write_text(config)
        for version in versions:
            (root / name / version).mkdir()
            if source is not None:
                (root / name / version / "model.py").write_text(source)

    for name in ("good", "reloaded", "edited", "overridden", "left", "removed"):
        add(name)
    put(root, "busy")
    add("at_import", source="raise ValueError('at import')")
    add("syntax", source="def (")
    add("in_init", source=IN_INIT)
    add("in_execute", source=IN_EXECUTE)
    add("bad_config", "max_batch_size: {")
    add("bad_value", CONFIG.replace("size: 4", "size: -4"))
    add("wrong_name", 'name: "other"\n' + CONFIG)
    add("no_version", versions=())
    add("policy_none", CONFIG + "version_policy { specific { versions: 5 } }")
    add("policy_some", CONFIG + "version_policy { specific { versions: [ 1, 5 ] } }", versions=("1", "2"))
    add("all", CONFIG + "version_policy { all { } }", versions=("1", "2", "03", "x"))
    add("warm", CONFIG + WARMUP)
    add("warm_variable", CONFIG + WARMUP.replace("dims: 2 zero", "dims: -1 zero"))
    add("warm_nothing", CONFIG + WARMUP.replace("zero_data: true", ""))
    add("warm_no_file", CONFIG + WARMUP.replace("zero_data: true", 'input_data_file: "nope"'))
    add("no_backend", CONFIG.replace('"python"', '"unheard"'))
    add("no_io", 'backend: "python"\nmax_batch_size: 4')
    add("no_config", None)
    add("nothing", None, None)
    add("a.b", None, None)
    add("gpu", CONFIG.replace("KIND_CPU", "KIND_GPU"))
    add("zero_dims", CONFIG.replace("dims: 2", "dims: 0"))
    add("preferred", CONFIG + "dynamic_batching { preferred_batch_size: 9 }")
    add("three", CONFIG.replace("kind:", "count: 3 kind:"))
    add("reshape", CONFIG.replace("dims: 2", "dims: 2 reshape { shape: [ 1, 1 ] }"))


def index(talk: Talk, *names: str) -> None:
    """Notes what the repository's index says of these models."""
    rows = talk.ask("POST", "/v2/repository/index", {})[1]
    talk.note(f"index {' '.join(names)}", [row for row in rows if row["name"] in names])


def get(talk: Talk, *paths: str) -> None:
    for path in paths:
        talk.call("GET", f"/v2/models/{path}")


@case("life-01 models that load, and what a repository's index says of them")
def loads(talk: Talk) -> None:
    for name in ("good", "in_execute", "no_io", "no_config", "warm"):
        talk.load(name)
    index(talk, "good", "in_execute", "no_io", "no_config", "warm")
    get(talk, "good", "good/ready", "good/versions/1/ready", "good/versions/2/ready", "no_io", "nope/ready")
    talk.infer("good")
    talk.infer("in_execute")


@case("life-02 model.py fails at import, in its syntax, in initialize, in execute: texts, states, what answers")
def sources_that_fail(talk: Talk) -> None:
    for name in ("at_import", "syntax", "in_init", "in_execute"):
        talk.load(name)
    index(talk, "at_import", "syntax", "in_init", "in_execute")
    for name in ("at_import", "in_init", "in_init/versions/1", "in_execute"):
        talk.infer(name)
    get(talk, "in_init", "in_init/config", "in_init/stats", "in_init/ready")
    talk.stats("in_execute")


@case("life-03 configurations that are refused: texts, states, what answers")
def refused(talk: Talk) -> None:
    names = ("bad_config", "bad_value", "wrong_name", "zero_dims", "preferred", "gpu", "no_backend", "nothing", "a.b")
    for name in names:
        talk.load(name)
    index(talk, *names)
    get(talk, "bad_config", "bad_value/stats", "preferred/config")
    talk.infer("bad_config")


@case("life-04 versions: which are served, which one answers, none at all")
def versions(talk: Talk) -> None:
    for name in ("all", "policy_some", "policy_none", "no_version"):
        talk.load(name)
    index(talk, "all", "policy_some", "policy_none", "no_version")
    get(talk, "all", "all/versions/1", "all/versions/3", "all/versions/1/config", "policy_some/versions/2")
    for path in ("all", "all/versions/1", "all/versions/3", "policy_some"):
        talk.infer(path)
    for name in ("policy_none", "no_version"):
        talk.infer(name)
        talk.infer(f"{name}/versions/5")
        get(talk, name, f"{name}/stats", f"{name}/ready", f"{name}/config")


@case("life-05 warm-up: run, counted, or refused with its text")
def warm_up(talk: Talk) -> None:
    for name in ("warm", "warm_variable", "warm_nothing", "warm_no_file"):
        talk.load(name)
    index(talk, "warm", "warm_variable", "warm_nothing", "warm_no_file")
    talk.stats("warm")


@case("life-06 the configuration that is in force, completed")
def configurations(talk: Talk) -> None:
    for name in ("good", "no_io", "three", "all", "reshape"):
        talk.load(name)
        get(talk, f"{name}/config", name)


@case("life-07 a reload that fails leaves the old model serving")
def failed_reload(talk: Talk) -> None:
    path = talk.root / "reloaded" / "1" / "model.py"
    talk.load("reloaded")
    path.write_text("raise ValueError('reload')")
    talk.load("reloaded")
    talk.infer("reloaded")
    index(talk, "reloaded")
    path.write_text(ECHO)
    talk.load("reloaded")
    talk.infer("reloaded")
    index(talk, "reloaded")


@case("life-08 an edited config.pbtxt: unreadable, refused, mended")
def edited(talk: Talk) -> None:
    talk.load("edited")
    for text in ("max_batch_size: {", CONFIG.replace("size: 4", "size: -4"), CONFIG):
        (talk.root / "edited" / "config.pbtxt").write_text(text)
        talk.load("edited")
        talk.infer("edited")
        index(talk, "edited")


@case("life-09 a load with a configuration of its own: taken, refused, kept by the next plain load")
def overridden(talk: Talk) -> None:
    io = {"data_type": "TYPE_FP32", "dims": [2]}
    override = {
        "backend": "python",
        "max_batch_size": 2,
        "input": [{"name": "IN"} | io],
        "output": [{"name": "OUT"} | io],
    }
    talk.load("overridden")  # leaves a __pycache__; one that comes later would make the plain load below a reload
    talk.load("overridden", config=json.dumps(override))
    get(talk, "overridden/config")
    talk.infer("overridden", {"IN": [[1, 2]] * 3})
    for text in ('{"nope":1}', "{", '{"max_batch_size":-1,"backend":"python"}', '{"backend":"python","name":"other"}'):
        talk.load("overridden", config=text)
        talk.infer("overridden")
    talk.load("overridden", nope="x")
    talk.load("overridden")
    get(talk, "overridden/config")


@case("life-10 unloaded: the state, and what every call says")
def unloaded(talk: Talk) -> None:
    talk.load("left")
    talk.unload("left")
    index(talk, "left")
    get(talk, "left", "left/versions/1", "left/stats", "left/ready", "left/config")
    talk.infer("left")
    talk.infer("left/versions/1")
    talk.call("POST", "/v2/repository/models/nope/unload", {})
    talk.load("left")
    get(talk, "left/ready")
    talk.infer("left")


@case("life-11 a model whose directory is gone: loading it fails, it still answers")
def removed(talk: Talk) -> None:
    talk.load("removed")
    shutil.rmtree(talk.root / "removed")
    index(talk, "removed")
    talk.load("removed")
    talk.infer("removed")


@case("life-12 reloaded while requests run and wait: they are answered by the old one, later ones by the new one")
def reloaded_under_requests(talk: Talk) -> None:
    path = talk.root / "busy" / "1" / "model.py"
    talk.load("busy")
    held = talk.hold("busy")
    sent = talk.queue("busy", talk.body(id="old"))
    path.write_text(GATED.replace("given.as_numpy())", "given.as_numpy() + 10)"))
    talk.load("busy")
    talk.infer("busy", id="new")
    talk.stats("busy")
    talk.release(held)
    talk.answers(held, *sent)
    talk.stats("busy")


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
