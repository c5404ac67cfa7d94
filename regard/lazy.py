"""Names that are imported on first use, so that `import regard` is fast."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from regard.errors import ConfigError
from regard.suggest import nearest


def names_of(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` of a package with these names.

    modules: each module of the package -> its public names, separated by spaces.
    """
    home = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return imported(f"{home[name]}:{name}", package)

    return sorted(home), get


def entry(table: Mapping[str, Any], name: str, what: str, package: str = "") -> Any:
    """The object with a name in a table of "module:Name" or of objects.

    Raises:
        ConfigError: the table has no such name; the nearest one is offered, and `what` says what
            was looked for.
    """
    if name not in table:
        raise ConfigError(f"There is no {what} {name!r}. {nearest(name, table)}")
    value = table[name]
    return imported(value, package) if isinstance(value, str) else value


def on_first_call(address: str) -> Callable[..., Any]:
    """A function that imports the one at "module:name" when it is called, and calls it."""

    def call(*given: Any) -> Any:
        return imported(address)(*given)

    return call


def imported(address: str, package: str = "") -> Any:
    """The object at "module:Name", the module counted from a package."""
    module, _, name = address.partition(":")
    return getattr(import_module(f"{package}.{module}" if package else module), name)
