"""What a request that is made of other requests costs: the time of its parts, and the bytes that were moved for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from workbench.records import RecordColumns

WIRE = ("requests", "received", "sent")
PARTS = ("queue_ms", "compute_input_ms", "compute_infer_ms", "compute_output_ms")
OWN = "(between them)"
INSIDE = ("to_processes", "from_processes", "handed_on", "copied")


def composing_models(config: Mapping[str, Any]) -> list[str]:
    """The models that an ensemble is made of, in the order of its steps; empty for another model."""
    steps = (config.get("ensemble_scheduling") or {}).get("step", ())
    return list(dict.fromkeys(str(step["model_name"]) for step in steps))


def with_composing(models: Iterable[str], composing: Callable[[str], Iterable[str]]) -> list[str]:
    """Models and what they are made of, each once: an ensemble alone would load nowhere.

    ``composing`` gives the models that one is made of, none for one that is no ensemble.
    """
    found: dict[str, None] = {}
    left = list(models)
    while left:
        name = left.pop(0)
        if name not in found:
            found[name] = None
            left += composing(name)
    return list(found)


def traffic_frame(state: Mapping[str, Any], wire: Mapping[str, Mapping[str, int]]) -> pd.DataFrame:
    """One row a model, whole numbers; a model's versions are summed. See ``Server.traffic``."""
    import pandas as pd

    rows: dict[str, dict[str, int]] = {}
    for version in state.get("versions", ()):
        row = rows.setdefault(version["model"], dict.fromkeys((*WIRE, *INSIDE), 0))
        for column, count in version["traffic"].items():
            row[column] += count
    for model, counts in wire.items():
        if model in rows:
            rows[model].update(counts)
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=[*WIRE, *INSIDE])
    return frame.rename_axis("model").astype("int64")


def breakdown_frame(columns: RecordColumns, model: str, steps: Iterable[str], since_ns: int) -> pd.DataFrame:
    """Where the time of a model's requests went: see ``Server.breakdown``."""
    import pandas as pd

    requests = columns.requests
    asked = (requests["model"] == model) & (requests["client"] != "warmup") & (requests["arrival"] >= since_ns)
    top = asked & (requests["status"] == "ok")
    nested = np.isin(requests["parent_seq"], requests["seq"][top])
    count = int(top.sum())
    names = list(dict.fromkeys([*steps, *requests["model"][nested].tolist()]))
    rows = [_row(requests, name, nested & (requests["model"] == name), count) for name in names]
    whole = _row(requests, model, top, count)
    own = whole["total_ms"] - sum(row["calls"] * row["total_ms"] for row in rows if row["calls"])
    if rows and own >= 0:  # steps side by side take more time together than their request
        rows.append({"step": OWN, "calls": 1.0, "total_ms": own})
    frame = pd.DataFrame([*rows, whole], columns=["step", "calls", *PARTS, "total_ms"])
    frame["share"] = frame["calls"] * frame["total_ms"] / whole["total_ms"]
    return frame.set_index("step")


def _row(requests: Mapping[str, Any], name: str, mask: Any, parents: int) -> dict[str, Any]:
    """Means of some requests, in milliseconds; ``calls`` is how many there are for each request of the parent."""
    arrival, start = requests["arrival"][mask], requests["compute_start"][mask]
    input_end, output_start = requests["compute_input_end"][mask], requests["compute_output_start"][mask]
    end, done = requests["compute_end"][mask], requests["end"][mask]

    def mean(values: Any) -> float:
        return float(values.mean()) / 1e6 if len(values) else float("nan")

    return {
        "step": name,
        "calls": len(arrival) / parents if parents else 0.0,
        "queue_ms": mean(start - arrival),
        "compute_input_ms": mean(input_end - start),
        "compute_infer_ms": mean(output_start - input_end),
        "compute_output_ms": mean(end - output_start),
        "total_ms": mean(done - arrival),
    }
