"""What a worker serves: a model repository on its own machine, checked to hold the very files that the sweep is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench import __version__
from workbench.errors import InvalidRequest, NotFound, Unsupported
from workbench.profiling.requests import Inputs
from workbench.profiling.target import Configurable
from workbench.repository.files import content_hash, example_inputs_hash

Open = Callable[["Serving"], AbstractContextManager[Configurable]]


def check_version(planned: str) -> None:
    """Makes sure that this process has the version of the package that a sweep was planned with: another one may not
    know an option of its loads, and would send another load.

    Raises:
        Unsupported: it has another one.
    """
    if __version__ != planned:
        raise Unsupported(
            f"there is serving-workbench {__version__}, the sweep was planned with {planned}",
            hint=f"pip install 'serving-workbench=={planned}' there",
        )


@dataclass(frozen=True, slots=True)
class Serving:
    """How a worker gets the server that it measures.

    ``open`` serves and gives the target; it must be found by its name where it is unpickled. ``models`` has the model
    that is measured first, then those that it is made of. ``contents`` are the hashes of their files, ``texts`` their
    config.pbtxt as applied where the sweep was planned; ``examples`` is the hash of the first one's example inputs.
    """

    open: Open
    repositories: tuple[str, ...]
    models: tuple[str, ...]
    contents: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    examples: str = ""

    def at(self, repositories: Sequence[str | Path]) -> Serving:
        """The same where the repositories lie elsewhere."""
        return replace(self, repositories=tuple(str(path) for path in repositories))

    def directory(self, model: str) -> Path:
        """The model's directory on this machine.

        Raises:
            NotFound: there is none.
        """
        for repository in self.repositories:
            found = Path(repository).expanduser() / model
            if found.is_dir():
                return found
        raise NotFound(
            f"there is no model '{model}' here to serve",
            where=", ".join(self.repositories),
            hint="the repository must be on every machine that measures: share or copy it, and say where it lies there "
            "(Ray(repository=...), --model-repository)",
        )

    def check(self) -> None:
        """Makes sure that the files here are those that the sweep was planned with.

        Raises:
            NotFound: a model is not here.
            InvalidRequest: it has other files, or other example inputs.
        """
        for model in self.models:
            directory = self.directory(model)
            expected = self.contents.get(model, "")
            if expected and content_hash(directory) != expected:
                raise InvalidRequest(
                    f"'{model}' has other files here than where the sweep was planned: its points would be of another "
                    "model",
                    where=str(directory),
                    hint="copy the repository again; what a model writes beside its files counts too",
                )
        if self.examples and example_inputs_hash(self.directory(self.models[0])) != self.examples:
            raise InvalidRequest(
                f"'{self.models[0]}' has other example inputs here than where the sweep was planned",
                where=str(self.directory(self.models[0])),
                hint="copy the repository again",
            )

    def check_text(self, model: str, text: str) -> None:
        """Makes sure that a model begins with the configuration that it had where the sweep was planned.

        Raises:
            InvalidRequest: it has another one.
        """
        if model in self.texts and self.texts[model].strip() != text.strip():
            raise InvalidRequest(
                f"the config.pbtxt of '{model}' here is another one than where the sweep was planned",
                where=", ".join(self.repositories),
                hint=f"save what is applied there (server.save('{model}')) and copy the repository again",
            )


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of inputs that goes with the work: ``name`` is shown, ``data`` are its bytes."""

    name: str
    data: bytes

    @classmethod
    def of(cls, inputs: Inputs) -> InputFile | None:
        """The file that inputs name; None where they are no file.

        Raises:
            NotFound: there is no such file.
        """
        if not isinstance(inputs, str | Path):
            return None
        path = Path(inputs).expanduser()
        try:
            return cls(path.name, path.read_bytes())
        except OSError as error:
            raise NotFound("there is no such file of inputs", where=str(path)) from error

    def put(self, folder: str | Path) -> Path:
        """Writes it into a folder, under its name."""
        path = Path(folder) / self.name
        path.write_bytes(self.data)
        return path
