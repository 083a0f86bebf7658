"""The command line speaks of its flags, not of Python's arguments."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import re
from pathlib import Path

import pytest

import workbench
from workbench.cli import VERBS, main
from workbench.cli.wording import in_flags
from workbench.server import runtime

ROOMS = ("config", "records", "client", "profiling", "tuning", "export", "distributed", "package", "session", "engine")


def parser_of(verb: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"workbench.cli.{verb}").add_arguments(parser)
    return parser


@pytest.mark.parametrize(
    ("verb", "text", "said"),
    [
        ("export", "another directory, or overwrite=True (--force)", "another directory, or --force"),
        ("build", "another name, or overwrite=True", "another name, or --force"),
        ("runs", "give another name, or overwrite=True", "give another name, or --overwrite"),
        ("runs", "sweep with keep_samples=True to have them", "sweep with --keep-samples to have them"),
        ("sweep", "start again; a sweep resumes with resume=True", "start again; a sweep resumes with --resume"),
        ("profile", "burst_factor must be above 1, got 0", "--burst-factor must be above 1, got 0"),
        ("profile", "seed must be a whole number", "--random-seed must be a whole number"),
        ("profile", "give inputs=FILE (--input-data FILE)", "give --input-data FILE"),
        ("profile", "had 9 (max_duration_s gives it longer)", "had 9 (--max-duration-s gives it longer)"),
        ("profile", "4 generators cannot divide 2: sequences=4", "4 generators cannot divide 2: --num-of-sequences 4"),
        ("profile", "Load.classes({...}, warmup_s=...)", "leave it out there, and give --warmup S beside --classes"),
        ("sweep", "input-data: random; give inputs=... to run()", "input-data: random; give --input-data FILE"),
        ("profile", "class 'a' sets warmup_s, which is another's", "class 'a' sets warmup_s, which is another's"),
        ("ab", "pairs must be from 2 to max_pairs, got 9 and 3", "--pairs must be from 2 to --max-pairs, got 9 and 3"),
        ("ab", "another max_batch_size=8 is refused", "another max_batch_size=8 is refused"),
        ("package", "or give max_batch_size=0", "or give --max-batch-size 0"),
        ("package", "no Python model (no backend='fil')", "no Python model (no --backend fil)"),
        ("package", "give example_inputs={...} of a size", "give --example-inputs FILE of a size"),
        ("compare", "longer blocks have them: duration_s (-p MS)", "longer blocks have them: -p MS"),
        ("profile", "give it to the load: duration_s=2.5", "give it to the load: --measurement-interval 2500"),
        ("profile", "sequence_length_variation=0.2", "--sequence-length-variation 20"),
        ("build", "put it into example_inputs/", "put it into example_inputs/"),
        ("build", "m/1/example_inputs.json has no rows", "m/1/example_inputs.json has no rows"),
        ("compare", "asking_s gives it more", "--asking gives it more"),
        ("compare", "input_names={'m': {REFERENCE'S NAME: ITS NAME}}", "--input-name m:NAME=OWN"),
        ("compare", "outputs={MODEL: {REFERENCE'S NAME: ITS NAME}}", "--output-name MODEL:NAME=OWN"),
        ("compare", "output_kinds={'y': 'embedding'}", "--output-kind y=embedding"),
        ("compare", "server.load('m'), or another reference",
         "a server in control mode explicit loads it: curl -X POST HOST:PORT/v2/repository/models/m/load; start one in "
         "mode none again, or another reference"),
        ("build", "wb.build(module, to='aoti', example_inputs=...)",
         "in Python wb.build(module, to='aoti', example_inputs=...)"),
        ("timeline", "records() lists those that are", "workbench timeline --json lists those that are"),
    ],
)  # fmt: skip
def test_arguments_are_flags(verb: str, text: str, said: str) -> None:
    assert in_flags(text, parser_of(verb)) == said


def _texts(path: Path) -> list[str]:
    """The texts of a file's errors and hints; X stands for what is filled in."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for value in [*node.exc.args, *(each.value for each in node.exc.keywords if each.arg == "hint")]:
                parts = value.values if isinstance(value, ast.JoinedStr) else [value]
                texts = [str(each.value) if isinstance(each, ast.Constant) else "X" for each in parts]
                found.append("".join(texts))
    return found


def test_no_error_that_a_verb_can_meet_speaks_of_a_python_argument() -> None:
    """Of all errors below the command line: in the words of some verb each is free of ``name=True``, ``name=...``."""
    parsers = [parser_of(verb) for verb in VERBS if verb != "serve"]
    python = re.compile(r"\b[a-z_]+=(True|False|None|\.\.\.|\{)|\b(overwrite|input_names|output_names|resume)=")
    only_python = ("lambda", "fn.", "Load.replay(FILE, model")  # nothing that can be given on the command line
    left = []
    root = Path(workbench.__file__).parent
    for path in (each for room in ROOMS for each in (root / room).rglob("*.py")):
        for text in _texts(path):
            said = [re.sub(r"in Python [\w.]+\(.*\)", "", in_flags(text, parser)) for parser in parsers]
            if all(python.search(each) for each in said) and not any(word in text for word in only_python):
                left.append(f"{path.relative_to(root)}: {text}")
    assert left == []


def test_a_model_that_is_there_already_is_replaced_by_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "score.py").write_text("def score(x):\n    return x * 2\n")
    (tmp_path / "x.json").write_text(json.dumps({"data": [{"x": [1.0, 2.0]}]}))
    words = ["package", f"{tmp_path / 'score.py'}:score", "--example-inputs", str(tmp_path / "x.json"), "--to",
             str(tmp_path / "models")]  # fmt: skip
    assert main(words) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "another name, or --force" in said
    assert "overwrite" not in said
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["hint"] == "another name, or --force"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("none", "end server 's1' and start it again (control mode none loads nothing while it runs): workbench serve"),
        ("explicit", "curl -X POST http://127.0.0.1:9/v2/repository/models/score/load loads it on server 's1'"),
        ("poll", "server 's1' loads it by itself (control mode poll)"),
        ("", "serve it: workbench serve --model-repository"),
    ],
)
def test_what_was_packaged_is_served_by_what_the_server_takes(
    mode: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    models = tmp_path / "models"
    pid = os.getpid()
    served = models if mode else tmp_path / "others"
    runtime.write(
        {"name": "s1", "pid": pid, "http": "http://127.0.0.1:9", "grpc": "", "metrics": "", "token": "", "started": "",
         "repositories": [str(served)], "detached": False, "version": "", "control_mode": mode or "none",
         "created": runtime.process_created(pid)}
    )  # fmt: skip
    (tmp_path / "models").mkdir()
    (tmp_path / "score.py").write_text("def score(x):\n    return x * 2\n")
    (tmp_path / "x.json").write_text(json.dumps({"data": [{"x": [1.0, 2.0]}]}))
    inputs = ["--example-inputs", str(tmp_path / "x.json")]
    assert main(["package", f"{tmp_path / 'score.py'}:score", *inputs, "--to", str(models)]) == 0
    shown = capsys.readouterr().out
    assert said in shown
    assert "server.load(" not in shown
    assert main(["package", f"{tmp_path / 'score.py'}:score", *inputs, "--to", str(models), "--name", "my score"]) == 0
    shown = capsys.readouterr().out
    assert said.replace("/models/score/", "/models/my%20score/") in shown, "the line can be copied to a shell"
