"""What a model logs, prints and raises: where it comes from, and that no way of doing it hurts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from python_host import Host, Model, answer, body, open_model

from workbench.errors import BackendError

X = np.array([[1, 2]], np.float32)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def run(host: Host, tmp_path: Path) -> Callable[[str], Model]:
    def run(code: str) -> Model:
        """Executes one request and ends the model: what it has said is in ``host.logs`` then."""
        model = open_model(host, tmp_path, "m", body(code + "\n" + answer()), "")
        assert model.run(X).one().as_numpy("OUT").tolist() == X.tolist()
        model.close()
        return model

    return run


def said(host: Host, source: str) -> list[str]:
    return [text for (_, text, _), origin in zip(host.logs, host.origins, strict=True) if origin.source == source]


def test_a_flood_of_log_lines_is_cut_and_counted(host: Host, run: Callable[[str], Model]) -> None:
    run("for i in range(30_000): pb_utils.Logger.log_info(f'line {i}')")
    lines = [text for text in said(host, "logger") if text.startswith("line ")]
    assert 1000 <= len(lines) < 10_000
    assert lines[:1000] == [f"line {i}" for i in range(1000)]
    dropped = [int(text.split()[0]) for text in said(host, "logger") if text.endswith("more than 1000 in a second")]
    assert len(lines) + sum(dropped) == 30_000


def test_a_long_line_keeps_its_beginning_and_its_end(host: Host, run: Callable[[str], Model]) -> None:
    run("pb_utils.Logger.log_info('a' * 50_000 + 'b' * 50_000)")
    (text,) = said(host, "logger")
    assert len(text) <= 16384
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert "characters left out" in text


def test_what_is_no_unicode_is_logged_and_harms_nothing(host: Host, run: Callable[[str], Model]) -> None:
    run(r"pb_utils.Logger.log_info('lone \udc80 half'); print('printed \udc80')")
    assert said(host, "logger") == [r"lone \udc80 half"]
    assert said(host, "stdout") == [r"printed \udc80"]


@pytest.mark.parametrize("code", ["raise ValueError('half \\udc80')", "out.append({ERROR}); continue"])
def test_an_error_that_is_no_unicode_can_be_sent_and_recorded(host: Host, tmp_path: Path, code: str) -> None:
    error = "pb_utils.InferenceResponse(error=pb_utils.TritonError('half \\udc80'))"
    model = open_model(host, tmp_path, "m", body(code.replace("{ERROR}", error)), "")
    with pytest.raises(BackendError) as caught:
        model.run(X).one()
    model.close()
    assert "half \\udc80" in caught.value.message
    caught.value.message.encode()


def test_lines_of_a_finalizer_that_runs_while_something_is_sent(host: Host, run: Callable[[str], Model]) -> None:
    run(
        "import gc\n"
        "class Speaks:\n"
        "    def __del__(self): print('gone'); pb_utils.Logger.log_info('gone too')\n"
        "gc.set_threshold(1)\n"
        "for i in range(300):\n"
        "    knot = [Speaks()]; knot.append(knot); del knot\n"
        "    pb_utils.Logger.log_info('sent')\n"
    )
    assert said(host, "logger").count("sent") == 300
    assert said(host, "logger").count("gone too") >= 290  # the newest generation may outlive the process
    assert "gone" in said(host, "stdout")


def test_a_process_that_the_model_forks_prints_too(host: Host, run: Callable[[str], Model]) -> None:
    run(
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print('from the child'); pb_utils.Logger.log_info('logged by the child'); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print('from the parent')"
    )
    host.wait(lambda: "from the child" in said(host, "stdout"))
    host.wait(lambda: "logged by the child" in said(host, "stderr"))
    assert "from the parent" in said(host, "stdout")


def test_bytes_and_other_programs_print_past_the_model(host: Host, run: Callable[[str], Model]) -> None:
    run(
        "import subprocess\n"
        "sys.stdout.buffer.write(b'bytes\\n'); os.write(1, b'descriptor\\n')\n"
        "subprocess.run(['echo', 'program'], check=True)\n"
        "assert sys.stdout.fileno() == 1 and sys.stdout.encoding == 'utf-8' and sys.stdout.writable()\n"
        "sys.stdout.writelines(['one\\n', 'two\\n'])\n"
        "print('a', 'b', sep='-'); print('ends', end='\\r\\n'); print()"
    )
    assert set(said(host, "stdout")) == {"bytes", "descriptor", "program", "one", "two", "a-b", "ends"}
    placed = {
        text: origin.line
        for (_, text, _), origin in zip(host.logs, host.origins, strict=True)
        if origin.file == "model.py"
    }
    assert set(placed) == {"one", "two", "a-b", "ends"}


def test_a_line_names_the_models_file_though_a_library_prints_it(host: Host, run: Callable[[str], Model]) -> None:
    run("import logging\nlogging.warning('through logging')\nimport warnings\nwarnings.warn('a warning')")
    found = {text: origin for (_, text, _), origin in zip(host.logs, host.origins, strict=True)}
    assert (found["WARNING:root:through logging"].file, found["WARNING:root:through logging"].line) == ("model.py", 10)
    assert any("UserWarning: a warning" in text for text in found)


def test_what_initialize_and_finalize_raise_has_its_traceback(host: Host, tmp_path: Path) -> None:
    code = body(answer()) + "    def finalize(self):\n        raise KeyError('at the end')\n"
    open_model(host, tmp_path, "late", code, "").close()
    (error,) = [origin for origin in host.origins if origin.source == "error"]
    assert "raise KeyError('at the end')" in error.traceback
    with pytest.raises(Exception, match="cannot start"):
        open_model(
            host,
            tmp_path,
            "early",
            body(answer()) + "    def initialize(self, args):\n        raise OSError('cannot start')\n",
            "",
        )
    error = [origin for origin in host.origins if origin.source == "error"][-1]
    assert "raise OSError('cannot start')" in error.traceback
    assert error.file == "model.py"


def test_an_exception_without_a_text_fails_its_request_in_tritons_words(host: Host, tmp_path: Path) -> None:
    code = body("class Odd(Exception):\n    def __str__(self): raise RuntimeError('no text')\nraise Odd")
    model = open_model(host, tmp_path, "odd", code, "")
    with pytest.raises(BackendError) as caught:
        model.run(X).one()
    model.close()
    assert re.sub(r"/\S*/", "", caught.value.message) == (
        "Failed to process the request(s) for model 'odd_0', message: Odd: <MESSAGE UNAVAILABLE DUE TO ANOTHER "
        "EXCEPTION>\n\nAt:\n  model.py(11): execute\n\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: RuntimeError: no text\n\n"
        "At:\n  model.py(10): __str__\n"
    )
    (error,) = [origin for origin in host.origins if origin.source == "error"]
    assert "raise Odd" in error.traceback


def test_a_flood_of_prints_is_counted_to_the_line(host: Host, run: Callable[[str], Model]) -> None:
    run(
        "for i in range(20_000): print('line', i)\n"
        "sys.stdout.write('\\n\\n' + 'at once\\n\\n' * 300_000)\n"  # lines with nothing in them are none
    )
    lines = [text for text in said(host, "stdout") if text.startswith(("line ", "at once"))]
    assert 200 <= len(lines) < 5_000
    assert lines[:200] == [f"line {i}" for i in range(200)]
    dropped = [int(text.split()[0]) for text in said(host, "stdout") if text.endswith("more than 200 in a second")]
    assert len(lines) + sum(dropped) == 320_000


def test_lines_that_were_dropped_are_told_while_the_model_rests(host: Host, tmp_path: Path) -> None:
    code = "for i in range(3_000): print('line', i)\n" + answer()
    model = open_model(host, tmp_path, "m", body(code), "")
    model.run(X).one()

    def all_told() -> bool:
        told = [text for text in said(host, "stdout") if text.endswith("more than 200 in a second")]
        lines = [text for text in said(host, "stdout") if text.startswith("line ")]
        return len(lines) + sum(int(text.split()[0]) for text in told) == 3_000

    host.wait(all_told)
    model.close()


def test_a_line_that_is_too_long_says_how_much_of_it_is_left_out(host: Host, run: Callable[[str], Model]) -> None:
    run("print('a' * 100_000)\nfor _ in range(10_000): print('b' * 10, end='')\nprint()\nprint('short')")
    first, second, third = said(host, "stdout")
    assert first == "a" * 8192 + " ... (91808 characters left out)"
    assert second == "b" * 8192 + " ... (91808 characters left out)"
    assert third == "short"
