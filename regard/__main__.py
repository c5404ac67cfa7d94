"""`python -m regard`, and `torchrun --nproc-per-node 4 -m regard`: the command line."""

from regard.cli import main

main()
