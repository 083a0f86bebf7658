"""``EXECUTION_ENV_PATH``: the interpreter that runs a Python model, from a directory or from an archive.

An archive is what conda-pack makes: a tar file (packed in any way that Python reads) with ``bin/python`` and
``bin/activate`` at its top. It is unpacked once for all models of this process that name it, and again when the file
changes; what was unpacked goes when the process ends, as in Triton (python_backend, pb_env.cc).
"""

from __future__ import annotations

import atexit
import hashlib
import shlex
import shutil
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

from workbench.errors import BackendError

_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


class Environments:
    """The environments that one process has unpacked or prepared. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._unpacked: dict[tuple[str, int, int], Path] = {}

    def interpreter(self, parameter: str, model_dir: Path) -> str:
        """The interpreter that the parameter asks for, the server's own where it is empty. Blocks while it unpacks.

        Where the environment has ``bin/activate``, it is a script that sources that first, as Triton does.

        Raises:
            BackendError: there is nothing in that place, or no environment, or it cannot be unpacked.
        """
        if not parameter:
            return sys.executable
        path = Path(parameter.replace(_DIRECTORY, str(model_dir)))
        if not path.exists():
            raise _not_found(parameter, path, model_dir)
        with self._lock:
            root = path if path.is_dir() else self._unpack(parameter, path.resolve())
            found = [root / "bin" / name for name in ("python", "python3") if (root / "bin" / name).exists()]
            if not found:
                raise BackendError(
                    f"EXECUTION_ENV_PATH '{parameter}' is no Python environment: it has no bin/python",
                    where=str(path),
                    hint="an archive has bin/ at its top, as conda-pack makes it",
                )
            return self._activated(root, found[0])

    def close(self) -> None:
        """Removes what was unpacked."""
        with self._lock:
            folder, self._folder = self._folder, None
            self._unpacked.clear()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _unpack(self, parameter: str, path: Path) -> Path:
        stat = path.stat()
        key = str(path), stat.st_mtime_ns, stat.st_size
        root = self._unpacked.get(key)
        if root is None:
            root = self._room() / f"env-{len(self._unpacked)}"
            try:
                with tarfile.open(path) as archive:
                    archive.extractall(root, filter="tar")  # nothing outside of root; links may point anywhere
            except (tarfile.TarError, OSError, EOFError) as error:
                shutil.rmtree(root, ignore_errors=True)
                raise BackendError(
                    f"EXECUTION_ENV_PATH '{parameter}' cannot be unpacked: {error}",
                    where=str(path),
                    hint="it is to be a directory, or a tar archive as conda-pack makes it",
                ) from error
            self._unpacked[key] = root
        return root

    def _activated(self, root: Path, python: Path) -> str:
        activate = root / "bin" / "activate"
        shell = shutil.which("bash")
        if not activate.exists() or shell is None:
            return str(python)
        name = hashlib.sha256(str(root).encode()).hexdigest()[:16]
        script = self._room() / f"python-{name}"
        if not script.exists():
            lines = (f"#!{shell}", f"source {shlex.quote(str(activate))}", f'exec {shlex.quote(str(python))} "$@"')
            script.write_text("\n".join(lines) + "\n")
            script.chmod(0o755)
        return str(script)

    def _room(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="workbench-python-"))
        return self._folder


def _not_found(parameter: str, path: Path, model_dir: Path) -> BackendError:
    hint = f"give an absolute path that the server can see, or one that starts with {_DIRECTORY}"
    if not path.is_absolute() and (model_dir / path).exists():
        hint = f"it is in the model's directory: write {_DIRECTORY}/{path}"
    places = f"'{path.absolute()}'" + ("" if path.is_absolute() else " (a relative path starts where the server does)")
    return BackendError(f"EXECUTION_ENV_PATH '{parameter}' not found, looked in {places}", hint=hint)


ENVIRONMENTS = Environments()
"""Those of this process."""

atexit.register(ENVIRONMENTS.close)
