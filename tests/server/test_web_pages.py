"""A web page in the user's browser cannot drive a server: what browsers send on a page's behalf, to every endpoint.

A page of another origin can have its browser send simple requests (GET, HEAD, forms as text/plain, urlencoded or
multipart) without asking; for others the browser asks first (preflight). What is not a GET carries the page's
``Origin``. A page that has rebound its own name to 127.0.0.1 sends that name as ``Host``, and no Origin with its GETs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pytest

from workbench.server import RunningServer

Http = Callable[..., Any]
GETS = (
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/echo", "/v2/models/echo/ready", "/v2/models/echo/config",
    "/v2/models/stats", "/v2/models/echo/stats", "/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status",
    "/v2/workbench", "/v2/workbench/records", "/v2/workbench/events", "/nowhere",
)  # fmt: skip
POSTS = (
    "/v2/models/echo/infer", "/v2/models/echo/generate", "/v2/models/echo/generate_stream", "/v2/repository/index",
    "/v2/repository/models/halves/unload", "/v2/repository/models/halves/load", "/v2/logging", "/v2/trace/setting",
    "/v2/systemsharedmemory/unregister", "/v2/workbench/shutdown", "/v2/workbench/models/echo/configure",
)  # fmt: skip
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")


def refused(answer: Any) -> bool:
    allowed = [name for name in answer.headers if name.startswith("access-control-")]
    return answer.status == 403 and not allowed and set(answer.json) == {"error"}


@pytest.mark.parametrize("page", ["https://evil.example", "http://evil.example:8000", "null", "http://10.0.0.5"])
def test_forms_of_another_page_are_refused(server: RunningServer, http: Http, page: str) -> None:
    for path in POSTS:
        for form in FORMS:
            assert refused(http(server, "POST", path, b"{}", {"Origin": page, "Content-Type": form})), path
    assert http(server, "GET", "/v2/models/halves/ready").status == 200, "nothing was unloaded"


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "GET"])
def test_a_preflight_is_not_granted(server: RunningServer, http: Http, method: str) -> None:
    for path in (*GETS, *POSTS):
        answer = http(
            server,
            "OPTIONS",
            path,
            None,
            {
                "Origin": "https://evil.example",
                "Access-Control-Request-Method": method,
                "Access-Control-Request-Headers": "content-type,authorization",
            },
        )
        assert refused(answer), path


def test_not_even_a_page_of_this_machine_may_read_across_origins(server: RunningServer, http: Http) -> None:
    """It may send (a Jupyter page does), but without CORS headers its browser shows it no answer."""
    answer = http(server, "GET", "/v2", None, {"Origin": "http://localhost:8888"})
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_rebound_name_reads_nothing(server: RunningServer, http: Http, host: str) -> None:
    for path in GETS:
        assert refused(http(server, "GET", path, None, {"Host": host})), path
    for path in POSTS:
        same_origin = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
        assert refused(http(server, "POST", path, b"{}", same_origin)), path


def test_metrics_are_guarded_too(server: RunningServer) -> None:
    def ask(headers: dict[str, str], method: str = "GET") -> tuple[int, bytes]:
        connection = HTTPConnection(server.metrics_url.removeprefix("http://").partition("/")[0], timeout=10)
        try:
            connection.request(method, "/metrics", None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    assert ask({})[0] == 200
    assert ask({"Host": "localhost:8002"})[0] == 200
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        status, body = ask(headers)
        assert status == 403
        assert set(json.loads(body)) == {"error"}
    assert ask({"Origin": "https://evil.example"}, "OPTIONS")[0] == 403


def test_the_control_plane_needs_its_token_whoever_asks(server: RunningServer, http: Http) -> None:
    for path in ("/v2/workbench", "/v2/workbench/records", "/v2/workbench/events", "/v2/workbench/nowhere"):
        assert http(server, "GET", path).status == 401
        assert http(server, "GET", path, None, {"Authorization": "Bearer x"}).status == 401
    assert http(server, "POST", "/v2/workbench/shutdown", {}).status == 401
    assert not server.stop_requested.is_set()
