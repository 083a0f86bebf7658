"""Runs Triton's public client examples against ``workbench serve``, and prints a table of their exit codes.

    python tests/client_examples.py EXAMPLES [--models MODELS] [--oracle ORACLE] [--only TEXT] [--logs DIR]

EXAMPLES is a copy of ``src/python/examples`` of triton-inference-server/client, MODELS of
``docs/examples/model_repository`` of triton-inference-server/server, ORACLE the folder with ``real-tritonserver``.
Columns: the workbench with MODELS (what they lack comes from ``example_models``); the workbench with models of ours in
Python; a real Triton 2.51 with the same models of ours. The exit code is 0 when every example ended as expected: on
both servers alike, but for the reasons in the notes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from certificates import write_certificates
from example_models import BACKENDS, IMAGES, SIMPLE, write_ensemble, write_equivalent, write_given
from real_triton import Addresses, real_triton

LIMIT_S = 90
READY = re.compile(r"workbench: ready http=\w+://(\S+) grpc=\w+://(\S+) metrics=(\S+)")


@dataclass(frozen=True)
class Server:
    """A way to start the servers: which models, which flags."""

    models: tuple[str, ...]
    flags: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    """Flags for what real Triton 2.51 has always switched on."""
    ensemble: bool = False


_TLS = (
    "--grpc-server-cert={certificates}/server.pem", "--grpc-server-key={certificates}/server.key",
    "--grpc-root-cert={certificates}/root.pem",
)  # fmt: skip
SERVERS = {
    "all": Server((*SIMPLE, *BACKENDS, *IMAGES), ours=("--allow-client-shm=true",), ensemble=True),
    "eight models": Server(
        (*SIMPLE, *IMAGES), ("--model-control-mode=explicit",), ours=("--allow-file-override=true",)
    ),
    "seven models": Server((*SIMPLE, "simple_string_dyna_sequence"), ("--model-control-mode=explicit",)),
    "TLS": Server(("simple",), ("--grpc-use-ssl=true", *_TLS)),
    "mutual TLS": Server(("simple",), ("--grpc-use-ssl-mutual=true", *_TLS)),
}


@dataclass(frozen=True)
class Run:
    """One call of an example. ``options`` may name {http}, {grpc}, {image} and {certificates}."""

    example: str
    options: str = ""
    protocol: str = ""
    server: str = "all"
    expected: int = 0
    real: int | None = None
    """With what it ends on a real 2.51, where that differs; ``note`` says why."""
    note: str = ""
    needs: str = ""
    """A module that the example imports on this way."""

    @property
    def title(self) -> str:
        """The file and its options, addresses left out."""
        shown = re.sub(r"-u \{\w+\}(?!\S)", "", self.options)
        return " ".join([self.example, *re.sub(r"\{(\w+)\}", r"\1", shown).split()])

    @property
    def wire(self) -> str:
        return self.protocol or ("gRPC" if "grpc" in self.example else "HTTP")


def _each(examples: str, options: Sequence[str] = ("",), **more: Any) -> list[Run]:
    return [Run(example, each, **more) for example in examples.split() for each in options]


_COMPRESSED = [
    f"--request-compression-algorithm {kind} --response-compression-algorithm {kind}" for kind in ("gzip", "deflate")
]
_STAND_IN = "a stand-in for the weights"
_STRING_ID = "2.51's Python backend counts the string of a correlation id twice, and refuses it"
RUNS = [
    *_each("simple_http_health_metadata.py simple_grpc_health_metadata.py"),
    *_each("simple_http_infer_client.py simple_http_aio_infer_client.py", ["", "-H test:1", *_COMPRESSED]),
    Run("simple_http_infer_client.py", "-u {http}/base_path", expected=1, note="no such path: it must fail"),
    *_each("simple_grpc_infer_client.py simple_grpc_aio_infer_client.py", ["", "-t 10", "-C gzip", "-C deflate"]),
    *_each(
        "simple_grpc_infer_client.py simple_grpc_aio_infer_client.py", ["-s -r {certificates}/root.pem"], server="TLS"
    ),
    *_each(
        "simple_grpc_infer_client.py simple_grpc_aio_infer_client.py",
        ["-s -r {certificates}/root.pem -p {certificates}/client.key -x {certificates}/client.pem"],
        server="mutual TLS",
    ),
    *_each("simple_http_async_infer_client.py"),
    *_each("simple_grpc_async_infer_client.py", ["", "-t 10"]),
    *_each("simple_http_string_infer_client.py simple_grpc_string_infer_client.py"),
    *_each("grpc_explicit_int_content_client.py grpc_explicit_int8_content_client.py"),
    *_each("grpc_explicit_byte_content_client.py"),
    *_each("simple_http_shm_client.py simple_grpc_shm_client.py"),
    *_each("simple_http_shm_string_client.py simple_grpc_shm_string_client.py"),
    Run("reuse_infer_objects_client.py"),
    Run("reuse_infer_objects_client.py", "-i grpc -u {grpc}", "gRPC"),
    *_each("simple_grpc_custom_args_client.py"),
    *_each("simple_grpc_keepalive_client.py", ["", "--grpc-keepalive-time 1000 --grpc-keepalive-permit-without-calls"]),
    *_each("simple_http_sequence_sync_infer_client.py simple_grpc_sequence_sync_infer_client.py", ["", "-o 5"]),
    *_each("simple_grpc_sequence_stream_infer_client.py", ["", "-t 30", "-o 5"]),
    *_each("simple_grpc_aio_sequence_stream_infer_client.py", ["", "-t 30", "-o 5"]),
    *_each("simple_http_sequence_sync_infer_client.py simple_grpc_sequence_sync_infer_client.py", ["-d"],
           real=1, note=_STRING_ID),
    *_each("simple_grpc_sequence_stream_infer_client.py simple_grpc_aio_sequence_stream_infer_client.py", ["-d"],
           real=1, note=_STRING_ID),
    Run("simple_grpc_custom_repeat.py", note="repeat_int32: ten seconds, by its own delays"),
    Run("simple_http_model_control.py", server="seven models", note="it counts seven models"),
    Run("simple_grpc_model_control.py", server="eight models", real=1,
        note="it counts eight models; started with --allow-file-override=true; "
        "2.51 dies of the long file name (mended in 26.05)"),
    Run("memory_growth_test.py", "-i http -r 20", note="its fixed address is replaced"),
    Run("memory_growth_test.py", "-i grpc -r 20", "gRPC", note="its fixed address is replaced"),
    Run("grpc_client.py", note=_STAND_IN),
    *_each("grpc_image_client.py", [f"-m densenet_onnx -s INCEPTION {more}-c 3 -b 1 {{image}}"
                                    for more in ("", "-a ", "-a --streaming ")], note=_STAND_IN),
    *_each("image_client.py", [f"-m {model} -s INCEPTION {more}-c 3 -b 1 {{image}}"
                               for model in IMAGES for more in ("", "-a ")], note=_STAND_IN, needs="attrdict"),
    *_each("image_client.py", [f"-m densenet_onnx -s INCEPTION {more}-c 3 -b 1 -i grpc -u {{grpc}} {{image}}"
                               for more in ("", "-a ", "-a --streaming ")], note=_STAND_IN, protocol="gRPC"),
    Run("ensemble_image_client.py", "-c 2 {image}", note=_STAND_IN),
    Run("ensemble_image_client.py", "-c 2 -i grpc -u {grpc} {image}", "gRPC", note=_STAND_IN),
]  # fmt: skip

LEFT_OUT = {
    "simple_http_cudashm_client.py": "needs a GPU: CUDA shared memory",
    "simple_grpc_cudashm_client.py": "needs a GPU: CUDA shared memory",
}


@dataclass
class Row:
    """How a call of an example ended on each server; ``ends`` by the title of the column."""

    run: Run
    ends: dict[str, str] = field(default_factory=dict)

    def cells(self, columns: Sequence[str]) -> list[str]:
        """A line of the table."""
        return [f"`{self.run.title}`", self.run.wire, *(self.ends.get(each, "") for each in columns), self.run.note]


@dataclass(frozen=True)
class Column:
    """A kind of server."""

    title: str
    ours: bool
    write: Callable[[Path, str], None]
    start: Callable[[Path, Path, Sequence[str]], contextlib.AbstractContextManager[Addresses]]


@contextlib.contextmanager
def workbench_serve(repository: Path, log: Path, flags: Sequence[str]) -> Iterator[Addresses]:
    """``workbench serve`` on free ports, until the end.

    Raises:
        RuntimeError: it did not start.
    """
    command = [
        sys.executable, "-m", "workbench.cli", "serve", f"--model-repository={repository}", "--http-port=0",
        "--grpc-port=0", "--metrics-port=0", f"--name=client-examples-{os.getpid()}", *flags,
    ]  # fmt: skip
    with log.open("w") as file:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        assert child.stdout is not None
        ready = READY.match(child.stdout.readline())
        if ready is None:
            raise RuntimeError(f"workbench serve did not start:\n{log.read_text()[-2000:]}")
        yield Addresses(f"http://{ready[1]}", ready[3], ready[2])
    finally:
        child.terminate()
        child.communicate(timeout=60)


def columns_of(models: Path | None, oracle: Path | None) -> list[Column]:
    """What there is to compare."""

    def equivalent(folder: Path, name: str) -> None:
        write_equivalent(folder, name)

    def given(folder: Path, name: str) -> None:
        if models is not None and name in SIMPLE:
            write_given(folder, name, models)
        else:
            write_equivalent(folder, name, BACKENDS.get(name, "python"))

    columns = [Column("workbench, Python models", True, equivalent, workbench_serve)]
    if models is not None:
        columns.insert(0, Column("workbench, Triton's models", True, given, workbench_serve))
    if oracle is not None:
        real = oracle
        columns.append(
            Column("Triton 2.51, Python models", False, equivalent, lambda *given: real_triton(real, *given))
        )
    return columns


def run_all(
    examples: Path,
    models: Path | None = None,
    oracle: Path | None = None,
    logs: Path | None = None,
    chosen: Callable[[Run], bool] = lambda run: True,
) -> tuple[list[Row], list[Column]]:
    """Runs what is in ``examples`` against each kind of server; output and logs go to ``logs``.

    Raises:
        FileNotFoundError: ``examples`` holds no example that is known here.
    """
    rows = [Row(run) for run in RUNS if (examples / run.example).is_file() and chosen(run)]
    if not rows:
        raise FileNotFoundError(f"{examples}: none of Triton's client examples is here (src/python/examples)")
    columns = columns_of(models, oracle)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs = logs or work / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        certificates = work / "certificates"
        certificates.mkdir()
        if any("TLS" in row.run.server for row in rows):
            write_certificates(certificates)
        (work / "image.ppm").write_bytes(b"P6 64 64 255\n" + bytes(range(256)) * 48)
        places = {"image": str(work / "image.ppm"), "certificates": str(certificates)}
        for column in columns:
            for name, server in SERVERS.items():
                wanted = [row for row in rows if row.run.server == name]
                if wanted:
                    label = re.sub(r"[^\w.]+", "-", f"{column.title} {name}")
                    folder = work / label
                    _run_on(column, server, wanted, folder, logs / label, examples, places)
    return rows, columns


def _run_on(
    column: Column, server: Server, rows: list[Row], folder: Path, log: Path, examples: Path, places: dict[str, str]
) -> None:
    folder.mkdir()
    for name in server.models:
        column.write(folder, name)
    if server.ensemble:
        write_ensemble(folder)
    flags = [each.format(**places) for each in (*server.flags, *(server.ours if column.ours else ()))]
    with column.start(folder, log.with_name(f"{log.name}.server.log"), flags) as addresses:
        http, grpc = (re.sub(r"^(\w+://)?127\.0\.0\.1", "localhost", each) for each in (addresses.http, addresses.grpc))
        where = {**places, "http": http, "grpc": grpc}
        for row in rows:
            name = re.sub(r"[^\w.-]+", "_", f"{row.run.title} {row.run.wire}")
            output = log.with_name(f"{log.name}.{name}.txt")
            row.ends[column.title] = _end_of(row.run, examples, where, output)


def _end_of(run: Run, examples: Path, where: dict[str, str], output: Path) -> str:
    """The exit code in words; more where 0 does not say that it went well."""
    if run.needs and importlib.util.find_spec(run.needs) is None:
        return f"not run: {run.needs} is not installed"
    path = examples / run.example
    text = path.read_text()
    options = run.options.format(**where).split()
    if '"--url"' not in text:
        path = output.with_suffix(".py")
        path.write_text(text.replace("localhost:8000", where["http"]).replace("localhost:8001", where["grpc"]))
    elif "-u" not in options:
        options += ["-u", where["http"] if run.wire == "HTTP" else where["grpc"]]
    if '"--verbose"' in text:
        options.append("-v")
    with output.open("w") as file:
        try:
            code = subprocess.run(
                [sys.executable, str(path.resolve()), *options], stdout=file, stderr=subprocess.STDOUT,
                timeout=LIMIT_S, check=False, cwd=output.parent,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"ended after {LIMIT_S} s"
    said = output.read_text(errors="replace")
    if code == 0 and 'print("PASS' in text and "PASS" not in said:
        return "0, without PASS"
    return str(code)


def unknown(examples: Path) -> list[str]:
    """Examples in a folder that have no entry here: new ones, which nobody has looked at."""
    known = {run.example for run in RUNS} | set(LEFT_OUT)
    return sorted(path.name for path in examples.glob("*.py") if path.name not in known)


def failures(rows: list[Row], columns: list[Column]) -> list[str]:
    """What ended otherwise than expected, on the real Triton too; what could not be run is none."""
    found = []
    for row in rows:
        for column in columns:
            expected = row.run.expected if column.ours or row.run.real is None else row.run.real
            end = row.ends[column.title]
            if end != str(expected) and not end.startswith("not run"):
                found.append(f"{row.run.title}: {end} with {column.title}, expected {expected}")
    return found


def table(rows: list[Row], columns: list[Column], examples: Path) -> str:
    """Markdown."""
    titles = [column.title for column in columns]
    lines = [["Example", "Protocol", *titles, "Note"], ["---"] * (len(titles) + 3)]
    lines += [row.cells(titles) for row in rows]
    lines += [
        [f"`{name}`", "gRPC" if "grpc" in name else "HTTP", *("left out" for _ in titles), why]
        for name, why in LEFT_OUT.items()
        if (examples / name).is_file()
    ]
    return "\n".join("| " + " | ".join(line).strip() + " |" for line in lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path, help="a copy of the client's src/python/examples")
    parser.add_argument("--models", type=Path, help="a copy of the server's docs/examples/model_repository")
    parser.add_argument("--oracle", type=Path, help="the folder with real-tritonserver, to compare with")
    parser.add_argument("--only", default="", metavar="TEXT", help="calls whose title contains it")
    parser.add_argument("--logs", type=Path, help="where the output of examples and servers goes")
    args = parser.parse_args()
    try:
        rows, columns = run_all(args.examples, args.models, args.oracle, args.logs, lambda run: args.only in run.title)
    except FileNotFoundError as error:
        parser.error(str(error))
    print(table(rows, columns, args.examples))
    wrong = failures(rows, columns) + [f"{name}: no entry in {__file__}" for name in unknown(args.examples)]
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
