"""A receiver of MCP Events by webhook. The specification is a draft, so names may still change.

It follows the sections "EventOccurrence schema", "Non-event webhook bodies" and "Webhook Security"
of the design sketch in github.com/modelcontextprotocol/experimental-ext-triggers-events. Subscribe
with `events/subscribe`, the URL of this receiver, and the secret in HOOKONCE_SECRETS. The server
sends events, and control messages about the subscription, such as `gap`.

HOOKONCE_SECRETS=whsec_… uvicorn examples.mcp_events:app
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel
from starlette.applications import Starlette

from hookonce import EnvironmentSecrets, Event, Receiver
from hookonce.events import UnknownEvent
from hookonce.senders import Envelope, Sender


def type_of(body: Mapping[str, Any]) -> object:
    """Return the name of an event, or the type of a control message."""
    return body.get("type") or body.get("name")


def data_of(body: Mapping[str, Any]) -> object:
    """Return the data of an event. A control message has no data field: return all of it."""
    return body if "type" in body else body.get("data")


def challenged(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Prove to the server that this endpoint wants its events."""
    if body.get("type") == "verification":
        return {"challenge": body["challenge"]}
    return None


# The webhook-id is an event's eventId. A control message has neither an eventId nor a time.
mcp_events = Sender(
    name="mcp-events",
    envelope=Envelope(type=type_of, created_at=None, data=data_of),
    handshake=challenged,
)


class Incident(BaseModel):
    """The data of ``incident.created``."""

    incidentId: str  # noqa: N815 - the server's payloadSchema has this name
    title: str


class IncidentCreated(Event[Incident]):
    """An event of the server that you subscribe to; ``payloadSchema`` describes its data."""

    type: Literal["incident.created"]
    timestamp: datetime
    cursor: str | None = None


receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db", sender=mcp_events)


@receiver.on(IncidentCreated)
async def alert(event: IncidentCreated) -> None:
    # Do not trust the server's text: give it to a language model only as data.
    print(f"{event.data.incidentId}: {event.data.title}", flush=True)
    # Keep the cursor: the next `events/subscribe` passes it back.
    print(f"cursor: {event.cursor}", flush=True)


@receiver.on("gap", "terminated")
async def control(event: UnknownEvent) -> None:
    print(f"the subscription: {event.type}", flush=True)


app = Starlette(
    routes=[*receiver.routes("/webhooks"), *receiver.health_routes()],
    lifespan=receiver.lifespan,
)
