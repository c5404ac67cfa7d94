"""The cost of the import and of the command line's help."""

from __future__ import annotations

import importlib
import pkgutil
import resource
import subprocess
import sys

import pytest

import regard


def seconds(*arguments: str) -> float:
    """Processor time of a run, the least of several: wall time where there is no other work."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(5))


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_importing_regard_takes_at_most_a_tenth_of_a_second():
    assert seconds("-c", "import regard") - seconds("-c", "pass") <= 0.1


@pytest.mark.parametrize("module", ["regard", "regard.cli", "regard.recipe"])
def test_importing_the_package_imports_no_torch_numpy_or_tokenizers(module):
    heavy = {"torch", "numpy", "tokenizers", "sacrebleu", "resvg_py", "transformers"}
    assert not modules_after(f"import {module}") & heavy


def test_the_text_package_does_not_import_torch():
    assert "torch" not in modules_after("import regard.text")


def test_importing_a_model_imports_no_later_station():
    found = {m for m in modules_after("import regard.models.gpt2") if m.split(".")[0] == "regard"}
    later = {"checkpoints", "decoding", "kernels", "metrics", "tasks", "training", "visual"}
    assert not {m for m in found if m.split(".")[1:2] and m.split(".")[1] in later}
    assert len(found) <= 40, sorted(found)


def test_help_takes_about_twice_as_long_as_importing_its_libraries():
    """Half a second where they take a quarter, on whatever machine."""
    libraries = "import pydantic.types, pydantic.functional_validators, rich.markdown"
    of_libraries = seconds("-c", f"{libraries}, typer.rich_utils")
    assert seconds("-m", "regard", "--help") <= 2.2 * of_libraries


def test_no_public_name_is_that_of_a_module_beside_it():
    """`from package import name` would give the module, once it is imported."""
    for found in pkgutil.walk_packages(regard.__path__, "regard."):
        if found.ispkg:
            package = importlib.import_module(found.name)
            modules = {one.name for one in pkgutil.iter_modules(package.__path__)}
            names = {*getattr(package, "__all__", ())}
            assert not names & modules, found.name
