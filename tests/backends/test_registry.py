"""Backends that other distributions bring: found by their entry points, imported late, broken ones named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_fixtures import EngineFactory

from workbench.backends import registry
from workbench.backends.conformance import Kit, ModelCase, conformance_problems
from workbench.backends.probe import probe
from workbench.backends.registry import backend_names, backend_places, create_backend
from workbench.config import ConfigDocument
from workbench.errors import InvalidRequest
from workbench.protocol.tensors import InferenceRequest, Tensor

MODULE = """
import numpy as np
from workbench.backends.base import ModelDescription
from workbench.backends.batches import TensorInstance, configured_specs

class Doubler:
    name = "doubler"
    uses_gpus = False

    def describe(self, context):
        return None

    def auto_complete(self, context):
        return None

    def open(self, context):
        return Model(context)

class Model:
    reads_max_batch_size = False
    any_thread = True

    def __init__(self, context):
        self.context = context

    def create_instance(self, spec):
        return Instance(self.context, *configured_specs(self.context.config))

    def close(self):
        pass

class Instance(TensorInstance):
    def run(self, prepared):
        return [prepared["x"] * 2]

    def free(self):
        pass
"""

CONFIG = """\
backend: "doubler"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of other people's distributions on the path: one that works, three that do not, two that collide."""
    site = tmp_path / "site"
    points = {
        "doubler-backend": "doubler = doubler_backend:Doubler\npython = doubler_backend:Doubler",
        "broken-backends": "gone = no_such_module_here:B\nloud = loud_backend:B\nodd = doubler_backend:Model",
        "second-doubler": "doubler = elsewhere:Doubler",
    }
    for name, lines in points.items():
        folder = site / f"{name.replace('-', '_')}-1.2.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (folder / "entry_points.txt").write_text(f"[workbench.backends]\n{lines}\n")
    (site / "doubler_backend.py").write_text(
        MODULE.replace("def __init__(self, context)", "def __init__(self, context=None)")
    )
    (site / "loud_backend.py").write_text("raise RuntimeError('the licence has run out')")
    monkeypatch.syspath_prepend(site)
    registry._entry_points.cache_clear()
    yield site
    registry._entry_points.cache_clear()
    sys.modules.pop("doubler_backend", None)


@pytest.mark.usefixtures("others")
def test_another_distribution_adds_a_backend(tmp_path: Path, make_engine: EngineFactory) -> None:
    assert "doubler" in backend_names()
    assert "doubler_backend" not in sys.modules, "nothing is imported before a model needs it"
    directory = tmp_path / "models" / "m" / "1"
    directory.mkdir(parents=True)
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    engine = make_engine(tmp_path / "models")
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    response = engine.infer(InferenceRequest("m", [Tensor.from_numpy("x", array)]))
    assert response.outputs[0].data.tolist() == (array * 2).tolist()


@pytest.mark.usefixtures("others")
def test_it_passes_the_conformance_suite(tmp_path: Path) -> None:
    """As its author would run it."""

    def write(directory: Path) -> None:
        (directory / "config.pbtxt").write_text(CONFIG)

    doubled = ModelCase(
        write,
        inputs=lambda rng, rows: {"x": rng.standard_normal((rows, 4)).astype("float32")},
        expected=lambda given: {"y": given["x"] * 2},
    )
    kit = Kit(
        "doubler", model=doubled, datatypes={"FP32": doubled}, zero_rows=doubled, framework=("doubler_backend",),
        dynamic="its shapes are fixed", scalar="it has none", failing="it never does",
    )  # fmt: skip
    assert conformance_problems(kit, tmp_path) == {}


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone", "the entry point of broken-backends 1.2 cannot be imported: No module named 'no_such_module_here'"),
        ("loud", "the entry point of broken-backends 1.2 failed: RuntimeError: the licence has run out"),
        (
            "odd",
            "the entry point of broken-backends 1.2 gives a Model, which is no backend: no describe, auto_complete",
        ),
    ],
)
def test_a_broken_one_is_named_and_spoils_no_other(name: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"unable to find backend library for backend '{name}'") as caught:
        create_backend(name)
    assert why in caught.value.hint
    assert create_backend("doubler").name == "doubler"


@pytest.mark.usefixtures("others")
def test_doctor_has_a_word_on_them() -> None:
    good, gone = probe("doubler"), probe("gone")
    assert (good.works, good.version, good.device) == (True, "doubler-backend 1.2", "it does not say")
    assert (gone.works, gone.version) == (False, "broken-backends 1.2")
    assert "No module named 'no_such_module_here'" in gone.why
    assert gone.install == "what broken-backends 1.2 requires: see its own installation guide"


@pytest.mark.usefixtures("others")
def test_a_name_is_given_once() -> None:
    places = backend_places()
    mine = next(place for place in places if place.name == "doubler")
    assert (mine.distribution, mine.target, mine.hidden_by) == ("doubler-backend 1.2", "doubler_backend:Doubler", "")
    hidden = {(place.name, place.distribution, place.hidden_by) for place in places if place.hidden_by}
    assert hidden == {
        ("doubler", "second-doubler 1.2", "doubler-backend 1.2"),
        ("python", "doubler-backend 1.2", "the workbench"),
    }
    assert type(create_backend("python")).__name__ == "PythonBackend"


def test_a_framework_that_is_missing_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "openvino", ("no_such_framework_here", "Backend"))
    with pytest.raises(InvalidRequest, match="unable to find backend library for backend 'openvino'") as raised:
        create_backend("openvino")
    assert "No module named 'no_such_framework_here'" in raised.value.hint
    assert "pip install 'serving-workbench[openvino]'" in raised.value.hint
    monkeypatch.setattr("workbench.backends.pytorch.find_spec", lambda name: None)
    backend = create_backend("pytorch")
    assert backend.uses_gpus is False  # type: ignore[attr-defined]
    context: Any = SimpleNamespace(config=ConfigDocument.parse(b'backend: "pytorch"').message)
    with pytest.raises(InvalidRequest, match="unable to find backend library for backend 'pytorch'") as raised:
        backend.open(context)
    assert "torch is not installed" in raised.value.hint
    assert "pip install 'serving-workbench[torch]'" in raised.value.hint
