"""What is sent: closed and open loops, replayed traces, and several classes of requests at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.profiling.arrivals import arrivals
from workbench.profiling.load_limits import (
    MAX_REQUESTS,
    NUMBERS,
    SHORTEST_S,
    WEEK_S,
    check_factor,
    check_numbers,
    check_parameters,
    check_share,
)

if TYPE_CHECKING:
    from workbench.profiling.trace import Trace
    from workbench.profiling.trace_files import HasTrace

Kind = Literal["closed", "open", "mixed"]
Distribution = Literal["constant", "poisson", "gamma", "bursty", "trace"]
SharedMemory = Literal["none", "system"]


@dataclass(frozen=True, slots=True)
class Load:
    """One load point.

    A *closed* loop keeps ``concurrency`` requests under way: each client sends its next request when it has its answer.
    An *open* loop sends at ``rate`` requests/s whatever the server does, spaced as ``distribution`` says: ``constant``,
    ``poisson``, ``gamma`` (of coefficient of variation ``cv``), ``bursty`` (bursts of ``burst_factor`` × rate that last
    ``burst_s`` on average), or as a ``trace`` has it, at ``factor`` times its speed. A *mixed* load (``Load.classes``)
    is several of these at once.

    ``warmup_s`` is sent before and not counted; and longer (up to ``max_warmup_s``, 0: ten times ``warmup_s``) until
    throughput and latency have settled. The measured window lasts ``duration_s``, and longer (up to ``max_duration_s``,
    0: twice ``duration_s``) while fewer than ``min_requests`` have been answered in it or the intervals of throughput
    and mean latency are wider than 10 %. With the defaults a point that settles takes about 3 s, so a sweep of 12
    points stays under a minute. A trace and bursts have a warm-up of ``warmup_s`` exactly, a trace also a window of its
    own length. After the window answers are awaited for up to ``drain_s``.

    With ``requests`` the window ends with the answer that makes so many, however short or long that is, as
    perf_analyzer's count windows do; at the latest after ``max_duration_s`` (0: ten minutes, of an open loop three
    times what its rate takes). Several ``generators`` end it up to a tenth of a second later. A point with fewer is not
    valid; the window ends without them when as many have failed, when nothing but errors comes for three seconds
    (perf_analyzer ends at the first error), or, unless ``max_duration_s`` is given, when requests are under way and
    neither an answer nor a response of a stream comes for two minutes. 0 counts none.

    ``batch_size`` is the number of rows of one request. An open loop holds at most ``max_in_flight`` requests; what
    would exceed that is counted as failed. ``streaming`` sends to the endpoint that
    gives any number of responses to a request and stamps each of them; a decoupled model is measured so anyway.
    ``generators`` processes send it together: they divide its clients and its arrivals, of each class and of a trace,
    and their stamps are merged. The requests of one sequence come from one of them.

    Requests go to ``model`` (empty: the one that is measured) with ``priority``, ``timeout_s`` and further
    ``parameters``; ``inputs`` names a file of inputs of their own. To a model with a sequence batcher go sequences:
    each has a correlation id, a start and an end flag, and one request under way at a time. A sequence is one stream
    of the inputs where they have several, else ``sequence_length`` requests (0: 20), give or take the share
    ``sequence_length_variation``. A closed loop has one for each client, an open loop ``sequences`` at once.
    ``shared_memory`` ``system`` hands tensors over in shared memory, with ``output_bytes`` of room for each output.

    Raises:
        InvalidRequest: a value that makes no sense.
    """

    kind: Kind = "closed"
    concurrency: int = 1
    rate: float = 0.0
    distribution: Distribution = "poisson"
    duration_s: float = 2.5
    warmup_s: float = 0.5
    batch_size: int = 1
    seed: int = 1
    min_requests: int = 100
    max_duration_s: float = 0.0
    max_warmup_s: float = 0.0
    drain_s: float = 10.0
    max_in_flight: int = 4096
    streaming: bool = False
    generators: int = 1
    cv: float = 2.0
    burst_factor: float = 5.0
    burst_s: float = 0.1
    trace: str = ""
    trace_sha256: str = ""
    factor: float = 1.0
    model: str = ""
    priority: int = 0
    timeout_s: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    inputs: str = ""
    sequence_length: int = 0
    sequence_length_variation: float = 0.0
    sequences: int = 4
    shared_memory: SharedMemory = "none"
    output_bytes: int = 102_400
    mix: tuple[tuple[str, Load], ...] = ()
    requests: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidRequest(f"load kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.distribution not in get_args(Distribution):
            names = ", ".join(get_args(Distribution))
            raise InvalidRequest(f"distribution must be one of {names}, got {self.distribution!r}")
        if self.shared_memory not in get_args(SharedMemory):
            raise InvalidRequest(f"shared_memory must be 'none' or 'system', got {self.shared_memory!r}")
        for name, value in check_numbers({name: getattr(self, name) for name in NUMBERS}).items():
            object.__setattr__(self, name, value)  # numpy's numbers become Python's: they go into JSON
        if not isinstance(self.streaming, bool):
            raise InvalidRequest(f"streaming must be True or False, got {self.streaming!r:.80}")
        check_parameters(self.parameters)
        if self.kind == "open" and not self.rate > 0:
            raise InvalidRequest(f"an open loop needs a rate above 0 requests/s, got {self.rate}")
        if self.kind == "closed" and self.generators > self.concurrency:
            raise InvalidRequest(f"{self.generators} generators cannot divide {self.concurrency} clients")
        if self.kind == "open" and self.rate * (self.longest_warmup_s + self.longest_s) > MAX_REQUESTS:
            raise InvalidRequest("more than 50 million requests in one load point")
        if not self.burst_factor > 1:
            raise InvalidRequest(f"burst_factor must be above 1, got {self.burst_factor}")
        if not self.sequence_length_variation < 1:
            raise InvalidRequest(f"sequence_length_variation must be below 1, got {self.sequence_length_variation}")
        if (self.kind == "mixed") != bool(self.mix):
            raise InvalidRequest("a mixed load has classes, and no other has", hint="Load.classes({...})")
        if self.trace and self.requests:
            raise InvalidRequest("a replay sends what its trace has: it cannot end after a number of requests")
        if self.distribution == "trace" and not self.trace:
            raise InvalidRequest("a replay needs a trace", hint="Load.replay(FILE)")
        if self.mix and 0 < self.clients < self.generators:
            raise InvalidRequest(f"{self.generators} generators cannot divide {self.clients} clients")

    @classmethod
    def closed(cls, concurrency: int, **options: Any) -> Load:
        """A closed loop of ``concurrency`` clients."""
        return cls(kind="closed", concurrency=concurrency, **options)

    @classmethod
    def open(cls, rate: float, distribution: Distribution = "poisson", **options: Any) -> Load:
        """An open loop of ``rate`` requests/s."""
        return cls(kind="open", rate=rate, distribution=distribution, **options)

    @classmethod
    def replay(cls, trace: Trace | HasTrace | str | Path, factor: float = 1.0, **options: Any) -> Load:
        """Traffic again, ``factor`` times as fast: a capture, a ``Trace``, or a file of one, of Triton's or of
        perf_analyzer's (``read_trace``).

        It is replayed once where ``duration_s`` does not say otherwise. Requests go where they went, or all to
        ``model``. A trace that has no file yet is saved under ``runs/traces``.

        Raises:
            NotFound: there is no such file.
            InvalidRequest: it cannot be read.
        """
        from workbench.profiling.trace_files import kept

        path, digest, read = kept(trace)
        check_factor(factor)
        if not SHORTEST_S <= read.length_s / factor <= WEEK_S:
            raise InvalidRequest(
                f"the {read.length_s:g} s of the trace would take {read.length_s / factor:g} s at factor {factor:g}",
                hint=f"choose a factor that makes them {SHORTEST_S:g} s to {WEEK_S:g} s",
            )
        return cls(
            kind="open",
            distribution="trace",
            rate=len(read) / read.length_s * factor,
            factor=factor,
            trace=str(path),
            trace_sha256=digest,
            **{"duration_s": read.length_s / factor, **options},
        )

    @classmethod
    def classes(
        cls, classes: Mapping[str, Load | Mapping[str, Any]], *, concurrency: int = 0, rate: float = 0.0, **options: Any
    ) -> Load:
        """Several classes of requests at once, with figures of each beside the total.

        ``Load.classes({"interactive": Load.open(200, priority=1), "bulk": Load.closed(4, batch_size=16)})``; or shares
        of one total: ``Load.classes({"short": {"share": 3}, "long": {"share": 1, "inputs": "long.json"}}, rate=100)``.

        Args:
            classes: by name, each its own load; or the options of one, with its ``concurrency``, its ``rate``, or its
                ``share`` of the total.
            concurrency: clients in all, of which each class with a share gets its part, at least one.
            rate: requests/s in all, likewise.
            options: of the whole: ``duration_s``, ``warmup_s``, ``seed``, ...

        Raises:
            InvalidRequest: no classes, shares without a total, or one that says what only the whole can.
        """
        _check_classes(classes)
        classes = {name: _whole_of(part) for name, part in classes.items()}
        shared = [name for name, part in classes.items() if not isinstance(part, Load)]
        given = {name: _with_share(name, classes[name]) for name in shared}
        if shared and bool(concurrency) == bool(rate):
            raise InvalidRequest(
                f"the shares of {', '.join(shared)} need a total", hint="give either concurrency=N or rate=R"
            )
        if not shared and (concurrency or rate):
            raise InvalidRequest(
                f"no class has a share of the {'concurrency' if concurrency else 'rate'} in all: each says how much",
                hint='give classes a {"share": 1}, or leave the total out',
            )
        total = check_numbers({**_DEFAULTS, **({"concurrency": concurrency} if concurrency else {"rate": rate})})
        shares = {name: share for name, (share, _) in given.items()}
        parts = _divide(shares, int(total["concurrency"]) if concurrency else 0, 0.0 if concurrency else total["rate"])
        whole = cls(**{**options, "generators": 1})
        mix = []
        for index, (name, part) in enumerate(classes.items()):
            load = part if isinstance(part, Load) else cls(**{**parts[name], **given[name][1]})
            mix.append((str(name), _inside(str(name), load, whole, index)))
        return replace(whole, kind="mixed", mix=tuple(mix), generators=options.get("generators", 1))

    @property
    def clients(self) -> int:
        """Of a closed loop, or of classes that are all closed loops; 0 where there is an open one."""
        if self.kind == "mixed":
            counts = [part.clients for _, part in self.mix]
            return sum(counts) if all(counts) else 0
        return self.concurrency if self.kind == "closed" else 0

    @property
    def parts(self) -> tuple[Load, ...]:
        """The loads of its classes; of any other load itself."""
        return tuple(part for _, part in self.mix) or (self,)

    @property
    def has_open(self) -> bool:
        """Whether requests are sent whatever the server does, in one class at least."""
        return self.kind == "open" or any(part.kind == "open" for _, part in self.mix)

    @property
    def settles(self) -> bool:
        """Whether there is a rate to settle at: a trace has none, and bursts come and go."""
        return all(part.distribution not in ("trace", "bursty") or part.kind == "closed" for part in self.parts)

    @property
    def longest_warmup_s(self) -> float:
        """How long the warm-up may become."""
        if not self.settles:
            return self.warmup_s
        return max(self.warmup_s, self.max_warmup_s or 10 * self.warmup_s)

    @property
    def longest_s(self) -> float:
        """How long the measured window may become."""
        if self.requests:
            rate = sum(part.rate for part in self.parts if part.kind == "open")
            return self.max_duration_s or (max(_SOON_S, 3 * self.requests / rate) if rate else _COUNTING_S)
        return max(self.duration_s, self.max_duration_s or (1 if self.trace else 2) * self.duration_s)

    @property
    def longest_silence_s(self) -> float:
        """How long a window of so many requests goes on without an answer while requests are under way."""
        return math.inf if self.max_duration_s else _SILENCE_S

    @property
    def block(self) -> Load:
        """The same with a window that is not prolonged, so that blocks which are compared are of one length."""
        return self if self.requests else replace(self, max_duration_s=self.duration_s)

    @property
    def label(self) -> str:
        """Short text for tables and axes."""
        if self.kind == "mixed":
            return " + ".join(f"{name} {part.label}" for name, part in self.mix)
        rows = "" if self.batch_size == 1 else f" × {self.batch_size} rows"
        rows += f" priority {self.priority}" if self.priority else ""
        rows += " in shared memory" if self.shared_memory != "none" else ""
        if self.kind == "closed":
            return f"concurrency {self.concurrency}{rows}"
        if self.distribution == "trace":
            return f"trace {Path(self.trace).name.removesuffix('.trace.npz')} × {self.factor:g}{rows}"
        shape = {"gamma": f" cv {self.cv:g}", "bursty": f" × {self.burst_factor:g}"}.get(self.distribution, "")
        return f"{self.rate:g}/s {self.distribution}{shape}{rows}"

    def __repr__(self) -> str:
        def span(least: float, most: float) -> str:
            return f"{least:g} s" if most <= least else f"{least:g} to {most:g} s"

        window = span(round(self.duration_s, 3), round(self.longest_s, 3))
        lines = [f"Load, {window} after {span(self.warmup_s, self.longest_warmup_s)} of warm-up, seed {self.seed}:"]
        lines += [f"  {name}: {part.label}" for name, part in self.mix] or [f"  {self.label}"]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON; options that came later only where they are not at their defaults."""
        out = asdict(self)
        for item in fields(self)[_FIRST_OPTION:]:
            if out[item.name] == _DEFAULTS[item.name]:
                del out[item.name]
        if self.mix:
            out["mix"] = [[name, part.to_json()] for name, part in self.mix]
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Load:
        """Reads what ``to_json`` gave."""
        known = {item.name for item in fields(cls)}
        given = {name: item for name, item in value.items() if name in known}
        if "mix" in given:
            given["mix"] = tuple((str(name), cls.from_json(part)) for name, part in given["mix"])
        return cls(**given)


_FIRST_OPTION = [item.name for item in fields(Load)].index("generators") + 1
_DEFAULTS = asdict(Load())
_COUNTING_S = 600.0
_SOON_S = 10.0
_SILENCE_S = 120.0  # as long as a call by gRPC may take (grpc_load): one that takes longer has failed there, too
_OF_THE_WHOLE = (
    "duration_s", "warmup_s", "seed", "requests", "min_requests", "max_duration_s", "max_warmup_s", "drain_s",
    "max_in_flight", "generators", "shared_memory", "output_bytes",
)  # fmt: skip


def _check_classes(classes: Any) -> None:
    if not isinstance(classes, Mapping) or not classes:
        got = "" if isinstance(classes, Mapping) else f", got {classes!r:.80}"
        raise InvalidRequest(f"a mixed load needs classes{got}", hint='Load.classes({"a": Load.closed(4)})')
    for name, part in classes.items():
        _check_options(name, part)


def _check_options(name: str, part: Any) -> None:
    named = set(part) if isinstance(part, Mapping) else set()
    unknown = named - {item.name for item in fields(Load)} - {"share"} | named & {"kind", "mix"}
    if {"rate", "concurrency"} <= named:
        raise InvalidRequest(f"class '{name}' has both a rate and a concurrency", hint="give one of the two")
    if unknown:
        raise InvalidRequest(
            f"class '{name}' has the unknown option {', '.join(sorted(map(str, unknown)))}",
            hint="a class has rate, concurrency or share, and options of a Load, such as priority and batch_size",
        )


def _whole_of(part: Any) -> Any:
    """Options that say how much is a load; those with a share stay what they are."""
    if isinstance(part, Mapping) and "share" not in part and ("rate" in part or "concurrency" in part):
        return Load(kind="open" if "rate" in part else "closed", **part)
    return part


def _with_share(name: str, part: Any) -> tuple[float, dict[str, Any]]:
    if not isinstance(part, Mapping) or "share" not in part:
        raise InvalidRequest(
            f"class '{name}' says neither how much is sent nor its share",
            hint='write Load.closed(4), {"rate": 100, "priority": 1}, or {"share": 3} of the total',
        )
    return check_share(name, part["share"]), {key: value for key, value in part.items() if key != "share"}


def _divide(shares: Mapping[str, float], concurrency: int, rate: float) -> dict[str, dict[str, Any]]:
    """Each class's part of the total; of clients whole ones, by largest remainders, at least one."""
    whole = sum(shares.values())
    if rate:
        return {name: {"kind": "open", "rate": rate * share / whole} for name, share in shares.items()}
    if shares and concurrency < len(shares):
        raise InvalidRequest(f"{concurrency} clients cannot be divided among {len(shares)} classes")
    counts: dict[str, int] = {}
    while True:
        left = {name: share for name, share in shares.items() if name not in counts}
        rest, whole = concurrency - len(counts), sum(left.values())
        small = [name for name, share in left.items() if rest * share < whole]
        if not small:
            break
        counts |= dict.fromkeys(small, 1)
    exact = {name: rest * share / whole for name, share in left.items()}
    counts |= {name: int(part) for name, part in exact.items()}
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[: concurrency - sum(counts.values())]:
        counts[name] += 1
    return {name: {"kind": "closed", "concurrency": count} for name, count in counts.items()}


def _inside(name: str, part: Load, whole: Load, index: int) -> Load:
    """A class with what the whole load says; each has arrivals of its own."""
    if part.mix or part.trace:
        raise InvalidRequest(f"class '{name}' can be neither a mixed load nor a replay")
    said = [option for option in _OF_THE_WHOLE if getattr(part, option) != _DEFAULTS[option]]
    if said and any(getattr(part, option) != getattr(whole, option) for option in said if option != "seed"):
        raise InvalidRequest(
            f"class '{name}' sets {', '.join(said)}, which is the whole load's to say",
            hint=f"Load.classes({{...}}, {said[0]}=...)",
        )
    common = {option: getattr(whole, option) for option in _OF_THE_WHOLE if option != "generators"}
    seed = int(np.random.SeedSequence([whole.seed, index]).generate_state(1)[0])
    return replace(part, **{**common, "seed": seed})


def schedule(load: Load) -> NDArray[np.int64]:
    """When the open loops of a load send, in nanoseconds from its start: the longest warm-up and the longest window.

    The same load gives the same schedule, so all configurations of a sweep see the same arrivals: whenever the warm-up
    ends, the window's begin at ``longest_warmup_s``. Empty for a closed loop.
    """
    return arrivals(load)[0]
