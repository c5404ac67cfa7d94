#!/usr/bin/env python3
"""A Slurm of one machine: sbatch, srun, sacct, scancel and scontrol are links to this file.

It does what Slurm 22.05.8 was seen to do, with its words; test_real_slurm.py runs the same tests
against a real one. Its state is in the folder of the links:

    jobs/N.json   a job: its state, the options of its script

A minute of a time limit lasts FAKE_SLURM_MINUTE seconds. The first job has the number
FAKE_SLURM_FIRST.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(sys.argv[0]).absolute().parent
JOBS = HERE / "jobs"
MINUTE = float(os.environ.get("FAKE_SLURM_MINUTE", "60"))
FIRST = int(os.environ.get("FAKE_SLURM_FIRST", "1"))
RUNNING = ("RUNNING", "COMPLETING")


def read(number: str) -> dict[str, Any]:
    job: dict[str, Any] = json.loads((JOBS / f"{number}.json").read_text())
    return job


def write(number: str, **facts: Any) -> None:
    path = JOBS / f"{number}.json"
    job = (read(number) if path.exists() else {}) | facts
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(job))
    new.replace(path)


def fail(text: str, code: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def sbatch(script: str) -> None:
    text = Path(script).read_text()
    lines = (shlex.split(line[8:])[0] for line in text.splitlines() if line[:7] == "#SBATCH")
    options = dict(line.removeprefix("--").split("=", 1) for line in lines if "=" in line)
    if (partition := options.get("partition", "debug")) != "debug":
        fail(
            f"sbatch: error: invalid partition specified: {partition}\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified"
        )
    JOBS.mkdir(exist_ok=True)
    number = str(FIRST + len(list(JOBS.glob("*.json"))))
    while True:
        try:
            (JOBS / f"{number}.taken").touch(exist_ok=False)
            break
        except FileExistsError:
            number = str(int(number) + 1)
    write(number, state="PENDING", text=text, options=options, step=0)
    start(number)
    print(f"Submitted batch job {number}")


def start(number: str) -> None:
    devnull: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [sys.executable, sys.argv[0], "--supervise", number]
    subprocess.Popen(command, start_new_session=True, **devnull)


def supervise(number: str) -> None:
    """Run the job; signal it near its time limit, and kill it there."""
    job = read(number)
    options = job["options"]
    output, error = (options[name].replace("%j", number) for name in ("output", "error"))
    end = time.monotonic() + float(options["time"]) * MINUTE
    name, _, seconds = options["signal"].partition("@")
    warn = end - float(seconds) * MINUTE / 60
    path = HERE / f"script-{number}.sh"
    path.write_text(job["text"])
    environment = os.environ | {
        "SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_JOB_NUM_NODES": "1"
    }  # fmt: skip
    with open(output, "ab") as out, open(error, "ab") as err:
        write(number, state="RUNNING", step=0)
        running = subprocess.Popen(["bash", path], stdout=out, stderr=err, env=environment)
        timed_out = warned = False
        while (code := running.poll()) is None:
            now = time.monotonic()
            if now > warn and not warned:
                warned = True
                to_step(number, getattr(signal, f"SIG{name}"))
            if now > end and not timed_out:
                timed_out = True
                to_step(number, signal.SIGTERM)
            if now > end + 5:
                to_step(number, signal.SIGKILL)
            time.sleep(0.05)
    wanted = read(number).get("wanted")
    if wanted == "PENDING":  # requeued
        write(number, state="PENDING", wanted="")
        time.sleep(1)
        supervise(number)
    elif wanted:
        write(number, state=wanted)
    elif timed_out:
        write(number, state="TIMEOUT")
    else:
        write(number, state="FAILED" if code else "COMPLETED")


def to_step(number: str, what: int) -> None:
    if step := read(number)["step"]:
        try:
            os.kill(step, what)
        except ProcessLookupError:
            pass


def srun(*arguments: str) -> None:
    """Runs the command as the step of a job. It reports how it was killed, as srun does."""
    found = re.match(r"--unbuffered --output (\S+) --error (\S+) (.*)", shlex.join(arguments))
    assert found, arguments
    number = os.environ["SLURM_JOB_ID"]
    if "SLURM_CPU_BIND_LIST" in os.environ:  # of the job from which this one was submitted
        fail("srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x2.")
    out, err = (one.replace("%j", number).replace("%t", "0") for one in found.groups()[:2])
    with open(out, "ab") as output, open(err, "ab") as error:
        command = shlex.split(found[3])
        step = subprocess.Popen(command, stdout=output, stderr=error, start_new_session=True)
        write(number, step=step.pid)
        code = step.wait()
    if code == -signal.SIGKILL:
        print("srun: error: localhost: task 0: Killed", file=sys.stderr, flush=True)
    sys.exit(128 - code if code < 0 else code)


def sacct(*arguments: str) -> None:
    assert arguments[:3] == ("-o", "JobID,State,NodeList", "--parsable2"), arguments
    print("JobID|State|NodeList")
    for path in JOBS.glob("*.json"):
        print(f"{path.stem}|{read(path.stem)['state']}|here")


def scancel(*arguments: str) -> None:
    for number in arguments:
        if number == "--quiet":
            continue
        if not (JOBS / f"{number}.json").exists():
            fail(f"scancel: error: Kill job error on job id {number}: Invalid job id specified")
        state = read(number)["state"]
        if state == "PENDING":
            write(number, state="CANCELLED")
        elif state in RUNNING:
            write(number, wanted="CANCELLED")
            to_step(number, signal.SIGTERM)


def scontrol(verb: str, number: str) -> None:
    assert verb == "requeue"
    write(number, wanted="PENDING")
    to_step(number, signal.SIGTERM)


def main() -> None:
    name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    if arguments[:1] == ["--supervise"]:
        return supervise(arguments[1])
    globals()[name](*arguments)


if __name__ == "__main__":
    main()
