"""A FastAPI application that receives webhooks and has an API of its own.

HOOKONCE_SECRETS=whsec_… uvicorn examples.fastapi_app:app
"""

from fastapi import FastAPI

from hookonce import EnvironmentSecrets, Receiver, Router
from hookonce.events import ChannelDisconnected, ChannelUnhealthy, MessageReceived
from hookonce.integrations import fastapi

# Routers let you define handlers next to the code they belong to.
inbox = Router()
channels = Router()
messages: list[str] = []


@inbox.on(MessageReceived)
async def remember(event: MessageReceived) -> None:
    messages.append(event.data.message.kind)


@channels.on("channel.*", name="channel-sync")
async def sync(event: ChannelUnhealthy | ChannelDisconnected) -> None:
    print(f"{event.data.username} is {event.data.status}", flush=True)


receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
receiver.include(inbox)
receiver.include(channels)

app = FastAPI(lifespan=receiver.lifespan)
fastapi.mount(app, receiver, "/webhooks")


@app.get("/messages")
async def kinds() -> list[str]:
    return messages
