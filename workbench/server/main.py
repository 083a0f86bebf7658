"""The server process: ``python -m workbench.server`` and ``workbench serve``."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from workbench.clock import monotonic_ns
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.records import LogSettings
from workbench.server import runtime
from workbench.server.access import parse_restrictions
from workbench.server.arguments import backend_config, host_policies, parse, without_effect
from workbench.server.grpc_arguments import grpc_options
from workbench.server.http import HttpLimits
from workbench.server.listener import raise_file_limit
from workbench.server.logs import log_event, start_logging
from workbench.server.options import ServerOptions

if TYPE_CHECKING:
    from workbench.engine import EngineOptions
    from workbench.server.serve import RunningServer

LOG = logging.getLogger("workbench.server")
_ORPHAN_EXIT_S = 5.0
_LOADING_EXIT_S = 1.0
_OVERTIME_S = 15.0
_LEAST_UNLOAD_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM, SIGINT, a shutdown request or the owner's end.

    Returns:
        0 after a clean stop; 1 when it could not start or requests had to be cut; 2 for a wrong command line.
    """
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
    except WorkbenchError as error:
        hint = f" ({error.hint})" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{hint}\n")
        return 2
    with contextlib.ExitStack() as stack:
        stream: TextIO = sys.stderr
        if args.log_file:
            try:
                stream = stack.enter_context(Path(args.log_file).open("a", encoding="utf-8", errors="backslashreplace"))
            except OSError as error:
                sys.stderr.write(f"error: --log-file: {error}\n")
                return 1
        settings = LogSettings(
            args.log_info, args.log_warning, args.log_error, args.log_verbose, args.log_format, args.log_file
        )
        handler = start_logging(settings, stream)
        stack.callback(logging.getLogger("workbench").removeHandler, handler)
        return _serve(args, settings)


def _serve(args: argparse.Namespace, settings: LogSettings) -> int:
    for name in without_effect(args):
        LOG.warning("%s is tritonserver's and has no effect here", name)
    raise_file_limit()
    with _Stop(args.owner_fd) as stop:
        return _run(args, settings, stop)


def _run(args: argparse.Namespace, settings: LogSettings, stop: _Stop) -> int:
    from workbench.engine import InferenceEngine
    from workbench.server.serve import serve_engine

    try:
        name = _unused(args.name) if args.name else runtime.free_name(Path(args.model_repository[0]).name)
        engine = InferenceEngine(_engine_options(args), log_settings=settings)
        engine.events.subscribe(log_event)
        engine.start()
    except WorkbenchError as error:
        _report(error)
        return 1
    try:
        server = serve_engine(engine, _server_options(args, name))
    except WorkbenchError as error:
        _report(error)
        engine.stop(1.0)
        return 1
    server.on_stop(stop.request)
    spare_collector()
    sys.stdout.write(ready_line(server) + "\n")
    sys.stdout.flush()
    stop.wait()
    return _stop(server, min(args.exit_timeout_secs, _ORPHAN_EXIT_S) if stop.orphaned else args.exit_timeout_secs)


def spare_collector() -> None:
    """Has the garbage collector of a process that serves, and does nothing else, come seldom and look at little."""
    # What lives now lives as long as the process: it need not be looked at again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # a queue of requests alone is some thousand objects, and none of it is garbage


def _unused(name: str) -> str:
    """The name, if no running server has it: that one would not be found any more."""
    if any(info["name"] == runtime.check_name(name) for info in runtime.list_servers()):
        raise InvalidRequest(f"a server named '{name}' runs already", hint="give another --name, or none")
    return name


def ready_line(server: RunningServer) -> str:
    """The one line that says where the server is."""
    return (
        f"workbench: ready http={server.http_url or 'off'} grpc={server.grpc_url or 'off'} "
        f"metrics={server.metrics_url or 'off'} "
        f"name={server.name} pid={os.getpid()}"
    )


def _report(error: WorkbenchError) -> None:
    kind = error.code.prefix.rstrip(": ") or "Error"
    if "failed to poll from model repository" in error.message:  # several models perhaps: the log has each one's reason
        error.hint = "the lines above say why; workbench lint DIR names every mistake, --fix mends most"
    sys.stderr.write(f"error: creating server: {kind} - {error}\n")


def _stop(server: RunningServer, timeout_s: float) -> int:
    """Stops; whatever hangs, the process ends. The models have what the clients have left of the time."""
    LOG.info("Waiting for in-flight requests to complete.")
    overtime = threading.Timer(timeout_s + _OVERTIME_S, os._exit, (1,))
    overtime.daemon = True
    overtime.start()
    began = monotonic_ns()
    clean = server.close(timeout_s)
    left = timeout_s - (monotonic_ns() - began) / 1e9
    server.engine.stop(max(_LEAST_UNLOAD_S, left) if clean else _LEAST_UNLOAD_S)
    overtime.cancel()
    if not clean:
        LOG.error("Exit timeout expired. Exiting immediately.")
    return 0 if clean else 1


class _Stop:
    """Waits for the reason to stop: a signal, a request, or the end of the pipe that the owner holds."""

    def __init__(self, owner_fd: int) -> None:
        self.orphaned = False
        self._event = threading.Event()
        self._waiting = threading.Event()
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._on_signal)
        if owner_fd >= 0:
            threading.Thread(target=self._watch, args=(owner_fd,), name="workbench-owner", daemon=True).start()

    def _on_signal(self, number: int, frame: object) -> None:
        # A second signal ends the process as if we did not handle it.
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)
        self._event.set()
        if not self._waiting.is_set():
            threading.Thread(target=self._give_up, name="workbench-stop", daemon=True).start()

    def _watch(self, fd: int) -> None:
        try:
            while os.read(fd, 64):
                pass
        except OSError:
            LOG.warning("--owner-fd %d cannot be read: the server stops", fd)
        self.orphaned = True
        self._event.set()
        self._give_up()

    def _give_up(self) -> None:
        """Ends the process when models still load, which may take minutes or for ever: nobody waits for them now."""
        if not self._waiting.wait(_LOADING_EXIT_S):
            os._exit(1)

    def request(self) -> None:
        """Someone asks the server to stop."""
        self._event.set()

    def wait(self) -> None:
        """Until there is a reason to stop."""
        self._waiting.set()
        self._event.wait()

    def __enter__(self) -> _Stop:
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _engine_options(args: argparse.Namespace) -> EngineOptions:
    from workbench.engine import EngineOptions
    from workbench.engine.options import BACKEND_DIRECTORY, scheduling_hooks
    from workbench.telemetry import load_devices

    mode = args.model_control_mode
    queued, backlog = scheduling_hooks(os.environ)
    return EngineOptions(
        repositories=tuple(Path(path).resolve() for path in args.model_repository),
        control_mode=mode,
        load_models=tuple(args.load_model) if mode == "explicit" else ("*",),
        auto_complete=not (args.disable_auto_complete_config or args.strict_model_config),
        strict_readiness=args.strict_readiness,
        exit_on_error=args.exit_on_error,
        python_execution=args.python_execution,
        backend_config=backend_config(args.backend_config),
        load_threads=max(1, args.model_load_thread_count),
        lower_switch_interval=True,
        freeze_imports=True,
        poll_s=args.repository_poll_secs if mode == "poll" else 0.0,
        config_name=args.model_config_name,
        rate_limit=args.rate_limit,
        rate_limit_resources=tuple(args.rate_limit_resource),
        nested_wait_report_s=max(0.0, args.nested_wait_report_secs),
        busy_poll_us=max(0.0, args.busy_poll_us),
        gpus=load_devices(args.device_list) if args.device_list else None,
        min_compute_capability=args.min_supported_compute_capability,
        host_policies=host_policies(args.host_policy),
        backend_directory=Path(args.backend_directory).resolve() if args.backend_directory else BACKEND_DIRECTORY,
        hold_until_queued=queued,
        hold_until_backlog=backlog,
    )


def _server_options(args: argparse.Namespace, name: str) -> ServerOptions:
    return ServerOptions(
        http_address=args.http_address,
        http_port=args.http_port,
        metrics_address=args.metrics_address or args.http_address,
        metrics_port=args.metrics_port,
        allow_http=args.allow_http,
        allow_grpc=args.allow_grpc,
        grpc=grpc_options(args),
        allow_metrics=args.allow_metrics,
        id=args.id,
        name=name,
        token=args.token or secrets.token_urlsafe(24),
        allowed_hosts=tuple(args.allowed_host),
        allow_file_override=args.allow_file_override,
        allow_client_shm=args.allow_client_shm,
        repository_token=args.repository_token,
        http_restricted=parse_restrictions(args.http_restricted_api, "http-restricted-api", "api"),
        http_header_forward_pattern=args.http_header_forward_pattern,
        max_input_size=args.http_max_input_size,
        limits=HttpLimits(
            head_s=args.http_head_timeout_secs,
            pause_s=args.http_body_timeout_secs,
            connections=args.http_max_connections,
            memory=args.http_body_memory,
            answers=args.http_answer_memory,
        ),
        exit_timeout_s=args.exit_timeout_secs,
        detached=args.detached,
        runtime_file=True,
        reuse_port=args.reuse_http_port,
        metrics_interval_s=args.metrics_interval_ms / 1000,
    )
