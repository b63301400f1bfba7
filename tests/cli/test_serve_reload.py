"""`hookonce serve --reload` restarts after a change, and loses no event."""

import signal
import threading
from pathlib import Path

import httpx2
import pytest

from hookonce.testing import event_body, signed_request

from .recorder import closed_port_url
from .running import PATIENCE_SECONDS, SECRET, Process, eventually, invoke, running

APP = """
import asyncio
from pathlib import Path

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(CommentReceived, name="handle")
async def handle(event: CommentReceived) -> None:
    with open("journal", "a") as journal:
        journal.write(f"{event.id} by VERSION\\n")
    while Path(f"hold {event.id}").exists():
        await asyncio.sleep(0.005)
"""


class Reloading:
    """A server that restarts after each change of its module."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.url = closed_port_url().removesuffix("/hooks")
        self.write("first")

    def write(self, version: str) -> None:
        (self.here / "hooks.py").write_text(APP.replace("VERSION", version))

    @property
    def command(self) -> list[str]:
        return ["serve", "hooks:receiver", "--reload", "--port", str(httpx2.URL(self.url).port)]

    def deliver(self, event_id: str) -> str:
        """Deliver an event; return the answer's reason, or why there is no answer."""
        request = signed_request(event_body("comment.received", event_id=event_id), SECRET)
        url, headers = f"{self.url}/webhooks", dict(request.headers)
        try:
            answer = httpx2.post(
                url,
                content=request.body,
                headers=headers,
                timeout=PATIENCE_SECONDS,
                trust_env=False,
            )
        except httpx2.TransportError as error:
            return type(error).__name__
        reason: str = answer.json()["reason"]
        return reason

    def journal(self) -> list[str]:
        file = self.here / "journal"
        return file.read_text().splitlines() if file.exists() else []


def begun(process: Process) -> int:
    return (process.output + process.errors).count("running on http")


@pytest.mark.full("several starts of a server")
def test_a_change_restarts_the_server_after_running_handlers_have_finished(tmp_path: Path) -> None:
    it = Reloading(tmp_path)
    with running(*it.command, here=tmp_path, secrets=[SECRET]) as process:
        eventually(lambda: begun(process) == 1, what="it serves")
        hold = tmp_path / "hold evt_running"
        hold.touch()
        answers: list[str] = []
        sending = threading.Thread(target=lambda: answers.append(it.deliver("evt_running")))
        sending.start()
        eventually(lambda: it.journal() == ["evt_running by first"], what="the handler runs")
        it.write("second")
        eventually(lambda: "Shutting down" in process.errors + process.output, what="it ends")
        hold.unlink()
        sending.join(PATIENCE_SECONDS)
        assert answers == ["handled"]
        eventually(lambda: it.deliver("evt_later") == "handled", what="it serves again")
        assert it.deliver("evt_running") == "duplicate"
        assert it.journal() == ["evt_running by first", "evt_later by second"]

        (tmp_path / "hooks.py").write_text("this is no Python")
        eventually(lambda: "SyntaxError" in process.errors, what="it says what is wrong")
        it.write("third")
        eventually(lambda: it.deliver("evt_mended") == "handled", what="it serves once more")
        assert it.journal()[-1] == "evt_mended by third"

        process.signal(signal.SIGTERM)
        assert process.ended().status == 0
    assert it.deliver("evt_gone") == "ConnectError"


@pytest.mark.full("two starts of a server")
def test_the_inspectors_token_stays_the_same_after_a_change(tmp_path: Path) -> None:
    it = Reloading(tmp_path)
    with running(*it.command, "--inspector", here=tmp_path, secrets=[SECRET]) as process:
        eventually(lambda: process.output.count("?token=") == 1, what="it serves")
        it.write("second")
        eventually(lambda: process.output.count("?token=") == 2, what="it serves again")
        first, second = [
            line for line in process.output.splitlines() if line.startswith("inspector: ")
        ]
        assert first == second
        url = first.removeprefix("inspector: ")
        assert httpx2.get(url, trust_env=False).status_code == 303
        process.signal(signal.SIGTERM)
        process.ended()


def test_reload_is_refused_with_several_processes() -> None:
    result = invoke("serve", "hooks:receiver", "--reload", "--processes", "2")
    result.says("--reload restarts one process; leave out --processes", status=2)
