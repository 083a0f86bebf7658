"""gRPC over TLS: unary calls and streams on one port, clients with and without a certificate; the flags."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import write_certificates
from grpc_models import request, values_of, write_models
from http_app import until
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from workbench.server import ServerOptions
from workbench.server.arguments import parse
from workbench.server.grpc_arguments import grpc_options
from workbench.server.main import main


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


def flags(folder: Path, *more: str) -> list[str]:
    return [
        "--model-repository=.", f"--grpc-server-cert={folder / 'server.pem'}",
        f"--grpc-server-key={folder / 'server.key'}", f"--grpc-root-cert={folder / 'root.pem'}", "--grpc-port=0", *more,
    ]  # fmt: skip


def use(url: str, credentials: grpc.ChannelCredentials) -> None:
    with grpc.secure_channel(url.removeprefix("grpcs://"), credentials) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live
        large = [float(number) for number in range(200_000)]
        assert values_of(stub.ModelInfer(request("echo", *large), timeout=20)) == large
        answers = stub.ModelStreamInfer(iter([request("repeat", 3), request("echo", 9)]), timeout=20)
        assert sorted(values_of(answer.infer_response)[0] for answer in answers) == [0, 1, 2, 9]
        sizes = (200_000, 1, 50_000, 3, 200_000)  # large and small ones in turn
        answers = stub.ModelStreamInfer((request("echo", *large[:size]) for size in sizes), timeout=20)
        assert [values_of(answer.infer_response) for answer in answers] == [large[:size] for size in sizes]


def test_one_port_for_single_calls_and_streams(tmp_path: Path, start: Callable[..., Any], certificates: Path) -> None:
    root = write_models(tmp_path)
    made = grpc_options(parse(flags(certificates, "--grpc-use-ssl=true")))
    trusted = (certificates / "root.pem").read_bytes()
    with start(root, ServerOptions(name="tls", grpc=made, exit_timeout_s=5.0)) as server:
        assert server.grpc_url.startswith("grpcs://")
        use(server.grpc_url, grpc.ssl_channel_credentials(trusted))
        with (
            grpc.insecure_channel(server.grpc_url.removeprefix("grpcs://")) as channel,
            pytest.raises(grpc.RpcError),
        ):
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=3)


def test_the_log_tells_of_clients_whose_handshake_fails(
    repository: Path, start: Callable[..., Any], certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = grpc_options(parse(flags(certificates, "--grpc-use-ssl-mutual=true", "--grpc-hello-timeout-secs=0.5")))
    trusted, *own = ((certificates / name).read_bytes() for name in ("root.pem", "client.key", "client.pem"))
    with (
        caplog.at_level(logging.INFO, "workbench.server"),
        start(repository, ServerOptions(name="deaf", grpc=made, exit_timeout_s=5.0)) as server,
    ):

        def told() -> list[str]:
            return [text for record in caplog.records if "handshake" in (text := record.getMessage())]

        target = server.grpc_url.removeprefix("grpcs://")
        for credentials in (grpc.ssl_channel_credentials(trusted, *own), grpc.ssl_channel_credentials(trusted)):
            assert not told()
            with grpc.secure_channel(target, credentials) as channel, contextlib.suppress(grpc.RpcError):
                service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=3)
        until(lambda: bool(told()))
        assert "GRPCInferenceService: " in told()[0]
        assert "show one of its own where --grpc-use-ssl-mutual asks for it" in told()[0]


def test_clients_show_a_certificate(
    repository: Path, tmp_path: Path, start: Callable[..., Any], certificates: Path
) -> None:
    made = grpc_options(parse(flags(certificates, "--grpc-use-ssl-mutual=true")))
    trusted = (certificates / "root.pem").read_bytes()
    with start(write_models(tmp_path), ServerOptions(name="mutual", grpc=made, exit_timeout_s=5.0)) as server:
        own = [(certificates / f"client.{kind}").read_bytes() for kind in ("key", "pem")]
        use(server.grpc_url, grpc.ssl_channel_credentials(trusted, *own))
        with (
            grpc.secure_channel(
                server.grpc_url.removeprefix("grpcs://"), grpc.ssl_channel_credentials(trusted)
            ) as channel,
            pytest.raises(grpc.RpcError),
        ):
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=3)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--grpc-use-ssl", "--grpc-server-key="], "gRPC over TLS needs --grpc-server-key"),
        (["--grpc-use-ssl", "--grpc-server-cert=/no/file"], "--grpc-server-cert: '/no/file' is no file"),
        (["--grpc-use-ssl-mutual", "--grpc-root-cert="], "gRPC over TLS needs --grpc-root-cert"),
        (["--grpc-use-ssl", "--grpc-server-key={root}/client.key"], "gRPC over TLS: "),
        (["--grpc-restricted-protocol=nonsense:k=v"], "unknown restricted protocol 'nonsense'"),
        (["--grpc-restricted-protocol=health"], "--grpc-restricted-protocol option format is"),
        (["--grpc-header-forward-pattern=("], "--grpc-header-forward-pattern: '(' is no regular expression"),
        (["--grpc-infer-response-compression-level=most"], "invalid choice: 'most'"),
        (["--grpc-keepalive-time=-1"], "is no number from 0 on"),
        (["--grpc-port=70000"], "is no port"),
    ],
)
def test_wrong_flags(certificates: Path, more: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(flags(certificates, *(word.format(root=certificates) for word in more))) == 2
    assert text in capfd.readouterr().err


def test_flags_are_options() -> None:
    made = grpc_options(
        parse(
            ["--model-repository=.", "--grpc-port=7", "--grpc-address=::1", "--reuse-grpc-port=true",
             "--grpc-keepalive-time=1", "--grpc-keepalive-timeout=2", "--grpc-keepalive-permit-without-calls=1",
             "--grpc-http2-max-pings-without-data=3", "--grpc-http2-min-recv-ping-interval-without-data=4",
             "--grpc-http2-max-ping-strikes=5", "--grpc-max-connection-age=6", "--grpc-max-connection-age-grace=7",
             "--grpc-infer-response-compression-level=high", "--grpc-header-forward-pattern=x",
             "--grpc-restricted-protocol=health,trace:k=v"]
        )
    )  # fmt: skip
    assert (made.port, made.address, made.reuse_port, made.tls) == (7, "::1", True, None)
    keep = made.keep_alive
    assert (keep.time_ms, keep.timeout_ms, keep.permit_without_calls, keep.max_pings_without_data) == (1, 2, True, 3)
    assert (keep.min_recv_ping_interval_without_data_ms, keep.max_ping_strikes) == (4, 5)
    assert (keep.max_connection_age_ms, keep.max_connection_age_grace_ms) == (6, 7)
    assert (made.compression_level, made.header_forward_pattern) == ("high", "x")
    assert made.restricted["trace"].header == "triton-grpc-protocol-k"


def test_grpc_can_be_switched_off(repository: Path, start: Callable[..., Any]) -> None:
    with start(repository, ServerOptions(name="off", allow_grpc=False, exit_timeout_s=5.0)) as server:
        assert server.grpc_url == ""
        assert server.info()["grpc"] == ""


def test_the_front_end_is_not_loaded_with_the_package() -> None:
    code = "import sys, workbench.server; assert not {'ngh2', 'tritonclient.grpc'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
