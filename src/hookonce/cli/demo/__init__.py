"""``hookonce demo``: the main job on real input, in a few seconds.

A real server on a free loopback port with a real store, and a sender that signs with the
reference library ``standardwebhooks`` (not with our own code) and posts over HTTP.
"""

from __future__ import annotations

from .command import demo

__all__ = ["demo"]
