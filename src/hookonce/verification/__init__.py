"""Decides whether a delivery is genuine: pure functions over bytes, without I/O."""

from .header_names import Signing
from .headers import DeliveryHeaders, DeliveryHints, RawHeaders
from .secrets import SecretSource

__all__ = ["DeliveryHeaders", "DeliveryHints", "RawHeaders", "SecretSource", "Signing"]
