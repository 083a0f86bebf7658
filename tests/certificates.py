"""Certificates for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_certificates(folder: Path) -> Path:
    """``root.pem``; ``server`` and ``client``, certificate (.pem) and key (.key), signed by it. Gives ``folder``."""
    _openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=root",
        "-keyout", str(folder / "root.key"), "-out", str(folder / "root.pem"),
    )  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        _openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.csr"),
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-days", "2", "-in", str(folder / f"{name}.csr"), "-CA", str(folder / "root.pem"),
            "-CAkey", str(folder / "root.key"), "-CAcreateserial", "-extfile", str(folder / "names"),
            "-out", str(folder / f"{name}.pem"),
        )  # fmt: skip
    return folder


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
