"""A Django project in one file that receives webhooks, served by ASGI or WSGI.

HOOKONCE_SECRETS=whsec_… uvicorn examples.django_app:application
HOOKONCE_SECRETS=whsec_… gunicorn --threads 8 examples.django_app:wsgi_application
"""

from django.conf import settings  # type: ignore[import-untyped]  # Django ships no types
from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped]
from django.http import HttpRequest, JsonResponse  # type: ignore[import-untyped]
from django.urls import path  # type: ignore[import-untyped]

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations import django

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    MIDDLEWARE=[
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
    ],
)

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
comments: list[str] = []


@receiver.on(CommentReceived)
def remember(event: CommentReceived) -> None:
    # A handler that uses the ORM calls django.db.close_old_connections() first: it runs in a
    # thread of the receiver, and Django closes connections only in its own threads.
    comments.append(event.data.text)


def list_comments(request: HttpRequest) -> JsonResponse:  # noqa: ARG001 - the signature of a view
    return JsonResponse({"comments": comments})


urlpatterns = [
    django.mount(receiver, "/webhooks"),
    path("comments/", list_comments),
]

application = get_asgi_application()
wsgi_application = get_wsgi_application()
