"""The inspector: pages that show a receiver's work live, and replay dead letters.

Mount it in an application::

    Mount("/inspector", Inspector(receiver, token=os.environ["HOOKONCE_INSPECTOR_TOKEN"]))

It needs ``jinja2`` (``hookonce[inspector]``). Within the package only ``hookonce serve
--inspector`` imports it.
"""

from __future__ import annotations

from ...errors import NeedsExtra
from .access import LOOPBACK_HOSTS
from .bounds import Bounds
from .redaction import DEFAULT_HEADERS, DEFAULT_KEYS, Redaction

with NeedsExtra("inspector", "the inspector", "jinja2", "markupsafe"):
    from .app import Inspector

__all__ = [
    "DEFAULT_HEADERS",
    "DEFAULT_KEYS",
    "LOOPBACK_HOSTS",
    "Bounds",
    "Inspector",
    "Redaction",
]
