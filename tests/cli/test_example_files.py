"""Files of example inputs on the command line: what cannot be read is said in words, with the file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from workbench.cli import main


def torn_archive() -> bytes:
    """Packed arrays of which some bytes are others."""
    file = io.BytesIO()
    np.savez_compressed(file, x=np.random.default_rng(1).standard_normal(1000))
    packed = bytearray(file.getvalue())
    packed[300:400] = b"\xff" * 100
    return bytes(packed)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("x.json", b'{"dat": 1}', "example inputs have no rows"),
        ("x.json", b'{"data": [3]}', "example inputs have no rows"),
        ("x.json", b"[1, 2]", "example inputs have no rows"),
        ("x.json", b"{bad", "example inputs cannot be read: Expecting property name"),
        ("x.json", b"\xff", "example inputs cannot be read: "),
        pytest.param("x.json", b"[" * 100_000, "example inputs cannot be read: ", id="deep"),
        ("x.json", b'{"data": [{"x": [1, 1e400]}]}', "1e400 is too large for a number"),
        ("x.json", b'{"data": [{"x": [[1], [1, 2]]}]}', "example inputs cannot be read: "),
        ("x.json", b'{"data": [{"x": {"content": [1, 2, 3], "shape": [2]}}]}', "example inputs cannot be read: "),
        ("x.npy", b"nothing", "example inputs cannot be read: "),
        ("x.npz", b"nothing", "example inputs cannot be read: "),
        ("x.npy", b"", "example inputs cannot be read: "),
        ("x.npz", b"", "example inputs cannot be read: "),
        pytest.param("x.npz", torn_archive(), "example inputs cannot be read: ", id="torn"),
        ("x.json", b'{"data": [{"x": {"content": [1, 2], "shape": "ab"}}]}', "example inputs cannot be read: "),
        ("x.csv", b"", "example inputs cannot be read: "),
    ],
)
def test_example_inputs_that_cannot_be_read(
    name: str, content: bytes, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "double.py").write_text("def double(x):\n    return {'y': 2 * x}\n")
    (tmp_path / name).write_bytes(content)
    (tmp_path / "repository").mkdir()
    words = ["package", f"{tmp_path / 'double.py'}:double", "--example-inputs", str(tmp_path / name)]
    assert main([*words, "--to", str(tmp_path / "repository")]) == 1
    said = capsys.readouterr().err
    assert f"workbench package: {text}" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "repository").iterdir())
