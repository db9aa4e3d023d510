"""`python -m gdrstorm` is the command `gdrstorm`."""

from gdrstorm.cli.main import main

main()
