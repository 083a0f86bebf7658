"""The checks. Each gets the kit and an empty folder, and raises AssertionError (or WorkbenchError) where it fails."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from workbench.backends.conformance.host import PATIENCE_S, ConformanceHost, Opened, written
from workbench.backends.conformance.kit import Arrays, Kit, ModelCase
from workbench.errors import WorkbenchError
from workbench.protocol import datatypes
from workbench.protocol.tensors import Tensor

SEED = 20


@contextlib.contextmanager
def _opened(case: ModelCase, folder: Path, *, instances: int = 1, name: str = "m") -> Iterator[Opened]:
    host = ConformanceHost()
    try:
        with Opened(host, written(case, folder, name), instances) as opened:
            yield opened
    finally:
        host.close()


def _expect(case: ModelCase, inputs: Arrays, got: dict[str, Tensor], what: str) -> None:
    """One answer is what it must be."""
    for name, tensor in got.items():
        assert tensor.name == name, f"{what}: the tensor of output '{name}' calls itself '{tensor.name}'"
        assert tuple(tensor.shape) == tensor.data.shape, f"{what}: '{name}' says {tensor.shape}, is {tensor.data.shape}"
        row = datatypes.BY_WIRE[tensor.datatype]
        assert tensor.data.dtype == row.numpy, f"{what}: '{name}' says {tensor.datatype}, is {tensor.data.dtype}"
        if tensor.datatype == "BYTES":
            assert all(type(item) is bytes for item in tensor.data.flat), f"{what}: BYTES of '{name}' are not bytes"
    if case.expected is not None:
        expected = case.expected(inputs)
        assert got.keys() == expected.keys(), f"{what}: outputs {sorted(got)}, expected {sorted(expected)}"
        for name, array in expected.items():
            _same(got[name], np.asarray(array), case.tolerance, f"{what}: output '{name}'")


def _same(got: Tensor, wanted: np.ndarray[tuple[int, ...], np.dtype[np.generic]], tolerance: float, what: str) -> None:
    assert got.data.shape == wanted.shape, f"{what} has the shape {got.data.shape}, expected {wanted.shape}"
    if tolerance and got.datatype != "BYTES":
        worst = np.abs(got.data.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0)
        assert worst <= tolerance, f"{what} is {worst:g} off, allowed are {tolerance:g}"
    else:
        assert (got.data == wanted).all(), f"{what} is {got.data!r}, expected {wanted!r}"


def _batch(case: ModelCase, rows: Sequence[int], seed: int = SEED) -> list[Arrays]:
    """Requests that may share a batch: each with its rows, all of one draw's sizes."""
    whole = case.inputs(np.random.default_rng(seed), sum(rows))
    ends = np.cumsum(rows)
    return [
        {name: array[end - count : end] for name, array in whole.items()} for end, count in zip(ends, rows, strict=True)
    ]


def names(kit: Kit, folder: Path) -> None:
    """Outputs have the configuration's names, all of them where none is asked for, else those that are."""
    with _opened(kit.model, folder) as opened:
        configured = [item.name for item in opened.context.config.output]
        (inputs,) = _batch(kit.model, [1])
        (got,) = opened.batch([inputs])
        assert sorted(got) == sorted(configured)
        _expect(kit.model, inputs, got, "one request")
        (some,) = opened.batch([inputs], wanted=configured[-1:])
        assert list(some) == configured[-1:], f"asked for {configured[-1:]}, got {list(some)}"
        assert {item.name for item in opened.context.config.input} >= set(inputs), "the kit's inputs are not configured"


def data_types(kit: Kit, folder: Path) -> None:
    """Every type of the v2 table that the framework has goes in and comes out as it is, alone and in a batch."""
    assert kit.datatypes, "a kit has a model for each data type of its framework"
    for wire, case in kit.datatypes.items():
        with _opened(case, folder, name=f"m_{wire.lower()}") as opened:
            for rows in ([2], [1, 3, 2]):
                requests = _batch(case, rows)
                for inputs, got in zip(requests, opened.batch(requests), strict=True):
                    _expect(case, inputs, got, f"{wire}, rows {rows}")
                    kinds = {tensor.datatype for tensor in got.values()}
                    assert wire in kinds, f"the model for {wire} answers with {kinds}"


def rows_alone(kit: Kit, folder: Path) -> None:
    """Row i of a batch equals row i alone, whatever requests the batch was made of."""
    case = kit.model
    with _opened(case, folder) as opened:
        rows = [1] * 8
        singles = _batch(case, rows)
        alone = [opened.batch([inputs])[0] for inputs in singles]
        for split in (rows, [3, 1, 4], [8]):
            answers = opened.batch(_batch(case, split))
            for name in alone[0]:
                together = np.concatenate([answer[name].data for answer in answers])
                each = np.concatenate([answer[name].data for answer in alone])
                whole = Tensor(name, alone[0][name].datatype, together.shape, together)
                _same(whole, each, case.tolerance, f"rows {split}: output '{name}'")
            for inputs, answer in zip(_batch(case, split), answers, strict=True):
                _expect(case, inputs, answer, f"rows {split}")


def dynamic_shapes(kit: Kit, folder: Path) -> None:
    """A variable dimension takes one size after the other."""
    case = _case(kit.dynamic)
    with _opened(case, folder) as opened:
        seen = set()
        for seed in range(6):
            requests = _batch(case, [1, 2], seed)
            seen.add(str([array.shape for array in requests[0].values()]))
            for inputs, got in zip(requests, opened.batch(requests), strict=True):
                _expect(case, inputs, got, f"draw {seed}")
        assert len(seen) > 1, "the kit's inputs have one size only"


def scalars(kit: Kit, folder: Path) -> None:
    """A tensor without a dimension, which a configuration writes as dims: 1."""
    case = _case(kit.scalar)
    with _opened(case, folder) as opened:
        inputs = case.inputs(np.random.default_rng(SEED), 1)
        (got,) = opened.batch([inputs])
        _expect(case, inputs, got, "a scalar")


def zero_rows(kit: Kit, folder: Path) -> None:
    """A request without a row is answered by one without a row, alone and beside others."""
    case = _case(kit.zero_rows)
    with _opened(case, folder) as opened:
        for rows in ([0], [2, 0, 1]):
            requests = _batch(case, rows)
            for count, inputs, got in zip(rows, requests, opened.batch(requests), strict=True):
                _expect(case, inputs, got, f"rows {rows}")
                assert {tensor.shape[0] for tensor in got.values()} == {count}


def errors(kit: Kit, folder: Path) -> None:
    """A batch that fails says why, and the next one is answered as if nothing had been."""
    case = _case(kit.failing)
    assert case.spoiled is not None, "the kit's failing model has no spoiled inputs"
    with _opened(case, folder) as opened:
        requests = _batch(case, [1, 2])
        for seed in range(2):
            spoiled = case.spoiled(np.random.default_rng(seed))
            text = _failure(opened, spoiled)
            assert text is not None, "the spoiled inputs were answered"
            assert text, "an error without a text"
            for inputs, got in zip(requests, opened.batch(requests), strict=True):
                _expect(case, inputs, got, "after an error")


def _failure(opened: Opened, inputs: Arrays) -> str | None:
    try:
        opened.batch([inputs])
    except WorkbenchError as error:
        return error.message
    return None


def closing(kit: Kit, folder: Path) -> None:
    """Closing twice is allowed, with and without a batch before."""
    for number, used in enumerate((False, True)):
        with _opened(kit.model, folder, name=f"m{number}") as opened:
            if used:
                opened.batch(_batch(kit.model, [2]))
            opened.close()


def reloading(kit: Kit, folder: Path) -> None:
    """A model is opened beside its old self, which is closed; and once more after that."""
    case = kit.model
    host = ConformanceHost()
    directory = written(case, folder, "m")
    requests = _batch(case, [1, 2])

    def check(opened: Opened, what: str) -> None:
        for inputs, got in zip(requests, opened.batch(requests), strict=True):
            _expect(case, inputs, got, what)

    try:
        with Opened(host, directory) as old:
            check(old, "old")
            with Opened(host, directory) as new:
                old.close()
                check(new, "new, its old self closed")
        with Opened(host, directory) as again:
            check(again, "opened again")
    finally:
        host.close()


def two_instances(kit: Kit, folder: Path) -> None:
    """Two instances execute at once, each batch with its own answers."""
    case = kit.model
    failures: list[BaseException] = []
    with _opened(case, folder, instances=2) as opened:

        def work(instance: int) -> None:
            try:
                for seed in range(20):
                    requests = _batch(case, [1, 2], seed * 2 + instance)
                    answers = opened.batch(requests, instance=instance)
                    for inputs, got in zip(requests, answers, strict=True):
                        _expect(case, inputs, got, f"instance {instance}, batch {seed}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), "an instance hangs"
    if failures:
        raise failures[0]


_LOOK = """
import json, sys
import workbench
from workbench.backends.registry import backend_names, backend_places
backend_names(), backend_places()
print(json.dumps([name for name in json.loads(sys.argv[1]) if name in sys.modules]))
"""


def imported_late(kit: Kit, folder: Path) -> None:
    """Nothing of the framework is imported before a model needs it, and the backend is among those that are known."""
    from workbench.backends.registry import is_backend

    assert is_backend(kit.backend), f"there is no backend '{kit.backend}': is its entry point installed?"
    command = [sys.executable, "-c", _LOOK, json.dumps(kit.framework)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=folder)
    assert run.returncode == 0, run.stderr
    assert not json.loads(run.stdout), f"imported before a model needs it: {run.stdout}"


def _case(case: ModelCase | str) -> ModelCase:
    assert isinstance(case, ModelCase)
    return case


Check = Callable[[Kit, Path], None]

CHECKS: dict[str, Check] = {
    "names": names,
    "data_types": data_types,
    "rows_alone": rows_alone,
    "dynamic_shapes": dynamic_shapes,
    "scalars": scalars,
    "zero_rows": zero_rows,
    "errors": errors,
    "closing": closing,
    "reloading": reloading,
    "two_instances": two_instances,
    "imported_late": imported_late,
}
"""All checks by name, in the order in which they run."""


def not_applicable(kit: Kit, name: str) -> str:
    """Why a check does not apply to a framework, in the kit's words; "" where it does."""
    case = {
        "dynamic_shapes": kit.dynamic,
        "scalars": kit.scalar,
        "zero_rows": kit.zero_rows,
        "errors": kit.failing,
    }.get(name)
    return case if isinstance(case, str) else ""
