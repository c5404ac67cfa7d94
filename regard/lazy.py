"""Names that are imported when they are first asked for, so that `import regard` costs little.

A place is `module:Name`, the module counted from a package; `module` alone holds the name itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from regard.errors import ConfigError
from regard.suggest import nearest


def names_of(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names stand at these places."""

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return imported(places[name], package, name)

    return get


def entry(table: Mapping[str, str], name: str, what: str, package: str = "") -> Any:
    """What stands under a name in a table of places.

    Raises:
        ConfigError: nothing does; the nearest name is offered. `what` says what was looked for.
    """
    if name not in table:
        raise ConfigError(f"There is no {what} {name!r}. {nearest(name, table)}")
    return imported(table[name], package)


def imported(place: str, package: str = "", name: str = "") -> Any:
    """What stands at a place, `name` where the place is a module alone."""
    module, _, attribute = place.partition(":")
    path = f"{package}.{module}" if package else module
    return getattr(import_module(path), attribute or name)
