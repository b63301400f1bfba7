"""The inspector: pages that show an engineer what a receiver does, live, and replay dead letters.

In an application it is mounted at a path::

    Mount("/inspector", Inspector(receiver, token=os.environ["HOOKONCE_INSPECTOR_TOKEN"]))

It needs ``jinja2`` (``hookonce[inspector]``), and of the package nothing imports it but
``hookonce serve --inspector``.
"""

from __future__ import annotations

from .access import LOOPBACK_HOSTS
from .bounds import Bounds
from .redaction import DEFAULT_HEADERS, DEFAULT_KEYS, Redaction
from .watched import Watched

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
    "Watched",
]
