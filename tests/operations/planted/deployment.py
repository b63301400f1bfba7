"""A deployment of hookonce in its own processes, and its operator's view of it at night.

Only `Deployment.deliver` plays the sender. All that an operator learns comes from the last lines of
the log and from commands of hookonce.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from cli.inboxes import url_of
from cli.running import COMMAND, SECRET, Process, eventually, run, running
from support.waiting import PATIENCE_SECONDS

from hookonce.samples.events import event_body
from hookonce.testing import signed_request

__all__ = ["PLAIN", "Deployment"]

# A typical receiver. Its time limit for bodies is short, because the doctor waits for the refusal
# of an endless body.
PLAIN = """
from hookonce import EnvironmentSecrets, FileSecrets, Inbox, Limits, Receiver
from hookonce.events import CommentReceived

settings = {
    "secrets": EnvironmentSecrets(),
    "store": "sqlite:///hookonce.db",
    "limits": Limits(body_seconds=0.5),
}
receiver = Receiver(**settings)

@receiver.on(CommentReceived, name="greet")
async def greet(event): ...
"""

# Moves the clock of each process of the deployment: Python imports this module at its start.
_CLOCK = """
import os, time
machine = time.time
def moved():
    with open(os.environ["CLOCK"]) as file:
        return machine() + float(file.read())
time.time = moved
"""

_LAST_LINES = 20


@dataclass
class Deployment:
    """A folder with an application, the processes that run it, and its settings.

    Attributes:
        here: the working folder of all processes.
        target: what is served, and examined by the doctor.
        secret: the secret with which the sender signs.
        url: the URL to which the sender delivers; empty if nothing is served.
        health_url: the server's own ``/readyz``.
        settings: the environment of all processes.
        processes: those whose log the operator reads.
        ending: ends everything that the deployment has started.
    """

    here: Path
    target: str = "app:receiver"
    secret: str = SECRET
    url: str = ""
    health_url: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    ending: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        token = "the token of those who operate"
        self.settings |= {"HOOKONCE_SECRETS": SECRET, "HOOKONCE_HEALTH_TOKEN": token}
        self.write(PLAIN)

    def write(self, text: str, name: str = "app.py") -> Path:
        """Write a file of the deployment, by default the application."""
        path = self.here / name
        path.write_text(text)
        return path

    def start(self, *arguments: str, user: int | None = None) -> Process:
        """Start a command of hookonce, which runs until the deployment ends.

        Args:
            user: the id of the service's user, by default the user of the tests.
        """
        other = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        process = self.ending.enter_context(
            running(
                *arguments,
                here=self.here,
                environment=self.settings,
                command=COMMAND if user is None else [*other, *COMMAND],
            )
        )
        self.processes.append(process)
        return process

    def serve(self, *, target: str | None = None, user: int | None = None) -> Process:
        """Start ``hookonce serve``, and return when it listens."""
        server = self.start("serve", target or self.target, "--port", "0", user=user)
        base = url_of(server)
        self.url, self.health_url = f"{base}/webhooks", f"{base}/readyz"
        return server

    def fails_to_start(self, *arguments: str) -> None:
        """Start a command of hookonce, and return when it has ended with status 2."""
        assert self.start(*arguments).ended().status == 2

    def put_before(self, port: int) -> None:
        """Let the sender deliver to a proxy at a port."""
        self.url = f"http://127.0.0.1:{port}/webhooks"

    @property
    def port(self) -> int:
        """The port to which the sender delivers."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def proxy(self, text: str) -> None:
        """Serve an ASGI application in front of the receiver; ``{port}`` is the receiver's port."""
        self.write(text.replace("{port}", str(self.port)), "proxy.py")
        command = [sys.executable, "-m", "uvicorn", "proxy:app", "--port", "0"]
        proxy = self.ending.enter_context(running(here=self.here, command=command))
        self.put_before(int(proxy.printed(r"running on http://127\.0\.0\.1:(\d+) ")[1]))

    def stop(self, process: Process) -> None:
        """Shut a process down, as a deployment does; the operator can no longer read its log."""
        process.process.terminate()
        process.process.wait(PATIENCE_SECONDS)
        self.processes.remove(process)

    def set_clock(self, seconds: float) -> None:
        """Move the clock of the machine, for processes that start after the first call."""
        self.write(_CLOCK, "sitecustomize.py")
        self.settings |= {"PYTHONPATH": str(self.here), "CLOCK": str(self.here / "clock")}
        new = self.write(str(seconds), "new-clock")
        new.replace(
            self.here / "clock"
        )  # in one step, since the processes may read the file at any time

    def deliver(
        self,
        event_id: str | None = None,
        *,
        times: int = 1,
        secrets: tuple[str, ...] = (),
        size: int = 0,
        body: bytes | None = None,
        skew: float = 0.0,
    ) -> int:
        """Deliver events as the sender does, and return the last status.

        Args:
            event_id: the event's id, by default a new one for each.
            times: how many events.
            secrets: those that sign the deliveries, by default the sender's.
            size: the least size of each body in bytes.
            body: the body of each event, by default that of a comment.
            skew: how long ago the delivery was signed, by the clock of the tests.
        """
        status = 0
        for _ in range(times):
            data = {"text": "x" * size} if size else None
            sent = body or event_body("comment.received", event_id=event_id, data=data)
            request = signed_request(sent, secrets or self.secret, skew=skew)
            status = httpx2.post(
                self.url,
                content=request.body,
                headers=dict(request.headers),
                timeout=PATIENCE_SECONDS,
                trust_env=False,
            ).status_code
        return status

    def logged(self, text: str) -> None:
        """Wait until a process has logged a text."""
        eventually(lambda: text in self._log(), what=f"{text!r} in {self._log()}")

    def log(self) -> str:
        """Return the last lines of the log; counts as a step of the operator."""
        return "\n".join(self._log().splitlines()[-_LAST_LINES:])

    def _log(self) -> str:
        return "".join(one.output + one.errors for one in self.processes)

    def doctor(self) -> str:
        """Return the output of ``hookonce doctor``, run as the tests' user; counts as a step."""
        where = ["--url", self.url, "--health-url", self.health_url] if self.url else []
        return self.command("doctor", self.target, *where)

    def command(self, *arguments: str) -> str:
        """Return the output of a command with the service's settings; counts as a step."""
        result = run(*arguments, here=self.here, environment=self.settings)
        return result.output + result.errors
