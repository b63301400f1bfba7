"""Decides whether a delivery is genuine: pure functions over bytes, without I/O."""

from .headers import DeliveryHeaders, DeliveryHints, RawHeaders, Signing
from .secrets import SecretSource

__all__ = ["DeliveryHeaders", "DeliveryHints", "RawHeaders", "SecretSource", "Signing"]
