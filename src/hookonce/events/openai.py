"""The events that OpenAI sends (API reference, Webhook Events).

The classes follow https://platform.openai.com/docs/api-reference/webhook-events and the types of
the ``openai`` package. A type without a class here becomes an ``UnknownOpenAIEvent``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Generic, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from ..resources import Instant
from .event import DataT, Event, EventClass, UnknownEvent, event_types_of

__all__ = [
    "OPENAI_EVENT_CLASSES",
    "AgentConnection",
    "AgentEnvironmentExpired",
    "AgentEnvironmentFailed",
    "AgentEnvironmentReady",
    "AgentEnvironmentSuspended",
    "AgentSession",
    "AgentSessionAction",
    "AgentSessionActionRequired",
    "AgentSessionCreated",
    "AgentSessionFailed",
    "AgentSessionIdle",
    "AgentSessionInProgress",
    "BatchCancelled",
    "BatchCompleted",
    "BatchExpired",
    "BatchFailed",
    "EvalRunCanceled",
    "EvalRunFailed",
    "EvalRunSucceeded",
    "FineTuningJobCancelled",
    "FineTuningJobFailed",
    "FineTuningJobSucceeded",
    "IncomingCall",
    "LiveCallIncoming",
    "LiveSession",
    "LiveTransportConnected",
    "LiveTransportIncoming",
    "OpenAIEvent",
    "OpenAIObject",
    "RealtimeCallIncoming",
    "RequiredAction",
    "ResponseCancelled",
    "ResponseCompleted",
    "ResponseFailed",
    "ResponseIncomplete",
    "SafetyAlertCreated",
    "SafetyDeactivationIssued",
    "SafetyOrgAlertCreated",
    "SafetyWarningIssued",
    "SipHeader",
    "UnknownOpenAIEvent",
]


class _Payload(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="allow", hide_input_in_errors=True
    )


class OpenAIObject(_Payload):
    """The data of most events: which object the event is about.

    Attributes:
        id: the id of the response, batch, job, run, session, environment, alert or case; fetch the
            object by it.
    """

    id: str


class SipHeader(_Payload):
    """A header of the SIP INVITE of a call. Anybody who calls can choose it: do not trust it."""

    name: str
    value: str


class IncomingCall(_Payload):
    """The data of ``realtime.call.incoming``.

    Attributes:
        call_id: the id by which the Realtime API accepts or rejects the call.
        sip_headers: the headers of the SIP INVITE.
        sip_media_security: ``rtp`` or ``srtp``; None if it is unknown.
    """

    call_id: str
    sip_headers: list[SipHeader]
    sip_media_security: str | None = None


class LiveSession(_Payload):
    """The data of the events ``live.…``: a session of the Live API.

    Attributes:
        session_id: the id by which the Live API accepts, rejects or observes the session.
        type: the transport, ``sip`` or ``webrtc``; None for ``live.call.incoming``.
        sip_headers: the headers of the SIP INVITE; empty for ``webrtc``.
        sip_media_security: ``rtp`` or ``srtp``; None if it is unknown.
    """

    session_id: str
    type: str | None = None
    sip_headers: list[SipHeader] = []
    sip_media_security: str | None = None


class AgentConnection(_Payload):
    """The URL that connects a self-hosted environment to a session."""

    remote_url: str


class AgentSession(OpenAIObject):
    """The data of most events ``agent.session.…``.

    Attributes:
        environment_type: ``none``, ``openai_hosted`` or ``self_hosted``.
        environment_id: the id of the environment; None if there is none.
        connect: how to connect a self-hosted environment, when the session was created.
    """

    environment_type: str
    environment_id: str | None = None
    connect: AgentConnection | None = None


class RequiredAction(_Payload):
    """The type of an action that a session requires; fetch the session for the action itself."""

    type: str


class AgentSessionAction(OpenAIObject):
    """The data of ``agent.session.action_required``."""

    required_action: RequiredAction


class OpenAIEvent(Event[DataT], Generic[DataT]):
    """The base of OpenAI's event classes.

    Attributes:
        created_at: when the event happened.
        object: always ``event``; None if the body does not have it.
        body_id: the id in the body, ``evt_…``. It is not the signed webhook-id, which is ``id``.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=None)
    owner: ClassVar[str | None] = "openai"

    created_at: Instant
    object: str | None = None
    body_id: str


class ResponseCompleted(OpenAIEvent[OpenAIObject]):
    """A background response was completed."""

    type: Literal["response.completed"]


class ResponseCancelled(OpenAIEvent[OpenAIObject]):
    """A background response was cancelled."""

    type: Literal["response.cancelled"]


class ResponseFailed(OpenAIEvent[OpenAIObject]):
    """A background response failed."""

    type: Literal["response.failed"]


class ResponseIncomplete(OpenAIEvent[OpenAIObject]):
    """A background response was interrupted."""

    type: Literal["response.incomplete"]


class BatchCompleted(OpenAIEvent[OpenAIObject]):
    """A batch was completed."""

    type: Literal["batch.completed"]


class BatchCancelled(OpenAIEvent[OpenAIObject]):
    """A batch was cancelled."""

    type: Literal["batch.cancelled"]


class BatchExpired(OpenAIEvent[OpenAIObject]):
    """A batch expired before it was completed."""

    type: Literal["batch.expired"]


class BatchFailed(OpenAIEvent[OpenAIObject]):
    """A batch failed."""

    type: Literal["batch.failed"]


class FineTuningJobSucceeded(OpenAIEvent[OpenAIObject]):
    """A fine-tuning job succeeded."""

    type: Literal["fine_tuning.job.succeeded"]


class FineTuningJobFailed(OpenAIEvent[OpenAIObject]):
    """A fine-tuning job failed."""

    type: Literal["fine_tuning.job.failed"]


class FineTuningJobCancelled(OpenAIEvent[OpenAIObject]):
    """A fine-tuning job was cancelled."""

    type: Literal["fine_tuning.job.cancelled"]


class EvalRunSucceeded(OpenAIEvent[OpenAIObject]):
    """An evaluation run succeeded."""

    type: Literal["eval.run.succeeded"]


class EvalRunFailed(OpenAIEvent[OpenAIObject]):
    """An evaluation run failed."""

    type: Literal["eval.run.failed"]


class EvalRunCanceled(OpenAIEvent[OpenAIObject]):
    """An evaluation run was cancelled; OpenAI spells this type with a single l."""

    type: Literal["eval.run.canceled"]


class RealtimeCallIncoming(OpenAIEvent[IncomingCall]):
    """A call over SIP waits to be accepted by the Realtime API."""

    type: Literal["realtime.call.incoming"]


class AgentEnvironmentExpired(OpenAIEvent[OpenAIObject]):
    """An environment of an agent expired."""

    type: Literal["agent.environment.expired"]


class AgentEnvironmentFailed(OpenAIEvent[OpenAIObject]):
    """The setup of a prewarmed environment failed."""

    type: Literal["agent.environment.failed"]


class AgentEnvironmentReady(OpenAIEvent[OpenAIObject]):
    """An environment of an agent is ready."""

    type: Literal["agent.environment.ready"]


class AgentEnvironmentSuspended(OpenAIEvent[OpenAIObject]):
    """An environment was suspended, and can resume from a snapshot."""

    type: Literal["agent.environment.suspended"]


class AgentSessionCreated(OpenAIEvent[AgentSession]):
    """A session of an agent was created."""

    type: Literal["agent.session.created"]


class AgentSessionInProgress(OpenAIEvent[AgentSession]):
    """A session of an agent is in progress."""

    type: Literal["agent.session.in_progress"]


class AgentSessionIdle(OpenAIEvent[AgentSession]):
    """A session of an agent became idle."""

    type: Literal["agent.session.idle"]


class AgentSessionFailed(OpenAIEvent[AgentSession]):
    """A session of an agent failed."""

    type: Literal["agent.session.failed"]


class AgentSessionActionRequired(OpenAIEvent[AgentSessionAction]):
    """A session of an agent requires an action, such as an approval."""

    type: Literal["agent.session.action_required"]


class LiveTransportIncoming(OpenAIEvent[LiveSession]):
    """A SIP session waits to be accepted by the Live API."""

    type: Literal["live.transport.incoming"]


class LiveTransportConnected(OpenAIEvent[LiveSession]):
    """A session over WebRTC is connected to the Live API."""

    type: Literal["live.transport.connected"]


class LiveCallIncoming(OpenAIEvent[LiveSession]):
    """A SIP session waits to be accepted; ``live.transport.incoming`` replaces this type."""

    type: Literal["live.call.incoming"]


class SafetyAlertCreated(OpenAIEvent[OpenAIObject]):
    """A safety alert is available for an API project."""

    type: Literal["safety.alert.created"]


class SafetyOrgAlertCreated(OpenAIEvent[OpenAIObject]):
    """A safety alert is available for an enterprise workspace."""

    type: Literal["safety.org_alert.created"]


class SafetyWarningIssued(OpenAIEvent[OpenAIObject]):
    """A warning was issued for a safety identifier of the organization."""

    type: Literal["safety.warning_issued"]


class SafetyDeactivationIssued(OpenAIEvent[OpenAIObject]):
    """A deactivation was issued for a safety identifier of the organization."""

    type: Literal["safety.deactivation_issued"]


class UnknownOpenAIEvent(UnknownEvent, OpenAIEvent[JsonValue]):
    """An event of a type that has no class, from OpenAI."""


OPENAI_EVENT_CLASSES: Mapping[str, EventClass] = MappingProxyType(
    {
        name: event_class
        for event_class in (
            *(ResponseCompleted, ResponseCancelled, ResponseFailed, ResponseIncomplete),
            *(BatchCompleted, BatchCancelled, BatchExpired, BatchFailed),
            *(FineTuningJobSucceeded, FineTuningJobFailed, FineTuningJobCancelled),
            *(EvalRunSucceeded, EvalRunFailed, EvalRunCanceled),
            *(RealtimeCallIncoming, LiveTransportIncoming, LiveTransportConnected),
            LiveCallIncoming,
            *(AgentEnvironmentReady, AgentEnvironmentFailed, AgentEnvironmentSuspended),
            AgentEnvironmentExpired,
            *(AgentSessionCreated, AgentSessionInProgress, AgentSessionIdle, AgentSessionFailed),
            AgentSessionActionRequired,
            *(SafetyAlertCreated, SafetyOrgAlertCreated),
            *(SafetyWarningIssued, SafetyDeactivationIssued),
        )
        for name in event_types_of(event_class)
    }
)
"""The event types of OpenAI that have a class here."""
