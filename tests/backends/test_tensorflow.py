"""The TensorFlow backend on its own: sessions, signatures, parameters, texts; and that the process is left as it was.

Importing TensorFlow takes seconds and 0.7 GB, so all but what needs no framework is ``full``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_models
from conformance_kits import draw
from tensorflow_models import TYPES, config, double, same, save, save_graph

from workbench.backends.base import ModelContext, TensorSpec
from workbench.backends.conformance import BackendConformance, Kit, ModelCase
from workbench.backends.conformance.host import ConformanceHost, Opened
from workbench.backends.tensorflow import TensorFlowBackend
from workbench.backends.tensorflow_signature import Signature, check_signature, complete_from_signature
from workbench.config import ConfigDocument
from workbench.errors import InternalError, InvalidRequest, NotReady, WorkbenchError

full = (
    pytest.mark.full,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed"),
)


def _marked(test: Any) -> Any:
    for mark in full:
        test = mark(test)
    return test


def _case(text: str, body: Any, kind: str = "FP32", shape: tuple[int, ...] = (4,)) -> ModelCase:
    dims = (None, *(size if size > 0 else None for size in shape))

    def inputs(rng: np.random.Generator, rows: int) -> Mapping[str, Any]:
        return {"x": draw(rng, kind, (rows, *(size if size > 0 else int(rng.integers(1, 9)) for size in shape)))}

    def expected(given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"y": given["x"] if body is same else given["x"] * np.float32(2)}

    return ModelCase(lambda folder: (save(folder, text, body, kind=kind, dims=dims), None)[1], inputs, expected)


def _rows_of_four(tf: Any, x: Any) -> Any:
    """Fails on five values a row. (A product would not do: OpenVINO multiplies without a look at the length.)"""
    return tf.reshape(x, [-1, 4])


def _kit(parameters: str, kinds: Iterable[str], scalar: ModelCase | str) -> Kit:
    doubled = _case(config(parameters=parameters), double)
    spoiled = config(dims="-1", out="4", parameters=parameters)
    return Kit(
        "tensorflow",
        model=doubled,
        datatypes={kind: _case(config(kind, parameters=parameters), same, kind) for kind in kinds},
        dynamic=_case(config(dims="-1", parameters=parameters), double, shape=(-1,)),
        scalar=scalar,
        zero_rows=doubled,
        failing=ModelCase(
            lambda folder: (save(folder, spoiled, _rows_of_four, dims=(None, None)), None)[1],
            doubled.inputs,
            lambda given: {"y": given["x"]},
            spoiled=lambda rng: {"x": np.ones((1, 5), np.float32)},
        ),
        framework=("tensorflow", "keras", "openvino"),
    )


@_marked
class TestSavedModel(BackendConformance):
    """The conformance suite."""

    def kit(self) -> Kit:
        text = config(rows=0, dims="1").replace("[ 1 ]", "[ 1 ] reshape { shape: [ ] }")
        scalar = ModelCase(
            lambda folder: (save(folder, text, dims=()), None)[1],
            lambda rng, rows: {"x": np.asarray(rng.standard_normal(), np.float32)},
            lambda given: {"y": given["x"] * np.float32(2)},
        )
        return _kit("", TYPES, scalar)


@_marked
@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
class TestSavedModelByOpenVino(BackendConformance):
    """The same on the light engine; what it does not do is refused, see test_more_samples."""

    def kit(self) -> Kit:
        kinds = ("BOOL", "UINT8", "UINT16", "INT8", "INT16", "INT32", "FP32")
        return _kit("WORKBENCH_ENGINE=openvino", kinds, "checked with openvino's own models")


def _times_eye(tf: Any, x: Any) -> Any:
    return tf.matmul(x, tf.constant(np.eye(4, dtype=np.float32)))


def _open(directory: Path) -> Opened:
    return Opened(ConformanceHost(), directory)


ROW = {"x": np.ones((1, 4), np.float32)}


@_marked
def test_texts_of_a_run_are_tensorflows_first_lines(tmp_path: Path) -> None:
    with _open(save(tmp_path / "m", config(dims="-1", out="4"), _times_eye, dims=(None, None))) as opened:
        with pytest.raises(WorkbenchError, match=r"In\[0\].*\[1,5\]") as failed:
            opened.batch([{"x": np.ones((1, 5), np.float32)}])
        assert "stack trace" not in failed.value.message
        assert "File " not in failed.value.message


@_marked
def test_signatures_and_tags(tmp_path: Path) -> None:
    named = save(tmp_path / "a" / "m", config(), signatures=("other",))
    with _open(named) as opened:
        assert any("unable to find serving signature 'serving_default'" in line for line in opened.host.lines)
        (answer,) = opened.batch([ROW])
        assert (answer["y"].data == 2).all()
    (named / "config.pbtxt").write_text(config(parameters="TF_SIGNATURE_DEF=third"))
    with pytest.raises(InternalError, match="unable to load model 'm', expected 'third' signature") as refused:
        _open(named)
    assert "other" in refused.value.hint
    tagged = save(tmp_path / "b" / "m", config(parameters="TF_GRAPH_TAG=train"), tag="train")
    with _open(tagged) as opened:
        opened.batch([ROW])
    (tagged / "config.pbtxt").write_text(config())
    with pytest.raises(InternalError, match="unable to load model 'm', expected 'serve' tag"):
        _open(tagged)


@_marked
def test_threads_sessions_and_details(tmp_path: Path) -> None:
    text = "TF_NUM_INTRA_THREADS=1 TF_NUM_INTER_THREADS=2 TF_USE_PER_SESSION_THREADS=true MAX_SESSION_SHARE_COUNT=2"
    ignored = "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' } } }"
    directory = save(tmp_path / "m", config(parameters=text, more=ignored))
    with Opened(ConformanceHost(), directory, 3) as opened:
        assert any("GPU Execution Accelerator is not offered here" in line for line in opened.host.lines)
        details = opened.loaded.details  # type: ignore[attr-defined]
        assert details["engine"].startswith("TensorFlow 2.")
        assert details["threads"] == "1 in an operation, 2 operations at once"
        assert len(opened.loaded._graphs) == 2  # type: ignore[attr-defined]
        for index in range(3):
            (answer,) = opened.batch([ROW], instance=index)
            assert (answer["y"].data == 2).all()


@_marked
def test_a_graphdef_and_its_initialization(tmp_path: Path) -> None:
    text = config(platform="tensorflow_graphdef", parameters="TF_INIT_OPS_FILE=init_ops.json")
    directory = save_graph(tmp_path / "m", text, {"init_ops.json": '{"init_ops": ["init"]}'})
    with _open(directory) as opened:
        (answer,) = opened.batch([ROW])
        assert (answer["y"].data == 4).all()
    (directory / "1" / "init_ops.json").write_text('{"init_ops": ["nothing"]}')
    with pytest.raises(InternalError, match="nothing"):
        _open(directory)
    (directory / "1" / "init_ops.json").write_text('["init"]')
    with pytest.raises(InternalError, match="unable to read the initialization operations"):
        _open(directory)
    (directory / "config.pbtxt").write_text(config(platform="tensorflow_graphdef").replace('name: "y"', 'name: "z"'))
    with pytest.raises(InvalidRequest, match="unexpected inference output 'z', allowed outputs are: init, v, "):
        _open(directory)
    (directory / "1" / "model.graphdef").write_bytes(b"junk")
    with pytest.raises(InternalError, match="Can't parse"):
        _open(directory)


@_marked
def test_completed_and_refused(tmp_path: Path) -> None:
    """From the file itself: what the rules below do with it is tested without TensorFlow."""
    directory = save(tmp_path / "m", 'platform: "tensorflow_savedmodel"')
    made = _context(tmp_path, 'platform: "tensorflow_savedmodel" backend: "tensorflow"')
    completed = TensorFlowBackend().auto_complete(made)
    assert (completed.max_batch_size, completed.HasField("dynamic_batching")) == (4, True)
    assert [(item.name, list(item.dims)) for item in (*completed.input, *completed.output)] == [("x", [4]), ("y", [4])]
    (directory / "1" / "model.savedmodel" / "saved_model.pb").write_bytes(b"junk")
    with pytest.raises(InternalError, match="configuration for 'm', failed to load model"):
        TensorFlowBackend().auto_complete(made)


@_marked
def test_importing_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    """Environment, signals, loggers and standard error; only the workbench's own thread is gone again, too."""
    code = """
import logging, os, signal, sys, threading
from workbench.backends.tensorflow_session import import_tensorflow
def state():
    return (dict(os.environ), {each: signal.getsignal(each) for each in signal.valid_signals()},
            [logging.getLogger(name).handlers for name in (None, "tensorflow", "absl")], sys.excepthook,
            logging.getLogger().level, logging.getLogger("tensorflow").level, os.fstat(2).st_ino)
before = state()
handler = threading.Timer(0.5, lambda: os.write(2, b"another thread's line\\n"))
handler.start()
tf = import_tensorflow()
handler.join()
assert state() == before, "changed"
with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
    assert session.run(tf.constant(2) * 3) == 6
os.write(2, b"the end\\n")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr == "another thread's line\nthe end\n"
    assert run.stdout == ""


def _context(root: Path, text: str, lines: list[str] | None = None) -> ModelContext:
    message = ConfigDocument.parse(text.encode()).message
    message.name = "m"
    kept = [] if lines is None else lines
    host: Any = type("Host", (), {"log": lambda self, level, line, **more: kept.append(line)})()
    return ModelContext("m", 1, message, "{}", root / "m", root / "m" / "1", host)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (config(platform="tensorflow"), "platform tensorflow not supported for TensorFlow model 'm'"),
        (config(parameters="MAX_SESSION_SHARE_COUNT=0"), "'MAX_SESSION_SHARE_COUNT' must be positive number"),
        (config(parameters="TF_NUM_INTRA_THREADS=-1"), "'TF_NUM_INTRA_THREADS' must be non-negative number"),
        (config(parameters="TF_NUM_INTER_THREADS=some"), "failed to convert 'some' to integral number"),
        (config(parameters="TF_USE_PER_SESSION_THREADS=yes"), "failed to convert 'yes' to boolean value"),
        (config(parameters="WORKBENCH_ENGINE=jax"), "must be tensorflow or openvino, got 'jax'"),
        (config("BF16"), "unsupported datatype 'TYPE_BF16' for tensor 'x' for model 'm'"),
        (
            config(more="optimization { execution_accelerators { cpu_execution_accelerator { name: 'openvino' } } }"),
            "CPU Execution Accelerator is not supported in TensorFlow backend",
        ),
    ],
)
def test_parameters_that_are_refused(tmp_path: Path, text: str, says: str) -> None:
    """Triton's texts; the README of its backend says "yes" is true, its code does not."""
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        TensorFlowBackend().open(_context(tmp_path, text))


def test_no_file_and_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotReady, match=r"unable to find '.*model\.savedmodel'"):
        TensorFlowBackend().open(_context(tmp_path, config()))
    (tmp_path / "m" / "1" / "model.savedmodel").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(InvalidRequest, match="unable to load model 'm': TensorFlow is not installed") as refused:
        TensorFlowBackend().auto_complete(_context(tmp_path, config()))
    assert "serving-workbench[tensorflow]" in refused.value.hint
    assert "serving-workbench[openvino]" in refused.value.hint


def _signature(inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]) -> Signature:
    return Signature(
        {name: TensorSpec(name, "FP32", dims) for name, dims in inputs.items()},
        {name: TensorSpec(name, "FP32", dims) for name, dims in outputs.items()},
    )


ONE = _signature({"x": (-1, 4)}, {"y": (-1, 4)})


def _message(text: str) -> Any:
    message = ConfigDocument.parse(text.encode()).message
    message.name = "m"
    return message


@pytest.mark.parametrize(
    ("text", "signature", "batch", "inputs", "outputs"),
    [
        ("", ONE, 4, {"x": [4]}, {"y": [4]}),
        ("max_batch_size: 1", ONE, 1, {"x": [4]}, {"y": [4]}),
        ("input { name: 'x' data_type: TYPE_FP32 dims: [ -1, 4 ] }", ONE, 0, {"x": [-1, 4]}, {"y": [-1, 4]}),
        ("output { name: 'y' data_type: TYPE_FP32 dims: 4 }", ONE, 4, {"x": [4]}, {"y": [4]}),
        ("", _signature({"x": (1, 4)}, {"y": (-1,)}), 0, {"x": [1, 4]}, {"y": [-1]}),
        ("", _signature({"x": (-1,)}, {"y": (-1, 2)}), 4, {"x": [1]}, {"y": [2]}),
        (
            "input { name: 'b' data_type: TYPE_FP32 dims: 4 } output { name: 'y' }",
            _signature({"a": (-1, 2), "b": (-1, 4)}, {"y": (-1, 3), "z": (-1, 1)}),
            4,
            {"b": [4], "a": [2]},
            {"y": [3]},
        ),
    ],
)
def test_completion(
    text: str, signature: Signature, batch: int, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> None:
    """Dims that are given decide whether an axis in front of them is the batch; outputs that are given are all."""
    config, lines = _message(text), []  # type: ignore[var-annotated]
    complete_from_signature(config, signature, 4, lines.append)
    assert config.max_batch_size == batch
    assert config.HasField("dynamic_batching") == (batch > 1)
    assert {item.name: list(item.dims) for item in config.input} == inputs
    assert {item.name: list(item.dims) for item in config.output} == outputs
    assert all(item.data_type == 11 for item in (*config.input, *config.output))
    assert bool(lines) == (batch == 4)


@pytest.mark.parametrize(
    ("text", "signature", "says"),
    [
        (
            "max_batch_size: 8",
            _signature({"x": (1, 4)}, {"y": (1, 4)}),
            "configuration specified max-batch 8 but model signature does not support batching",
        ),
        (
            "input { name: 'x' data_type: TYPE_FP32 dims: [ -1, 4 ] } output { name: 'y' dims: 4 }",
            ONE,
            "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of whether "
            "batching is supported",
        ),
        (
            "",
            _signature({"x": ()}, {"y": (-1, 4)}),
            "Unable to autofill for 'm': the rank of model tensor 'x' is 0 and dimensions are not defined",
        ),
        (
            "",
            _signature({"x": (-1, 4)}, {"y": ()}),
            "Unable to autofill for 'm': the rank of model tensor 'y' is 0 which is not supported",
        ),
    ],
)
def test_completion_that_is_refused(text: str, signature: Signature, says: str) -> None:
    with pytest.raises(WorkbenchError, match=re.escape(says)):
        complete_from_signature(_message(text), signature, 4, lambda line: None)


IO = "input { name: 'x' data_type: TYPE_FP32 dims: 4 } output { name: 'y' data_type: TYPE_FP32 dims: 4 } "
BATCHING = "max_batch_size: 8 " + IO
CONTROL = "control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }"
START = f"sequence_batching {{ control_input {{ name: 'START' {CONTROL} }} }}"


@pytest.mark.parametrize(
    ("text", "signature", "says"),
    [
        (BATCHING.replace("'x'", "'z'"), ONE, "unexpected inference input 'z', allowed inputs are: x"),
        (BATCHING.replace("'y'", "'z'"), ONE, "unexpected inference output 'z', allowed outputs are: y"),
        (
            IO,
            _signature({"x": (-1, 4), "w": (-1, 1)}, {"y": (-1, 4)}),
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            BATCHING,
            _signature({"x": (1, 4)}, {"y": (-1, 4)}),
            "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and "
            "the first dimension must be -1; but shape expected by the model is [1,4]",
        ),
        (
            IO.replace("TYPE_FP32", "TYPE_INT32", 1),
            _signature({"x": (4,)}, {"y": (4,)}),
            "configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
        ),
        (
            BATCHING + START,
            ONE,
            "configuration specified sequence control 'START', but model does not provide that input",
        ),
        (
            BATCHING + START,
            _signature({"x": (-1, 4), "START": (-1, 2)}, {"y": (-1, 4)}),
            "unable to load model 'm', sequence control 'START': model 'm', tensor 'START': the model expects 2 ",
        ),
    ],
)
def test_configurations_that_do_not_fit(text: str, signature: Signature, says: str) -> None:
    with pytest.raises(WorkbenchError, match=re.escape(says)):
        check_signature(_message(text), signature)


def test_configurations_that_fit() -> None:
    """A tensor whose rank the signature does not say takes the dims of the configuration; a control is [1] a row."""
    check_signature(_message(IO), _signature({"x": ()}, {"y": ()}))
    with_start = _signature({"x": (-1, 4), "START": (-1, 1)}, {"y": (-1, 4), "z": (-1, 9)})
    check_signature(_message(BATCHING + START), with_start)
    assert tensorflow_models.TYPES.keys() >= {"BYTES"}
