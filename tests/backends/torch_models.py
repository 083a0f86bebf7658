"""Small PyTorch models and their configurations. Imported where torch is installed only."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch


class Linear(torch.nn.Module):
    """y = x @ w, z = -y; fails where x does not have four columns."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(12, dtype=torch.float32).reshape(4, 3) / 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ self.w
        return y, -y


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Named(torch.nn.Module):
    """Several inputs by name, a dictionary of results."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"masked": x * mask.unsqueeze(-1), "scaled": x * scale}


def script(module: torch.nn.Module, path: Path, *, trace: Any = None) -> None:
    """Writes TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.jit.script(module) if trace is None else torch.jit.trace(module, trace)
        torch.jit.save(made, str(path))


def export(module: torch.nn.Module, path: Path, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
    """Writes a ``.pt2`` whose first dimensions are variable; gives the program."""
    batch = torch.export.Dim("batch")
    shapes = [{0: batch} for _ in args]
    program = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=(*shapes, *({0: batch} for _ in kwargs)))
    torch.export.save(program, path)
    return program
