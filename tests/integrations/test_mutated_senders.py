"""One application with an endpoint for each built-in sender gets mutated requests of all senders.

Every accepted request has a valid signature of the endpoint's own secret over its exact bytes, and
each event is handled at most once, also if copies arrive together or later.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.endpoints import application_of

from hookonce import Event, Limits, Receiver, Refusal
from hookonce.http.app import ASGIApp
from hookonce.http.inprocess import Lifespan
from hookonce.outcome import Reason
from hookonce.senders import Sender, openai, publishing, standard, svix
from hookonce.verification.secrets import new_secret
from integrations.mutations import MOST_BODY_BYTES, Mutated, mutated
from integrations.test_mutated_requests import ACCEPTED, by_asgi, outcome

pytestmark = pytest.mark.anyio

SENDERS = {sender.name: sender for sender in (publishing, standard, svix, openai)}
# The seed chooses the mutations only; secrets, ids and times are new in each run.
SECRETS = {name: new_secret() for name in SENDERS}
SEED = 20_26
TOGETHER = 10
# This store keeps bodies, so the receiver quarantines unreadable deliveries.
ACCEPTED_OR_KEPT = ACCEPTED | {(202, Reason.QUARANTINED), (202, Reason.ALREADY_DEAD)}


@pytest.fixture(autouse=True)
def no_exception_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.ERROR)
    yield
    assert [record for record in caplog.records if record.exc_info] == []


def receiver_of(sender: Sender, store: str, handled: Counter[tuple[str, str]]) -> Receiver:
    receiver = Receiver(
        secrets=SECRETS[sender.name],
        store=store,
        sender=sender,
        endpoint=sender.name,
        limits=Limits(body_bytes=MOST_BODY_BYTES),
    )

    @receiver.on("*", name="count")
    async def count(event: Event[Any]) -> None:
        await asyncio.sleep(0)  # let copies of the event arrive during the handler
        handled[sender.name, event.id] += 1

    return receiver


def requests_of(count: int) -> Iterator[Mutated]:
    """Yield requests; a tenth are copies of earlier requests, a tenth go to another endpoint."""
    earlier: deque[Mutated] = deque(maxlen=100)
    for number in range(count):
        chance = random.Random(f"{SEED} {number}")
        name, what = chance.choice(list(SENDERS)), chance.random()
        request = mutated(chance, SECRETS[name], f"/{name}", sender=SENDERS[name])
        if what < 0.1 and earlier:
            request = chance.choice(earlier)
        elif what < 0.2:
            other = chance.choice([one for one in SENDERS if one != name])
            changes = (*request.changes, f"signed for {name}")
            request = replace(request, path=f"/{other}", changes=changes)
        earlier.append(request)
        yield request


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.full("30 s"))])
async def test_nothing_forged_is_accepted_and_nothing_is_handled_twice(
    count: int, tmp_path: Path
) -> None:
    handled: Counter[tuple[str, str]] = Counter()
    answers: Counter[object] = Counter()
    store = f"sqlite:///{tmp_path}/hooks.db"
    app = application_of([receiver_of(sender, store, handled) for sender in SENDERS.values()])
    left = requests_of(count)
    async with Lifespan(app):
        while together := list(islice(left, TOGETHER)):
            answers.update(await asyncio.gather(*(sent(app, request) for request in together)))
    assert set(handled.values()) == {1}, "an event was handled twice"
    assert {name for name, _ in handled} == set(SENDERS)
    assert answers[200, Reason.HANDLED] == len(handled) > count / 5
    assert answers[200, Reason.DUPLICATE] > count / 100
    assert answers[400, Refusal.CONFLICTING_HEADERS] > count / 100
    assert answers[401, Refusal.NO_MATCHING_SIGNATURE] > count / 20


async def sent(app: ASGIApp, request: Mutated) -> object:
    """Return the answer to a request, and check that an accepted request is genuine."""
    seen = await by_asgi(app)(request)
    place = re.match("/*([a-z]+)", request.path)
    sender = SENDERS.get(place[1] if place else "", publishing)
    said = outcome(
        request,
        seen,
        secret=SECRETS[sender.name],
        families=sender.headers,
        accepted=ACCEPTED_OR_KEPT,
    )
    if said in ACCEPTED_OR_KEPT:
        for part in ("id", "timestamp"):  # no family of headers contradicts another
            names = {f"{family}-{part}".encode() for family in sender.headers}
            values = {value.strip() for name, value in seen.headers if name in names}
            assert len(values - {b""}) == 1, request
    return said
