"""Senders: the services that sign by Standard Webhooks, and the rules of their deliveries.

A ``Sender`` is one frozen value with everything that differs between services: the headers that
carry the signature, the hints, and the rules of delivery. ``openai``, ``publishing``, ``standard``
and ``svix`` are built in. For another service, make a ``Sender`` of your own.
"""

from ..events import Envelope
from ..verification.header_names import Hints
from .built_in import openai, publishing, standard, svix
from .rules import Rules
from .sender import Handshake, Sender

__all__ = [
    "Envelope",
    "Handshake",
    "Hints",
    "Rules",
    "Sender",
    "openai",
    "publishing",
    "standard",
    "svix",
]
