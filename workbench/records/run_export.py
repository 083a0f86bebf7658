"""A run for other tools: a table as CSV, Parquet or Arrow, or all of it in MLflow; pyarrow and MLflow are extras."""

from __future__ import annotations

import importlib
import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from workbench.errors import AlreadyExists, InvalidRequest, NotFound, Unsupported
from workbench.records.run import Run, plain, unwritable
from workbench.records.run_share import share_run

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("points", "requests", "batches", "samples")
FORMATS = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
"""File name endings and what is written."""


def table_of(run: Run, table: str = "points") -> pd.DataFrame:
    """A table of a run.

    Args:
        run: the run.
        table: ``points`` (a row a load point), ``requests`` and ``batches`` (the server's records), ``samples`` (the
            generator's stamps); the last three have the number of the point as column ``point``.

    Raises:
        InvalidRequest: there is no such table.
        NotFound: the run keeps no such records.
    """
    import pandas as pd

    if table not in TABLES:
        raise InvalidRequest(f"there is no table '{table}' of a run", hint=f"there are {', '.join(TABLES)}")
    if table == "points":
        return run.frame()
    frames = []
    for point in run.points():
        try:
            if table == "samples":
                samples = run.samples(point["id"])
                length = len(samples["sent"])  # the times of responses are a table of another length
                frame = pd.DataFrame({name: column for name, column in samples.items() if len(column) == length})
            else:
                requests, batches = run.records(point["id"]).to_frames()
                frame = requests if table == "requests" else batches
        except NotFound:
            continue
        frame.insert(0, "point", point["id"])
        frames.append(frame)
    if not frames:
        raise NotFound(f"run {run.id} keeps no {table}", hint="sweep with keep_samples=True to have them")
    return pd.concat(frames, ignore_index=True)


def export_table(
    run: Run, to: Path, *, table: str = "points", format: str | None = None, overwrite: bool = False
) -> Path:
    """Writes a table of a run; the file appears complete or not at all.

    Args:
        run: the run.
        to: the file.
        table: see ``table_of``.
        format: ``csv``, ``parquet`` or ``arrow`` (Feather); None goes by the file's ending.
        overwrite: replace a file that is there.

    Raises:
        InvalidRequest: no such table or format.
        Unsupported: pyarrow is not installed.
        AlreadyExists: there is such a file.
        InternalError: it cannot be written there.
    """
    kind = format or FORMATS.get(to.suffix.lower())
    if kind not in FORMATS.values():
        raise InvalidRequest(
            f"cannot tell what to write to {to.name}" if format is None else f"there is no format '{format}'",
            hint="csv, parquet or arrow; by the file's ending, or said",
        )
    if kind != "csv":
        needed("pyarrow", "parquet", f"writing {kind}")
    if to.exists() and not overwrite:
        raise AlreadyExists(f"{to} is there already", where=str(to), hint="give another name, or overwrite=True")
    frame = table_of(run, table)
    draft = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if kind == "csv":
            _flat(frame).to_csv(draft, index=False)
        elif kind == "parquet":
            _flat(frame).to_parquet(draft, index=False)
        else:
            _flat(frame).to_feather(draft)
        draft.replace(to)
    except OSError as error:
        raise unwritable(to, error) from error
    finally:
        draft.unlink(missing_ok=True)
    return to


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """Lists, mappings and columns of mixed kinds as JSON text: not every format has them."""
    out = frame.copy()
    for name in out.columns:
        if out[name].dtype != object:
            continue
        kinds = {type(value) for value in out[name] if value is not None}
        if len(kinds) > 1 or any(issubclass(kind, list | tuple | Mapping) for kind in kinds):
            out[name] = [None if value is None else orjson.dumps(plain(value)).decode() for value in out[name]]
    return out


def to_mlflow(run: Run, *, tracking_uri: str | None = None, experiment: str = "serving-workbench") -> str:
    """Writes a run to MLflow: a parent run, a nested run a point, and the run's own file as artifact; gives its id.

    Settings and load are parameters, figures are metrics, verdict and environment are tags. The file is as ``share``
    makes it.

    Args:
        run: the run.
        tracking_uri: where; None is MLflow's own choice (``MLFLOW_TRACKING_URI``).
        experiment: made where it is missing.

    Raises:
        Unsupported: MLflow is not installed.
    """
    mlflow = needed("mlflow", "mlflow", "writing to MLflow")
    client = mlflow.MlflowClient(tracking_uri=tracking_uri)
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found is not None else client.create_experiment(experiment)
    meta, environment = run.meta, run.environment()
    tags = {
        "mlflow.runName": str(meta.get("title") or run.id),
        "workbench.run": run.id,
        **{f"workbench.{key}": str(meta.get(key, "")) for key in ("kind", "model", "status", "created")},
        **{f"environment.{key}": _text(value) for key, value in environment.items()},
    }
    notes = [str(note.get("text", "")) for note in meta.get("notes", ())]
    if notes:
        tags["mlflow.note.content"] = "\n".join(notes)
    parent = client.create_run(experiment_id, tags=tags).info.run_id
    for point in run.points():
        _nested(client, experiment_id, parent, point)
    with tempfile.TemporaryDirectory() as folder:
        client.log_artifact(parent, str(share_run(run, Path(folder)).path))
    client.set_terminated(parent, "FAILED" if meta.get("status") == "failed" else "FINISHED")
    return str(parent)


def _nested(client: Any, experiment_id: str, parent: str, point: Mapping[str, Any]) -> None:
    verdict = "failed" if point.get("error") else "valid" if point.get("valid") else "not valid"
    tags = {"mlflow.parentRunId": parent, "mlflow.runName": f"point {point['id']}", "workbench.verdict": verdict}
    if why := point.get("error") or "; ".join(point.get("reasons") or ()):
        tags["workbench.reasons"] = str(why)[:4000]
    child = client.create_run(experiment_id, tags=tags).info.run_id
    for key, value in {**(point.get("settings") or {}), **_prefixed("load", point["load"])}.items():
        client.log_param(child, _name(key), _text(value)[:500])
    for key, value in point.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and key not in ("id", "seed", "epoch") and math.isfinite(value):
            client.log_metric(child, _name(key), float(value))
    client.set_terminated(child, "FAILED" if point.get("error") else "FINISHED")


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in values.items()}


def _name(key: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w\-. /]+", "_", key).strip("_")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(plain(value)).decode()


def needed(module: str, extra: str, what: str) -> Any:
    """A package that is only asked for when it is used.

    Raises:
        Unsupported: it is not installed; the hint says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unsupported(
            f"{what} needs {module}, which is not installed here",
            hint=f"pip install 'serving-workbench[{extra}]'",
        ) from error
