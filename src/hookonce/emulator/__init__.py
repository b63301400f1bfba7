"""An emulation of the sending service, for development and tests.

``service`` puts the parts together. A delivery goes from ``deliveries`` (schedule and log) through
``wire`` (signed requests) to ``transport``. A request of the API goes from ``api`` to
``operations``, which use ``checks``, ``publishing`` and ``storage``. ``workspace``, ``content`` and
``records`` hold the state, and ``timeline`` the time.
"""

from __future__ import annotations

from .app import App
from .chaos import Chaos, Disturbance, RequestFault, RequestFaults
from .faults import FaultInjection
from .flows import (
    FLOWS,
    EventEmitter,
    Flow,
    lose_channel,
    publish_post,
    receive_comment,
    receive_story_reply,
)
from .generated import EventGenerator
from .records import (
    CommentReply,
    DeliveryAttempt,
    DeliveryStatus,
    DisabledReason,
    EndpointStatus,
    Notice,
)
from .refusals import RefusedError
from .service import EmulatedService, Target
from .timeline import FrozenTime, TimeSource, VirtualClock
from .workspace_data import WorkspaceData

__all__ = [
    "FLOWS",
    "App",
    "Chaos",
    "CommentReply",
    "DeliveryAttempt",
    "DeliveryStatus",
    "DisabledReason",
    "Disturbance",
    "EmulatedService",
    "EndpointStatus",
    "EventEmitter",
    "EventGenerator",
    "FaultInjection",
    "Flow",
    "FrozenTime",
    "Notice",
    "RefusedError",
    "RequestFault",
    "RequestFaults",
    "Target",
    "TimeSource",
    "VirtualClock",
    "WorkspaceData",
    "lose_channel",
    "publish_post",
    "receive_comment",
    "receive_story_reply",
]
