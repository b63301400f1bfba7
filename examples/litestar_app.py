"""A Litestar application that receives webhooks and has an API of its own.

HOOKONCE_SECRETS=whsec_… uvicorn examples.litestar_app:app
"""

from litestar import Litestar, get

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations import litestar

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
comments: list[str] = []


@receiver.on(CommentReceived)
async def remember(event: CommentReceived) -> None:
    comments.append(event.data.text)


@get("/comments")
async def list_comments() -> list[str]:
    return comments


app = Litestar([list_comments], lifespan=[receiver.lifespan])
litestar.mount(app, receiver, "/webhooks")
