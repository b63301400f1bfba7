"""A receiver on a WSGI server, without a framework.

HOOKONCE_SECRETS=whsec_… python examples/wsgi_app.py
HOOKONCE_SECRETS=whsec_… gunicorn --preload --threads 8 examples.wsgi_app:application
"""

import os
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.wsgi import WSGIReceiver

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(CommentReceived)
async def answer(event: CommentReceived) -> None:
    print(f"{event.data.author_username}: {event.data.text}", flush=True)


application = WSGIReceiver(receiver, "/webhooks")


class Server(ThreadingMixIn, WSGIServer):
    """The standard library's server, with a thread for each request."""

    daemon_threads = True


if __name__ == "__main__":
    with make_server(
        "127.0.0.1", int(os.environ.get("PORT", "8000")), application, Server
    ) as server:
        print(f"running on http://127.0.0.1:{server.server_port}/webhooks", flush=True)
        server.serve_forever()
