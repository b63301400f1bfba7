"""A provider of secrets that change while the program runs."""

from collections.abc import Sequence

__all__ = ["ChangingSecrets"]


class ChangingSecrets:
    """Returns the current value of ``secrets``."""

    def __init__(self, *secrets: str) -> None:
        self.secrets: Sequence[str] = secrets

    def current(self) -> Sequence[str]:
        return self.secrets
