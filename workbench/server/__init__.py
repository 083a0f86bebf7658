"""HTTP (KServe v2 and the control plane) and metrics over an engine; the process around them."""

from workbench.server.options import ServerOptions
from workbench.server.serve import RunningServer, serve_engine

__all__ = ["RunningServer", "ServerOptions", "serve_engine"]
