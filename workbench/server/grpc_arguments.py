"""The ``--grpc-...`` flags of tritonserver: names, defaults and texts are Triton's, but for the address (loopback)."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest
from workbench.server.access import CATEGORIES, GRPC_PREFIX, parse_restrictions
from workbench.server.flags import flag, port
from workbench.server.forwarding import HeaderForwarding
from workbench.server.grpc_options import COMPRESSION_LEVELS, GrpcOptions, KeepAlive

NO_EFFECT = ("grpc-infer-thread-count", "grpc-infer-allocation-pool-size", "grpc-max-response-pool-size")
"""Flags that mean nothing here: one thread serves, objects are not pooled, responses under way are bounded anyway."""

_KEEP = KeepAlive()


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
        group.add_argument(f"--{name}", type=_count, default=default, metavar="MS", help=text)
    flag(group, "grpc-keepalive-permit-without-calls", False, "ask also when no call is in flight")
    group.add_argument(
        "--grpc-http2-max-pings-without-data", type=_count, default=_KEEP.max_pings_without_data, metavar="N",
        help="how often it is asked at most between two answers; 0: any number",
    )  # fmt: skip
    group.add_argument(
        "--grpc-http2-max-ping-strikes", type=_count, default=_KEEP.max_ping_strikes, metavar="N",
        help="pings too close to each other before the connection is closed; 0: any number",
    )  # fmt: skip


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 0 on")
    return value


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
