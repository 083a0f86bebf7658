from __future__ import annotations

import threading

from workbench.records import Event, EventLog


def test_events_are_kept_in_order_and_bounded() -> None:
    log = EventLog(3, clock=lambda: 5, wall=lambda: 6)
    for n in range(5):
        log.append("state", "m", f"t{n}", level="warning", version=n)
    assert [event.text for event in log.after()] == ["t2", "t3", "t4"]
    assert [event.text for event in log.after(3)] == ["t4"]
    assert log.after(4) == []
    assert len(log.after(99)) == 3  # a number of an earlier life
    assert log.last_seq == 4
    event = log.after(3)[0]
    assert (event.time_ns, event.wall_ms, event.data) == (5, 6, {"version": 4})
    assert Event.from_json(event.to_json()) == event


def test_long_events_push_out_more_of_the_old_ones() -> None:
    log = EventLog(1000, limit=100_000)
    for n in range(300):
        log.append("log", "m", "x" * 9_000, seqs=[n], number=n)
    kept = log.after()
    assert 5 < len(kept) < 12
    assert [event.data["number"] for event in kept] == list(range(300 - len(kept), 300))
    assert [event.seq for event in log.after(297)] == [298, 299]
    log.append("log", "m", "short")
    assert log.after()[-1].text == "short"
    assert EventLog(10, limit=1).append("log", "m", "alone").text == "alone"


def test_subscribers_hear_until_they_leave_and_a_raising_one_is_dropped() -> None:
    log = EventLog()
    heard: list[str] = []
    leave = log.subscribe(lambda event: heard.append(event.text))

    def broken(event: Event) -> None:
        heard.append("broken")
        raise ValueError

    log.subscribe(broken)
    log.append("log", "", "a")
    log.append("log", "", "b")
    leave()
    leave()
    log.append("log", "", "c")
    assert heard == ["a", "broken", "b"]


def test_waiting_ends_with_the_event_or_in_time() -> None:
    log = EventLog()
    assert log.wait(-1, 0.01) == []
    thread = threading.Thread(target=lambda: log.append("log", "", "x"))
    thread.start()
    assert [event.text for event in log.wait(-1, 5)] == ["x"]
    thread.join()


def test_long_texts_are_shortened() -> None:
    log = EventLog()
    event = log.append("log", "m", "x" * 1_000_000, reason="y" * 1_000_000, number=1)
    assert event.text == "x" * 16384 + "... (983616 more characters)"
    assert len(event.data["reason"]) < 17_000
    assert event.data["number"] == 1
    assert log.append("log", "m", "x" * 16384).text == "x" * 16384
