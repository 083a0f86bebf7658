"""The head of a plan file: what it was built with, read without TensorRT.

Sources: TensorRT's open-source trtexec (``--getPlanVersionOnly``): a plan begins with the tag ``ftrt``, then its
serialization version (0) in 4 bytes; the bytes 24 to 27 are major, minor, patch and build. Plans of TensorRT-RTX 1.7
begin with ``vtrt`` and have their version at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.errors import InvalidRequest

HEAD_BYTES = 28
_TAGS = {b"ftrt": "tensorrt", b"vtrt": "tensorrt_rtx"}
_OTHERS = {
    b"PK\x03\x04": "a zip archive: TorchScript and .pt2 files are such",
    b"\x08": "an ONNX file perhaps",
    b"<?xm": "XML: OpenVINO's IR is such",
    b"vers": "a pointer to a file in Git LFS: run git lfs pull",
}


@dataclass(frozen=True, slots=True)
class PlanHead:
    """``library`` is the package whose runtime reads it; ``version`` is major.minor.patch.build, "" where unknown."""

    library: str
    version: str


def read_plan_head(path: Path) -> PlanHead:
    """The head of a plan file.

    Raises:
        InvalidRequest: the file is no plan; the text says what it looks like.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    library = _TAGS.get(head[:4])
    if library is None or len(head) < HEAD_BYTES:
        looks = next(
            (text for start, text in _OTHERS.items() if head.startswith(start)), f"it begins with {head[:8]!r}"
        )
        raise InvalidRequest(
            f"{path.name} is no TensorRT plan" if head else f"{path.name} is empty",
            where=str(path),
            hint=f"{looks}; workbench build makes a plan of an ONNX file" if head else "build it again",
        )
    known = int.from_bytes(head[4:8], "little") == 0
    return PlanHead(library, ".".join(map(str, head[24:28])) if known else "")


def why_not(head: PlanHead, library: str, version: str) -> str:
    """Why a runtime cannot read a plan, "" where nothing speaks against it.

    A plan is for the version that built it, but for one that was built version-compatible: what its head cannot tell.
    """
    if head.library != library:
        mine = {"tensorrt": "the enterprise TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
        return f"the plan is one of {mine[head.library]}, the runtime here is {mine[library]} {version}"
    if head.version and head.version.split(".")[:3] != version.split(".")[:3]:
        return f"the plan was built with version {head.version}, the runtime here is {version}"
    return ""
