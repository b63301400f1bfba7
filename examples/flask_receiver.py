"""A Flask application that receives webhooks, each event once, and has pages of its own.

HOOKONCE_SECRETS=whsec_… flask --app examples.flask_receiver run
HOOKONCE_SECRETS=whsec_… gunicorn --threads 8 examples.flask_receiver:app
"""

from flask import Flask

from hookonce import Context, EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived, PostTargetFailed
from hookonce.integrations import flask

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
comments: list[str] = []


@receiver.on(CommentReceived)
def remember(event: CommentReceived) -> None:
    # A plain function runs in a thread of the receiver, not of Flask.
    comments.append(event.data.text)


@receiver.on(PostTargetFailed)
async def alert(event: PostTargetFailed, context: Context) -> None:
    print(f"{event.data.platform}: {context.idempotency_key}", flush=True)


app = Flask(__name__)
flask.mount(app, receiver, "/webhooks")


@app.get("/comments")
def list_comments() -> list[str]:
    return comments
