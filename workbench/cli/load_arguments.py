"""The load that a verb names on the command line, by perf_analyzer's names where perf_analyzer has them."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from workbench.profiling import Load


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """perf_analyzer's names where perf_analyzer has them."""
    loops = parser.add_argument_group("how much")
    loops.add_argument("--concurrency-range", metavar="S:E:STEP", help="closed loops from S to E")
    loops.add_argument("--concurrency", metavar="N[,N...]", help="closed loops with that many clients")
    loops.add_argument("--request-rate-range", metavar="S:E:STEP", help="open loops from S to E requests/s")
    loops.add_argument("--rate", metavar="R[,R...]", help="open loops at that many requests/s")
    loops.add_argument(
        "--request-distribution",
        choices=["constant", "poisson", "gamma", "bursty"],
        default="poisson",
        help="of an open loop (default: %(default)s)",
    )
    loops.add_argument("--cv", type=float, metavar="CV", help="gamma: deviation / mean of the gaps (default: 2)")
    loops.add_argument("--burst-factor", type=float, metavar="F", help="bursty: rate in a burst / rate (default: 5)")
    loops.add_argument("--burst-s", type=float, metavar="S", help="bursty: mean length of a burst (default: 0.1)")
    loops.add_argument(
        "--request-intervals", metavar="FILE", help="send at these intervals: one number of microseconds a line"
    )
    loops.add_argument("--replay", metavar="FILE", help="send recorded traffic again: of ours, or Triton's trace file")
    loops.add_argument("--factor", type=float, metavar="F", help="of a replay or intervals: times as fast (default: 1)")
    loops.add_argument(
        "--classes",
        metavar="FILE|JSON",
        help='several classes at once: {"NAME": {"rate": R or "concurrency": N, "priority": P, ...}}, or each with '
        'its "share" of --rate or --concurrency',
    )
    loops.add_argument("--random-seed", type=int, metavar="SEED", help="of the arrivals and inputs (default: 1)")
    _add_requests(parser.add_argument_group("what"))
    _add_window(parser.add_argument_group("how long"))


def _add_requests(group: Any) -> None:
    group.add_argument("-b", "--batch-size", type=int, metavar="ROWS", help="rows of a request (default: 1)")
    group.add_argument(
        "--input-data",
        metavar="FILE",
        help="what to send: perf_analyzer's JSON, .csv, .parquet, .npy, .npz, a directory with a file for each input, "
        "a capture, zero or random (default: the model's example_inputs.json)",
    )
    group.add_argument(
        "--streaming",
        action="store_true",
        help="send to the endpoint that streams responses and stamp each of them (a decoupled model always)",
    )
    group.add_argument("--shared-memory", choices=["none", "system"], help="hand tensors over in it (default: none)")
    group.add_argument(
        "--output-shared-memory-size", type=int, metavar="BYTES", help="room for an output (default: 102400)"
    )
    group.add_argument(
        "--sequence-length", type=int, metavar="N", help="requests of a sequence (default: 20, or the input's streams)"
    )
    group.add_argument(
        "--sequence-length-variation", type=float, metavar="PERCENT", help="give or take so many percent (default: 0)"
    )
    group.add_argument(
        "--num-of-sequences", type=int, metavar="N", help="sequences at once in an open loop (default: 4)"
    )
    group.add_argument("--priority", type=int, metavar="P", help="priority level of the requests")
    group.add_argument("--generators", type=int, metavar="N", help="processes that send the load together (default: 1)")
    group.add_argument("--request-timeout-s", type=float, metavar="S", help="timeout that each request names")
    group.add_argument(
        "--request-parameter",
        action="append",
        metavar="NAME:VALUE:TYPE",
        help="a parameter of each request; TYPE is bool, int, float or string; may be repeated",
    )


def _add_window(group: Any) -> None:
    group.add_argument(
        "-p", "--measurement-interval", type=float, metavar="MS", help="length of the measured window (default: 2500)"
    )
    group.add_argument("--max-duration-s", type=float, metavar="S", help="what it may become (default: twice as long)")
    group.add_argument(
        "--measurement-mode",
        choices=["time_windows", "count_windows"],
        help="count_windows ends it after --measurement-request-count requests, whatever -p says "
        "(default: time_windows)",
    )
    group.add_argument(
        "--measurement-request-count", type=int, metavar="N", help="requests it must have, at least (default: 100)"
    )
    group.add_argument("--warmup", type=float, metavar="S", help="seconds sent before and not counted (default: 0.5)")
    group.add_argument(
        "--max-warmup-s", type=float, metavar="S", help="what the warm-up may become (default: ten times as long)"
    )
    group.add_argument(
        "--stability",
        choices=["interval", "three_windows"],
        help="the rule by which figures have settled; three_windows is perf_analyzer's (default: interval)",
    )


FIELDS = {
    "batch_size": "batch_size",
    "warmup": "warmup_s",
    "max_warmup_s": "max_warmup_s",
    "max_duration_s": "max_duration_s",
    "measurement_request_count": "min_requests",
    "random_seed": "seed",
    "cv": "cv",
    "burst_factor": "burst_factor",
    "burst_s": "burst_s",
    "shared_memory": "shared_memory",
    "output_shared_memory_size": "output_bytes",
    "sequence_length": "sequence_length",
    "num_of_sequences": "sequences",
    "priority": "priority",
    "request_timeout_s": "timeout_s",
    "generators": "generators",
}
"""Arguments and the fields of ``Load`` that they set, where they are given."""


_MOST_LOADS = 16384
"""How many loads one range may name; as many as a closed loop may have clients."""


def load_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments as ``sweep`` takes them.

    Raises:
        InvalidRequest: they contradict each other, or cannot be read.
        NotFound: a file that they name is not there.
    """
    concurrency = [*_numbers(args.concurrency, int), *_whole(args.concurrency_range)]
    rate = [*_numbers(args.rate, float), *_range(args.request_rate_range)]
    common = {field: getattr(args, name) for name, field in FIELDS.items() if getattr(args, name) is not None}
    common["streaming"] = args.streaming
    if args.sequence_length_variation is not None:
        common["sequence_length_variation"] = args.sequence_length_variation / 100
    if args.measurement_mode == "count_windows":
        common["requests"] = common.pop("min_requests", 100)
        if common["requests"] < 1:  # of a Load 0 means that none are counted; perf_analyzer refuses it, too
            raise InvalidRequest(
                f"--measurement-request-count must be above 0 to count by, got {common['requests']}",
                hint="give the number of requests, or leave out --measurement-mode count_windows for a window of time",
            )
    if args.measurement_interval is not None:
        common["duration_s"] = args.measurement_interval / 1000
    if args.request_parameter:
        common["parameters"] = dict(_parameter(text) for text in args.request_parameter)
    options: dict[str, Any] = {"inputs": args.input_data}
    if args.stability:
        from workbench.profiling import MeasureOptions

        options["measure"] = MeasureOptions(stability=args.stability)
    named = [name for name in ("request_intervals", "replay", "classes") if getattr(args, name)]
    if len(named) > 1:
        raise InvalidRequest(f"--{named[0].replace('_', '-')} and --{named[1].replace('_', '-')} exclude each other")
    if not named:
        return {
            **options, **common, "concurrency": concurrency or None, "rate": rate or None,
            "distribution": args.request_distribution,
        }  # fmt: skip
    if args.classes:
        return {**options, "load": _mixed(args, concurrency, rate, common)}
    if concurrency or rate:
        raise InvalidRequest(f"a replay has its own rate: leave out {'--concurrency' if concurrency else '--rate'}")
    from workbench.profiling import Load

    factor = 1.0 if args.factor is None else args.factor
    return {**options, "load": Load.replay(args.replay or args.request_intervals, factor, **common)}


def _mixed(args: argparse.Namespace, concurrency: list[Any], rate: list[Any], common: dict[str, Any]) -> list[Load]:
    from workbench.profiling import Load

    text = args.classes
    if not text.lstrip().startswith("{"):
        path = Path(text).expanduser()
        if not path.is_file():
            raise NotFound("there is no such file of classes", where=str(path))
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the file of classes cannot be read: {error}", where=str(path)) from error
    try:
        classes = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(
            f"--classes is not JSON: {error}", hint='write {"NAME": {"rate": 100, "priority": 1}}'
        ) from error
    if not isinstance(classes, dict):
        raise InvalidRequest("--classes is not a JSON object", hint='write {"NAME": {"rate": 100, "priority": 1}}')
    given = {"distribution": args.request_distribution}
    open_ones = {name: {**given, **part} if isinstance(part, dict) else part for name, part in classes.items()}
    totals: list[dict[str, Any]] = [{"concurrency": each} for each in concurrency]
    totals += [{"rate": each} for each in rate]
    return [Load.classes(open_ones, **total, **common) for total in totals or [{}]]


def _parameter(text: str) -> tuple[str, Any]:
    """``NAME:VALUE:TYPE``, as perf_analyzer reads it."""
    name, _, rest = text.partition(":")
    value, _, kind = rest.rpartition(":")
    try:
        if kind in ("bool", "int", "float", "string") and name:
            if kind == "bool":
                return name, {"true": True, "false": False}[value.lower()]
            return name, {"int": int, "float": float, "string": str}[kind](value)
    except (ValueError, KeyError):
        pass
    raise InvalidRequest(f"cannot read --request-parameter {text}", hint="write NAME:VALUE:TYPE, such as top_k:5:int")


def _numbers(text: str | None, kind: type[int] | type[float]) -> list[Any]:
    if text is None:
        return []
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidRequest(f"'{text}' is not a list of numbers", hint="write 1,4,16") from error


def _whole(text: str | None) -> list[int]:
    """A range of clients."""
    values = _range(text)
    if not all(value.is_integer() for value in values):
        raise InvalidRequest(f"'{text}' is not a range of whole numbers", hint="write START:END:STEP, such as 1:8:1")
    return [int(value) for value in values]


def _range(text: str | None) -> list[float]:
    """``start:end:step`` as perf_analyzer reads it; end and step may be left out."""
    if text is None:
        return []
    parts = _numbers(text.replace(":", ","), float)
    start, end, step = parts[0], parts[1] if len(parts) > 1 else parts[0], parts[2] if len(parts) > 2 else 1
    if len(parts) > 3 or not all(map(math.isfinite, parts)) or step <= 0 or end < start:
        raise InvalidRequest(f"'{text}' is not a range", hint="write START:END:STEP with END >= START and STEP > 0")
    steps = (end - start) / step + 1e-9
    if steps >= _MOST_LOADS:  # before they are written out: it may be more than there is memory for
        raise InvalidRequest(
            f"'{text}' names {steps + 1:.0f} loads, a range has {_MOST_LOADS} at most", hint="take a larger STEP"
        )
    return [start + index * step for index in range(int(steps) + 1)]


def one_load(args: argparse.Namespace, verb: str) -> dict[str, Any]:
    """``load_options`` for a verb that measures at one load.

    Raises:
        InvalidRequest: several are named.
    """
    options = load_options(args)
    for name in ("concurrency", "rate"):
        values = options.get(name)
        if values is not None:
            if len(values) != 1:
                raise InvalidRequest(f"{verb} compares at one load", hint=f"give one value of {name}")
            options[name] = values[0]
    if isinstance(options.get("load"), list) and len(options["load"]) == 1:
        options["load"] = options["load"][0]
    return options
