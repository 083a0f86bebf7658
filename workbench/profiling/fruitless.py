"""When a window that is to have so many answers ends without them: so many have failed, or none comes any more."""

from __future__ import annotations

import math

from workbench.profiling.recorder import GONE_NS

_LEAST = 10
"""So many failures in a row, at least, say that nothing is answered any more."""


class Fruitless:
    """Looks on while a window counts its answers; perf_analyzer ends at the first request that fails.

    It ends when as many requests have failed as were to be answered: most of its requests have failed then, whatever
    else comes. And, however many are asked for, when nothing but errors has come for a while (``GONE_NS``, in which a
    server that is started again at once comes back), and more of them than answers in all. And when nothing has been
    answered for ``silence_s`` though something was under way, failed or not: requests may wait for ever. A response of
    a stream is an answer here.

    Args:
        wanted: how many answers the window is to have; 0: none are counted, and it never ends for this.
        answered: how many there were when it began.
        failed: how many had failed by then.
        now: when it began, ns.
        silence_s: how long it goes on without an answer.
    """

    def __init__(
        self, wanted: int = 0, answered: int = 0, failed: int = 0, now: int = 0, silence_s: float = math.inf
    ) -> None:
        self._wanted = wanted
        self._before = self._failed = failed
        self._answered_before = self._answered = answered
        self._responses = 0
        self._since = self._heard = now
        self._silence_s = silence_s
        self.said = ""
        """Why it was to end, in words; empty while it may go on."""

    def look(self, answered: int, failed: int, now: int, *, responses: int = 0, under_way: int = 1) -> bool:
        """Whether the window is to end now; ``said`` has the words then.

        Args:
            answered: how many requests have been answered by now, of the whole run.
            failed: how many have failed.
            now: ns.
            responses: how many responses of streams have come, of the whole run.
            under_way: how many requests are waited for; 0: nothing is due.
        """
        if not self._wanted or self.said:
            return bool(self.said)
        if answered != self._answered or responses != self._responses or not under_way:
            self._heard, self._responses = now, responses
        if answered != self._answered or failed == self._failed:
            # the time counts from the last answer before a failure: without any failure it may just be slow
            self._answered, self._failed, self._since = answered, failed, now
        if failed - self._before >= self._wanted:
            self.said = f"the window was ended as {failed - self._before} requests had failed in it: {self._asked}"
        elif (
            failed - self._failed >= _LEAST
            and now - self._since > GONE_NS
            and failed - self._before > answered - self._answered_before  # else it may just be slow, and some refused
        ):
            lasted = (now - self._since) / 1e9
            self.said = f"the window was ended as nothing but errors had come for {lasted:.1f} s: {self._asked}"
        elif (silent := (now - self._heard) / 1e9) > self._silence_s:
            self.said = (
                f"the window was ended as nothing had been answered for {silent:.0f} s: {self._asked} "
                "(max_duration_s=... waits for as long as it says)"
            )
        return bool(self.said)

    @property
    def _asked(self) -> str:
        return f"{self._wanted} answers were asked for"
