"""The servers that these tests talk to."""

from __future__ import annotations

from served_echo import triton_server, workbench_server

__all__ = ["triton_server", "workbench_server"]
