"""The PyTorch forms that run in a process: an exported program's names and completion, compiled code, model.py."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_fixtures import EngineFactory

from workbench.backends._child.torch_names import NamesError, indices, paths
from workbench.backends._child.torch_package import read_source, size_problem
from workbench.engine.linting import lint
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch_models import Linear, Named, export, script

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

THREAD = 'parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }\n'
NO_COMPILE = 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"disable\\": true}" } }\n'
LINEAR = """\
backend: "pytorch"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
START = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }'
EAGER = """
import os
import torch

class Base(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(4, 3))

    def forward(self, x):
        return {"OUTPUT__0": x @ self.w, "other": x}

class A(Base):
    def forward(self, x):
        return x @ self.w
"""


def directory(root: Path, name: str, text: str) -> Path:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(text)
    return root / name / "1"


def ask(engine: Any, model: str, **arrays: Any) -> dict[str, Any]:
    inputs = [Tensor.from_numpy(name, np.asarray(array, np.float32)) for name, array in arrays.items()]
    return {tensor.name: tensor.data for tensor in engine.infer(InferenceRequest(model, inputs)).outputs}


CALL = json.dumps(
    [1, {"type": "builtins.tuple", "context": "null", "children_spec": [
        {"type": "builtins.tuple", "context": "null", "children_spec": [
            {"type": None, "context": None, "children_spec": []},
            {"type": "builtins.dict", "context": '["keyA", "key2"]', "children_spec": [
                {"type": None, "context": None, "children_spec": []},
                {"type": None, "context": None, "children_spec": []}]}]},
        {"type": "builtins.dict", "context": '["scale"]', "children_spec": [
            {"type": None, "context": None, "children_spec": []}]}]}]
)  # fmt: skip


def test_names_of_an_exported_program() -> None:
    """Those that Triton's README gives for AOTInductor, and the program's own."""
    leaves = paths(CALL)
    assert leaves == ["ARGS[0]", "ARGS[1][keyA]", "ARGS[1][key2]", "KWARGS[scale]"]
    own = ["x", "", "", "scale"]
    assert indices(["KWARGS[scale]", "ARGS[1][key2]"], leaves, own, "input") == ([3, 2], True)
    assert indices(["INPUT__2", "INPUT__0"], leaves, own, "input") == ([2, 0], True)
    assert indices(["scale", "x", "ARGS[1][keyA]"], leaves, own, "input") == ([3, 0, 1], True)
    assert indices(["some", "thing"], leaves, own, "input") == ([0, 1], False)
    for names, text in (
        (["x", "thing"], "the program has no input 'thing'; it has x, ARGS"),
        (["x", "INPUT__0"], "two inputs of the configuration"),
        (["INPUT__9"], "no input 'INPUT__9'"),
        (["a", "b", "c", "d", "e"], "the configuration has 5 inputs, the program 4"),
    ):
        with pytest.raises(NamesError, match=text.replace("[", r"\[")):
            indices(names, leaves, own, "input")


def test_a_signature_completes_the_configuration(tmp_path: Path, make_engine: EngineFactory) -> None:
    """No config.pbtxt at all: names, types and symbolic sizes come out of the .pt2, batching with them."""
    folder = directory(tmp_path, "named", THREAD)
    (folder.parent / "config.pbtxt").write_text(THREAD)
    export(Named(), folder / "model.pt2", torch.ones(2, 4), torch.ones(2), scale=torch.ones(2, 4))
    (folder.parent / "config.pbtxt").unlink()
    (finding,) = [finding for file in lint(tmp_path, triton_release="26.04") for finding in file.findings]
    assert finding.message == "no config.pbtxt: backend pytorch completes it when the model is loaded"
    (folder.parent / "config.pbtxt").write_text(THREAD)
    engine = make_engine(tmp_path)
    config = engine.model_config("named")
    assert [(item.name, list(item.dims)) for item in config.input] == [("x", [4]), ("mask", [1]), ("scale", [4])]
    assert [(item.name, list(item.dims)) for item in config.output] == [("masked", [4]), ("scaled", [4])]
    assert config.max_batch_size == 4
    got = ask(engine, "named", scale=[[2] * 4], x=[[1, 2, 3, 4]], mask=[[0]])
    assert got["masked"].tolist() == [[0, 0, 0, 0]]
    assert got["scaled"].tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ({"AOTI_CPU_ISA": "AVX2 SVE256"}, "model.pt2 was compiled for processors with AVX2 SVE256; this one has no"),
        ({"AOTI_PLATFORM": "windows"}, "model.pt2 was compiled for windows, this is"),
        ({"AOTI_MACHINE": "riscv64"}, "model.pt2 was compiled for riscv64, this is"),
        ({"AOTI_DEVICE_KEY": "cuda"}, "model.pt2 was compiled for cuda, and no instance is KIND_GPU"),
    ],
)
def test_compiled_code_that_does_not_fit_this_machine(
    tmp_path: Path, make_engine: EngineFactory, about: dict[str, str], text: str
) -> None:
    folder = directory(tmp_path, "m", LINEAR)
    with zipfile.ZipFile(folder / "model.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/data/aotinductor/model/c.wrapper_metadata.json", json.dumps(about))
    engine = make_engine(tmp_path, control_mode="explicit")
    with pytest.raises(WorkbenchError, match=text):
        engine.load("m")


def test_what_a_program_does_not_have(tmp_path: Path, make_engine: EngineFactory) -> None:
    program = tmp_path / "linear.pt2"
    export(Linear(), program, torch.zeros(2, 4))
    wrong = {
        "inputs": (
            LINEAR + 'input { name: "w" data_type: TYPE_FP32 dims: 4 }',
            "configuration expects 2 inputs, model",
        ),
        "sequence": (
            LINEAR + "sequence_batching { " + START + " }",
            "sequence controls and states are for TorchScript",
        ),
        "outputs": (LINEAR.replace("OUTPUT__0", "OUTPUT__7"), "the program has no output 'OUTPUT__7'; it has RESULT"),
    }
    for name, (text, _) in wrong.items():
        shutil.copy(program, directory(tmp_path / "models", name, text + THREAD) / "model.pt2")
    typed = LINEAR.replace('"OUTPUT__0" data_type: TYPE_FP32', '"OUTPUT__0" data_type: TYPE_FP16') + THREAD
    shutil.copy(program, directory(tmp_path / "models", "typed", typed) / "model.pt2")
    engine = make_engine(tmp_path / "models", control_mode="explicit")
    for name, (_, expected) in wrong.items():
        with pytest.raises(WorkbenchError, match=expected):
            engine.load(name)
    engine.load("typed")
    with pytest.raises(
        WorkbenchError, match="configuration expects datatype TYPE_FP16 for output 'OUTPUT__0', model pr"
    ):
        ask(engine, "typed", x=[[1, 0, 0, 0]])


def test_a_module_in_model_py(tmp_path: Path, make_engine: EngineFactory) -> None:
    """The first module of the file, as in Triton; its weights beside it; a second one is said."""
    folder = directory(tmp_path, "eager", LINEAR + 'runtime: "model.py"\n' + THREAD + NO_COMPILE)
    (folder / "model.py").write_text(EAGER)
    torch.save(Linear().state_dict(), folder / "model.pt")
    engine = make_engine(tmp_path)
    assert ask(engine, "eager", x=[[1, 0, 0, 0]])["OUTPUT__0"].tolist() == [[0, 0.125, 0.25]]


@pytest.mark.full
def test_each_form_in_its_process(tmp_path: Path, make_engine: EngineFactory) -> None:
    """The same answers from all forms, two instances each; torch in the models' processes."""
    program = directory(tmp_path, "program", LINEAR + "instance_group { count: 2 kind: KIND_CPU }")
    export(Linear(), program / "model.pt2", torch.zeros(2, 4))
    eager = directory(tmp_path, "eager", LINEAR + 'runtime: "model.py"\n' + NO_COMPILE)
    (eager / "model.py").write_text(EAGER)
    torch.save(Linear().state_dict(), eager / "model.pt")
    scripted = directory(tmp_path, "scripted", LINEAR + 'runtime: "model.py"\n')
    script(Linear(), scripted / "model.pt")
    threads = directory(tmp_path, "threads", LINEAR)
    script(Linear(), threads / "model.pt")
    engine = make_engine(tmp_path)
    given = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    expected = ask(engine, "threads", x=given)["OUTPUT__0"]
    for name in ("program", "eager", "scripted"):
        assert np.abs(ask(engine, name, x=given)["OUTPUT__0"] - expected).max() < 1e-6, name


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C compiler")
@pytest.mark.timeout(600)
def test_compiled_code(tmp_path: Path, make_engine: EngineFactory) -> None:
    """AOTInductor: compiled here, loaded without a compiler, dynamic batch, Triton's names."""
    text = LINEAR.replace('"x"', '"ARGS[0]"').replace("OUTPUT__0", "RESULT[1]")
    folder = directory(tmp_path, "aoti", 'platform: "torch_aoti"\n' + text)
    program = export(Linear(), folder / "program.pt2", torch.zeros(2, 4))
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
    engine = make_engine(tmp_path)
    for rows in (1, 5):
        given = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        got = ask(engine, "aoti", **{"ARGS[0]": given})["RESULT[1]"]
        assert np.abs(got + given @ Linear().w.detach().numpy()).max() < 1e-6


class Summed(torch.nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (ids * mask.to(torch.int64)).sum(1, keepdim=True)


SUMMED = """\
backend: "pytorch"
platform: "torch_aoti"
max_batch_size: 8
input [
  { name: "ids__0" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "mask__1" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [ { name: "OUTPUT__0" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
WRONG = {
    "type": (
        ("TYPE_FP32", "TYPE_FP64"),
        "configuration expects datatype TYPE_FP64 for input 'mask__1', model provides",
    ),
    "rank": (
        ("TYPE_INT64 dims: [ -1 ]", "TYPE_INT64 dims: [ -1, -1 ]"),
        r"tensor 'ids__0': the model expects 2 dimensions \(shape \[-1,-1\]\) but the model configuration specifies 3",
    ),
    "size": (
        ("max_batch_size: 8", "max_batch_size: 300"),
        "max_batch_size is 300, and the package was compiled for 64",
    ),
}


def checked(place: int, name: str, kind: str, *conditions: str) -> str:
    """The function of a package's source that would look at an input (torch 2.13)."""
    lines = [f"ConstantHandle {name} = ConstantHandle(input_handles[{place}]);"]
    lines += [f"int32_t {name}_expected_dtype = aoti_torch_dtype_{kind}();", f"auto {name}_size = {name}.sizes();"]
    lines += [f"if ({condition}) {{" for condition in conditions]
    return "\n".join(lines) + "\n"


def test_what_a_package_takes_is_read_from_its_source() -> None:
    """Types, fixed sizes, ranges, and that the first dimensions are equal: the second input has no size there."""
    source = checked(0, "a", "int64", "a_size[0] < 2", "a_size[0] > 64", "a_size[1] < 2", "a_size[1] > 32")
    source += checked(1, "b", "float32", "b_size[0] < 2", "b_size[0] > 64", "3 != b_size[1]", "b_size[2] < 5")
    source += "int64_t s1 = a_size[0];\nint64_t s2 = a_size[1];\nint64_t s3 = b_size[2];\n"
    inputs = read_source(source)
    assert inputs is not None
    assert [(each.datatype, each.dims) for each in inputs] == [("INT64", (-1, -1)), ("FP32", (-1, 3, -1))]
    fine = ((1, 1), (1, 3, 5))
    for shapes, text in (
        (fine, ""),
        (((64, 32), (64, 3, 99)), ""),
        (((2, 33), (2, 3, 5)), "input 'x' has shape [2,33], the package was compiled for 32 at most in dimension 1"),
        (((2, 3), (2, 4, 5)), "input 'y' has shape [2,4,5], the package was compiled for 3 in dimension 1"),
        (((2, 3), (2, 3, 4)), "input 'y' has shape [2,3,4], the package was compiled for 5 at least in dimension 2"),
        (((2, 3), (2, 3)), "input 'y' has shape [2,3], the package was compiled for 3 dimensions"),
        (((2, 3), (1, 3, 5)), "for as many in dimension 0 as 'x' has in dimension 0, which is 2"),
    ):
        problem = size_problem(inputs, shapes, ["x", "y"])
        assert text in problem
        assert bool(text) == bool(problem)
    assert read_source("int main() {}") is None


def test_a_size_that_follows_from_others_has_no_least_of_its_own() -> None:
    """Twice as many as another one: 2 where that is 1, which compiled code takes although torch begins at 2."""
    source = checked(0, "a", "float32", "a_size[0] < 2") + checked(1, "b", "float32", "b_size[0] < 4")
    inputs = read_source(source + checked(2, "c", "float32") + "int64_t s1 = a_size[0];\n")
    assert inputs is not None
    assert [size_problem(inputs, ((n,), (2 * n,), ()), "abc") for n in (1, 2, 9)] == ["", "", ""]
    assert size_problem(inputs, ((1,), (2,), (1,)), "abc") == "", "one value, which a configuration has as [1]"
    assert "compiled for 0 dimensions" in size_problem(inputs, ((1,), (2,), (2,)), "abc")


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of two inputs that are equally long, of up to 64 rows and 32 columns."""
    path = tmp_path_factory.mktemp("summed") / "model.pt2"
    shapes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=32)}
    given = (torch.ones((2, 4), dtype=torch.int64), torch.ones(2, 4))
    program = torch.export.export(Summed(), given, dynamic_shapes=(shapes, shapes))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return path


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C compiler")
@pytest.mark.timeout(600)
def test_what_compiled_code_cannot_take_is_refused_before_it_runs(
    tmp_path: Path, make_engine: EngineFactory, summed: Path
) -> None:
    """The code itself looks at nothing: it computed rubbish, or ended its process."""
    for name, ((old, new), _) in {"m": (("", ""), ""), **WRONG}.items():
        shutil.copy(summed, directory(tmp_path, name, SUMMED.replace(old, new)) / "model.pt2")
    engine = make_engine(tmp_path, control_mode="explicit")
    for name, (_, text) in WRONG.items():
        with pytest.raises(WorkbenchError, match=text):
            engine.load(name)
    engine.load("m")

    def sums(rows: int, length: int, other: int | None = None) -> Any:
        ids = np.arange(rows * length).reshape(rows, length)
        mask = np.ones((rows, length if other is None else other), np.float32)
        tensors = [Tensor.from_numpy("ids__0", ids.astype(np.int64)), Tensor.from_numpy("mask__1", mask)]
        answer = engine.infer(InferenceRequest("m", tensors))
        return answer.outputs[0].data.tolist(), ids.sum(1).tolist()

    for rows, length in ((1, 1), (2, 3), (8, 32)):
        got, expected = sums(rows, length)
        assert got == [[each] for each in expected]
    for shape, text in (
        ((1, 33), r"input 'ids__0' has shape \[1,33\], the package was compiled for 32 at most in dimension 1"),
        (
            (1, 4, 2),
            r"'mask__1' has shape \[1,2\], the package was compiled for as many in dimension 1 as 'ids__0' has",
        ),
        ((1, 2, 30), "for as many in dimension 1 as 'ids__0' has in dimension 1, which is 2"),
    ):
        with pytest.raises(WorkbenchError, match=text):
            sums(*shape)
    assert sums(1, 4)[0] == [[6]]


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by


SCALED = """\
backend: "pytorch"
platform: "torch_aoti"
input [
  { name: "x__0" data_type: TYPE_FP32 dims: [ -1, 4 ] },
  { name: "by__1" data_type: TYPE_FP32 dims: [ 1 ] }
]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
"""


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C compiler")
@pytest.mark.timeout(600)
def test_a_configuration_may_leave_open_what_a_package_has_fixed(tmp_path: Path, make_engine: EngineFactory) -> None:
    """As real Triton, which compares nothing: sizes that fit are answered, others refused one by one."""
    batched = SCALED.replace("[ -1, 4 ]", "[ -1 ]").replace('torch_aoti"', 'torch_aoti"\nmax_batch_size: 2')
    folder = directory(tmp_path, "open", SCALED)
    program = torch.export.export(Scaled(), (torch.ones(2, 4), torch.tensor(3.0)))
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
    shutil.copy(folder / "model.pt2", directory(tmp_path, "rows", batched) / "model.pt2")
    engine = make_engine(tmp_path, control_mode="explicit")
    engine.load("open")
    assert ask(engine, "open", x__0=np.ones((2, 4)), by__1=[3])["OUTPUT__0"].tolist() == [[3] * 4] * 2
    with pytest.raises(WorkbenchError, match=r"'x__0' has shape \[1,4\], the package was compiled for 2 in"):
        ask(engine, "open", x__0=np.ones((1, 4)), by__1=[3])
    with pytest.raises(WorkbenchError, match="max_batch_size is 2, and the package was compiled for 1 rows at most"):
        engine.load("rows")  # one value for a batch
