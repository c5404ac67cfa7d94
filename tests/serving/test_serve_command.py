"""`regard serve` as a process: it loads while it listens, and ends when it has answered."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from served import free_port
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import MissingExtra

REGARD = (sys.executable, "-m", "regard", "serve")


def ask(port, path, body=None, key="secret-key"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    data = None if body is None else json.dumps(body)
    connection.request("POST" if data else "GET", path, data, {"Authorization": f"Bearer {key}"})
    answered = connection.getresponse()
    return answered.status, json.loads(answered.read())


def test_a_process_serves_and_answers_what_it_took_before_it_ends(folders, tmp_path):
    port, key = free_port(), tmp_path / "key"
    key.write_text("secret-key\n")
    command = [*REGARD, folders["language-modeling"], f"tags={folders['tagging']}", "--port", port]
    process = subprocess.Popen(
        [*map(str, command), "--api-key-file", str(key)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert "serving language-modeling, tags at http://" in process.stderr.readline()
        assert ask(port, "/health")[0] == 200
        assert ask(port, "/health", key="other")[0] == 401
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b": \r\n\r\n")
            assert client.recv(99).startswith(b"HTTP/1.1 4")
        body = {"model": "language-modeling", "texts": "the cat", "max_tokens": 1500}
        answers = []
        asking = threading.Thread(target=lambda: answers.append(ask(port, "/generate", body)))
        asking.start()
        time.sleep(0.15)
        process.send_signal(signal.SIGTERM)
        asking.join(30)
        ((status, answer),) = answers
        assert status == 200 and len(answer["result"]["text"].split()) > 100
        assert process.wait(10) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        said = process.stderr.read()
        assert "Traceback" not in said and "WARNING" not in said  # also of mistakes of clients
    finally:
        process.kill()
        process.stderr.close()


def test_folders_and_addresses_are_checked_before_anything_listens(folders, tmp_path):
    folder = str(folders["tagging"])
    (tmp_path / "key").write_bytes(b"\xff\xfe")
    for arguments, said in (
        ([folder, "--api-key-file", str(tmp_path / "key")], "byte 0xff is not UTF-8"),
        ([folder, "--api-key-file", str(tmp_path)], "must be a file"),
        ([folder, "--api-key-file", str(tmp_path / "no")], "there is no such file"),
        ([str(tmp_path / "nothing")], "nothing"),
        ([folder, folder], "would both be served as 'tagging'"),
        ([], "Name a model to serve"),
        ([folder, "--host", "0.0.0.0"], "--api-key-file FILE, or set REGARD_API_KEY"),
        ([folder, "--timeout", "nan"], "`timeout` must be at most 604,800"),
        ([folder, "--timeout", "inf"], "`timeout` must be at most 604,800"),
    ):
        ended = CliRunner().invoke(app, ["serve", *arguments], env={"REGARD_API_KEY": ""})
        assert ended.exit_code == 2, ended.output
        assert said in ended.stderr and "Traceback" not in ended.stderr


def test_a_port_in_use_is_an_error_that_asks_for_another(folders):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        run = CliRunner().invoke(app, ["serve", str(folders["tagging"]), "--port", str(port)])
    assert run.exit_code == 2 and "choose another --port" in run.stderr


def test_without_the_packages_an_error_names_the_extra(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    ended = CliRunner().invoke(app, ["serve", str(folders["tagging"])])
    assert ended.exit_code == 2
    assert "pip install 'regard[serve]'" in ended.stderr
    with pytest.raises(MissingExtra, match="`fastapi`"):
        regard.serve(folders["tagging"])


def test_the_library_itself_imports_no_server():
    root = Path(__file__).parents[2] / "regard"
    importing = [
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if re.search(
            r"(import|from) (starlette|fastapi|uvicorn|prometheus_client|regard.serving)",
            file.read_text(),
        )
        and "serving" not in file.relative_to(root).parts
    ]
    assert sorted(importing) == ["__init__.py", "cli/serve.py"]
