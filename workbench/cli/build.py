"""``workbench build``: a model becomes an engine, or another form of itself."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from workbench.cli.ending import terminated_as_interrupted
from workbench.cli.package import read_examples
from workbench.cli.targets import told_with
from workbench.errors import InvalidRequest

SUMMARY = "Makes another form of a model: a TensorRT engine, ONNX, OpenVINO, TorchScript, an AOTInductor package."
EXAMPLE = (
    "workbench build minilm --to tensorrt --fp16 --minShapes=input_ids:1x1,attention_mask:1x1 "
    "--optShapes=input_ids:8x16,attention_mask:8x16 --maxShapes=input_ids:32x128,attention_mask:32x128"
)

ELSEWHERE = {
    "--onnx": "MODEL is the first argument, a file or a model's name",
    "--saveEngine": "--into REPOSITORY and --name NAME say where the engine goes",
    "--shapes": "--minShapes, --optShapes and --maxShapes say for which shapes the engine is built",
    "--best": "one precision: --fp16, --bf16 or --int8",
    "--workspace": "--memPoolSize=workspace:MIB",
}
"""trtexec's options that have another name here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``build``; those of the engine are trtexec's own."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a model of the repository, a model directory, or a file: .onnx, .pt (TorchScript), .pt2 (torch.export)",
    )
    parser.add_argument("--to", required=True, choices=("tensorrt", "onnx", "openvino", "torchscript", "aoti"))
    parser.add_argument(
        "--model-repository", default="model_repository", metavar="DIR", help="default: model_repository"
    )
    parser.add_argument("--into", metavar="REPOSITORY", help="of the result (default: the source's own)")
    parser.add_argument(
        "--name", metavar="NAME", help="of the result (default: the source's with form and precision: m_onnx_fp16)"
    )
    parser.add_argument(
        "--example-inputs",
        metavar="FILE",
        help=".npz, .npy or .json as for workbench package; a model of a repository has its own",
    )
    parser.add_argument("--max-batch-size", type=int, metavar="N", help="of a file; 0 for none (default: tried)")
    parser.add_argument("--no-verify", action="store_true", help="do not run source and result on the examples")
    parser.add_argument("--force", action="store_true", help="replace the model of this name")
    parser.add_argument("--quiet", action="store_true", help="no lines about what is being done")
    parser.add_argument("--json", action="store_true", help="what was built as JSON")
    precision = parser.add_argument_group("precision")
    precision.add_argument("--fp16", action="store_true", help="half precision")
    precision.add_argument("--bf16", action="store_true", help="bfloat16")
    precision.add_argument("--int8", action="store_true", help="int8, calibrated on the example inputs")
    precision.add_argument("--calib", metavar="FILE", help="other example inputs to calibrate int8 with")
    engine = parser.add_argument_group("engine (--to tensorrt), as trtexec has them")
    engine.add_argument("--noTF32", action="store_true", help="no TF32 for FP32")
    engine.add_argument(
        "--profile", action=_Shapes, metavar="N", help="the shapes that follow are of optimization profile N"
    )
    for option, what in (("minShapes", "smallest"), ("optShapes", "usual"), ("maxShapes", "largest")):
        engine.add_argument(
            f"--{option}", action=_Shapes, metavar="SPEC",
            help=f"{what} shapes with the batch dimension: x:1x3,y:1x16 (default: from the example inputs)",
        )  # fmt: skip
    engine.add_argument("--useCudaGraph", action="store_true", help="the server captures CUDA graphs")
    engine.add_argument("--memPoolSize", metavar="SPEC", default="", help="workspace:1024 (MiB; suffix B, K, M, G)")
    engine.add_argument("--timingCacheFile", metavar="FILE", help="read, and written back")
    engine.add_argument("--builderOptimizationLevel", type=int, metavar="N", choices=range(6), help="0 to 5")
    engine.add_argument("--versionCompatible", action="store_true", help="for later versions of TensorRT, too")
    engine.add_argument(
        "--hardwareCompatibilityLevel", default="", metavar="LEVEL", help="ampere+, or sameComputeCapability"
    )
    parser.set_defaults(shapes={})


class _Shapes(argparse.Action):
    """Collects shapes: profile -> option -> text. ``--profile N`` says of which one those after it are."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        found: dict[int, dict[str, str]] = dict(namespace.shapes)
        name = self.dest
        if name == "profile":
            if not str(values).isdigit():
                parser.error(f"argument --profile: a number, counted from 0, not '{values}'")
            namespace.at_profile = int(values)
            found.setdefault(namespace.at_profile, {})
        else:
            number = getattr(namespace, "at_profile", 0)
            found[number] = {**found.get(number, {}), name: str(values)}
        namespace.shapes = found


def run(args: argparse.Namespace) -> int:
    """Builds and says what came of it. Progress goes to the standard error."""
    from workbench.package.building import build

    options = _options(args)
    calibration = None
    if args.calib is not None:
        if not args.int8:
            raise InvalidRequest("--calib is for --int8")
        calibration = read_examples(_no_cache(Path(args.calib)))
    with terminated_as_interrupted():
        built = build(
            args.model, to=args.to, repository=args.model_repository, into=args.into, name=args.name,
            example_inputs=read_examples(args.example_inputs), calibration=calibration,
            max_batch_size=args.max_batch_size, options=options, overwrite=args.force, verify=not args.no_verify,
            progress=None if args.quiet or args.json else _Lines(),
        )  # fmt: skip
    print(json.dumps(built.to_json()) if args.json else told_with(built, built.name, built.directory))
    return 0


def _options(args: argparse.Namespace) -> Any:
    from workbench.package.building import BuildOptions
    from workbench.package.building.options import ShapeSet, parse_pools, parse_shapes

    numbers = sorted(args.shapes)
    if numbers != list(range(len(numbers))):
        raise InvalidRequest(f"profiles are numbered from 0: there are {', '.join(map(str, numbers))}")
    profiles = []
    for number in numbers:
        given = args.shapes[number]
        least, best, most = (
            parse_shapes(given.get(option, ""), f"--{option}") for option in ("minShapes", "optShapes", "maxShapes")
        )
        profiles.append(ShapeSet(least, best, most))
    return BuildOptions(
        args.fp16, args.bf16, args.int8, args.noTF32, tuple(profiles), args.useCudaGraph,
        parse_pools(args.memPoolSize) if args.memPoolSize else {},
        Path(args.timingCacheFile) if args.timingCacheFile else None, args.builderOptimizationLevel,
        args.versionCompatible, args.hardwareCompatibilityLevel,
    )  # fmt: skip


def _no_cache(path: Path) -> str:
    """trtexec's --calib names a cache of ranges, which belongs to a quantization that TensorRT gives up."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"TRT-":
                raise InvalidRequest(
                    f"{path} is a calibration cache of trtexec: ranges for TensorRT's implicit quantization, which "
                    "TensorRT 10 deprecates and TensorRT-RTX lacks",
                    hint="give the data itself: --calib inputs.npz, or leave it out for the model's example inputs",
                )
    return str(path)


class _Lines:
    """A line for each thing that is done, none for each step of it."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._said:
            self._said.add(what)
            print(f"build: {what}", file=sys.stderr, flush=True)
