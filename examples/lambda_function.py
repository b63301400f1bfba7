"""An AWS Lambda function behind API Gateway, a function URL or a load balancer.

Set the function's handler to `examples.lambda_function.handler`. Set HOOKONCE_SECRETS in its
environment, and STORE_URL to a Redis that all instances share.
"""

import os

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations import aws_lambda

receiver = Receiver(
    secrets=EnvironmentSecrets(),
    store=os.environ.get("STORE_URL", "redis://localhost:6379/0"),
)


@receiver.on(CommentReceived)
async def answer(event: CommentReceived) -> None:
    print(f"{event.data.author_username}: {event.data.text}", flush=True)


handler = aws_lambda.mount(receiver)
