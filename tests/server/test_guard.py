"""Host and Origin: what a browser sends is checked, what a program sends passes."""

from __future__ import annotations

import tracemalloc

import pytest

from workbench.server.guard import HostGuard


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1:8000", "127.5.0.1", "[::1]:8000", "a.localhost:1"],
)
def test_loopback_names_pass(host: str) -> None:
    assert HostGuard("127.0.0.1").refusal(host.encode(), b"") == ""


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "10.0.0.5:8000", "127.0.0.1.evil.example", "x"])
def test_other_names_are_refused(host: str) -> None:
    assert host in HostGuard("127.0.0.1").refusal(host.encode(), b"")


@pytest.mark.parametrize(
    ("origin", "passes"),
    [
        ("http://localhost:8888", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:8888", True),
        ("https://evil.example", False),
        ("null", False),
        ("http://", False),
        ("http://localhost.evil.example", False),
        ("chrome-extension://abcdef", False),
    ],
)
def test_origins(origin: str, passes: bool) -> None:
    assert (HostGuard("127.0.0.1").refusal(b"localhost:8000", origin.encode()) == "") is passes


def test_a_server_for_others_knows_addresses_but_not_foreign_names() -> None:
    guard = HostGuard("0.0.0.0", ["gpu-box"])
    assert guard.refusal(b"192.168.1.7:8000", b"") == ""
    assert guard.refusal(b"gpu-box:8000", b"") == ""
    assert guard.refusal(b"evil.example:8000", b"") != ""


def test_any_host_when_told_so() -> None:
    assert HostGuard("127.0.0.1", ["*"]).refusal(b"anything", b"https://anywhere") == ""


def test_memory_stays_bounded() -> None:
    guard = HostGuard("127.0.0.1")
    for number in range(5000):
        assert guard.refusal(b"host%d" % number, b"")
    assert len(guard._known) <= 1024
    tracemalloc.start()
    try:
        for number in range(1000):
            assert guard.refusal(b"%d." % number + b"h" * 50_000, b"")
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
