"""The ``--grpc-...`` flags: tritonserver's by its names, with its defaults but for the address (loopback), and ours."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest
from workbench.server.access import CATEGORIES, GRPC_PREFIX, parse_restrictions
from workbench.server.flags import count, flag, port, seconds
from workbench.server.forwarding import HeaderForwarding
from workbench.server.grpc_options import COMPRESSION_LEVELS, GrpcLimits, GrpcOptions, KeepAlive

NO_EFFECT = ("grpc-infer-thread-count", "grpc-infer-allocation-pool-size", "grpc-max-response-pool-size")
"""Flags that mean nothing here: one thread serves, objects are not pooled, and responses under way are bounded by their
bytes (``--grpc-response-backlog``), not by their number."""

_KEEP = KeepAlive()
_LIMITS = GrpcLimits()
_WINDOW = 1024, 2**31 - 1


def add_flags(group: Any) -> None:
    """Adds the flags to an argument group."""
    flag(group, "allow-grpc", True, "serve gRPC")
    group.add_argument("--grpc-port", type=port, default=8001, metavar="PORT", help="0 is a free one; default 8001")
    group.add_argument("--grpc-address", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1")
    flag(group, "reuse-grpc-port", False, "let several servers listen on the port")
    group.add_argument(
        "--grpc-header-forward-pattern", default="", metavar="REGEX",
        help="metadata of inferences whose name it matches in part become parameters of the request",
    )  # fmt: skip
    group.add_argument(
        "--grpc-restricted-protocol", action="append", default=[], metavar="PROTOCOLS:KEY=VALUE",
        help=f"calls of these protocols ({', '.join(CATEGORIES)}) need the metadata {GRPC_PREFIX}KEY; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--grpc-infer-response-compression-level", choices=COMPRESSION_LEVELS, default="none",
        help="how answers to inferences are compressed, where the client takes it; default none",
    )  # fmt: skip
    flag(group, "grpc-use-ssl", False, "serve gRPC over TLS")
    flag(group, "grpc-use-ssl-mutual", False, "serve gRPC over TLS, and ask clients for a certificate")
    group.add_argument("--grpc-server-cert", default="", metavar="FILE", help="the server's certificate, PEM")
    group.add_argument("--grpc-server-key", default="", metavar="FILE", help="its key, PEM")
    group.add_argument(
        "--grpc-root-cert", default="", metavar="FILE", help="who may have signed clients' certificates, PEM"
    )
    for name, default, text in (
        ("grpc-keepalive-time", _KEEP.time_ms, "silence after which a client is asked whether it lives"),
        ("grpc-keepalive-timeout", _KEEP.timeout_ms, "time for its answer"),
        (
            "grpc-http2-min-recv-ping-interval-without-data",
            _KEEP.min_recv_ping_interval_without_data_ms,
            "how far apart a client's own pings must be",
        ),
        ("grpc-max-connection-age", 0, "after which a connection is closed; default: never"),
        ("grpc-max-connection-age-grace", 0, "time for its calls to end then; default: any"),
    ):
        group.add_argument(f"--{name}", type=count(0), default=default, metavar="MS", help=text)
    flag(group, "grpc-keepalive-permit-without-calls", False, "ask also when no call is in flight")
    group.add_argument(
        "--grpc-http2-max-pings-without-data", type=count(0), default=_KEEP.max_pings_without_data, metavar="N",
        help="how often it is asked at most between two answers; 0: any number",
    )  # fmt: skip
    group.add_argument(
        "--grpc-http2-max-ping-strikes", type=count(0), default=_KEEP.max_ping_strikes, metavar="N",
        help="pings too close to each other before the connection is closed; 0: any number",
    )  # fmt: skip


def add_own_flags(group: Any) -> None:
    """Adds the flags that tritonserver does not have (``GrpcLimits``) to an argument group."""
    for name, kind, default, unit, text in (
        (
            "max-connections", count(1), _LIMITS.connections, "N",
            "open at a time; a further one is closed at once; at most a quarter of ulimit -n",
        ),
        ("max-concurrent-streams", count(1, 2**31 - 1), _LIMITS.streams, "N", "calls at a time on a connection"),
        (
            "call-window", count(*_WINDOW), _LIMITS.window, "BYTES",
            "what a call may send before the server has said that it takes more",
        ),
        (
            "message-memory", count(1), _LIMITS.memory, "BYTES",
            "for all messages larger than that until they are answered; a call for which there is none waits",
        ),
        ("max-stream-requests", count(1), _LIMITS.requests, "N", "unanswered requests of one ModelStreamInfer call"),
        (
            "response-backlog", count(1), _LIMITS.backlog, "BYTES",
            "of a call's answers that its client does not take, before a decoupled model is held back",
        ),
        (
            "hello-timeout-secs", seconds, _LIMITS.hello_s, "SECONDS",
            "for the TLS handshake, and for the first words of HTTP/2",
        ),
        ("message-timeout-secs", seconds, _LIMITS.pause_s, "SECONDS", "for a message that has begun to go on"),
    ):  # fmt: skip
        group.add_argument(
            f"--grpc-{name}",
            type=kind,
            default=default,
            metavar=unit,
            help=f"{text}; default {default!r}".removesuffix(".0"),
        )


def check(args: argparse.Namespace) -> None:
    """Looks at what only all the words together can say.

    Raises:
        InvalidRequest: a pattern or a restriction cannot be read (Triton's texts), nor a certificate or key.
    """
    parse_restrictions(args.grpc_restricted_protocol, "grpc-restricted-protocol", "protocol", GRPC_PREFIX)
    HeaderForwarding(args.grpc_header_forward_pattern, "grpc-header-forward-pattern")
    _tls(args)


def grpc_options(args: argparse.Namespace) -> GrpcOptions:
    """The options that a command line stands for.

    Raises:
        InvalidRequest: a certificate or key cannot be used.
    """
    return GrpcOptions(
        address=args.grpc_address,
        port=args.grpc_port,
        reuse_port=args.reuse_grpc_port,
        tls=_tls(args),
        restricted=parse_restrictions(
            args.grpc_restricted_protocol, "grpc-restricted-protocol", "protocol", GRPC_PREFIX
        ),
        header_forward_pattern=args.grpc_header_forward_pattern,
        compression_level=args.grpc_infer_response_compression_level,
        keep_alive=KeepAlive(
            args.grpc_keepalive_time,
            args.grpc_keepalive_timeout,
            args.grpc_keepalive_permit_without_calls,
            args.grpc_http2_max_pings_without_data,
            args.grpc_http2_min_recv_ping_interval_without_data,
            args.grpc_http2_max_ping_strikes,
            args.grpc_max_connection_age,
            args.grpc_max_connection_age_grace,
        ),
        limits=GrpcLimits(
            connections=args.grpc_max_connections,
            streams=args.grpc_max_concurrent_streams,
            window=args.grpc_call_window,
            memory=args.grpc_message_memory,
            requests=args.grpc_max_stream_requests,
            backlog=args.grpc_response_backlog,
            hello_s=args.grpc_hello_timeout_secs,
            pause_s=args.grpc_message_timeout_secs,
        ),
    )


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    if not args.allow_grpc or not (args.grpc_use_ssl or args.grpc_use_ssl_mutual):
        return None
    return server_context(
        args.grpc_server_cert, args.grpc_server_key, args.grpc_root_cert if args.grpc_use_ssl_mutual else None
    )


def server_context(certificate: str, key: str, roots: str | None) -> ssl.SSLContext:
    """A context for HTTP/2 over TLS from PEM files.

    Args:
        certificate: the server's, with those between it and its root.
        key: the certificate's.
        roots: whoever may have signed the clients' certificates, which are then required; None to ask for none.

    Raises:
        InvalidRequest: a file cannot be read, or certificate and key do not belong together.
    """
    for name, file in (("cert", certificate), ("key", key), *((("root-cert", roots),) if roots is not None else ())):
        option = f"--grpc-{name}" if name == "root-cert" else f"--grpc-server-{name}"
        if not file:
            raise InvalidRequest(f"gRPC over TLS needs {option}")
        if not Path(file).is_file():
            raise InvalidRequest(f"{option}: '{file}' is no file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(certificate, key)
        if roots is not None:
            context.load_verify_locations(roots)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError) as error:
        raise InvalidRequest(
            f"gRPC over TLS: {error}", hint="give PEM files; the key must be the certificate's"
        ) from error
    return context
