"""tritonserver's command line: its names, its defaults where they make sense here, and our few own.

A flag that is Triton's and does nothing here is taken with a word in the log; an unknown one is an error that names the
nearest.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from workbench.backends.host_policy import check_setting
from workbench.config.validation import MIN_COMPUTE_CAPABILITY
from workbench.errors import InvalidRequest
from workbench.scheduling.rate_limiter import parse_resource_limit
from workbench.server.access import CATEGORIES, parse_restrictions
from workbench.server.body import LARGE
from workbench.server.flags import boolean, count, flag, port, seconds
from workbench.server.forwarding import HeaderForwarding
from workbench.server.grpc_arguments import NO_EFFECT as GRPC_NO_EFFECT
from workbench.server.grpc_arguments import add_flags as add_grpc_flags
from workbench.server.grpc_arguments import add_own_flags as add_own_grpc_flags
from workbench.server.grpc_arguments import check as check_grpc
from workbench.server.http_limits import PROGRESS_BYTES, HttpLimits

_NO_EFFECT = (
    *GRPC_NO_EFFECT, "allow-sagemaker", "sagemaker-port",
    "sagemaker-safe-port-range", "sagemaker-thread-count", "allow-vertex-ai", "vertex-ai-port",
    "vertex-ai-thread-count", "vertex-ai-default-model", "http-thread-count", "pinned-memory-pool-byte-size",
    "cuda-memory-pool-byte-size", "cuda-virtual-address-size",
    "buffer-manager-thread-count", "cache-directory", "repoagent-directory",
    "cache-config", "response-cache-byte-size",
    "model-load-gpu-limit", "model-load-retry-count", "enable-peer-access", "metrics-config",
    "allow-gpu-metrics", "allow-cpu-metrics", "trace-config", "trace-file", "trace-level", "trace-rate",
    "trace-count", "trace-log-frequency", "model-namespacing",
)  # fmt: skip


_BUSY_POLL_US = 200.0
_LIMITS = HttpLimits()


def verbosity(text: str) -> int:
    """A verbose level as tritonserver reads it: a number, below 0 is 0, or a boolean."""
    try:
        return max(0, int(text))
    except ValueError:
        return int(boolean(text))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(message, hint="--help lists the options")


def parser() -> argparse.ArgumentParser:
    """The parser of ``workbench serve``."""
    made = _Parser(
        prog="workbench serve",
        description="Serves one or more model repositories as Triton does. The flags are tritonserver's.",
        epilog="example:\n  workbench serve --model-repository model_repository --http-port 0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _model_flags(made.add_argument_group("models"))
    _placement_flags(made.add_argument_group("backends and devices"))
    _port_flags(made.add_argument_group("ports"))
    add_grpc_flags(made.add_argument_group("gRPC"))
    _life_flags(made.add_argument_group("logging, start and stop"))
    own = made.add_argument_group("the workbench's own")
    _own_flags(own)
    _limit_flags(own)
    add_own_grpc_flags(own)
    for name in _NO_EFFECT:
        made.add_argument(f"--{name}", nargs="?", const="", action="append", help=argparse.SUPPRESS)
    return made


def _model_flags(group: Any) -> None:
    group.add_argument(
        "--model-repository", "--model-store", action="append", default=[], metavar="DIR",
        help="a directory of model directories; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--model-control-mode", choices=("none", "poll", "explicit"), default="none", help="default none"
    )
    group.add_argument(
        "--load-model", action="append", default=[], metavar="MODEL",
        help="a model to load at the start, * for all (explicit mode only); repeatable",
    )  # fmt: skip
    group.add_argument(
        "--repository-poll-secs", type=float, default=15.0, metavar="SECONDS",
        help="how often the directories are looked at (poll mode only); default 15",
    )  # fmt: skip
    group.add_argument(
        "--disable-auto-complete-config", action="store_true",
        help="take config.pbtxt as it is, without what the model file tells",
    )  # fmt: skip
    flag(group, "strict-model-config", False, "deprecated: true is --disable-auto-complete-config")
    flag(group, "strict-readiness", True, "ready only when every model is")
    flag(group, "exit-on-error", True, "exit when a model fails at the start")
    group.add_argument(
        "--model-load-thread-count", type=int, default=4, metavar="N", help="models loaded at a time; default 4"
    )
    group.add_argument("--model-config-name", default="", metavar="NAME")
    group.add_argument(
        "--rate-limit", choices=("off", "execution_count"), default="off",
        help="whether resources and priorities of instance groups count; default off",
    )  # fmt: skip
    group.add_argument(
        "--rate-limit-resource", action="append", default=[], metavar="NAME:COUNT[:DEVICE]",
        help="how much there is of a resource; repeatable",
    )  # fmt: skip


def _placement_flags(group: Any) -> None:
    group.add_argument(
        "--backend-directory", default="", metavar="DIR",
        help="where Python-based backends are, DIR/NAME/model.py; default /opt/tritonserver/backends",
    )  # fmt: skip
    group.add_argument(
        "--backend-config", action="append", default=[], metavar="BACKEND,KEY=VALUE",
        help="a setting of a backend, or of all where none is named; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--host-policy", action="append", default=[], metavar="POLICY,SETTING=VALUE",
        help="cpu-cores=0-3,8-9 or numa-node=0 for the instances of a policy: the one that instance_group.host_policy "
        "names, else cpu, model or gpu_<id> by the instance's kind; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--min-supported-compute-capability", type=float, default=MIN_COMPUTE_CAPABILITY, metavar="VERSION",
        help=f"GPUs below are not used; default {MIN_COMPUTE_CAPABILITY}",
    )  # fmt: skip
    group.add_argument(
        "--device-list", default="", metavar="FILE",
        help="take the GPUs from this JSON list (as in workbench doctor --json), not from NVML: placement is tried "
        "without the hardware",
    )  # fmt: skip


def _port_flags(group: Any) -> None:
    flag(group, "allow-http", True, "serve HTTP")
    group.add_argument("--http-port", type=port, default=8000, metavar="PORT", help="0 is a free one; default 8000")
    group.add_argument("--http-address", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1")
    flag(group, "reuse-http-port", False, "let several servers listen on the port")
    group.add_argument(
        "--http-max-input-size", type=int, default=64 * 1024 * 1024, metavar="BYTES",
        help="of a request's JSON, binary tensors not counted, and of what a compressed body unpacks to; default "
        "67108864",
    )  # fmt: skip
    group.add_argument(
        "--http-header-forward-pattern", default="", metavar="REGEX",
        help="headers of inference requests whose name it matches in part, in the case in which it was sent (begin "
        "with (?i) for any), become parameters of the request",
    )  # fmt: skip
    group.add_argument(
        "--http-restricted-api", action="append", default=[], metavar="APIS:HEADER=VALUE",
        help="requests to these APIs (" + ", ".join(CATEGORIES) + ") need the header, or the control plane's "
        "token; such as model-repository,logging:admin-key=SECRET; repeatable",
    )  # fmt: skip
    flag(group, "allow-client-shm", False, "let clients share memory for inputs and outputs")
    flag(group, "allow-metrics", True, "serve Prometheus metrics")
    group.add_argument("--metrics-port", type=port, default=8002, metavar="PORT", help="0 is a free one; default 8002")
    group.add_argument("--metrics-address", default=None, metavar="ADDRESS", help="default: the HTTP address")
    group.add_argument("--metrics-interval-ms", type=float, default=2000.0, metavar="MS", help="default 2000")


def _life_flags(group: Any) -> None:
    group.add_argument("--id", default="triton", help="the server's name in GET /v2")
    group.add_argument("--log-verbose", type=verbosity, default=0, metavar="LEVEL", help="0 for no verbose lines")
    flag(group, "log-info", True, "log at level info")
    flag(group, "log-warning", True, "log at level warning")
    flag(group, "log-error", True, "log at level error")
    group.add_argument("--log-format", choices=("default", "ISO8601"), default="default")
    group.add_argument("--log-file", default="", metavar="FILE", help="log there; default: standard error")
    group.add_argument(
        "--exit-timeout-secs", type=float, default=30.0, metavar="SECONDS",
        help="for what is in flight, once the server is told to stop (Ctrl-C, SIGTERM); default 30",
    )  # fmt: skip


def _own_flags(group: Any) -> None:
    group.add_argument("--name", default="", help="what workbench ps and wb.attach() call it")
    group.add_argument(
        "--token", default="",
        help="the control plane's, for wb.connect(url, token=TOKEN) from another machine; random by default "
        "(wb.attach() on this machine finds it)",
    )  # fmt: skip
    group.add_argument(
        "--repository-token", default="", metavar="TOKEN",
        help="loading and unloading need it: Authorization: Bearer TOKEN; default: none",
    )  # fmt: skip
    group.add_argument(
        "--allowed-host", action="append", default=[], metavar="HOST", help="a further name it is known by"
    )
    flag(group, "allow-file-override", False, "let load requests bring a model's files")
    group.add_argument(
        "--python-execution", choices=("process", "thread"), default="process",
        help="where Python models run: in processes of their own (default), or in the server, for debugging",
    )  # fmt: skip
    group.add_argument(
        "--nested-wait-report-secs", type=float, default=10.0, metavar="SECONDS",
        help="report a model's call to another model (BLS) that waits so long in a queue; 0 for never",
    )  # fmt: skip
    group.add_argument(
        "--busy-poll-us", type=float, default=_BUSY_POLL_US, metavar="US",
        help="stay awake so long for the answer of a model's process, or for the next request to it, that was quicker "
        f"the last time: 30 to 50 us less latency each for some CPU time; 0 for never; default {_BUSY_POLL_US:g}",
    )  # fmt: skip
    group.add_argument("--owner-fd", type=int, default=-1, metavar="FD", help="stop when this pipe ends")
    group.add_argument(
        "--detached",
        action="store_true",
        help="for wb.attach: listed as outliving who started it; it stays in the foreground (add & or nohup)",
    )


def _limit_flags(group: Any) -> None:
    group.add_argument(
        "--http-head-timeout-secs", type=seconds, default=_LIMITS.head_s, metavar="SECONDS",
        help=f"for the head of a request; default {_LIMITS.head_s:g}",
    )  # fmt: skip
    group.add_argument(
        "--http-body-timeout-secs", type=seconds, default=_LIMITS.pause_s, metavar="SECONDS",
        help=f"for each {PROGRESS_BYTES >> 10} KiB of a body, and of an answer that the client does not take; default "
        f"{_LIMITS.pause_s:g}",
    )  # fmt: skip
    group.add_argument(
        "--http-max-connections", type=count(1), default=_LIMITS.connections, metavar="N",
        help="open at a time on the HTTP port, and on that of the metrics; a further one is told 503 and closed; at "
        f"most a quarter of ulimit -n; default {_LIMITS.connections}",
    )  # fmt: skip
    group.add_argument(
        "--http-body-memory", type=count(1), default=_LIMITS.memory, metavar="BYTES",
        help=f"for all bodies from {LARGE >> 10} KiB on until they are answered; those for which there is none are not "
        f"read until there is; default {_LIMITS.memory}",
    )  # fmt: skip
    group.add_argument(
        "--http-answer-memory", type=count(1), default=_LIMITS.answers, metavar="BYTES",
        help="for all answers that clients do not take; where they are more, who has taken nothing for the longest "
        f"time is cut off; default {_LIMITS.answers}",
    )  # fmt: skip


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line.

    Raises:
        InvalidRequest: it cannot be read; the message says which word.
    """
    made = parser()
    args, unknown = made.parse_known_args(list(argv))
    if unknown:
        word = unknown[0].partition("=")[0]
        names = [name for action in made._actions for name in action.option_strings]
        close = difflib.get_close_matches(word, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "--help lists the options"
        raise InvalidRequest(f"unrecognized option '{word}'", hint=hint)
    if not args.model_repository:
        raise InvalidRequest("--model-repository must be specified")
    for path in args.model_repository:
        if not Path(path).is_dir():
            raise InvalidRequest(
                f"failed to stat file {path}", hint="give the directory that holds the model directories"
            )
    if args.load_model and args.model_control_mode != "explicit":
        raise InvalidRequest("--load-model requires --model-control-mode=explicit")
    for text in args.rate_limit_resource:
        parse_resource_limit(text)
    host_policies(args.host_policy)
    backend_config(args.backend_config)
    parse_restrictions(args.http_restricted_api, "http-restricted-api", "api")
    HeaderForwarding(args.http_header_forward_pattern)
    check_grpc(args)
    if args.http_max_input_size <= 0:
        raise InvalidRequest("Error: --http-max-input-size must be greater than 0.")
    return args


def without_effect(args: argparse.Namespace) -> list[str]:
    """Triton's flags on the command line that do nothing here."""
    return [f"--{name}" for name in _NO_EFFECT if getattr(args, name.replace("-", "_"))]


def backend_config(entries: Sequence[str]) -> dict[str, dict[str, str]]:
    """``--backend-config`` values (``BACKEND,KEY=VALUE``; without a backend for all, as ``""``) by backend.

    Raises:
        InvalidRequest: one cannot be read (Triton's texts).
    """
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        backend, comma, setting = entry.partition(",")
        if not comma:
            backend, setting = "", entry
        elif not backend:
            raise InvalidRequest(
                "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
                f"<setting>=<value>. Got {entry}"
            )
        key, _, value = setting.partition("=")
        if not key or not value:
            raise InvalidRequest(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {entry}")
        found.setdefault(backend, {})[key] = value
    return found


def host_policies(entries: Sequence[str]) -> dict[str, dict[str, str]]:
    """``--host-policy`` values (``POLICY,SETTING=VALUE``) by policy; a later one of the same setting holds.

    Raises:
        InvalidRequest: one cannot be read (Triton's text).
        Unsupported: one has a setting that there is not (Triton's text).
    """
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        policy, _, assignment = entry.partition(",")
        setting, _, value = assignment.partition("=")
        if not policy or not setting or not value:
            raise InvalidRequest(f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {entry}")
        check_setting(setting)
        found.setdefault(policy, {})[setting] = value
    return found
