"""What the core of Regard brings beside torch: how many packages, and how many MB of wheels.

The closure of what `regard` requires, minus the closure of what `torch` requires, is read from
the installed metadata. The size of a wheel is measured without a network: a wheel is a ZIP of
the files that its RECORD names, so those files are packed again the way wheels are. Beside nine
downloaded wheels (numpy, lxml, tokenizers ...) this came out within 3 %.

    python tools/weight.py [--packages 35] [--megabytes 45]
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(name: str) -> dict[str, Distribution]:
    """Every installed package that `name` needs on this machine, itself included, by name."""
    found: dict[str, Distribution] = {}
    wanted = [(name, "")]
    seen: set[tuple[str, str]] = set()
    while wanted:
        package, extra = item = wanted.pop()
        if item in seen:
            continue
        seen.add(item)
        found[package] = distribution(package)
        for text in found[package].requires or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                child = canonicalize_name(need.name)
                wanted += [(child, part) for part in ("", *need.extras)]
    return found


def wheel_size(package: Distribution) -> int:
    """Bytes of the wheel, measured by packing the installed files again (deflate, as wheels)."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in package.files or []:
            path = package.locate_file(file)
            inside = ".." not in file.parts and file.suffix != ".pyc"  # not scripts, not caches
            if inside and path.is_file():  # type: ignore[attr-defined]
                archive.write(str(path), str(file))
    return packed.tell()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=int, default=35)
    parser.add_argument("--megabytes", type=float, default=45.0)
    limits = parser.parse_args()
    try:
        torch = closure("torch")
        core = {name: d for name, d in closure("regard").items() if name not in torch}
    except PackageNotFoundError as error:
        print(f"{error.name} is not installed here: run `make weight`, which installs the core")
        return 1
    core.pop("regard")
    if not core:
        print("the installed metadata of regard names no requirements: install it again")
        return 1
    sizes = {name: wheel_size(package) / 1e6 for name, package in core.items()}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        print(f"{sizes[name]:7.2f} MB  {name} {core[name].version}")
    total = sum(sizes.values())
    print(
        f"{total:7.1f} MB in {len(sizes)} packages beside torch's own {len(torch)} "
        f"(wheels packed again from the installed files; "
        f"at most {limits.megabytes:g} MB and {limits.packages} packages)"
    )
    return int(total > limits.megabytes or len(sizes) > limits.packages)


if __name__ == "__main__":
    sys.exit(main())
