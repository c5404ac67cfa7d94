"""Compiled kernels: faster operations, and whole models compiled for decoding and encoding.

This package is optional. No file imports it: `regard.ops.load_kernels` imports it by its name and
calls `setup`.

Internal: names that `regard` itself does not have may change with every version.
"""

from functools import cache

from regard.kernels import build

available, status = build.available, build.status


def setup() -> None:
    """Load the kernels, compiled now if need be, and register them as implementations.

    Where they cannot be compiled, a warning says so, and nothing is registered.
    """
    if build.setup():
        _register()


@cache
def _register() -> None:
    from regard.kernels import operations

    operations.register()
