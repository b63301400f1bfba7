"""A receiver in a Django project, served by WSGI or ASGI.

Django has no lifespan, and under WSGI no lasting event loop. So the first delivery starts a thread
with a loop, and the end of the process ends it.
"""

from __future__ import annotations

import re
import time
from typing import Any

from ..errors import NeedsExtra

with NeedsExtra("django", "the integration", "django"):
    # Django has no type hints, so its imports need "type: ignore".
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
from ..http.body import (
    CONSUMED,
    RequestRefusedError,
    announced_length,
    check_method,
    check_size,
    check_whole,
    note_changed_body,
)
from ..http.guard import headers_of
from ..logs import get_logger
from ..outcome import INCOMPLETE, TOO_LARGE, Outcome
from ..receiver import Receiver
from .loop_thread import LoopThread
from .wsgi_input import (
    ReadDeadlines,
    check_time,
    is_chunked,
    leave_unread,
    read_input,
    request_headers,
)

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
        path: where deliveries arrive; as in Django, the leading slash may be left out.
        name: the name of the URL pattern.

    Returns:
        the pattern; its ``callback.close()`` drains running handlers. At exit this happens by
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
    view.csrf_exempt = True  # the effect of csrf_exempt
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    view.login_required = False  # the effect of login_not_required
    view.should_append_slash = False  # the effect of no_append_slash, for a pattern below include()
    view.close = loop.close
    return view


async def _answer(
    loop: LoopThread, request: HttpRequest, reads: ReadDeadlines, limits: Limits
) -> Outcome:
    arrived = time.monotonic()
    try:
        check_method(request.method)
        body, announced = _whole_body(request, reads, limits, arrived)
        waited = time.monotonic() - arrived
        outcome = await loop.handle_async(body, list(request_headers(request.META)), waited=waited)
        note_changed_body(outcome, body, announced)
    except Exception as error:  # noqa: BLE001 - the client must get an answer
        leave_unread(request.META)
        return loop.refuse(error, waited=time.monotonic() - arrived)
    return outcome


def _whole_body(
    request: HttpRequest, reads: ReadDeadlines, limits: Limits, arrived: float
) -> tuple[bytes, int | None]:
    """Return the body and its content-length, or raise RequestRefusedError."""
    most, deadline = limits.body_bytes, arrived + limits.body_seconds
    announced = announced_length(request.META.get("CONTENT_LENGTH"), most)
    with reads.ending(request.META, deadline):
        if isinstance(request, WSGIRequest) and is_chunked(request.environ):
            # Django would read nothing: it needs a content-length, which a chunked body does not
            # have.
            body = read_input(request.environ, None, most, deadline)
        else:
            body = _body_of(request, most)
            check_time(deadline, is_whole=len(body) >= (announced or 0))
    check_whole(body, announced, is_chunked=is_chunked(request.META))
    return body, announced


def _body_of(request: HttpRequest, most: int) -> bytes:
    """Return the body through Django, or raise RequestRefusedError."""
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        _log.error("refused a body that is larger than the setting DATA_UPLOAD_MAX_MEMORY_SIZE")
        raise RequestRefusedError(TOO_LARGE) from None
    except RawPostDataException:
        _log.error("the body of a delivery is consumed. %s, such as request.body", CONSUMED)
        raise RequestRefusedError(INCOMPLETE) from None
    except ValueError as error:  # `request.body` raises this for an invalid content-length
        _log.warning("the content-length of a delivery is no number")
        raise RequestRefusedError(INCOMPLETE) from error
    except UnreadablePostError as error:
        _log.warning("a client disconnected before its body had arrived: %s", error)
        raise RequestRefusedError(INCOMPLETE) from error
    check_size(len(body), most)
    return body
