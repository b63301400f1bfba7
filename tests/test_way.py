"""A delivery's body passes through each package once, from the outer to the inner layers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from support.deliveries import SECRET, comment, receiver_on, sqlite_url
from support.handlers import on, succeed

import hookonce
from hookonce import Inbox
from hookonce.http.inprocess import exchange, whole
from hookonce.testing import signed_request

pytestmark = pytest.mark.anyio

PACKAGE = Path(hookonce.__file__).parent
# Code that reads a value, such as a delivery's key, does not enter the package of the value.
VALUES = PACKAGE / "stores" / "values.py"
ROOMS = {"http", "receiver", "delivery", "verification", "events", "inbox", "stores"}


def room_of(frame: FrameType | None) -> str | None:
    if frame is None or (path := Path(frame.f_code.co_filename)) == VALUES:
        return None
    inside = path.relative_to(PACKAGE).parts[0] if path.is_relative_to(PACKAGE) else ""
    return inside if inside in ROOMS else None


@contextmanager
def entered(body: bytes) -> Iterator[list[str]]:
    """Note each package that another package calls with the body as an argument."""
    entries: list[str] = []
    seen: set[FrameType] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame in seen:
            return
        here, before = room_of(frame), room_of(frame.f_back)
        if here is None or before is None or here == before:
            return
        seen.add(frame)  # Python reports a call each time that a coroutine continues
        if any(body in (value, getattr(value, "body", None)) for value in frame.f_locals.values()):
            entries.append(here)

    sys.setprofile(look)
    try:
        yield entries
    finally:
        sys.setprofile(None)


TO_THE_RUN = ["receiver", "delivery", "verification", "events"]


@pytest.mark.parametrize(
    ("inbox", "way"),
    [(None, TO_THE_RUN), (Inbox(embedded=False), [*TO_THE_RUN, "inbox", "stores"])],
    ids=["inline", "inbox"],
)
async def test_a_body_enters_each_room_once(
    inbox: Inbox | None, way: list[str], tmp_path: Path
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), inbox=inbox)
    on(receiver, "handler", succeed)
    request = signed_request(comment(), SECRET)
    async with receiver:
        with entered(request.body) as entries:
            answer = await exchange(receiver, "/", request.headers.items(), whole(request.body))
    assert answer.status in {200, 202}
    assert entries == way
