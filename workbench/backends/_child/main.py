"""The file that a model's process is started with: ``python main.py FD``, FD being its end of the socket pair."""

from __future__ import annotations

import importlib.machinery
import os
import sys


def bootstrap() -> object:
    """Makes the modules beside this file importable under their full names, without the workbench, and gives ``serve``.

    The stand-ins for the packages above are taken away again, so that a model may import a workbench that is installed.
    """
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would cost start-up time
    if sys.path and os.path.abspath(sys.path[0]) == here:  # noqa: PTH100
        del sys.path[0]
    places = [("workbench", []), ("workbench.backends", []), ("workbench.backends._child", [here])]
    for name, path in places:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module = type(sys)(name)
        module.__spec__ = spec
        module.__path__ = path
        sys.modules[name] = module
    from workbench.backends._child.serve import serve

    for name, _ in places[:2]:
        del sys.modules[name]
    return serve


if __name__ == "__main__":
    sys.exit(bootstrap()(int(sys.argv[1])))  # type: ignore[operator]
