"""The rules of the house: import direction, sizes, docstrings, and that no test is written that never runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import workbench

PACKAGE = Path(workbench.__file__).parent
ROOT = Path(__file__).parents[1]

# DESIGN 2, top to bottom; rooms on one line never import each other.
LAYERS: list[tuple[str, ...]] = [
    ("cli",),
    ("panels",),
    ("session",),
    ("charts", "export", "distributed", "samples", "package"),
    ("tuning",),
    ("server", "profiling", "simulation"),
    ("engine", "client"),
    ("backends", "telemetry"),
    ("scheduling", "repository"),
    ("config", "protocol", "records"),
    ("errors", "clock"),
]
LEVEL = {room: len(LAYERS) - index for index, rooms in enumerate(LAYERS) for room in rooms}

# The one late binding (DESIGN 2): server.panel() looks the room `panels` up when called.
LATE = {("session", "panels")}

ONLY_IN = {
    "ipywidgets": {"panels"},
    "anywidget": {"panels"},
    "panel": {"panels"},
    "bokeh": {"charts", "panels"},
    "grpc": {"client", "server", "profiling"},
    "onnxruntime": {"backends"},
    "torch": {"backends", "package", "samples"},
}


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}: the house writes full names"
            if node.module == "workbench":
                for alias in node.names:
                    yield f"workbench.{alias.name}", node.lineno
            elif node.module:
                yield node.module, node.lineno


@cache
def imports_of(path: Path) -> list[tuple[str, int]]:
    """Kept, for three rules look at them; the trees are not, which the garbage collector would walk again and again."""
    return list(imports(ast.parse(path.read_text())))


def test_imports_point_only_down() -> None:
    wrong = []
    for path in sources():
        room = room_of(path)
        if room == "__init__":
            continue
        assert room in LEVEL, f"{path} is in no room of DESIGN 2"
        for name, line in imports_of(path):
            parts = name.split(".")
            if parts[0] != "workbench" or len(parts) < 2 or parts[1] not in LEVEL or parts[1] == room:
                continue
            target = parts[1]
            if LEVEL[target] >= LEVEL[room] and (room, target) not in LATE:
                # errors and clock share a level, and errors is free for clock's neighbours to use
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycle_between_modules() -> None:
    graph: dict[str, set[str]] = {}
    names = {
        ".".join(("workbench", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for p in sources()
    }
    for path in sources():
        me = ".".join(("workbench", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        found = set()
        for node in top:
            for name, _ in imports(ast.Module(body=[node], type_ignores=[])):
                found.add(name if name in names else name.rpartition(".")[0])
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {
                    f"{node.module}.{alias.name}" for alias in node.names if f"{node.module}.{alias.name}" in names
                }
        graph[me] = {name for name in found if name in names and name != me}
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if state.get(name) == 2:
            return
        assert state.get(name) != 1, "import cycle: " + " -> ".join((*trail, name))
        state[name] = 1
        for other in sorted(graph[name]):
            visit(other, (*trail, name))
        state[name] = 2

    for name in sorted(graph):
        visit(name, ())


def test_frameworks_stay_in_their_rooms() -> None:
    wrong = []
    for path in sources():
        room = room_of(path)
        for name, line in imports_of(path):
            allowed = ONLY_IN.get(name.split(".")[0])
            if allowed is not None and room not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_scheduling_does_no_io_and_reads_no_clock() -> None:
    forbidden = {"os", "io", "socket", "threading", "asyncio", "time", "random", "pathlib", "subprocess"}
    for path in sorted((PACKAGE / "scheduling").rglob("*.py")):
        used = {name.split(".")[0] for name, _ in imports_of(path)}
        assert not used & forbidden, f"{path.name} imports {used & forbidden}"


def test_every_public_name_has_a_docstring() -> None:
    missing = []
    for path in sources():
        tree = ast.parse(path.read_text())
        if ast.get_docstring(tree) is None:
            missing.append(f"{path.relative_to(ROOT)}: the module")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if node.name.startswith("_"):
                    continue
                if ast.get_docstring(node) is None:
                    missing.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not missing, "\n".join(missing)


def test_modules_and_functions_keep_their_size() -> None:
    wrong = []
    for path in sources():
        text = path.read_text()
        if len(text.splitlines()) > 500:
            wrong.append(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines (500 at most)")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 80:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {length} lines (80 at most)")
    assert not wrong, "\n".join(wrong)


def test_test_files_have_names_of_their_own() -> None:
    """Without packages pytest imports them by their bare name: the second of a name ends the run."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_function_in_a_test_file_runs() -> None:
    wrong = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        # a fixture of the folder may call what the module must have (request.module.NAME)
        trees = [tree, *(ast.parse(each.read_text()) for each in [path.with_name("conftest.py")] if each.exists())]
        used |= {node.attr for each in trees for node in ast.walk(each) if isinstance(node, ast.Attribute)}
        used |= {
            arg.arg
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for arg in node.args.args
        }
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("test_"):
                continue
            # a fixture is called by its name in arguments, a case (tests/differential) by the test of its topic
            registered = any(
                part in ast.unparse(decorator) for decorator in node.decorator_list for part in ("fixture", "case(")
            )
            if not registered and node.name not in used:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} is never called")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["workbench", "workbench.config", "workbench.records"])
def test_import_is_light_and_starts_nothing(module: str) -> None:
    code = (
        f"import sys, threading, {module}\n"
        "heavy = {'onnxruntime', 'bokeh', 'ipywidgets', 'torch', 'grpc', 'uvloop'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_import_takes_less_than_half_a_second() -> None:
    code = "import time; t = time.perf_counter(); import workbench; print(time.perf_counter() - t)"
    best = min(
        float(
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30).stdout
        )
        for _ in range(3)
    )
    assert best < 0.5


def test_public_names_resolve_and_are_sorted() -> None:
    names = [name for name in workbench.__all__ if name != "__version__"]
    assert names == sorted(names)
    for name in names:
        assert getattr(workbench, name) is not None


def test_changelog_names_the_version() -> None:
    assert workbench.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_a_room_does_not_hide_the_verb_of_its_name() -> None:
    code = (
        "import workbench.session.measuring, workbench.export, workbench as wb\n"
        "from workbench.export import export_repository\n"
        "assert callable(wb.export) and not isinstance(wb.export, type(wb)), wb.export\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_completion_offers_what_is_public() -> None:
    offered = {name for name in dir(workbench) if not name.startswith("__")}
    assert offered == {name for name in workbench.__all__ if not name.startswith("__")}
