"""The two servers of a topic."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Side, Sides, Topic
from real_triton import Addresses, real_triton

from workbench.engine import EngineOptions, InferenceEngine
from workbench.server import ServerOptions, serve_engine
from workbench.server.access import parse_restrictions
from workbench.server.arguments import parse


@pytest.fixture(scope="module")
def sides(request: pytest.FixtureRequest, oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """A real Triton and the workbench over what the module's ``build`` writes, in explicit mode, nothing loaded."""
    topic: Topic = request.module.TOPIC
    folder = tmp_path_factory.mktemp(topic.prefix)
    flags = ["--model-control-mode=explicit", *topic.options]
    with contextlib.ExitStack() as running:

        def start() -> tuple[Side, Side]:
            running.close()
            for name in ("theirs", "ours"):
                shutil.rmtree(folder / name, ignore_errors=True)
                (folder / name).mkdir()
                request.module.build(folder / name)
            real = running.enter_context(real_triton(oracle, folder / "theirs", folder / "triton.log", flags))
            ours = running.enter_context(workbench(engine_options(folder / "ours", flags), server_options(flags)))
            return Side("Triton", real, folder / "theirs"), Side("the workbench", ours, folder / "ours")

        yield Sides(start)


@contextlib.contextmanager
def workbench(options: EngineOptions, front: ServerOptions | None = None) -> Iterator[Addresses]:
    """An engine behind its front end."""
    engine = InferenceEngine(options)
    engine.start()
    server = serve_engine(engine, front or ServerOptions())
    try:
        yield Addresses(server.http_url.rstrip("/"), server.metrics_url)
    finally:
        server.close(5)
        engine.stop(5)


def engine_options(root: Path, flags: list[str]) -> EngineOptions:
    """What tritonserver's flags say to an engine."""
    args = parse([f"--model-repository={root}", *flags])
    return EngineOptions(
        (root,),
        control_mode=args.model_control_mode,
        load_models=tuple(args.load_model),
        auto_complete=not args.disable_auto_complete_config,
        gpus=(),
        rate_limit=args.rate_limit,
        rate_limit_resources=tuple(args.rate_limit_resource),
    )


def server_options(flags: list[str]) -> ServerOptions:
    """What tritonserver's flags say to the front end. 2.51 has no switch for shared memory: it is always on."""
    args = parse(["--model-repository=.", *flags])
    return ServerOptions(
        allow_client_shm=True,
        http_restricted=parse_restrictions(args.http_restricted_api, "http-restricted-api", "api"),
        http_header_forward_pattern=args.http_header_forward_pattern,
    )
