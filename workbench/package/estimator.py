"""scikit-learn and XGBoost: an estimator beside a model.py that loads it. Other estimators of their kind go too."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest, Unsupported
from workbench.package.made import Made, Wish
from workbench.package.model_py import render
from workbench.package.source import requirements
from workbench.package.tensors import Feed, as_array, as_feeds, named, signature

INPUT = "input"


def is_estimator(thing: Any) -> bool:
    """Whether it predicts: an estimator with parameters, or a booster."""
    return hasattr(thing, "predict") and (hasattr(thing, "get_params") or is_booster(thing))


def is_booster(thing: Any) -> bool:
    """Whether it is XGBoost's own booster."""
    return type(thing).__name__ == "Booster" and _family(thing) == "xgboost"


def _family(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def from_estimator(estimator: Any, wish: Wish) -> Made:
    """A model.py and the estimator's file.

    Outputs: ``label`` and, where it tells them, ``probabilities`` of a classifier; ``prediction`` of the others.

    Raises:
        InvalidRequest: an example does not fit the estimator, or an output is not one of its own.
        Unsupported: joblib is not installed.
    """
    columns = _columns(wish.examples)
    feeds = as_feeds(wish.examples, [INPUT], what=f"a {type(estimator).__name__}")
    if len(feeds[0]) != 1:
        raise InvalidRequest("an estimator has one input, a table with one row for each sample")
    (name,) = feeds[0]
    calls = _calls(estimator, wish.outputs)
    lines, load, imports = _lines(estimator, name, columns, calls)

    def call(feed: Feed) -> Feed:
        table = _table(estimator, feed[name], columns)
        return named({output: getattr(estimator, method)(table) for output, method in calls.items()}, ())

    found, answers = signature(call, feeds, batching=wish.batching)
    file, content, modules = _saved(estimator)
    needs = requirements(modules | ({"pandas"} if columns else set()))
    title = f"A {type(estimator).__name__} of {_family(estimator)}."
    model = render(
        title, found, feeds, answers, call="\n".join(lines), load=load.format(file=file), imports=imports, needs=needs
    )
    comment = f"{title} It needs {', '.join(needs)}."
    return Made("python", found, feeds, answers, {"model.py": model, file: content}, comment, tuple(needs))


def _columns(examples: Any) -> list[str] | None:
    """The names of a table's columns, for an estimator that was fitted on named ones."""
    if hasattr(examples, "columns") and hasattr(examples, "to_numpy"):
        as_array(INPUT, examples)
        return [str(column) for column in examples.columns]
    return None


def _calls(estimator: Any, wanted: tuple[str, ...]) -> dict[str, str]:
    """Output -> method."""
    classifier = hasattr(estimator, "classes_")
    calls = {"label" if classifier else "prediction": "predict"}
    if hasattr(estimator, "predict_proba"):
        calls["probabilities"] = "predict_proba"
    if not set(wanted) <= set(calls):
        raise InvalidRequest(
            f"a {type(estimator).__name__} has the outputs {', '.join(calls)}, not {', '.join(wanted)}"
        )
    return {output: method for output, method in calls.items() if not wanted or output in wanted}


def _table(estimator: Any, array: Any, columns: list[str] | None) -> Any:
    if is_booster(estimator):
        import xgboost

        return xgboost.DMatrix(array, feature_names=columns or estimator.feature_names)
    if columns is None:
        return array
    import pandas as pd

    return pd.DataFrame(array, columns=columns)


def _lines(
    estimator: Any, name: str, columns: list[str] | None, calls: dict[str, str]
) -> tuple[list[str], str, list[str]]:
    """The lines of ``call``, those of ``load``, and imports."""
    if is_booster(estimator):
        imports, load = ["import xgboost"], 'self.model = xgboost.Booster(model_file=os.path.join(here, "{file}"))'
        names = columns or estimator.feature_names
        lines = [f"table = xgboost.DMatrix(feed[{name!r}], feature_names={names!r})"]
    else:
        if _family(estimator) == "xgboost":
            kind = type(estimator).__name__
            imports = ["import xgboost"]
            load = f'self.model = xgboost.{kind}()\nself.model.load_model(os.path.join(here, "{{file}}"))'
        else:
            imports, load = ["import joblib"], 'self.model = joblib.load(os.path.join(here, "{file}"))'
        lines = [f"table = feed[{name!r}]"]
        if columns is not None:
            imports.append("import pandas")
            lines = [f"table = pandas.DataFrame(feed[{name!r}], columns={columns!r})"]
    entries = ", ".join(f"{output!r}: self.model.{method}(table)" for output, method in calls.items())
    return [*lines, f"return {{{entries}}}"], load, imports


def _saved(estimator: Any) -> tuple[str, bytes, set[str]]:
    """The file's name, its bytes, and the modules that read it."""
    if _family(estimator) == "xgboost":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.ubj"
            estimator.save_model(path)
            sklearn = set() if is_booster(estimator) else {"sklearn"}
            return "model.ubj", path.read_bytes(), {"xgboost", *sklearn}
    try:
        import joblib
    except ImportError as error:
        raise Unsupported("joblib, which writes the estimator, is not installed", hint="pip install joblib") from error
    buffer = io.BytesIO()
    joblib.dump(estimator, buffer)
    return "model.joblib", buffer.getvalue(), {"joblib", "sklearn", _family(estimator)}
