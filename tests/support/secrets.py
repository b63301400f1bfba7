"""A provider of secrets that somebody changes while the program runs."""

from collections.abc import Sequence

__all__ = ["ChangingSecrets"]


class ChangingSecrets:
    """Gives what ``secrets`` is at the moment."""

    def __init__(self, *secrets: str) -> None:
        self.secrets: Sequence[str] = secrets

    def current(self) -> Sequence[str]:
        return self.secrets
