"""Models of torch in other forms: TorchScript, AOTInductor, ONNX, engines; from modules and from files."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.config import ConfigDocument
from workbench.errors import InvalidRequest, Unsupported

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

RNG = np.random.default_rng(5)
EXAMPLES = [
    {"x": RNG.random((3, size, 4)).astype(np.float32), "scale": RNG.random((3, 1)).astype(np.float32)}
    for size in (2, 5)
]


class Pooled(torch.nn.Module):
    """Two inputs, two outputs, a variable size, dropout that must be off."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.dropout = torch.nn.Dropout(0.9)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.dropout(torch.relu(self.linear(x))).sum(dim=1)
        return hidden * scale, hidden.argmax(dim=1, keepdim=True)


class Traced(torch.nn.Module):
    """Something that torch.jit.script does not compile."""

    def forward(self, x: Any, scale: Any) -> Any:
        return {"scaled": x * scale[:, None, :]}["scaled"] if len(type(x).__name__) else x


class Counting(torch.nn.Module):
    """Its answers depend on how often it has been asked."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x * self.seen


class CountingTraced(Counting):
    """One that torch.jit.script does not compile."""

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return {"y": x * self.seen}["y"] if len(type(x).__name__) else x


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch") / "models"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def module() -> Any:
    torch.manual_seed(1)
    return Pooled()


def check_served(built: wb.Built, module: Any, names: dict[str, str]) -> None:
    """The server answers as the module does, whatever the number of rows."""
    with wb.Engine(built.directory.parent, models=[built.name]) as engine, torch.no_grad():
        for rows in (1, 2):
            x, scale = EXAMPLES[1]["x"][:rows], EXAMPLES[1]["scale"][:rows]
            answer = engine.infer(built.name, {names["x"]: x, names["scale"]: scale})
            wanted = module.eval()(torch.from_numpy(x), torch.from_numpy(scale))
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            for each, got in zip(wanted, answer.values(), strict=True):
                assert got == pytest.approx(each.numpy(), abs=1e-5)


PLAIN = {"x": "x", "scale": "scale"}


def test_a_module_as_torchscript(module: Any, repository: Path) -> None:
    built = wb.build(module, to="torchscript", into=repository, example_inputs=EXAMPLES)
    assert built.name == "Pooled_ts"
    assert built.renamed == {"output_0": "output_0__0", "output_1": "output_1__1"}
    assert max(each.max_abs for each in built.drift) < 1e-5
    assert "torch.jit.script" in built.built_with
    check_served(built, module, PLAIN)
    traced = wb.build(Traced(), to="torchscript", into=repository, name="traced", example_inputs=EXAMPLES)
    assert "torch.jit.trace" in traced.built_with
    check_served(traced, Traced(), PLAIN)


def test_files_of_torch_in_other_forms(module: Any, repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    script, exported = tmp_path / "script.pt", tmp_path / "exported.pt2"
    torch.jit.save(torch.jit.script(module.eval()), script)
    batch, size = torch.export.Dim("batch"), torch.export.Dim("size")
    given = {name: torch.from_numpy(array) for name, array in EXAMPLES[0].items()}
    shapes = {"x": {0: batch, 1: size}, "scale": {0: batch}}
    torch.export.save(torch.export.export(module.eval(), (), kwargs=given, dynamic_shapes=shapes), exported)
    for path, to in ((script, "onnx"), (exported, "onnx"), (exported, "torchscript"), (script, "torchscript")):
        built = wb.build(
            path,
            to=to,
            into=repository,
            name=f"{path.stem}_{to}",
            example_inputs=EXAMPLES,  # type: ignore[arg-type]
        )
        assert max(each.max_abs for each in built.drift) < 1e-5, (path, to)
        check_served(built, module, PLAIN)
    with pytest.raises(Unsupported, match="AOTInductor compiles a torch module"):
        wb.build(script, to="aoti", into=repository, example_inputs=EXAMPLES)
    with pytest.raises(InvalidRequest, match="cannot be read as a program"):
        wb.build(script.rename(tmp_path / "wrong.pt2"), to="onnx", into=repository, example_inputs=EXAMPLES)
    with pytest.raises(InvalidRequest, match="example_inputs are needed"):
        wb.build(exported, to="onnx", into=repository)


def test_what_a_program_leaves_open_is_open_and_its_bound_of_rows_holds(
    module: Any, repository: Path, tmp_path: Path
) -> None:
    """Examples of one size say nothing of the others: the program does. A trace is known to go with theirs only."""
    exported = tmp_path / "bounded.pt2"
    batch, size = torch.export.Dim("batch", max=16), torch.export.Dim("size")
    given = {name: torch.from_numpy(array) for name, array in EXAMPLES[0].items()}
    shapes = {"x": {0: batch, 1: size}, "scale": {0: batch}}
    torch.export.save(torch.export.export(module.eval(), (), kwargs=given, dynamic_shapes=shapes), exported)
    dims, rows = {}, {}
    for to in ("openvino", "torchscript", "aoti"):
        built = wb.build(exported, to=to, into=repository, example_inputs=EXAMPLES[0])  # type: ignore[arg-type]
        message = ConfigDocument.parse((built.directory / "config.pbtxt").read_bytes()).message
        dims[to], rows[to] = [list(each.dims) for each in message.input], message.max_batch_size
        if to != "torchscript":
            check_served(built, module, {name: built.renamed.get(name, name) for name in PLAIN})  # of another size
    assert dims == {"openvino": [[-1, 4], [1]], "torchscript": [[2, 4], [1]], "aoti": [[-1, 4], [1]]}
    assert rows == dict.fromkeys(rows, 16)
    with pytest.raises(InvalidRequest, match=r"max_batch_size is 17, bounded\.pt2 takes 16 rows at most") as raised:
        wb.build(exported, to="openvino", into=repository, name="x", example_inputs=EXAMPLES[0], max_batch_size=17)
    assert "16" in (raised.value.hint or "")


class Folded(torch.nn.Module):
    """Reads the number of rows as a number: a trace keeps that of its example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], 2, x.shape[1] // 2, 4).sum(dim=1)


def test_a_trace_that_takes_one_shape_only_is_refused_with_the_example(repository: Path, tmp_path: Path) -> None:
    exported = tmp_path / "folded.pt2"
    x = RNG.random((3, 4, 4)).astype(np.float32)
    shapes = {"x": {0: torch.export.Dim("batch")}}
    given = {"x": torch.from_numpy(x)}
    torch.export.save(torch.export.export(Folded(), (), kwargs=given, dynamic_shapes=shapes), exported)
    with pytest.raises(InvalidRequest, match=r"folded.pt2 as torchscript fails .* on example 1: .*shape") as raised:
        wb.build(exported, to="torchscript", into=repository, example_inputs={"x": x})
    assert raised.value.where == "x FP32 [1, 4, 4]"
    assert "--to onnx, openvino or aoti" in (raised.value.hint or "")
    assert not (repository / "folded_ts").exists()
    assert wb.build(exported, to="openvino", into=repository, example_inputs={"x": x}).drift[0].max_abs < 1e-5


class Counted(torch.nn.Module):
    """Adds up what a sequence has sent."""

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = total + x.sum(dim=1, keepdim=True)
        return x * total, total


@pytest.mark.parametrize("form", ["scripted", "traced", "file", "program", "compiled"])
def test_a_module_with_a_state_and_what_is_built_of_it_run_from_the_same_one(
    form: str, repository: Path, tmp_path: Path
) -> None:
    source: Any = CountingTraced() if form == "traced" else Counting()
    if form == "file":
        source = tmp_path / "counting.pt"
        torch.jit.save(torch.jit.script(Counting()), str(source))
    if form == "program":
        source = tmp_path / "counting.pt2"
        torch.export.save(torch.export.export(Counting(), (torch.ones(3, 2),)), str(source))
    # AOTInductor keeps no state from one request to the next: only the first answers are alike
    values = (1,) if form == "compiled" else (1, 2)
    built = wb.build(
        source, to="aoti" if form == "compiled" else "torchscript", into=repository, name=f"counting_{form}",
        example_inputs=[{"x": np.full((3, 2), value, np.float32)} for value in values], max_batch_size=0,
    )  # fmt: skip
    assert ("torch.jit.trace" in built.built_with) == (form in ("traced", "program"))
    assert [each.max_abs for each in built.drift] == [0]


def test_a_model_of_sequences_is_built_with_its_states_at_the_start(repository: Path) -> None:
    directory = repository / "counted"
    (directory / "1").mkdir(parents=True)
    torch.jit.save(torch.jit.script(Counted()), directory / "1" / "model.pt")
    (directory / "config.pbtxt").write_text(
        'backend: "pytorch" max_batch_size: 4\n'
        'input { name: "x__0" data_type: TYPE_FP32 dims: 4 } output { name: "y__0" data_type: TYPE_FP32 dims: 4 }\n'
        'sequence_batching { oldest { } state { input_name: "total__1" output_name: "after__1" data_type: TYPE_FP32 '
        'dims: 1 initial_state { name: "none" data_type: TYPE_FP32 dims: 1 zero_data: true } } }\n'
    )
    (directory / "example_inputs.json").write_text('{"data": [{"x__0": [1, 2, 3, 4]}]}')
    for to in ("torchscript", "onnx"):
        built = wb.build("counted", to=to, repository=repository)  # type: ignore[arg-type]
        assert [each.output for each in built.drift] == ["y__0", "after__1"]
        assert max(each.max_abs for each in built.drift) < 1e-5
        with wb.Engine(repository, models=[built.name]) as engine:
            rows = np.ones((1, 4), np.float32)
            first = engine.infer(built.name, {"x__0": rows}, sequence_id=5, sequence_start=True)
            again = engine.infer(built.name, {"x__0": rows}, sequence_id=5, sequence_end=True)
            assert (first["y__0"][0, 0], again["y__0"][0, 0]) == (4, 8)


class Two(torch.nn.Module):
    """Results by name, not in the order of the alphabet."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x.sum(1) * scale, "count": x.sum(1).argmax(1)}


class TwoTraced(torch.nn.Module):
    def forward(self, x: Any, scale: Any) -> Any:
        return {"scaled": x.sum(1) * scale, "count": x.sum(1).argmax(1)} if len(type(x).__name__) else x


def test_results_by_name_are_a_tuple_in_torchscript(repository: Path) -> None:
    """Triton takes no dictionary: what is built loads and serves."""
    torch.jit.save(torch.jit.script(Two()), str(repository / "two.pt"))
    for name, thing in (("two", Two()), ("two_traced", TwoTraced()), ("two_file", repository / "two.pt")):
        built = wb.build(thing, to="torchscript", into=repository, name=name, example_inputs=EXAMPLES)
        assert set(built.renamed) == {"scaled", "count"}
    (repository / "two.pt").unlink()
    with wb.Engine(repository, models=["two", "two_traced", "two_file"]) as server:
        for name in ("two", "two_traced", "two_file"):
            given = EXAMPLES[0]
            answer = server.infer(name, given)
            expected = given["x"].sum(1)
            np.testing.assert_allclose(answer["scaled__0"], expected * given["scale"], rtol=1e-6)
            assert answer["count__1"].ravel().tolist() == expected.argmax(1).tolist()


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return x.sum(1), [x.sum(1) * scale, x.sum(2)[:, :1].to(torch.float64)]


class Ordered(torch.nn.Module):
    """As torchvision's models of segmentation."""

    def forward(self, x: torch.Tensor) -> Any:
        return collections.OrderedDict(out=x * 2, aux=x + 1)


def test_results_in_an_ordered_dictionary_are_outputs_by_their_keys(repository: Path, tmp_path: Path) -> None:
    x, rows, size = RNG.random((3, 4)).astype(np.float32), torch.export.Dim("rows"), torch.export.Dim("size")
    program = torch.export.export(Ordered(), (torch.from_numpy(x),), dynamic_shapes=({0: rows, 1: size},))
    torch.export.save(program, tmp_path / "ordered.pt2")
    built = wb.build(tmp_path / "ordered.pt2", to="onnx", into=repository, name="ordered", example_inputs={"x": x})
    with wb.Engine(repository, models=["ordered"]) as engine:
        out = engine.infer("ordered", {"x": x[:, :3]})
        np.testing.assert_allclose(out["out"], x[:, :3] * 2, rtol=1e-6)
        np.testing.assert_allclose(out["aux"], x[:, :3] + 1, rtol=1e-6)
    assert built.name == "ordered"


def test_results_in_lists_are_outputs_of_their_own(repository: Path) -> None:
    wb.build(Nested(), to="onnx", into=repository, name="nested", example_inputs=EXAMPLES)
    with wb.Engine(repository, models=["nested"]) as server:
        given = EXAMPLES[1]
        answer = server.infer("nested", given)
        np.testing.assert_allclose(answer["output_1"], given["x"].sum(1) * given["scale"], rtol=1e-5)
        assert [answer[f"output_{index}"].dtype for index in range(3)] == [np.float32, np.float32, np.float64]
    with pytest.raises(InvalidRequest, match=r"as TorchScript it gives a List\[Tensor\]"):
        wb.build(Nested(), to="torchscript", into=repository, name="listed", example_inputs=EXAMPLES)
    assert not (repository / "listed").exists()


def test_a_torchscript_model_of_a_repository_as_onnx(module: Any, repository: Path) -> None:
    wb.build(module, to="torchscript", into=repository, name="scripted", example_inputs=EXAMPLES)
    built = wb.build("scripted", to="onnx", repository=repository)
    assert built.directory == repository / "scripted_onnx"
    assert max(each.max_abs for each in built.drift) < 1e-5
    assert built.renamed == {}
    check_served(built, module, PLAIN)


def test_a_module_as_a_package_of_compiled_code(module: Any, repository: Path) -> None:
    built = wb.build(module, to="aoti", into=repository, example_inputs=EXAMPLES)
    with pytest.raises(InvalidRequest, match="is a package of AOTInductor: compiled code"):
        wb.build(built.name, to="onnx", repository=repository)
    assert built.renamed["x"] == "x__0"
    assert max(each.max_abs for each in built.drift) < 1e-5
    message = ConfigDocument.parse((built.directory / "config.pbtxt").read_bytes()).message
    assert (message.platform, message.backend) == ("torch_aoti", "pytorch")
    check_served(built, module, {"x": "x__0", "scale": "scale__1"})


def test_a_module_as_openvino_and_as_an_engine(module: Any, repository: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    pytest.importorskip("openvino", reason="openvino is not installed")
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    built = wb.build(module, to="openvino", into=repository, example_inputs=EXAMPLES)
    check_served(built, module, PLAIN)
    engine = wb.build(module, to="tensorrt", into=repository, example_inputs=EXAMPLES)
    assert "--maxShapes=x:32x5x4,scale:32x1" in engine.trtexec


class Unexported(torch.nn.Module):
    """Has what ONNX lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x @ x.transpose(1, 2)).real


def test_an_export_that_fails_prints_nothing(
    repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "unexported.pt"
    torch.jit.save(torch.jit.script(Unexported()), path)
    given = {"x": RNG.random((2, 3, 3)).astype(np.float32)}
    with pytest.raises(InvalidRequest, match=r"torch cannot export unexported\.pt to ONNX"):
        wb.build(path, to="onnx", into=repository, example_inputs=given)
    assert capfd.readouterr().out == ""
