"""One training by processes of a Ray cluster."""

from __future__ import annotations

import pytest

from regard.errors import CheckpointError, ConfigError
from regard.executors import Job, JobResult
from regard.experiments import ray_training
from regard.experiments.ray_training import resume_on_ray, train_on_ray


class Gang:
    """Answers as told, one attempt after the other."""

    def __init__(self, attempts):
        self.attempts = attempts

    def run(self, jobs, listener):
        yield from (
            JobResult(job, *given) for job, given in zip(jobs, self.attempts.pop(0), strict=True)
        )


@pytest.mark.parametrize(
    ("results", "lost"),
    [
        ([("",), ("",)], ""),
        ([("",), (None, "its process was lost", True)], "process 1: its process was lost"),
        ([("process 1 is gone",), (None, "lost", True)], "process 1: lost"),
        ([("process 1 is gone",), ("",)], "process 0: process 1 is gone"),
    ],
)
def test_lost_processes_are_told_from_those_that_end_with_them(results, lost):
    jobs = [Job("a:b", {"folder": "x"}, f"process {rank}") for rank in range(2)]
    shown = ray_training.display(False)
    assert ray_training._run_processes(Gang([results]), jobs, shown) == lost


def test_an_error_of_the_training_is_no_lost_process():
    jobs = [Job("a:b", {"folder": "x"}, f"process {rank}") for rank in range(2)]
    results = [(None, "recipe.toml:3: wrong"), (None, "its process was lost", True)]
    with pytest.raises(ValueError, match="recipe.toml:3: wrong"):
        ray_training._run_processes(Gang([results]), jobs, ray_training.display(False))


def test_other_places_and_folders_raise_errors_before_anything_starts(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / "lm.toml").write_text(
        'task = "language-modeling"\n[data]\ntrain = "a"\nvalid = "a"\n'
        '[model]\nname = "lstm-lm"\n[training]\nmax_steps = 1\n'
    )
    with pytest.raises(ConfigError, match="holds a run already"):
        train_on_ray(tmp_path / "lm.toml", out=tmp_path)
    with pytest.raises(CheckpointError, match="is not a run"):
        resume_on_ray(tmp_path / "none")
