"""``workbench runs``: the run store."""

from __future__ import annotations

import argparse
import json

from workbench.records.runs import RunStore

SUMMARY = "Lists and shows stored runs."
EXAMPLE = "workbench runs show latest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``runs``."""
    parser.add_argument("action", choices=["list", "show"], help="what to do")
    parser.add_argument(
        "run", nargs="?", default="latest", metavar="RUN", help="an id, its beginning, or 'latest' (for show)"
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="the run store (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the list, or one run."""
    store = RunStore(args.runs)
    return _list(store, args) if args.action == "list" else _show(store, args)


def _list(store: RunStore, args: argparse.Namespace) -> int:
    from workbench.cli.tables import print_table

    frame = store.frame()
    if args.json:
        print(frame.to_json(orient="records"))
    elif frame.empty:
        print(f"no runs in {args.runs}; make one: workbench sweep MODEL ...")
    else:
        columns = [
            name for name in ("id", "kind", "model", "status", "points", "created", "title") if name in frame.columns
        ]
        print_table(columns, [tuple(row) for row in frame[columns].itertuples(index=False)])
    return 0


def _show(store: RunStore, args: argparse.Namespace) -> int:
    from workbench.cli.tables import print_table
    from workbench.cli.targets import POINT_HEADERS, point_cells, print_streams, say_reasons
    from workbench.profiling import Point
    from workbench.profiling.settings import short_name

    with store.open(args.run) as opened:
        points = [Point.from_json(value) for value in opened.points()]
        meta, environment = dict(opened.meta), opened.environment()
        name = opened.id
    if args.json:
        print(
            json.dumps(
                {"id": name, "meta": meta, "environment": environment, "points": [p.to_json() for p in points]},
                default=str,
            )
        )
        return 0
    about = (meta.get(key, "") for key in ("status", "created", "title"))
    print(
        f"{name}: {meta.get('kind', '')} of {meta.get('model', '')}, {', '.join(str(item) for item in about if item)}"
    )
    print(f"on {environment.get('cpu_model', '?')}, {environment.get('cpus', '?')} processors")
    paths = list(dict.fromkeys(path for point in points for path in point.settings))
    rows = [(*(json.dumps(point.settings.get(path)) for path in paths), *point_cells(point)) for point in points]
    print_table((*map(short_name, paths), *POINT_HEADERS), rows)
    print_streams(points, paths)
    say_reasons(points)
    return 0
