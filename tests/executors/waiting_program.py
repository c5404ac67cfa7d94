"""A program that waits for two jobs: the tests interrupt and kill it. Arguments: FOLDER STUBBORN"""

from __future__ import annotations

import sys

from regard.executors import Job, make_executor, results_of
from regard.training.interrupt import Interrupted

folder, stubborn = sys.argv[1], sys.argv[2] == "stubborn"
jobs = [
    Job("example_jobs:work", {"folder": folder, "name": name, "stubborn": stubborn}, name)
    for name in ("a", "b")
]
try:
    print(list(results_of(make_executor("local", 2), jobs)))
except Interrupted as stopped:
    sys.exit(stopped.code)
except KeyboardInterrupt:
    sys.exit(99)
