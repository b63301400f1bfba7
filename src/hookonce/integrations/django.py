"""A receiver in a Django project, served by WSGI or ASGI.

Django has no lifespan for applications, and under WSGI no event loop that lasts, so the receiver
runs in an event loop of its own, which the first delivery starts and the end of the process ends.
"""

from __future__ import annotations

import re
import time
from typing import Any

# Django ships no types, hence the ignores.
from django.core.exceptions import RequestDataTooBig  # type: ignore[import-untyped]
from django.core.handlers.wsgi import WSGIRequest  # type: ignore[import-untyped]
from django.db import connections, transaction  # type: ignore[import-untyped]
from django.http import (  # type: ignore[import-untyped]
    HttpRequest,
    HttpResponse,
    RawPostDataException,
    UnreadablePostError,
)
from django.urls import URLPattern, re_path  # type: ignore[import-untyped]

from ..delivery.limits import Limits
from ..delivery.outcome import NOT_POST, Outcome
from ..http.body import (
    CONSUMED,
    IncompleteError,
    TooLargeError,
    announced_length,
    check_size,
    check_whole,
    note_changed_body,
)
from ..http.guard import headers_of
from ..receiver import Receiver
from ..verification.loggers import get_logger
from .bodies import check_time, refusal_of
from .deadlines import ReadDeadlines, leave_unread
from .loop_thread import LoopThread
from .wsgi import is_chunked, read_input, request_headers

__all__ = ["mount"]

_log = get_logger("hookonce.http")


def mount(receiver: Receiver, path: str = "/webhooks", *, name: str = "hookonce") -> URLPattern:
    """Return a URL pattern that answers deliveries at ``path``, with and without a trailing slash.

    ::

        urlpatterns = [mount(receiver, "/webhooks")]

    ``APPEND_SLASH`` redirects nothing here. The view is async, and runs under WSGI as well. It is
    exempt from CSRF checks, from ``LoginRequiredMiddleware`` and from ``ATOMIC_REQUESTS``: handlers
    run in other threads, outside the transaction of the request.

    Args:
        receiver: answers the deliveries, in an event loop that the first delivery starts.
        path: where deliveries arrive; the slash before it may be left out, as Django does.
        name: the name of the URL pattern.

    Returns:
        the pattern; ``callback.close()`` of it drains running handlers. At exit this happens by
        itself.

    """
    return re_path(rf"^{re.escape(path.strip('/'))}/?\Z", _view(receiver), name=name)


def _view(receiver: Receiver) -> Any:
    loop = LoopThread(receiver)
    reads, limits = ReadDeadlines(), receiver.limits

    async def webhook(request: HttpRequest) -> HttpResponse:
        outcome = await _answer(loop, request, reads, limits)
        headers = dict(headers_of(outcome))
        return HttpResponse(outcome.body, status=int(outcome.status), headers=headers)

    view: Any = webhook
    view.csrf_exempt = True  # what the decorator sets; before Django 5.0 it takes no async view
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    view.login_required = False  # what login_not_required sets, since Django 5.1
    view.should_append_slash = False  # what no_append_slash sets, where it is included below one
    view.close = loop.close
    return view


async def _answer(
    loop: LoopThread, request: HttpRequest, reads: ReadDeadlines, limits: Limits
) -> Outcome:
    arrived = time.monotonic()
    try:
        if request.method == "POST":
            body, announced = _whole_body(request, reads, limits, arrived)
            waited = time.monotonic() - arrived
            outcome = await loop.handle_async(
                body, list(request_headers(request.META)), waited=waited
            )
            note_changed_body(outcome, body, announced)
            return outcome
        outcome = NOT_POST
    except Exception as error:  # noqa: BLE001 - it is answered
        outcome = refusal_of(error)
    leave_unread(request.META)
    return loop.note_unread(outcome, waited=time.monotonic() - arrived)


def _whole_body(
    request: HttpRequest, reads: ReadDeadlines, limits: Limits, arrived: float
) -> tuple[bytes, int | None]:
    """Return the body and its announced length; raises where it cannot be had."""
    most, deadline = limits.body_bytes, arrived + limits.body_seconds
    announced = announced_length(request.META.get("CONTENT_LENGTH"), most)
    with reads.ending(request.META, deadline):
        if isinstance(request, WSGIRequest) and is_chunked(request.environ):
            # Django reads no further than a length that was announced, and chunks come without one.
            body = read_input(request.environ, None, most, deadline)
        else:
            body = _body_of(request, most)
            check_time(deadline, is_whole=len(body) >= (announced or 0))
    check_whole(body, announced, is_chunked=is_chunked(request.META))
    return body, announced


def _body_of(request: HttpRequest, most: int) -> bytes:
    """Return the body as it came; raises IncompleteError where it cannot be had any more."""
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        _log.error("refused a body that is larger than the setting DATA_UPLOAD_MAX_MEMORY_SIZE")
        raise TooLargeError from None
    except RawPostDataException:
        _log.error("the body of a delivery is consumed. %s, such as request.body", CONSUMED)
        raise IncompleteError from None
    except (
        ValueError
    ) as error:  # Django reads a content-length only then, and takes it for a number
        _log.warning("the content-length of a delivery is no number")
        raise IncompleteError from error
    except UnreadablePostError as error:
        _log.warning("a client went away before its body had arrived: %s", error)
        raise IncompleteError from error
    check_size(len(body), most)
    return body
