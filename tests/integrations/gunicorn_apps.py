"""Receivers behind a real gunicorn with two threads."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from cli.running import Process, running

__all__ = ["GUNICORN_APPS", "behind_gunicorn"]

# Applications for gunicorn that answer at /webhooks.
GUNICORN_APPS = {
    "wsgi": "app = WSGIReceiver(receiver)",
    "flask": """
        from flask import Flask
        from hookonce.integrations import flask
        app = Flask("app")
        flask.mount(app, receiver)
        """,
    "django": """
        import django
        from django.conf import settings
        from django.core.wsgi import get_wsgi_application
        settings.configure(
            SECRET_KEY="of this test", ALLOWED_HOSTS=["*"], ROOT_URLCONF="app", LOGGING_CONFIG=None,
            MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
        )
        django.setup()
        from hookonce.integrations.django import mount
        urlpatterns = [mount(receiver)]
        app = get_wsgi_application()
        """,
}
PRELUDE = """
from hookonce import EnvironmentSecrets, Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.wsgi import WSGIReceiver

receiver = Receiver(
    secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db", limits=Limits(body_seconds=1)
)

@receiver.on(CommentReceived)
def note(event): ...
"""


@contextmanager
def behind_gunicorn(
    app: str, *options: str, here: Path, secret: str
) -> Iterator[tuple[int, Process]]:
    """Serve one of ``GUNICORN_APPS`` from a folder; yield its port and the process."""
    (here / "app.py").write_text(PRELUDE + dedent(GUNICORN_APPS[app]))
    gunicorn = [str(Path(sys.executable).with_name("gunicorn"))]
    arguments = ["--bind", "127.0.0.1:0", "--threads", "2", *options, "app:app"]
    with running(*arguments, here=here, secrets=[secret], command=gunicorn) as process:
        port = int(process.printed(r"Listening at: http://127\.0\.0\.1:(\d+)")[1])
        yield port, process
