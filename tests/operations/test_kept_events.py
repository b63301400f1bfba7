"""A kept event counts as a dead letter only after the sender's schedule has ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from freezegun import freeze_time
from support.deliveries import SECRET, answer_of, comment, deliver, sqlite_url

from hookonce import Receiver
from hookonce.events import CommentReceived
from hookonce.operations.doctor import Subject
from hookonce.operations.doctor.storage import store_findings
from hookonce.operations.prometheus import PrometheusObserver

from .exercise import samples
from .inspector.inspecting import PATH, inspected

pytestmark = pytest.mark.anyio


async def shown(receiver: Receiver, folder: Path) -> tuple[float, bool, str]:
    """Return what the gauge, the doctor and the inspector report about dead letters."""
    observer = PrometheusObserver()
    observer.know(receiver)
    await observer.refresh()
    [gauge] = [one.value for one in samples(observer) if one.name == "hookonce_dead_letters"]
    (folder / "mounts").write_text("/dev/sda1 / ext4 rw 0 0")
    subject = Subject(receiver, receiver, "/webhooks")
    findings = await store_findings(subject, mounts=folder / "mounts")
    async with inspected(receiver) as here:
        page = await here.page()
    count = page.split(f'href="{PATH}/dead"><b>')[1].split("<")[0]
    return gauge, any(finding.check == "dead_letters" for finding in findings), count


async def test_the_gauge_the_doctor_and_the_inspector_count_a_kept_event_after_26_hours(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))

    @receiver.on(CommentReceived, name="shop")
    async def shop(_: CommentReceived) -> None:
        raise ValueError("closed")

    now = datetime.now(UTC)
    event = comment("evt_1", created_at=now - timedelta(hours=15))
    assert answer_of(await deliver(receiver, event, 9)) == (500, "handler_failed")
    assert await shown(receiver, tmp_path) == (0, False, "0")
    with freeze_time(now + timedelta(hours=11, minutes=1), tick=True, real_asyncio=True):
        assert await shown(receiver, tmp_path) == (1, True, "1")
