"""Router, handlers, key functions and context: which handler gets which event."""

from .handler import ErrorHook, Handler, HandlerDecorator
from .keyed import HandlerOptions, Key, Keyed, Ties

__all__ = ["ErrorHook", "Handler", "HandlerDecorator", "HandlerOptions", "Key", "Keyed", "Ties"]
