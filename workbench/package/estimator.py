"""scikit-learn, XGBoost, LightGBM: an estimator beside a model.py that loads it. Others of their kind go too."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest, Unsupported
from workbench.package.made import Made, Wish
from workbench.package.model_py import render
from workbench.package.source import requirements
from workbench.package.table import ONE, Table, is_table, plan
from workbench.package.tensors import Feed, as_feeds, named, signature


def is_estimator(thing: Any) -> bool:
    """Whether it predicts: an estimator with parameters, or a booster."""
    return hasattr(thing, "predict") and (hasattr(thing, "get_params") or is_booster(thing))


def is_booster(thing: Any) -> bool:
    """Whether it is the own booster of XGBoost or LightGBM."""
    return type(thing).__name__ == "Booster" and _family(thing) in ("xgboost", "lightgbm")


def _family(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def from_estimator(estimator: Any, wish: Wish) -> Made:
    """A model.py and the estimator's file.

    Outputs: ``label`` and, where it tells them, ``probabilities`` of a classifier; ``prediction`` of the others. A
    classifier of several labels has its probabilities as ``probabilities_0``, ``probabilities_1``, ...

    Raises:
        InvalidRequest: an example does not fit the estimator, or an output is not one of its own.
        Unsupported: joblib is not installed.
    """
    table, feeds = _feeds(estimator, wish)
    calls = _calls(estimator, wish.outputs)

    def call(feed: Feed) -> Feed:
        given = _given(estimator, feed, table)
        return named(_flat({output: getattr(estimator, method)(given) for output, method in calls.items()}), ())

    found, answers = signature(call, feeds, batching=wish.batching, what=f"the {type(estimator).__name__}")
    file, content, modules = _saved(estimator)
    lines, load, imports = _lines(estimator, next(iter(feeds[0])), table, calls, list(answers[0]))
    needs = requirements(modules | ({"pandas"} if table is not None else set()))
    title = f"A {type(estimator).__name__} of {_family(estimator)}."
    model = render(
        title, found, feeds, answers, call="\n".join(lines), load=load.format(file=file), imports=imports, needs=needs
    )
    comment = f"{title} It needs {', '.join(needs)}."
    return Made("python", found, feeds, answers, {"model.py": model, file: content}, comment, tuple(needs))


def _feeds(estimator: Any, wish: Wish) -> tuple[Table | None, list[Feed]]:
    """The examples, and how tables become inputs, where they are tables."""
    examples = wish.examples if isinstance(wish.examples, list) else [wish.examples]
    if examples and all(map(is_table, examples)):
        table = plan(examples[0], wish.inputs)
        return table, [table.feed(each) for each in examples]
    if wish.inputs is not None:
        raise InvalidRequest(
            f"inputs='{wish.inputs}' says how a table becomes inputs, the examples are no table",
            hint="give example_inputs as a pandas DataFrame",
        )
    feeds = as_feeds(wish.examples, [ONE], what=f"a {type(estimator).__name__}")
    if len(feeds[0]) != 1:
        raise InvalidRequest(
            "an estimator has one input, a table with one row for each sample",
            hint="an input for each column: give example_inputs as a pandas DataFrame with inputs='columns'",
        )
    return None, feeds


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


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """A list of arrays (the probabilities of several labels) as an output each."""
    found: dict[str, Any] = {}
    for output, value in values.items():
        if isinstance(value, list) and all(hasattr(each, "shape") for each in value):
            found |= {f"{output}_{index}": each for index, each in enumerate(value)}
        else:
            found[output] = value
    return found


def _given(estimator: Any, feed: Feed, table: Table | None) -> Any:
    """What the estimator is given for a request."""
    given = next(iter(feed.values())) if table is None else table.frame(feed)
    if not is_booster(estimator) or _family(estimator) != "xgboost":
        return given
    import xgboost

    if table is not None:
        return xgboost.DMatrix(given, enable_categorical=True)
    return xgboost.DMatrix(given, feature_names=estimator.feature_names)


def _lines(
    estimator: Any, name: str, table: Table | None, calls: dict[str, str], outputs: list[str]
) -> tuple[list[str], str, list[str]]:
    """The lines of ``call``, those of ``load``, and imports."""
    imports, load = ["import joblib"], 'self.model = joblib.load(os.path.join(here, "{file}"))'
    family, kind = _family(estimator), type(estimator).__name__
    if is_booster(estimator):
        imports, load = (
            [f"import {family}"],
            f'self.model = {family}.Booster(model_file=os.path.join(here, "{{file}}"))',
        )
    elif family == "xgboost":
        imports = ["import xgboost"]
        load = f'self.model = xgboost.{kind}()\nself.model.load_model(os.path.join(here, "{{file}}"))'
    lines = [f"table = feed[{name!r}]"]
    if table is not None:
        imports.append("import pandas")
        lines = table.source().splitlines()
    if is_booster(estimator) and family == "xgboost":
        how = f"feature_names={estimator.feature_names!r}" if table is None else "enable_categorical=True"
        lines.append(f"table = xgboost.DMatrix(table, {how})")
    lines += [f"{output} = self.model.{method}(table)" for output, method in calls.items()]
    entries = []
    for output in outputs:
        whole, _, index = output.rpartition("_")
        entries.append(f"{output!r}: " + (output if output in calls else f"{whole}[{index}]"))
    return [*lines, f"return {{{', '.join(entries)}}}"], load, imports


def _saved(estimator: Any) -> tuple[str, bytes, set[str]]:
    """The file's name, its bytes, and the modules that read it."""
    if is_booster(estimator) and _family(estimator) == "lightgbm":
        return "model.txt", estimator.model_to_string().encode(), {"lightgbm"}
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
