"""What the verbs of a server give back: nouns with a one-screen repr, that turn into DataFrames."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from numpy.typing import NDArray

from workbench.engine.captured import CapturedRow
from workbench.engine.options import ConfigureResult, SaveResult
from workbench.protocol.tensors import InferenceResponse

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ConfigView", "ConfigureResult", "ModelRow", "ModelTable", "Result", "SaveResult", "Statistics"]


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [
        max(len(header), *(len(row[i]) for row in rows)) if rows else len(header) for i, header in enumerate(headers)
    ]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (headers, *rows)
    ]
    return "\n".join(lines)


class Result(Mapping[str, NDArray[Any]]):
    """The answer to one inference: a mapping from output name to array, in the order the model gave them."""

    def __init__(self, response: InferenceResponse) -> None:
        self.response = response
        self._arrays = {tensor.name: tensor.data for tensor in response.outputs}

    @property
    def model_version(self) -> int:
        """The version that answered."""
        return self.response.model_version

    @property
    def id(self) -> str:
        """The request id, as the client sent it."""
        return self.response.id

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Response parameters."""
        return self.response.parameters

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._arrays:
            raise KeyError(f"no output {name!r}; the model gave {', '.join(map(repr, self._arrays)) or 'none'}")
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        rows = [
            (tensor.name, tensor.datatype, str(list(tensor.shape)), _preview(tensor.data))
            for tensor in self.response.outputs
        ]
        head = f"{self.response.model_name} version {self.response.model_version}"
        return f"{head}\n{_table(('output', 'datatype', 'shape', 'data'), rows)}"


def _preview(array: NDArray[Any]) -> str:
    flat = array.reshape(-1)
    shown = ", ".join(_element(item) for item in flat[:4])
    return f"[{shown}{', …' if flat.size > 4 else ''}]"


def _element(item: Any) -> str:
    if isinstance(item, bytes):
        text = item.decode("utf-8", "replace")
        return repr(text if len(text) <= 24 else text[:23] + "…")
    return (
        f"{item:.4g}"
        if isinstance(item, float) or (getattr(item, "dtype", None) is not None and item.dtype.kind == "f")
        else str(item)
    )


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One version of a model as the repository index and the engine know it.

    ``instances`` and ``healthy`` are -1 where the server does not say (a remote Triton). ``steps`` are the models of an
    ensemble's steps, ``details`` what the backend says of the model (engine, device, precision), empty where it says
    nothing.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    backend: str = ""
    max_batch_size: int = 0
    batching: str = ""
    instances: int = -1
    healthy: int = -1
    pending: int = 0
    epoch: int = 0
    dirty: bool = False
    success: int = 0
    failures: int = 0
    steps: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether it serves."""
        return self.state == "READY"

    @property
    def backend_shown(self) -> str:
        """The backend with what it says of itself: its engine, where that is another one's, and the precision."""
        engine = re.split(r" \d", self.details.get("engine", ""))[0]
        own = engine.replace(" ", "").lower() == self.backend
        about = ", ".join(text for text in ("" if own else engine, self.details.get("precision", "")) if text)
        return f"{self.backend} ({about})" if about else self.backend


class ModelTable(Sequence[ModelRow]):
    """The models of a server; index it by position or by model name."""

    def __init__(self, rows: Sequence[ModelRow]) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, key: int | str) -> ModelRow: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[ModelRow]: ...
    def __getitem__(self, key: int | str | slice) -> ModelRow | Sequence[ModelRow]:
        if isinstance(key, str):
            found = [row for row in self._rows if row.name == key]
            if not found:
                raise KeyError(
                    f"no model {key!r}; there are {', '.join(sorted({row.name for row in self._rows})) or 'none'}"
                )
            return found[-1]
        return self._rows[key]

    @property
    def names(self) -> list[str]:
        """Model names, each once, in order."""
        return list(dict.fromkeys(row.name for row in self._rows))

    def to_frame(self) -> pd.DataFrame:
        """One row a version."""
        import pandas as pd

        columns = list(ModelRow.__dataclass_fields__)
        return pd.DataFrame([{name: getattr(row, name) for name in columns} for row in self._rows], columns=columns)

    def __repr__(self) -> str:
        rows = [
            (
                row.name,
                row.version or "-",
                row.state or "not loaded",
                row.backend_shown,
                str(row.max_batch_size),
                row.batching,
                "?"
                if row.instances < 0
                else str(row.instances)
                if row.healthy == row.instances
                else f"{row.healthy}/{row.instances} healthy",
                "edited, not saved" if row.dirty else "",
                row.reason.strip().splitlines()[0][:80] if row.reason.strip() else "",
            )
            for row in self._rows
        ]
        headers = ("model", "version", "state", "backend", "max_batch", "batching", "instances", "config", "reason")
        return _table(headers, rows)


class Statistics(dict[str, Any]):
    """Triton's statistics answer (``model_stats``), with a table form."""

    def to_frame(self) -> pd.DataFrame:
        """One row a model version: counts, and mean milliseconds per request of each part.

        Means are as perf_analyzer takes them: nanoseconds over the count of the same entry.
        """
        import pandas as pd

        rows = []
        for entry in self.get("model_stats", ()):
            inference = entry.get("inference_stats", {})
            row: dict[str, Any] = {
                "model": entry["name"],
                "version": entry["version"],
                "requests": int(inference.get("success", {}).get("count", 0)),
                "failed": int(inference.get("fail", {}).get("count", 0)),
                "inferences": int(entry.get("inference_count", 0)),
                "executions": int(entry.get("execution_count", 0)),
            }
            row["mean_batch"] = row["inferences"] / row["executions"] if row["executions"] else float("nan")
            for column, key in (
                ("request", "success"),
                ("queue", "queue"),
                ("compute_input", "compute_input"),
                ("compute_infer", "compute_infer"),
                ("compute_output", "compute_output"),
            ):
                part = inference.get(key, {})
                count = int(part.get("count", 0))
                row[f"{column}_ms"] = int(part.get("ns", 0)) / count / 1e6 if count else float("nan")
            rows.append(row)
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        frame = self.to_frame()
        return "no model is ready" if frame.empty else str(frame.round(3).to_string(index=False))


@dataclass(frozen=True, slots=True, repr=False)
class ConfigView:
    """A model's configuration: as it is applied, as the file has it, and as Triton completes it.

    ``text`` is the applied config.pbtxt, ``saved_text`` the file's, ``effective`` the completed configuration as JSON,
    ``epoch`` grows with each applied edit.
    """

    model: str
    text: str
    saved_text: str
    effective: Mapping[str, Any]
    epoch: int = 0
    dirty: bool = False
    editable: bool = True

    @property
    def diff(self) -> str:
        """What ``save`` would write, as a unified diff; empty when there is nothing to save."""
        name = f"{self.model}/config.pbtxt"
        before, after = (text.splitlines(keepends=True) for text in (self.saved_text, self.text))
        return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))

    def __repr__(self) -> str:
        state = "applied, not saved" if self.dirty else "as saved"
        return f"# {self.model}: config_epoch {self.epoch}, {state}\n{self.text}"


class CapturedRows(list[CapturedRow]):
    """Kept requests, by ``seq``; shown as a table."""

    def __repr__(self) -> str:
        if not self:
            return "no request is kept"
        rows = [
            (
                str(row.seq), row.model, str(row.version), row.request_id, row.why, f"{row.duration_ns / 1e6:.1f} ms",
                f"{row.size:,}",
            )
            for row in self
        ]  # fmt: skip
        headers = ("seq", "model", "version", "id", "why", "response", "bytes")
        return _table(headers, rows) + "\nreplay(seq) runs one again in this kernel, resend(seq) at the server"
