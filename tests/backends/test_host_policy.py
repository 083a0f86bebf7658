"""Host policies: how their settings are read, and that the calling thread is really put under them."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from workbench.backends.host_policy import HostPolicy, check_setting
from workbench.errors import InternalError, InvalidRequest, Unsupported

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="cores are pinned on Linux only")
FORMAT = "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got "


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0-0", {0}),
        ("0-1,3-4", {0, 1, 3, 4}),
        ("2-3,2-2", {2, 3}),
        (" 1-2x", {1, 2}),
        ("0,2-3", {0, 1, 2, 3}),
    ],
)
def test_cores_are_ranges(text: str, cores: set[int]) -> None:
    assert HostPolicy("p", {"cpu-cores": text}).cores() == cores
    assert HostPolicy("p").cores() is None


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("cpu-cores", "0", FORMAT + "0"),
        ("cpu-cores", "0-1,7", FORMAT + "7"),
        ("cpu-cores", "0,1", FORMAT + "0"),
        ("cpu-cores", "x-2", "Parsing 'cpu-cores' value: Can't parse 'x' to integer"),
        ("cpu-cores", "0-", "Parsing 'cpu-cores' value: Can't parse '' to integer"),
        ("numa-node", "x", "Parsing 'numa-node' value: Can't parse 'x' to integer"),
    ],
)
def test_a_setting_that_cannot_be_read_has_tritons_text(setting: str, value: str, text: str) -> None:
    policy = HostPolicy("p", {setting: value})
    before = _cores()
    with pytest.raises(InvalidRequest) as caught, policy.pinned():
        pytest.fail("nothing runs under it")
    assert caught.value.message == text
    assert _cores() == before


def test_other_settings_are_unsupported() -> None:
    check_setting("numa-node")
    with pytest.raises(Unsupported) as caught:
        check_setting("nice")
    assert caught.value.message == (
        "Unsupported host policy setting 'nice' is specified, supported settings are 'numa-node', 'cpu-cores'"
    )


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@on_linux
def test_a_thread_is_pinned_for_good_and_the_others_are_not() -> None:
    first = min(_cores())
    policy = HostPolicy("p", {"cpu-cores": f"{first}-{first}"})
    with ThreadPoolExecutor(1) as pool:
        pool.submit(policy.pin).result()
        assert pool.submit(_cores).result() == {first}
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(_cores).result() == _cores()


@on_linux
def test_a_policy_holds_whatever_the_server_was_started_on() -> None:
    """As ``taskset`` beside ``--host-policy`` in docs/search_system.md."""
    *_, last = cores = sorted(_cores())

    def started_on_the_first() -> tuple[set[int], set[int]]:
        os.sched_setaffinity(0, {cores[0]})
        with HostPolicy("p", {"cpu-cores": f"{last}-{last}"}).pinned():
            meanwhile = _cores()
        return meanwhile, _cores()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(started_on_the_first).result() == ({last}, {cores[0]})


@on_linux
def test_what_is_started_meanwhile_inherits_it_and_afterwards_all_is_as_before() -> None:
    before = _cores()
    last = max(before)
    seen: list[set[int]] = []
    with HostPolicy("p", {"cpu-cores": f"{last}-{last}"}).pinned():
        thread = threading.Thread(target=lambda: seen.append(_cores()))
        thread.start()
        thread.join()
    assert seen == [{last}]
    assert _cores() == before


@on_linux
@pytest.mark.parametrize("cores", ["9000-9001", "70000-70001", "1-0"])
def test_cores_that_are_not_there_are_an_error_in_words(cores: str) -> None:
    before = _cores()
    with pytest.raises(InternalError, match="Unable to set NUMA thread affinity: ") as caught:
        HostPolicy("p", {"cpu-cores": cores}).pin()
    assert "this process may use cores" in caught.value.hint
    assert _cores() == before


@on_linux
def test_memory_is_bound_to_a_node_where_the_system_lets_us() -> None:
    def bound() -> str:
        HostPolicy("p", {"numa-node": "0"}).pin()
        return _bound_nodes()

    def restored() -> str:
        with HostPolicy("p", {"numa-node": "0"}).pinned():
            pass
        return _bound_nodes()

    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(bound).exception()
        if refused is None:
            assert pool.submit(bound).result() == "bind:0"
        else:  # a container without the capability
            assert str(refused).startswith("Unable to set NUMA memory policy: ")
    if refused is None:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(restored).result() == "default"
    with ThreadPoolExecutor(1) as pool, pytest.raises(InternalError, match="Unable to set NUMA memory policy: "):
        pool.submit(HostPolicy("p", {"numa-node": "900"}).pin).result()
    with ThreadPoolExecutor(1) as pool, pytest.raises(InternalError, match="Unable to set NUMA memory policy: "):
        pool.submit(HostPolicy("p", {"numa-node": "-1"}).pin).result()


def _bound_nodes() -> str:
    """The policy of this thread's memory as the kernel shows it for a page of its stack or heap."""
    with open(f"/proc/self/task/{threading.get_native_id()}/numa_maps", encoding="ascii") as maps:  # noqa: PTH123
        return maps.readline().split()[1]
