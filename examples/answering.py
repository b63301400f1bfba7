"""A bot that answers questions in comments, and answers each comment once.

A handler may run twice, and a reply cannot be taken back. The API has no idempotency key for
replies, but it marks an answered comment as done in the same step. So the handler replies only
while the comment is open. A comment that a person has answered or taken over is left alone too.

    export HOOKONCE_API_URL=https://… HOOKONCE_API_KEY=… HOOKONCE_SECRETS=whsec_…
    hookonce serve examples.answering:receiver

The simulation emulates the service and its API, so it needs no account:

    hookonce chaos examples.answering:receiver
"""

from hookonce import EnvironmentSecrets, Receiver
from hookonce.client import Client
from hookonce.events import CommentReceived
from hookonce.resources import Comment

ANSWER = "Thank you for asking! We answer by message before noon."

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
client = Client()  # reads the address and the key from the environment


@receiver.on(CommentReceived, name="answer")
async def answer(event: CommentReceived) -> None:
    if "?" in event.data.text and await is_open(event.data):
        await client.comments.reply(event.data.id, ANSWER)


async def is_open(comment: Comment) -> bool:
    """Return whether nobody has answered or taken over a comment."""
    open_comments = client.comments.list(
        status="open", channels=[comment.channel_id], q=comment.text[:100]
    )
    return any([one.id == comment.id async for one in open_comments])
