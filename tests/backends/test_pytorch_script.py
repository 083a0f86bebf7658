"""TorchScript under Triton's rules: names, parameters, texts; what keeps requests apart; what is said at load."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_fixtures import EngineFactory

from workbench.backends.conformance.host import ConformanceHost, Opened
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch_models import Linear, Same, script

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

Open = Callable[..., Opened]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens a module under a configuration."""
    host = ConformanceHost()
    models: list[Opened] = []

    def make(module: Any, text: str, *, name: str = "m", instances: int = 1, trace: Any = None) -> Opened:
        directory = tmp_path / name
        (directory / "1").mkdir(parents=True, exist_ok=True)
        if module is not None:
            script(module, directory / "1" / "model.pt", trace=trace)
        (directory / "config.pbtxt").write_text(f'backend: "pytorch"\n{text}')
        models.append(Opened(host, directory, instances))
        return models[-1]

    yield make
    for model in models:
        model.close()
    host.close()


def io(*inputs: str, outputs: tuple[str, ...] = ("OUTPUT__0",), kind: str = "FP32", batch: int = 8) -> str:
    text = f"max_batch_size: {batch}\n"
    for role, names in (("input", inputs), ("output", outputs)):
        text += "".join(f'{role} {{ name: "{name}" data_type: TYPE_{kind} dims: [ 4 ] }}\n' for name in names)
    return text


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def row(*values: float) -> Any:
    return np.array([values], np.float32)


class Difference(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left - right, left + right


@pytest.mark.parametrize(
    ("inputs", "outputs", "warned"),
    [
        (("right", "left"), ("OUTPUT__1", "OUTPUT__0"), False),  # arguments of forward
        (("b__1", "a__0"), ("OUTPUT__1", "OUTPUT__0"), False),  # by index
        (("second", "first"), ("OUTPUT__1", "OUTPUT__0"), True),  # in their order
        (("b__1", "a__0"), ("sum", "difference"), True),
    ],
)
def test_names(opened: Open, inputs: tuple[str, str], outputs: tuple[str, str], warned: bool) -> None:
    model = opened(Difference(), io(*inputs, outputs=outputs))
    left, right = row(5, 6, 7, 8), row(1, 1, 1, 1)
    (got,) = model.batch([{inputs[0]: right, inputs[1]: left}])
    by_order = inputs == ("second", "first")
    difference = right - left if by_order else left - right
    first, second = (left + right, difference) if outputs[0] == "OUTPUT__1" else (difference, left + right)
    assert got[outputs[0]].data.tolist() == first.tolist()
    assert got[outputs[1]].data.tolist() == second.tolist()
    told = [line for line in model.host.lines if "Falling back to enforcing strict ordering" in line]
    assert bool(told) is warned, model.host.lines


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_of_a_single_output_any_name_is_right(opened: Open) -> None:
    """There is nothing that it could be taken for: no warning."""
    model = opened(Doubled(), io("x", outputs=("embedding",)))
    (got,) = model.batch([{"x": row(1, 2, 3, 4)}])
    assert got["embedding"].data.tolist() == [[2, 4, 6, 8]]
    assert not [line for line in model.host.lines if "strict ordering" in line]


class Dictionary(torch.nn.Module):
    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return given["a"] - given["b"]


def test_a_dictionary_of_inputs(opened: Open) -> None:
    (got,) = opened(Dictionary(), io("b", "a")).batch([{"a": row(5, 6, 7, 8), "b": row(1, 1, 1, 1)}])
    assert got["OUTPUT__0"].data.tolist() == [[4, 5, 6, 7]]


class Integers(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n


class GivesDictionary(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x}


class GivesScalar(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        (Difference(), io("left"), "unable to load model 'm', configuration expects 1 inputs, model provides 2"),
        (Integers(), io("x", "n"), "An input of type 'Int' was detected in the model. Only a single input of type"),
        (
            Same(),
            io("x", kind="BF16"),
            "unsupported datatype TYPE_BF16 for input 'x' for model 'm'",
        ),
        (
            Same(),
            io("x", kind="STRING"),
            "Triton only supports 1 dimensional List of String as input for 'x' for model 'm'",
        ),
        (Same(), io("INPUT__3"), "unable to load model 'm': input 'INPUT__3' is argument 3 of forward, which has 1"),
        (
            Same(),
            io("x") + "instance_group { kind: KIND_CPU }" + parameter("INFERENCE_MODE", "maybe"),
            "failed to convert 'maybe' to boolean value",
        ),
    ],
)
def test_what_does_not_fit(opened: Open, module: Any, text: str, message: str) -> None:
    with pytest.raises(WorkbenchError) as caught:
        opened(module, text)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        (
            Same(),
            io("x", outputs=("OUTPUT__2",)),
            "The output OUTPUT__2 in the model configuration refers to an output",
        ),
        (
            Same(),
            io("x").replace('"OUTPUT__0" data_type: TYPE_FP32', '"OUTPUT__0" data_type: TYPE_FP64'),
            "configuration expects datatype TYPE_FP64 for output 'OUTPUT__0', model provides TYPE_FP32",
        ),
        (GivesScalar(), io("x"), "output 'OUTPUT__0' is a scalar which is not supported."),
        (GivesDictionary(), io("x"), "PyTorch execute failure: output must be of type Tensor, List[str] or Tuple cont"),
        (Linear(), io("x").replace("4", "5", 1), "PyTorch execute failure: "),
    ],
)
def test_what_fails_when_it_runs(opened: Open, module: Any, text: str, message: str) -> None:
    model = opened(module, text)
    size = 5 if "dims: [ 5 ]" in text else 4
    for _ in range(2):
        with pytest.raises(WorkbenchError) as caught:
            model.batch([{"x": np.zeros((1, size), np.float32)}])
        assert caught.value.message.startswith(message)


class Writes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


def test_a_module_that_writes_into_its_input_changes_no_request(opened: Open) -> None:
    model = opened(Writes(), io("x"))
    given = row(1, 2, 3, 4)
    given.flags.writeable = False
    for _ in range(2):
        (got,) = model.batch([{"x": given}])
        assert got["OUTPUT__0"].data.tolist() == [[2, 3, 4, 5]]
    assert given.tolist() == [[1, 2, 3, 4]]


class Keeps(torch.nn.Module):
    """Counts its calls in a buffer and gives the buffer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [3, 4]),  # two calls before it is ready
        (parameter("WORKBENCH_WARMUP_CALLS", "0"), [1, 2]),
        ('model_warmup { name: "own" }', [1, 2]),
    ],
)
def test_calls_before_it_is_ready(opened: Open, text: str, expected: list[int]) -> None:
    model = opened(Keeps(), io("x") + text)
    answers = [model.batch([{"x": row(0, 0, 0, 0)}])[0]["OUTPUT__0"].data for _ in range(2)]
    assert [answer[0, 0] for answer in answers] == expected, "an answer is not changed by the calls after it"


@pytest.mark.parametrize(("shared", "expected"), [("false", 3), ("true", 6)])
def test_weights_are_shared_where_that_is_asked_for(opened: Open, shared: str, expected: int) -> None:
    model = opened(Keeps(), io("x") + parameter("ENABLE_WEIGHT_SHARING", shared), instances=2)
    model.batch([{"x": row(0, 0, 0, 0)}])
    (got,) = model.batch([{"x": row(0, 0, 0, 0)}], instance=1)
    assert got["OUTPUT__0"].data[0, 0] == expected


def test_the_first_model_decides_on_threads(opened: Open) -> None:
    """torch has one setting for the process, as in Triton; it goes with the model that made it."""

    def threads(model: Opened) -> int:
        model.batch([{"x": row(0, 0, 0, 0)}])  # on this thread, whose setting that is
        return torch.get_num_threads()

    plain = opened(Same(), io("x"), name="plain")
    default = threads(plain)
    first = opened(Same(), io("x") + parameter("INTRA_OP_THREAD_COUNT", "3"), name="first")
    second = opened(Same(), io("x") + parameter("INTRA_OP_THREAD_COUNT", "5"), name="second")
    assert [threads(model) for model in (plain, first, second)] == [3, 3, 3]
    assert any("INTRA_OP_THREAD_COUNT 5 of 'second' is not heeded" in line for line in plain.host.lines)
    first.close()
    assert threads(second) == 5
    second.close()
    assert threads(plain) == default


def test_parameters_are_taken(opened: Open) -> None:
    text = "".join(
        parameter(key, value)
        for key, value in {
            "DISABLE_OPTIMIZED_EXECUTION": "true", "INFERENCE_MODE": "false", "ENABLE_JIT_PROFILING": "false",
            "ENABLE_JIT_EXECUTOR": "true", "ENABLE_TENSOR_FUSER": "false", "ENABLE_CACHE_CLEANING": "true",
            "DISABLE_CUDNN": "true", "ENABLE_NVFUSER": "true",
        }.items()
    )  # fmt: skip
    model = opened(Linear(), io("x").replace("dims: [ 4 ]", "dims: [ 3 ]").replace("[ 3 ]", "[ 4 ]", 1) + text)
    (got,) = model.batch([{"x": row(1, 0, 0, 0)}])
    assert got["OUTPUT__0"].data.tolist() == [[0, 0.125, 0.25]]
    assert any("no nvFuser any more" in line for line in model.host.lines)
    torch._C._jit_set_profiling_mode(True)
    torch._C._jit_set_texpr_fuser_enabled(True)


class Running(torch.nn.Module):
    """A sum that starts anew with a sequence."""

    def forward(self, x: torch.Tensor, start: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.where(start > 0, torch.zeros_like(total), total) + x
        return total, total


SEQUENCE = """
sequence_batching {
  control_input { name: "START__1" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  state { input_name: "STATE__2" output_name: "STATE__1" data_type: TYPE_FP32 dims: [ 4 ] }
}
"""


def test_controls_and_states(opened: Open) -> None:
    model = opened(Running(), io("INPUT__0") + SEQUENCE)
    given = {"INPUT__0": row(1, 2, 3, 4), "START__1": row(0), "STATE__2": row(10, 10, 10, 10)}
    (got,) = model.batch([given], wanted=["OUTPUT__0"])
    assert got["OUTPUT__0"].data.tolist() == got["STATE__1"].data.tolist() == [[11, 12, 13, 14]]
    with pytest.raises(WorkbenchError, match="is using sequence batching with state but not all inputs and outputs"):
        opened(Running(), io("x") + SEQUENCE)
    with pytest.raises(WorkbenchError, match=r"input 'START' does not follow <name>__<index> naming convention."):
        opened(Running(), io("INPUT__0") + SEQUENCE.replace("START__1", "START"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(opened: Open, tmp_path: Path) -> None:
    model = opened(Same(), io("x"))
    from workbench.backends.base import InstanceSpec

    with pytest.raises(WorkbenchError, match=r"instance m_0 has kind KIND_GPU but torch .* sees no GPU"):
        model.loaded.create_instance(InstanceSpec("m_0", "KIND_GPU", 0, 0))


def test_files_that_are_no_torchscript(opened: Open, tmp_path: Path) -> None:
    opened(Same(), io("x"))
    file = tmp_path / "m" / "1" / "model.pt"
    torch.save(Linear().state_dict(), file)
    with pytest.raises(WorkbenchError, match="holds weights or a pickled module, no program") as caught:
        opened(None, io("x"))
    assert "torch.jit.save" in caught.value.hint
    file.write_bytes(b"nonsense")
    with pytest.raises(WorkbenchError, match=r"model\.pt is no PyTorch file"):
        opened(None, io("x"))
    file.unlink()
    with pytest.raises(WorkbenchError) as caught:
        opened(None, io("x"))
    assert caught.value.message == f"unable to find '{file}' for model instance 'm'"
    (file.parent / "model.py").touch()
    with pytest.raises(WorkbenchError) as caught:
        opened(None, io("x"))
    assert caught.value.hint == 'there is a model.py: set runtime: "model.py"'


@pytest.mark.parametrize(
    ("left_out", "text"),
    [
        ("input", "unable to load model 'm', configuration expects 0 inputs, model provides 1"),
        ("output", "model configuration must contain at least one output, none were specified."),
        ("both", "unable to load model 'm', configuration expects 0 inputs, model provides 1"),
    ],
)
def test_torchscript_completes_nothing(tmp_path: Path, make_engine: EngineFactory, left_out: str, text: str) -> None:
    """What a TorchScript file takes is not in it: the configuration is needed, and said so in Triton's words (9.5)."""
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    script(Same(), folder / "model.pt")
    given = {"input": io().replace("input", "#"), "output": io("x", outputs=()), "both": "max_batch_size: 8\n"}
    (folder.parent / "config.pbtxt").write_text(f'backend: "pytorch"\n{given[left_out]}')
    engine = make_engine(tmp_path, control_mode="explicit")
    with pytest.raises(WorkbenchError) as caught:
        engine.load("m")
    assert text in caught.value.message


CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "expected_errors" / "autofill_noplatform" / "pytorch"


@pytest.mark.skipif(not CASES.is_dir(), reason="no reference material: ../shared is absent")
@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("too_few_inputs", "unable to load model 'too_few_inputs', configuration expects 0 inputs, model provides 2"),
        ("too_few_outputs", "model configuration must contain at least one output, none were specified"),
    ],
)
def test_errors_that_triton_expects(tmp_path: Path, make_engine: EngineFactory, case: str, text: str) -> None:
    shutil.copytree(CASES / case, tmp_path / case)
    (tmp_path / case / "1").mkdir()
    script(Difference(), tmp_path / case / "1" / "model.pt")
    engine = make_engine(tmp_path, control_mode="explicit")
    with pytest.raises(WorkbenchError) as caught:
        engine.load(case)
    assert text in caught.value.message


def test_it_serves_in_an_engine(tmp_path: Path, make_engine: EngineFactory) -> None:
    """Loaded, asked by many at once, batched, loaded again with another file, unloaded."""
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    script(Same(), folder / "model.pt")
    text = io("x") + "dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
    (folder.parent / "config.pbtxt").write_text(f'backend: "pytorch"\n{text}')
    engine = make_engine(tmp_path, control_mode="explicit")
    engine.load("m")

    def ask(value: float) -> float:
        request = InferenceRequest("m", [Tensor.from_numpy("x", row(value, 0, 0, 0))])
        return float(engine.infer(request, 30).as_numpy("OUTPUT__0")[0, 0])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(64))) == list(range(64))
    script(Writes(), folder / "model.pt")
    engine.load("m")
    assert ask(1) == 2
    engine.unload("m")


class RunningTotal(torch.nn.Module):
    """Keeps a tensor that is neither a parameter nor a buffer, writes into it and gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return self.total.unsqueeze(0)


def test_an_answer_does_not_change_when_the_module_goes_on_with_its_state(opened: Open) -> None:
    model = opened(RunningTotal(), io("x") + parameter("WORKBENCH_WARMUP_CALLS", "0"))
    first, second = (model.batch([{"x": row(1, 2, 3, 4)}])[0]["OUTPUT__0"].data for _ in range(2))
    assert first.tolist() == [[1, 2, 3, 4]]
    assert second.tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("missing", ["left", "right"])
def test_an_optional_input_that_is_not_sent_is_named(opened: Open, missing: str) -> None:
    text = io("left", "right").replace(f'"{missing}"', f'"{missing}" optional: true')
    model = opened(Difference(), text)
    given = {"left": row(5, 6, 7, 8), "right": row(1, 1, 1, 1)}
    with pytest.raises(WorkbenchError, match=f"input '{missing}' is missing: the arguments of forward"):
        model.batch([{name: array for name, array in given.items() if name != missing}])
    assert model.batch([given])[0]["OUTPUT__0"].data.tolist() == [[4, 5, 6, 7]]
