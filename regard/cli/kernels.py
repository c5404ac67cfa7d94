"""kernels: list the implementations of each operation; kernels build: compile them."""

from __future__ import annotations

import typer

from regard.cli.console import say, show
from regard.cli.help_texts import Command, Group
from regard.cli.options import AsJson
from regard.errors import RegardError

app = typer.Typer(
    cls=Group,
    help="List the implementations of operations, or compile kernels.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def kernels(context: typer.Context, as_json: AsJson = False) -> None:
    """List the implementations of each operation and the state of the compiled kernels."""
    if context.invoked_subcommand is not None:
        return
    from regard import ops
    from regard.registry import implementation_names, kernel_package

    implementation_names()  # imports the modules that register some
    package = kernel_package()
    status = (
        "the package of compiled kernels is not installed" if package is None else package.status()
    )
    operations = {
        name: {one.name: "off" if ops.is_disabled(one.name) else "on" for one in op.implementations}
        for name, op in sorted(ops.OPERATIONS.items())
    }
    lines = [f"compiled kernels: {status}", ""]
    for name, known in operations.items():
        tried = [one if state == "on" else f"{one} ({state})" for one, state in known.items()]
        lines.append(f"{name:<24} {', '.join([*tried, 'definition'])}")
    show({"kernels": status, "operations": operations}, "\n".join(lines), as_json)


@app.command(cls=Command)
def build() -> None:
    """Compile the kernels now, or report why they cannot be compiled."""
    from regard import ops
    from regard.registry import kernel_package

    package = kernel_package()
    if package is None:
        raise RegardError("The package of compiled kernels is not installed.")
    if not ops.load_kernels():
        raise RegardError(package.status())
    say(package.status())
