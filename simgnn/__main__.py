"""``python -m simgnn``: the command line, where the ``simgnn`` script is not on the path."""

from simgnn.cli.main import main

main()
