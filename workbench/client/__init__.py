"""Talks to a running Triton or KServe v2 server, and to the workbench's control plane."""

from __future__ import annotations

from workbench.client.control import ControlClient
from workbench.client.http_client import HttpClient
from workbench.client.interface import TritonClient, connect

__all__ = ["ControlClient", "GrpcClient", "HttpClient", "TritonClient", "connect"]


def __getattr__(name: str) -> object:
    if name == "GrpcClient":  # gRPC and Triton's proto classes take a quarter of a second to import
        from workbench.client.grpc_client import GrpcClient

        return GrpcClient
    raise AttributeError(f"module 'workbench.client' has no attribute '{name}'")
