"""`python -m millrace.cli`, for where the `millrace` command is not on the path."""

from millrace.cli.command import main

main(prog_name="millrace")
