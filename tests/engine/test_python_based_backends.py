"""Python-based backends: ``<backend directory>/<name>/model.py`` for models that have artefacts only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scaler_backend import HELPER, SHARED, write

from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import LoadFailed
from workbench.protocol.tensors import InferenceRequest, Tensor


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    """A backend directory with ``scaler``."""
    directory = tmp_path / "backends" / "scaler"
    write(directory)
    return directory.parent


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """``triple`` and ``tenfold`` by ``scaler``, and ``own``, a Python model with a file of its own."""
    root = tmp_path / "models"
    for name, factor in (("triple", 3), ("tenfold", 10)):
        version = root / name / "1"
        version.mkdir(parents=True)
        (version / "factor.json").write_text(json.dumps({"factor": factor}))
        (root / name / "config.pbtxt").write_text('backend: "scaler"\ninstance_group { kind: KIND_CPU }\n')
    (root / "triple" / "1" / "model.py").write_text("raise RuntimeError('the shared file counts')\n")
    own = root / "own" / "1"
    own.mkdir(parents=True)
    (own / "model.py").write_text(SHARED)
    (own / "scaling.py").write_text(HELPER.replace("factor)", "factor) + 0.5", 2).replace("factor) + 0.5:", "factor):"))
    (own / "factor.json").write_text('{"factor": 1}')
    (root / "own" / "config.pbtxt").write_text('backend: "python"\ninstance_group { kind: KIND_CPU }\n')
    return root


def ask(engine: InferenceEngine, model: str) -> tuple[list[float], dict[str, Any]]:
    response = engine.infer(InferenceRequest(model, [Tensor.from_numpy("X", np.array([[1, 2]], np.float32))]), 30)
    return response.as_numpy("Y").ravel().tolist(), json.loads(response.as_numpy("TOLD").ravel()[0])


@pytest.mark.parametrize("execution", ["process", "thread"])
def test_models_of_one_file(execution: str, backends: Path, models: Path, make_engine: Any) -> None:
    engine = make_engine(models, backend_directory=backends, python_execution=execution)
    values, told = ask(engine, "triple")
    assert values == [3, 6]
    assert told == {
        "model_instance_kind": "CPU", "model_instance_name": "triple_0_0", "model_instance_device_id": "0",
        "model_repository": str(models / "triple"), "model_version": "1", "model_name": "triple",
        "runtime": "model.py", "directory": str(models / "triple" / "1"),
    }  # fmt: skip
    assert ask(engine, "tenfold")[0] == [10, 20]
    assert ask(engine, "own")[0] == [1.5, 2.5], "its own file and the module beside it"
    config = engine.model_config("triple")
    assert (config.backend, config.runtime, config.max_batch_size) == ("scaler", "model.py", 4)
    assert config.HasField("dynamic_batching")
    assert engine.model_config("own").runtime == ""
    assert engine.model_metadata("triple")["platform"] == "scaler"


def test_it_is_configured_in_place_and_reloaded_like_any_model(backends: Path, models: Path, make_engine: Any) -> None:
    engine = make_engine(models, backend_directory=backends, load_models=("triple",))
    delay = Edit("dynamic_batching.max_queue_delay_microseconds", "set", 300)
    assert engine.configure("triple", [delay]).change_class == "live"
    assert engine.configure("triple", [Edit("instance_group[0].count", "set", 2)]).change_class == "instances"
    assert engine.model_config("triple").runtime == "model.py"
    (models / "triple" / "1" / "factor.json").write_text('{"factor": 40}')
    engine.load("triple")
    assert ask(engine, "triple")[0] == [40, 80]


def test_the_settings_of_the_python_backend_are_its_own(backends: Path, models: Path, make_engine: Any) -> None:
    settings = {"python": {"stub-timeout-seconds": "soon"}}
    engine = make_engine(models, backend_directory=backends, load_models=(), backend_config=settings)
    with pytest.raises(LoadFailed, match="backend setting stub-timeout-seconds is 'soon'"):
        engine.load("triple")


SEARCHED = (
    "unable to find backend library '{}' for model 'bad', searched: '{models}/bad/1' '{models}/bad' '{backends}/{}' "
)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            'backend: "nobody"',
            "unable to find backend library for backend 'nobody', try specifying runtime on the model configuration.",
        ),
        (
            'backend: "library"',
            "unable to find backend library for backend 'library', try specifying runtime on the model configuration.",
        ),
        ('backend: "scaler" runtime: "libtriton_other.so"', SEARCHED.replace("{}", "libtriton_other.so", 1)),
        ('backend: "library" runtime: "libtriton_library.so"', SEARCHED.replace("{}", "libtriton_library.so", 1)),
        (
            'backend: "nobody" runtime: "model.py"',
            "unable to find Python backend based backend library 'model.py' for model 'bad', searched: "
            "'{backends}/nobody/model.py'",
        ),
        (
            'backend: "python" runtime: "model.py"',
            "unable to find Python backend based backend library 'model.py' for model 'bad', searched: "
            "'{backends}/python/model.py'",
        ),
        (
            'backend: "../scaler"',
            "unable to find backend library for backend '../scaler', try specifying runtime on the model "
            "configuration.",
        ),
        (
            'backend: "scaler" runtime: "../x.so"',
            "backend library name '../x.so' escapes backend directory '{models}/bad/1', for model 'bad', check model "
            "config runtime field",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_words(
    config: str, text: str, backends: Path, models: Path, make_engine: Any
) -> None:
    """The state has Triton's text, the exception and the log say what this workbench can run."""
    (backends / "library").mkdir()
    (backends / "library" / "libtriton_library.so").write_bytes(b"\x7fELF")
    (models / "bad" / "1").mkdir(parents=True)
    (models / "bad" / "config.pbtxt").write_text(config)
    (models / "bad" / "x.so").write_bytes(b"\x7fELF")
    engine = make_engine(models, backend_directory=backends, load_models=())
    with pytest.raises(LoadFailed) as caught:
        engine.load("bad")
    name = config.split('"')[1]
    expected = text.replace("{}", name).replace("{models}", str(models)).replace("{backends}", str(backends))
    reason = engine.repository_index()[0]["reason"]
    assert reason == f"Invalid argument: {expected}"
    if "escapes" not in text:
        assert "built-in ones, not C++ ones" in caught.value.hint
        assert str(backends / name) in caught.value.hint
        assert any("not C++ ones" in event.text for event in engine.events.after())


def test_a_library_beside_a_built_in_backend_is_that_backend(backends: Path, models: Path, make_engine: Any) -> None:
    """A real Triton's backend directory may be given: its libraries are not loaded, ours stand for them."""
    (backends / "identity").mkdir()
    (backends / "identity" / "libtriton_identity.so").write_bytes(b"\x7fELF")
    (backends / "identity" / "model.py").write_text("raise RuntimeError('the library comes first')\n")
    directory = models / "same"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(
        'backend: "identity" runtime: "" input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }\n'
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }\n'
    )
    engine = make_engine(models, backend_directory=backends, load_models=("same",))
    given = Tensor.from_numpy("INPUT0", np.array([7], np.float32))
    assert engine.infer(InferenceRequest("same", [given]), 10).as_numpy("OUTPUT0").tolist() == [7]
    (backends / "identity" / "libtriton_identity.so").unlink()
    with pytest.raises(LoadFailed, match="the library comes first"):
        engine.load("same", config=json.dumps({"backend": "identity", "max_batch_size": 3}))
