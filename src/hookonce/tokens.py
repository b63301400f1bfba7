"""Tokens that tell one request's claim from another's."""

from __future__ import annotations

from secrets import token_hex

from .types import Token

__all__ = ["new_token"]


def new_token() -> Token:
    """Return a token that no other request has."""
    return Token(token_hex(12))
