"""Writing ensembles into a repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gate_backend import CONFIG as GATE_CONFIG

Step = tuple[str, str, str]


def step(model: str, source: str, target: str, *, version: int = -1, names: tuple[str, str] = ("x", "y")) -> str:
    """A step with one input and one output."""
    return (
        f'step {{ model_name: "{model}" model_version: {version} '
        f'input_map {{ key: "{names[0]}" value: "{source}" }} output_map {{ key: "{names[1]}" value: "{target}" }} }}\n'
    )


def chain_config(name: str, first: str, second: str, tensors: tuple[str, str] = ("x", "y"), dims: int = 4) -> str:
    """An ensemble of two models one behind the other; it and both of them have one input and one output."""
    source, target = tensors
    return (
        f'name: "{name}"\nplatform: "ensemble"\nmax_batch_size: 8\n'
        f'input {{ name: "{source}" data_type: TYPE_FP32 dims: {dims} }}\n'
        f'output {{ name: "{target}" data_type: TYPE_FP32 dims: {dims} }}\n'
        f"ensemble_scheduling {{\n{step(first, source, 'between', names=tensors)}"
        f"{step(second, 'between', target, names=tensors)}}}\n"
    )


def ensemble_config(steps: Sequence[str], *, size: int = 8, outputs: Sequence[str] = ("Y",), extra: str = "") -> str:
    """From X to ``outputs``, FP32 [4]."""
    made = "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: 4 }}\n' for name in outputs)
    return (
        f'platform: "ensemble"\nmax_batch_size: {size}\ninput {{ name: "X" data_type: TYPE_FP32 dims: 4 }}\n{made}'
        f"ensemble_scheduling {{\n{''.join(steps)}{extra}}}\n"
    )


def add_ensemble(root: Path, name: str, steps: Sequence[str], **options: object) -> Path:
    """Writes the directory of an ensemble."""
    directory = root / name
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(ensemble_config(steps, **options))  # type: ignore[arg-type]
    return directory


def add_gate(root: Path, name: str = "gate", extra: str = "", *, decoupled: bool = False) -> Path:
    """Writes a model of the backend ``gate``."""
    directory = root / name
    (directory / "1").mkdir(parents=True, exist_ok=True)
    config = GATE_CONFIG.replace('name: "gate"', f'name: "{name}"') + extra
    if decoupled:
        config += "model_transaction_policy { decoupled: true }\n"
    (directory / "config.pbtxt").write_text(config)
    return directory
