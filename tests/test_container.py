"""The container file, without an engine: its copies exist, its commands start and answer."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def commands() -> tuple[list[str], list[str]]:
    """The entry point and the health check of the image, both for a port that is free here."""
    pytest.importorskip("uvicorn")
    assert FILE["EXPOSE"] == ["8000"]
    port = free_port()
    check = FILE["HEALTHCHECK"][0].partition("CMD ")[2]
    return tuple(in_this_python(json.loads(text), port) for text in (*FILE["ENTRYPOINT"], check))


@pytest.mark.parametrize(("status", "code"), [(200, 0), (401, 0), (503, 1), (500, 1)])
def test_a_server_that_loads_or_stops_is_not_healthy(commands, status, code):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *given):
            pass

    _, check = commands
    port = int(re.search(r"'127.0.0.1', (\d+)", check[-1])[1])
    with HTTPServer(("127.0.0.1", port), Answer) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        assert subprocess.run(check, capture_output=True).returncode == code
        thread.join(10)
