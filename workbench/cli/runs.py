"""``workbench runs``: the run store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest
from workbench.records.runs import SUFFIX, RunStore

if TYPE_CHECKING:
    from workbench.profiling import Point

SUMMARY = "Lists, shows, compares, merges, annotates, exports, shares and deletes stored runs."
EXAMPLE = "workbench runs diff 2026-05-01 latest"

_RUN = "an id, its beginning, 'latest', or a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``runs``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made.add_argument("--runs", default="runs", metavar="DIR", help="the run store (default: %(default)s)")
        made.add_argument("--json", action="store_true", help="as JSON")
        return made

    action("list", "all runs, oldest first")
    show = action("show", "one run with its points")
    show.add_argument("run", nargs="?", default="latest", metavar="RUN", help=f"{_RUN} (default: latest)")
    diff = action(
        "diff", "two runs side by side: the points of the same settings and load, and where they were measured"
    )
    diff.add_argument("run", metavar="RUN", help=_RUN)
    diff.add_argument("other", metavar="OTHER", help=_RUN)
    merge = action("merge", "puts the runs of a sweep's parts together: each point once, with its key")
    merge.add_argument("run", nargs="+", metavar="RUN", help=_RUN)
    merge.add_argument("--title", default="", help="what to call the new run")
    annotate = action("annotate", "adds a note to a run")
    annotate.add_argument("run", metavar="RUN", help=_RUN)
    annotate.add_argument("text", metavar="TEXT", help="the note")
    share = action("share", "writes one self-contained file for others, and says what is in it")
    share.add_argument("run", metavar="RUN", help=_RUN)
    share.add_argument("--to", required=True, metavar="FILE", help="the file, or a directory for it")
    share.add_argument("--inputs", action="store_true", help="with what was captured of requests")
    share.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    export = action("export", "writes a table of a run as CSV, Parquet or Arrow, or the run to MLflow")
    export.add_argument("run", metavar="RUN", help=_RUN)
    export.add_argument("--to", metavar="FILE", help="FILE.csv, .parquet or .arrow")
    export.add_argument(
        "--table", default="points", choices=["points", "requests", "batches", "samples"], help="(default: %(default)s)"
    )
    export.add_argument("--format", choices=["csv", "parquet", "arrow"], help="whatever the file's ending")
    export.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    export.add_argument(
        "--mlflow", nargs="?", const="", metavar="URI", help="to MLflow; without URI where MLFLOW_TRACKING_URI says"
    )
    export.add_argument("--experiment", default="serving-workbench", help="MLflow's (default: %(default)s)")
    delete = action("delete", "deletes runs")
    delete.add_argument("run", nargs="+", metavar="RUN", help="an id or its beginning; 'latest' is not taken")


def run(args: argparse.Namespace) -> int:
    """Does what is asked; the exit code is 0 where it worked."""
    verbs: dict[str, Callable[[RunStore, argparse.Namespace], int]] = {
        "list": _list, "show": _show, "diff": _diff, "merge": _merge, "annotate": _annotate, "share": _share,
        "export": _export, "delete": _delete,
    }  # fmt: skip
    return verbs[args.action](RunStore(args.runs), args)


def _list(store: RunStore, args: argparse.Namespace) -> int:
    from workbench.cli.tables import print_table

    frame = store.frame()
    if args.json:
        print(frame.to_json(orient="records"))
    elif frame.empty:
        print(f"no runs in {args.runs}; make one: workbench sweep MODEL ...")
    else:
        columns = ["id", "kind", "model", "status", "points", "created", "title", "note"]
        rows = [tuple(row) for row in frame[columns].itertuples(index=False)]
        empty = [name for name in ("note", "title", "model") if not frame[name].any()]
        print_table(columns, rows, least=(*empty, "created", "kind", "model", "title", "note"))
    return 0


def _show(store: RunStore, args: argparse.Namespace) -> int:
    from workbench.cli.tables import say
    from workbench.profiling import Point

    with store.open(args.run) as opened:
        points = [Point.from_json(value) for value in opened.points()]
        meta, environment = dict(opened.meta), opened.environment()
        name, status = opened.id, opened.info.status
    if args.json:
        about_it = {"id": name, "status": status, "meta": meta, "environment": environment}
        print(json.dumps({**about_it, "points": [p.to_json() for p in points]}, default=str))
        return 0
    about = (status, meta.get("created", ""), meta.get("title", ""))
    say(f"{name}: {meta.get('kind', '')} of {meta.get('model', '')}, {', '.join(str(item) for item in about if item)}")
    say(f"on {environment.get('cpu_model', '?')}, {environment.get('cpus', '?')} processors")
    for note in meta.get("notes", ()):
        say(f"note of {str(note.get('at', ''))[:16]}: {note.get('text', '')}")
    if _show_verdict(store, args.run, meta):
        say(f"{len(points)} blocks: workbench runs export {name} --to FILE.csv has each")
    else:
        _show_points(points)
    return 0


def _show_verdict(store: RunStore, run: str, meta: Mapping[str, Any]) -> bool:
    """Prints what a comparison says, also one that was broken off; False where the run says no more than its points."""
    from workbench.cli.ab import told
    from workbench.cli.compare import print_told
    from workbench.cli.tables import say
    from workbench.profiling import ABResult
    from workbench.tuning.compare_result import CompareResult

    if meta.get("kind") == "ab":
        try:
            say(told(ABResult.open(store, run)))
        except InvalidRequest:  # of a version that stored the verdict only
            return _show_verdict_alone(meta)
        return True
    if meta.get("kind") == "compare":
        try:
            print_told(repr(CompareResult.open(store, run)))
        except InvalidRequest:  # of a version that stored what it said, or the verdict only
            if not meta.get("told"):
                return _show_verdict_alone(meta)
            print_told(str(meta["told"]))
        return True
    return _show_verdict_alone(meta)


def _show_verdict_alone(meta: Mapping[str, Any]) -> bool:
    from workbench.cli.tables import say

    if meta.get("verdict"):
        say(str(meta["verdict"]))
    for name, side in (meta.get("sides") or {}).items():
        say(f"  {name}: {side.get('model', '')} {json.dumps(side.get('settings') or 'as configured')}")
    return False


def _show_points(points: Sequence[Point]) -> None:
    from workbench.cli.points import print_points, say_few, say_reasons

    paths = list(dict.fromkeys(path for point in points for path in point.settings))
    print_points(points, paths, models=len({point.model for point in points}) > 1)
    say_reasons(points)
    say_few(points)


def _diff(store: RunStore, args: argparse.Namespace) -> int:
    from workbench.cli.tables import print_table, say
    from workbench.records.run_diff import change_text, place_of

    found = store.diff(args.run, args.other)
    if args.json:
        print(json.dumps(found.to_json(), default=str))
        return 0
    print(f"{found.a} -> {found.b}")
    for note in found.notes:
        say(f"  ! {note}")
    for key, (before, after) in found.environment.items():
        say(f"  {key}: {before} -> {after}")
    rows: list[tuple[Any, ...]] = [
        (place_of(row.settings, row.load), row.figure, row.a, row.b, change_text(row).strip("()"), row.verdict)
        for row in found.figures
    ]
    if rows:
        print_table(("point", "figure", "before", "after", "change [95 %]", "verdict"), rows, long=["point"])
    for run, places in ((found.a, found.only_a), (found.b, found.only_b)):
        for place in places:
            say(f"only in {run}: {place}")
    for place, changes in found.configs.items():
        for path, (before, after) in changes.items():
            say(f"{place}: {path} {before} -> {after}")
    return 0


def _merge(store: RunStore, args: argparse.Namespace) -> int:
    from workbench.distributed import merge_runs

    merged = merge_runs(store, args.run, title=args.title)
    about = {"run": merged.run_id, "points": merged.points, "missing": merged.missing, "notes": list(merged.notes)}
    return _say(args, about, repr(merged))


def _annotate(store: RunStore, args: argparse.Namespace) -> int:
    path, name = _found(store, args.run)
    store.annotate(path, args.text)
    return _say(args, {"run": name, "note": args.text.strip()}, f"noted in run {name}")


def _share(store: RunStore, args: argparse.Namespace) -> int:
    path, name = _found(store, args.run)
    shared = store.share(path, args.to, inputs=args.inputs, overwrite=args.overwrite)
    return _say(args, {"run": name, **shared.to_json()}, f"run {name}\n{shared!r}")


def _export(store: RunStore, args: argparse.Namespace) -> int:
    if (args.to is None) == (args.mlflow is None):
        raise InvalidRequest("say where to: --to FILE or --mlflow", hint="workbench runs export latest --to points.csv")
    run, name = _found(store, args.run)
    if args.mlflow is not None:
        made = store.to_mlflow(run, tracking_uri=args.mlflow or None, experiment=args.experiment)
        told = f"run {name}: run {made} of MLflow's experiment {args.experiment}"
        return _say(args, {"run": name, "mlflow": made}, told)
    path = store.export(run, Path(args.to), table=args.table, format=args.format, overwrite=args.overwrite)
    return _say(args, {"run": name, "path": str(path), "table": args.table}, f"run {name}: {args.table} in {path}")


def _delete(store: RunStore, args: argparse.Namespace) -> int:
    if "latest" in args.run:
        raise InvalidRequest("which run is the latest changes: name it by its id", hint="workbench runs list")
    paths = [store.path(name) for name in args.run]  # all are known before one goes
    for path in dict.fromkeys(paths):
        store.delete(path)
    return _say(args, {"deleted": [path.name for path in paths]}, "\n".join(f"deleted {path}" for path in paths))


def _found(store: RunStore, run: str) -> tuple[Path, str]:
    """The file of a run and its id: which it is that is called ``latest``, or by the beginning of its id."""
    path = store.path(run)
    return path, path.name.removesuffix(SUFFIX)


def _say(args: argparse.Namespace, value: Any, text: str) -> int:
    print(json.dumps(value, default=str) if args.json else text)
    return 0
