"""The container file, without an engine: its copies exist, its commands start and answer."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEY = "REGARD_API_KEY"


def instructions() -> dict[str, list[str]]:
    """The instructions of the file, each with its arguments in order; comments left out."""
    lines = re.sub(r"^#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.M)
    found: dict[str, list[str]] = {}
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(" ".join(rest.split()))
    return found


FILE = instructions()


def test_the_image_is_slim_and_runs_as_no_root():
    assert FILE.keys() == {
        *("FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "HEALTHCHECK")
    }
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim", *FILE["FROM"])
    (user,) = FILE["USER"]
    assert f"useradd --create-home --uid {user} regard" in FILE["RUN"] and int(user)


def test_the_build_copies_what_its_ignore_file_lets_through():
    (copied,) = FILE["COPY"]
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    }
    assert {*copied.split()[:-1]} == allowed == {"constraints.txt", "dist/*.whl"}
    assert "[serve]" in FILE["RUN"][0] and "+cpu" not in FILE["RUN"][0]
    for script in FILE["RUN"]:
        subprocess.run(["sh", "-n", "-c", script], check=True)


def in_this_python(command: list[str], port: int) -> list[str]:
    """A command of the image, for a port that is free here."""
    program = {"regard": [sys.executable, "-m", "regard"], "python": [sys.executable]}
    command = [part.replace("8000", str(port)) for part in command]
    return [*program[command[0]], *command[1:]]


def test_the_entry_point_serves_and_the_health_check_finds_it():
    pytest.importorskip("uvicorn")
    assert FILE["EXPOSE"] == ["8000"]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    entry = in_this_python(json.loads(FILE["ENTRYPOINT"][0]), port)
    check = in_this_python(json.loads(FILE["HEALTHCHECK"][0].partition("CMD ")[2]), port)
    environment = os.environ | {KEY: "secret-key"}
    server = subprocess.Popen(entry, env=environment, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while subprocess.run(check, env=environment, capture_output=True).returncode:
            assert server.poll() is None and time.monotonic() < end
            time.sleep(1)
        other = environment | {KEY: "other-key"}
        assert subprocess.run(check, env=other, capture_output=True).returncode
    finally:
        server.terminate()
        server.wait(30)
