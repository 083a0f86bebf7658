"""What is packaged as a model.py answers in the real Triton as here, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packaged_helpers as helpers
import pytest
from real_triton import complaints, real_triton

import workbench as wb
from workbench.session.server import Server

pytestmark = [pytest.mark.oracle, pytest.mark.full, pytest.mark.timeout(300)]

ROWS = np.random.default_rng(3).random((5, 4)).astype(np.float32)
TEXT = {"text": np.array([["hello", "ü"], ["", "b"]]), "times": np.array([[1, 2], [3, 1]])}


def answers(server: Server, cases: list[tuple[str, dict[str, Any]]]) -> list[dict[str, tuple[str, Any, bytes]]]:
    """Datatype, shape and bytes of each output."""
    out = []
    for model, feed in cases:
        outputs = server.infer(model, feed).response.outputs
        out.append(
            {
                each.name: (
                    each.datatype,
                    each.shape,
                    b"|".join(each.data.flat) if each.datatype == "BYTES" else each.data.tobytes(),
                )
                for each in outputs
            }
        )
    return out


def test_functions_load_and_answer_alike(oracle: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    wb.package(helpers.score, "score", example_inputs={"x": ROWS}, to=models)
    wb.package(helpers.shout, "shout", example_inputs=TEXT, to=models, outputs=["said", "length"])
    wb.package(helpers.centred, "centred", example_inputs=ROWS, to=models)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("score", {"x": ROWS}), ("score", {"x": ROWS[:1]}), ("shout", TEXT), ("centred", {"x": ROWS}),
    ]  # fmt: skip
    with wb.serve(models) as here:
        expected = answers(here, cases)
    with (
        real_triton(oracle, models, tmp_path / "triton.log") as addresses,
        wb.connect(addresses.http) as there,
    ):
        assert {row.name: row.state for row in there.models()} == dict.fromkeys(
            ("score", "shout", "centred"), "READY"
        ), complaints(tmp_path / "triton.log")
        assert answers(there, cases) == expected
        (entry,) = there.statistics("score")["model_stats"]
        assert int(entry["inference_stats"]["success"]["count"]) >= 2


def test_an_estimator_loads_and_answers_alike(oracle: Path, tmp_path: Path) -> None:
    from sklearn.ensemble import RandomForestClassifier

    models = tmp_path / "models"
    models.mkdir()
    rng = np.random.default_rng(0)
    x = rng.random((80, 4))
    forest = RandomForestClassifier(5, random_state=0).fit(x, np.where(x[:, 0] > 0.5, "high", "low"))
    packaged = wb.package(forest, "forest", example_inputs=x[:5], to=models)
    cases: list[tuple[str, dict[str, Any]]] = [("forest", {"input": x[:1]}), ("forest", {"input": x[:20]})]
    with wb.Engine(models) as here:
        expected = answers(here, cases)
    needs = [need for need in packaged.needs if not need.startswith("numpy")]
    with (
        real_triton(oracle, models, tmp_path / "triton.log", packages=needs) as addresses,
        wb.connect(addresses.http) as there,
    ):
        assert there.models()["forest"].ready, complaints(tmp_path / "triton.log")
        assert answers(there, cases) == expected


def test_tables_and_optional_inputs_answer_alike(oracle: Path, tmp_path: Path) -> None:
    from packaged_tables import TABLE, by_column, pipeline

    models = tmp_path / "models"
    models.mkdir()
    packaged = wb.package(pipeline(), "buys", example_inputs=TABLE, to=models)
    wb.package(pipeline(), "buys_by_type", example_inputs=TABLE, to=models, inputs="dtypes")
    x, weight = np.ones((2, 3), np.float32), np.full((2, 1), 3.0)
    wb.package(helpers.weighed, "weighed", example_inputs=[{"x": x}, {"x": x, "weight": weight}], to=models)
    by_type = {
        "int64": TABLE[["age"]].to_numpy(), "float64": TABLE[["income"]].to_numpy(),
        "text": TABLE[["city"]].to_numpy(object), "bool": TABLE[["member"]].to_numpy(),
    }  # fmt: skip
    cases: list[tuple[str, dict[str, Any]]] = [
        ("buys", by_column(TABLE)), ("buys", by_column(TABLE[2:3])), ("buys_by_type", by_type),
        ("weighed", {"x": x}), ("weighed", {"x": x, "weight": weight}),
    ]  # fmt: skip
    with wb.Engine(models) as here:
        expected = answers(here, cases)
    # that release wants numpy 1, for which there is no pandas 3
    needs = [need for need in packaged.needs if not need.startswith(("numpy", "pandas"))] + ["pandas<3"]
    with (
        real_triton(oracle, models, tmp_path / "triton.log", packages=needs) as addresses,
        wb.connect(addresses.http) as there,
    ):
        assert all(row.ready for row in there.models()), complaints(tmp_path / "triton.log")
        assert answers(there, cases) == expected
