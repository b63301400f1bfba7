"""``python -m hookonce`` runs the command ``hookonce``."""

from .cli import main

main()
