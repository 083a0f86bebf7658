"""Serializes the pipeline that a Python file defines: ``dali_autoserialize.py FILE.py TARGET``.

A process of its own that ends then, as in Triton's DALI backend: the file's code stays out of the server.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Serializes; what goes wrong is the last line on standard error."""
    dali: Any = importlib.import_module("nvidia.dali._utils.autoserialize")

    source, target = map(Path, sys.argv[1:])
    sys.path.insert(0, str(source.parent))
    spec = importlib.util.spec_from_file_location("autoserialize_mod", source)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{source.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["autoserialize_mod"] = module
    spec.loader.exec_module(module)
    dali.invoke_autoserialize(module, str(target))


if __name__ == "__main__":
    main()
