"""A written test fails while the bug exists, and passes once the bug is fixed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookonce import Receiver
from hookonce.emulator import Disturbance, RequestFault
from hookonce.events import CommentReceived
from hookonce.simulation import (
    Fault,
    HandlerFault,
    Mode,
    PlannedEvent,
    Restart,
    Scenario,
    replay,
    written_test,
)
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.sample(1, of="file")

SHOP = """
from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

IS_FIXED = False
paid = []
receiver = Receiver(secrets=EnvironmentSecrets(), store="memory://")


@receiver.on(CommentReceived, name="shop.pay")
async def pay(event: CommentReceived) -> None:
    if not (IS_FIXED and event.id in paid):
        paid.append(event.id)


def check(events):
    for event in events:
        assert paid.count(event.id) == 1, f"{event.id} paid {paid.count(event.id)} times"
"""

SCENARIO = Scenario(
    [PlannedEvent("evt_1", "comment.received", 0.5, {"text": 'Say "rye"\n\\', "authorName": None})],
    [
        HandlerFault("evt_1", "shop.pay", 1, Fault.FAILS_AFTER),
        HandlerFault("evt_1", "shop.pay", 2, Fault.SLOW, 2.5),
        RequestFault("evt_1", 2, Disturbance.CLOCK_SKEW, -30.0),
        Restart(15.0),
    ],
    seed=3,
    channels=2,
)


def shop() -> Receiver:
    receiver = Receiver(secrets=new_secret(), store="memory://")

    @receiver.on(CommentReceived, name="shop.pay")
    async def pay(event: CommentReceived) -> None: ...

    return receiver


def run_test(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a test file with pytest, without secrets in the environment."""
    (folder / "test_found.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_found.py"]
    without = {name: value for name, value in os.environ.items() if name != "HOOKONCE_SECRETS"}
    return subprocess.run(
        command, cwd=folder, env=without, capture_output=True, text=True, check=False
    )


@pytest.mark.costs("5 s")
def test_a_written_test_fails_with_the_timeline_until_the_bug_is_fixed(tmp_path: Path) -> None:
    report = replay(shop(), SCENARIO, store="memory://")
    assert set(report.scenario.faults) == set(SCENARIO.faults)
    text = written_test(
        report,
        "shop:receiver",
        check="shop:check",
        store="memory://",
        mode=Mode.INLINE,
        needs_secrets=True,
    )
    (tmp_path / "shop.py").write_text(SHOP)
    failed = run_test(tmp_path, text)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "wrong_effect: evt_1 paid 2 times" in failed.stdout
    assert "fails after its own code" in failed.stdout
    assert "BROKEN" in failed.stdout
    (tmp_path / "shop.py").write_text(SHOP.replace("IS_FIXED = False", "IS_FIXED = True"))
    fixed = run_test(tmp_path, text)
    assert fixed.returncode == 0, fixed.stdout + fixed.stderr


def test_the_scenario_of_a_written_test_is_that_of_the_report() -> None:
    report = replay(shop(), SCENARIO, store="memory://")
    text = written_test(report, "shop:receivers.acme")
    assert "from shop import receivers\n" in text
    assert "replay(receivers.acme, SCENARIO)" in text
    assert "HOOKONCE_SECRETS" not in text
    namespace: dict[str, object] = {}
    exec(text.replace("from shop import receivers\n", ""), namespace)
    assert namespace["SCENARIO"] == Scenario(
        list(report.scenario.events), list(report.scenario.faults), seed=3, channels=2
    )


@pytest.mark.parametrize("scheme", ["redis", "rediss+sentinel", "postgresql", "POSTGRES"])
def test_a_written_test_holds_no_password_of_a_store(scheme: str) -> None:
    report = replay(shop(), SCENARIO, store="memory://")
    text = written_test(report, "shop:receiver", store=f"{scheme}://me:hunter2@there/events")
    assert "hunter2" not in text
    assert "import os\n" in text
    assert 'store=os.environ["HOOKONCE_STORE"]' in text
