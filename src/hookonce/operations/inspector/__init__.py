"""The inspector: pages that show live what a receiver does, and replay dead letters.

Mount it in an application::

    Mount("/inspector", Inspector(receiver, token=os.environ["HOOKONCE_INSPECTOR_TOKEN"]))

It needs ``jinja2`` (``hookonce[inspector]``). Within the package only ``hookonce serve
--inspector`` imports it.
"""

from __future__ import annotations

from .access import LOOPBACK_HOSTS
from .bounds import Bounds
from .redaction import DEFAULT_HEADERS, DEFAULT_KEYS, Redaction

try:
    from .app import Inspector
except ModuleNotFoundError as error:
    if error.name not in {"jinja2", "markupsafe"}:
        raise
    raise ImportError(
        "the inspector needs Jinja2: pip install 'hookonce[inspector]'", name="jinja2"
    ) from error

__all__ = [
    "DEFAULT_HEADERS",
    "DEFAULT_KEYS",
    "LOOPBACK_HOSTS",
    "Bounds",
    "Inspector",
    "Redaction",
]
