"""An emulation of the sending service, for development and tests."""

from __future__ import annotations

from .chaos import Chaos, Disturbance
from .flows import FLOWS, lose_channel, publish_post, receive_comment, receive_story_reply
from .generated import EventGenerator
from .records import DeliveryAttempt, DeliveryStatus, DisabledReason, EndpointStatus, Notice
from .service import EmulatedService
from .timeline import VirtualClock
from .workspace_data import WorkspaceData

__all__ = [
    "FLOWS",
    "Chaos",
    "DeliveryAttempt",
    "DeliveryStatus",
    "DisabledReason",
    "Disturbance",
    "EmulatedService",
    "EndpointStatus",
    "EventGenerator",
    "Notice",
    "VirtualClock",
    "WorkspaceData",
    "lose_channel",
    "publish_post",
    "receive_comment",
    "receive_story_reply",
]
