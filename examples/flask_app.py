"""A Flask view that only verifies webhooks; the application must ignore duplicates itself.

HOOKONCE_SECRETS=whsec_… flask --app examples.flask_app run
"""

from flask import Flask, Response, request

from hookonce import EnvironmentSecrets, PayloadError, VerificationError, unwrap
from hookonce.events import CommentReceived

app = Flask(__name__)
secrets = EnvironmentSecrets()


@app.post("/webhooks", strict_slashes=False)
def receive() -> Response:
    try:
        # get_data() returns the original bytes, which the signature covers.
        event = unwrap(request.get_data(), request.headers, secrets)
    except VerificationError as error:
        return Response(error.reason, status=error.status_hint)
    except PayloadError as error:
        return Response(error.fault, status=500)
    if isinstance(event, CommentReceived):
        print(f"{event.data.author_username}: {event.data.text}", flush=True)
    return Response("handled", status=200)
