"""What the engine makes of each framework: its throughput against a bare loop over the framework, at the same batch.

    python benchmarks/backends.py [--quick] [--json] [--only minilm,fil] [--repository DIR]

One thread computes in both, so that the second core is left for the rest. The engine gets requests of a row each (the
name says where it is more) from its own loop, two batches under way, so that batches are full; the bare loop gets the
same rows at once. Blocks of the two take turns in one process.

Goal: at least 0.95 of the bare loop's throughput where a batch takes 5 ms or more. Elsewhere the rows tell what a
request costs on top. Medians of pairs of blocks, which are short and many; where a hypervisor takes some of the
processors, of the half of them that it took least from. The spread is the median's 95 % interval, ``batch_ms`` how long
a batch takes bare. A framework that is not installed is a row that says so. It takes nine minutes (``--quick``: two),
and minutes more the first time, when the sample models are built (``--repository``, by default kept beside the
downloads).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support import bare_loops
from support.batch_load import BatchLoad
from support.paired import interval, stolen_s, undisturbed

from workbench.clock import monotonic_ns
from workbench.config import Edit, to_json
from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import WorkbenchError
from workbench.repository.example_inputs import inputs_of, load_example_inputs
from workbench.samples import build
from workbench.samples.wheels import default_cache_dir

GOAL = 0.95
JUDGED_MS = 5.0

_OPENVINO = (Edit('parameters["WORKBENCH_DYNAMIC_BATCH"].string_value', "set", "YES"),)
_NATIVE = (Edit('parameters["WORKBENCH_FIL_ENGINE"].string_value', "set", "native"),)


@dataclass(frozen=True, slots=True)
class Case:
    """A sample under a backend: ``batch`` requests of ``rows`` rows make a batch; ``needs`` is what is imported."""

    model: str
    backend: str
    needs: tuple[str, ...]
    bare: bare_loops.Bare
    batch: int
    rows: int = 1
    edits: tuple[Edit, ...] = ()
    note: str = ""
    sequences: bool = False
    ragged: bool = False

    @property
    def name(self) -> str:
        """What a row is called."""
        size = f"{self.batch}" if self.rows == 1 else f"{self.batch} x {self.rows} rows"
        return f"{self.model} ({self.backend}{self.note}), batch {size}"


CASES = (
    Case("minilm", "onnxruntime", ("onnxruntime",), bare_loops.onnxruntime, 8),
    Case("minilm_ts", "pytorch", ("torch",), bare_loops.torchscript, 8),
    Case("minilm_pt2", "pytorch", ("torch",), bare_loops.exported, 8, note=", own process"),
    Case("minilm_aoti", "pytorch", ("torch",), bare_loops.aoti, 8, note=", own process"),
    Case("minilm_ov", "openvino", ("openvino",), bare_loops.openvino("f32"), 8, edits=_OPENVINO),
    Case("minilm_ov_bf16", "openvino", ("openvino",), bare_loops.openvino("bf16"), 8, edits=_OPENVINO),
    Case("mlp_4096", "onnxruntime", ("onnxruntime",), bare_loops.onnxruntime, 16),
    Case("silero_vad", "pytorch", ("torch",), bare_loops.silero, 16, sequences=True),
    Case("basic_pitch_onnx", "onnxruntime", ("onnxruntime",), bare_loops.onnxruntime, 2),
    Case("basic_pitch_tf", "tensorflow", ("tensorflow",), bare_loops.tensorflow, 2),
    Case("basic_pitch_tflite", "openvino", ("openvino",), bare_loops.openvino("f32", "model.tflite"), 1),
    Case("digits_xgb", "fil", ("treelite",), bare_loops.treelite("xgboost.ubj"), 64, note=", treelite"),
    Case("digits_xgb", "fil", ("treelite",), bare_loops.treelite("xgboost.ubj"), 8, 64, note=", treelite"),
    Case("digits_xgb", "fil", ("treelite", "xgboost"), bare_loops.xgboost, 64, edits=_NATIVE, note=", native"),
    Case("digits_lgbm", "fil", ("treelite",), bare_loops.treelite("model.txt"), 8, 64, note=", treelite"),
    Case("digits_lgbm", "fil", ("treelite", "lightgbm"), bare_loops.lightgbm, 8, 128, edits=_NATIVE, note=", native"),
    Case("digits_forest", "fil", ("treelite",), bare_loops.treelite("checkpoint.tl"), 8, 128, note=", treelite"),
    Case("image_preproc", "dali", ("nvidia.dali",), bare_loops.dali, 4, ragged=True),
)


@dataclass(frozen=True, slots=True)
class Size:
    """Pairs of blocks, and the seconds of a block."""

    pairs: int
    seconds: float


FULL = Size(30, 0.4)
QUICK = Size(8, 0.25)


def measure(case: Case, repository: Path, size: Size) -> dict[str, Any]:
    """The row of a case."""
    missing = [name for name in case.needs if not _installed(name)]
    if missing:
        return _nothing(case, f"not installed: {', '.join(missing)}")
    try:
        build(repository, models=[case.model], progress=_tell)
        engine = InferenceEngine(
            EngineOptions((repository,), load_models=(case.model,), exit_on_error=True, lower_switch_interval=True)
        )
        engine.start()
    except WorkbenchError as error:
        return _nothing(case, f"cannot be served: {error.message}")
    try:
        return _row(case, *_pairs(case, engine, repository / case.model, size))
    finally:
        engine.stop()


def _pairs(case: Case, engine: InferenceEngine, folder: Path, size: Size) -> tuple[list[float], list[float]]:
    """Seconds a request, bare and through the engine, block by block, of the pairs to judge by."""
    largest = case.batch * case.rows
    scheduling = "sequence_batching.oldest" if case.sequences else "dynamic_batching"
    # the delay holds the first batch back until it is full; later ones are full when the instance is free
    waits = [
        Edit(f"{scheduling}.preferred_batch_size", "set", [largest]),
        Edit(f"{scheduling}.max_queue_delay_microseconds", "set", 2_000_000),
    ]
    engine.configure(case.model, [Edit("max_batch_size", "set", largest), *case.edits, *(waits if largest > 1 else ())])
    specs, optional = inputs_of(to_json(engine.model_config(case.model)))
    requests = load_example_inputs(folder, specs, count=case.batch, batch_size=case.rows, optional=optional)
    call = case.bare(folder, _joined(requests, ragged=case.ragged))
    load = BatchLoad(engine, case.model, requests, sequences=case.sequences)
    calls = max(4, math.ceil(size.seconds / _time(call, 3)))
    load.rate(3)
    bare, served, stolen = [], [], []
    for pair in range(size.pairs):
        before = stolen_s()
        for ours in (True, False) if pair % 2 else (False, True):
            if ours:
                served.append(1 / load.rate(calls))
            else:
                bare.append(_time(call, calls) / case.batch)
        stolen.append(stolen_s() - before)
    kept = undisturbed(stolen)
    return [bare[pair] for pair in kept], [served[pair] for pair in kept]


def _joined(requests: Sequence[Any], *, ragged: bool) -> dict[str, Any]:
    parts = {name: [each[name] for each in requests] for name in requests[0]}
    if ragged:
        return {name: list(itertools.chain.from_iterable(arrays)) for name, arrays in parts.items()}
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _time(call: bare_loops.Call, calls: int) -> float:
    """Seconds a call."""
    begun = monotonic_ns()
    for _ in range(calls):
        call()
    return (monotonic_ns() - begun) / calls / 1e9


def _row(case: Case, bare: list[float], served: list[float]) -> dict[str, Any]:
    batch_ms = 1e3 * statistics.median(bare) * case.batch
    judged = batch_ms >= JUDGED_MS
    if judged:
        values, digits = [a / b for a, b in zip(bare, served, strict=True)], 3
    else:
        values, digits = [1e6 * (b - a) for a, b in zip(bare, served, strict=True)], 1
    value, low, high = interval(values)
    return {
        "name": case.name,
        "value": round(value, digits),
        "unit": "of the bare loop" if judged else "µs a request on top",
        "goal": f">= {GOAL}" if judged else None,
        "met": value >= GOAL if judged else None,
        "n": len(values),
        "spread": {"low": round(low, digits), "high": round(high, digits)},
        "batch_ms": round(batch_ms, 3),
    }


def _nothing(case: Case, why: str) -> dict[str, Any]:
    return {"name": case.name, "value": None, "unit": why, "goal": None, "met": None, "n": 0, "spread": None}


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _tell(progress: Any) -> None:
    if progress.done < progress.total:
        print(f"{progress.model}: {progress.message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it; the exit code says whether the goals were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter blocks")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--only", default="", metavar="TEXT,...", help="rows whose name has one of these in it")
    parser.add_argument("--repository", type=Path, metavar="DIR", help="where the sample models are, or are built")
    args = parser.parse_args(argv)
    wanted = [text for text in args.only.split(",") if text]
    cases = [case for case in CASES if not wanted or any(text in case.name for text in wanted)]
    if not cases:
        parser.error(f"--only {args.only}: no row has that in its name; there are: {', '.join(c.name for c in CASES)}")
    repository = args.repository or default_cache_dir().parent / "samples"
    rows = []
    for case in cases:
        rows.append(measure(case, repository, QUICK if args.quick else FULL))
        if not args.json:
            _print(rows[-1])
    if args.json:
        print(json.dumps({"rows": rows}, ensure_ascii=False))
    return 0 if all(row["met"] is not False for row in rows) else 1


def _print(row: dict[str, Any]) -> None:
    if row["value"] is None:
        print(f"{row['name']:52} {row['unit']}", flush=True)
        return
    spread = f"{row['spread']['low']}..{row['spread']['high']}"
    met = {None: "", True: "met", False: "MISSED"}[row["met"]]
    print(
        f"{row['name']:52} {row['value']:8} {row['unit']:20} {spread:>16} n={row['n']:<3} "
        f"batch {row['batch_ms']:8} ms  {row['goal'] or '':8} {met}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
