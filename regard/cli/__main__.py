"""`python -m regard.cli`, where the command `regard` is not on the path."""

from regard.cli import main

main()
