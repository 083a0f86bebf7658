"""Statistics by the number of a response (``response_stats``), for backends that report them (infer_stats.cc)."""

from __future__ import annotations

from workbench.backends.base import ResponseReport

_KINDS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


class ResponseStatistics:
    """The counters of one model version; written on the loop's thread. All durations are nanoseconds."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, list[int]]] = {}

    def add(self, report: ResponseReport) -> None:
        """Counts one response: as cancelled, as failed, as left out, or as a success."""
        row = self._rows.get(report.number)
        if row is None:
            row = self._rows[report.number] = {kind: [0, 0] for kind in _KINDS}
        total = report.end - report.start
        if report.cancelled:
            _count(row["cancel"], total)
            return
        output = report.end - report.output_start if report.output_start else 0
        _count(row["compute_infer"], total - output)
        if output or (report.output_start and not report.failed):
            _count(row["compute_output"], output)
        _count(row["fail" if report.failed else "success" if report.output_start else "empty_response"], total)

    def to_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """Triton's ``response_stats`` (11.7)."""
        return {
            str(number): {kind: {"count": count, "ns": ns} for kind, (count, ns) in row.items()}
            for number, row in sorted(self._rows.items())
        }


def _count(pair: list[int], ns: int) -> None:
    pair[0] += 1
    pair[1] += ns
