"""A rotation that is killed at any step leaves a usable file, and the command can be repeated.

The receiver is a real one, whose /readyz a real server serves; the service answers from a script
with a new secret each time it is asked for one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from support.scripted_api import BREAK, Asked, Said, ScriptedApi, scripted_api
from support.servers import serving

from hookonce import Receiver
from hookonce.cli.secrets_file import OpenRotation, SecretsFile
from hookonce.events import CommentReceived
from hookonce.testing import make_event, signed_request
from hookonce.verification.providers import FileSecrets
from hookonce.verification.secrets import new_key_pair, new_secret, secret_lines

from .running import invoke

pytestmark = [pytest.mark.anyio, pytest.mark.sample(1, of="file")]

KEY = "example_sk_0123456789abcdef"
TOKEN = "a token for those who may know"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Service:
    """The part of the service that a rotation needs."""

    api: ScriptedApi
    issued: list[str] = field(default_factory=list)

    def respond(self, asked: Asked) -> Said:
        if asked.path != "/v1/webhooks/wh_1/rotate-secret":
            return Said(404, {}, b"")
        self.issued.append(new_secret())
        return said(endpoint(secret=self.issued[-1]))


def said(data: Any) -> Said:
    return Said(200, {}, json.dumps({"data": data, "nextCursor": None}).encode())


def endpoint(**more: Any) -> dict[str, Any]:
    return {
        "id": "wh_1",
        "url": "https://hooks.example.com/",
        "description": "",
        "events": ["comment.received"],
        "status": "active",
        "secretPrefix": "whsec_AB",
        "consecutiveFailures": 0,
        "createdAt": "2026-07-01T09:00:00.000Z",
        **more,
    }


@dataclass
class Bench:
    """A service, a receiver that reads its secrets from a file, and the command."""

    service: Service
    file: Path
    ready_url: str
    here: Path
    old: str
    health_token: str = ""

    async def rotate(
        self,
        *options: str,
        killed_at: str | None = None,
        mounted: str | None = None,
        wait: float = 20,
    ) -> tuple[int, str]:
        """Run the command to its end, or until it kills itself; return its status and output.

        Args:
            options: beside those it needs.
            killed_at: the program that runs it, in a process of its own.
            mounted: what a shell mounts for it, where nobody else sees that.
            wait: how long the receiver may take.

        """
        arguments = (
            *("endpoints", "rotate", "wh_1", "--secrets-file", str(self.file)),
            *("--ready-url", self.ready_url, "--wait", str(wait), *options),
        )
        if killed_at is None and mounted is None:
            run = partial(invoke, *arguments, environment=self._environment())
            result = await asyncio.to_thread(run)
            status, text = result.status, result.output + result.errors
        else:
            command = [sys.executable, "-c", killed_at or _PLAIN, *arguments]
            if mounted is not None:
                shell = ["sh", "-c", f'{mounted} && exec "$@"', "sh"]
                command = [*_private_mounts(), *shell, *command]
            process = await asyncio.create_subprocess_exec(
                *command,
                env=self._environment(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(process.communicate(), 60)
            text = output.decode()
            assert process.returncode is not None
            status = process.returncode
        for secret in [self.old, *self.service.issued, KEY]:
            assert secret.partition("_")[2].rstrip("=") not in text
        return status, text

    def _environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        own = {"HOOKONCE_API_KEY": KEY, "HOOKONCE_API_URL": self.service.api.url}
        return {**kept, **own, "HOOKONCE_HEALTH_TOKEN": self.health_token}

    @property
    def secrets(self) -> tuple[str, ...]:
        return secret_lines(self.file.read_text())

    def let_time_pass(self) -> None:
        """Set the beginning of the rotation back by an hour."""
        text = self.file.read_text()
        rotation = OpenRotation.of(text)
        assert rotation is not None
        earlier = OpenRotation("wh_1", rotation.at - timedelta(hours=1))
        self.file.write_text(text.replace(str(rotation), str(earlier)))


def _private_mounts() -> list[str]:
    """Return words to put before a command, so that the command may mount file systems."""
    unshare = ["unshare", "--mount"]
    try:
        subprocess.run([*unshare, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here: run the tests as root, with the right to mount")
    return unshare


@asynccontextmanager
async def bench(here: Path, old: str | None = None) -> AsyncIterator[Bench]:
    old = old or new_secret()
    file = here / "secrets"
    file.write_text(f"# ours\n{old}\n")
    receiver = Receiver(secrets=FileSecrets(file), store="memory://")
    routes = receiver.health_routes(token=TOKEN)
    async with (
        serving(Starlette(routes=routes, lifespan=receiver.lifespan)) as site,
        scripted_api() as api,
    ):
        service = Service(api)
        api.respond = service.respond
        yield Bench(service, file, f"{site.url}/readyz", here, old, TOKEN)


async def test_a_rotation_ends_with_both_secrets_where_the_receiver_reads_them(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        status, text = await it.rotate()
        assert status == 0, text
        assert it.secrets == (*it.service.issued, it.old)
        assert len(it.service.issued) == 1
        assert it.file.stat().st_mode & 0o777 == 0o600
        assert "the receiver knows the new secret" in text
        assert "--finish" in text
        assert "# ours" in it.file.read_text()
        assert os.listdir(tmp_path) == ["secrets"]


async def test_finish_waits_for_deliveries_under_way_and_then_removes_the_old_secret(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        await it.rotate()
        status, text = await it.rotate("--finish")
        assert status == 1
        assert "not before 20" in text
        assert it.secrets == (*it.service.issued, it.old)
        it.let_time_pass()
        status, text = await it.rotate("--finish")
        assert status == 0, text
        assert it.secrets == tuple(it.service.issued)
        assert "# ours" in it.file.read_text()
        assert "rotating" not in it.file.read_text()
        assert (await it.rotate("--finish"))[0] == 0
        assert len(it.service.issued) == 1


async def test_a_public_key_gives_way_to_a_secret_like_every_old_secret(tmp_path: Path) -> None:
    public = new_key_pair().public
    async with bench(tmp_path, public) as it:
        status, text = await it.rotate()
        assert status == 0, text
        assert it.secrets == (*it.service.issued, public)
        it.let_time_pass()
        assert (await it.rotate("--finish"))[0] == 0
        assert it.secrets == tuple(it.service.issued)


async def test_a_rotation_that_is_run_again_asks_for_no_second_secret(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.rotate()
        status, text = await it.rotate()
        assert status == 0
        assert "continuing the rotation of" in text
        assert len(it.service.issued) == 1


# A program that runs the command and kills itself at the n-th system call that changes a file: just
# before the call, or just after it.
_KILLED = """
import os, signal, sys
from hookonce.cli import main

number, when = {number}, {when!r}
calls = 0

def counted(real):
    def stopped(*arguments, **options):
        global calls
        calls += 1
        if calls == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if calls == number and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return stopped

for name in ("fsync", "rename", "fchown"):
    setattr(os, name, counted(getattr(os, name)))
sys.argv[0] = "hookonce"
main()
"""

_PLAIN = "import sys; from hookonce.cli import main; sys.argv[0] = 'hookonce'; main()"

# A program that runs the command, and refuses all renames after the first ``allowed`` renames.
_BUSY = """
import errno, os, sys
from hookonce.cli import main

real, allowed = os.rename, {allowed}

def rename(source, target):
    global allowed
    if not allowed:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), source, None, target)
    allowed -= 1
    real(source, target)

os.rename = rename
sys.argv[0] = "hookonce"
main()
"""

# The system calls of a rotation, in order. ASKED and KEPT are indexes: the command sends its
# request just before the call ASKED, and the call KEPT puts the new secret into the file.
STEPS = [
    *("a copy is on the disk", "the copy takes the file's place", "its folder is on the disk"),
    *("the new text is on the disk", "the new text takes the file's place"),
    "its folder is on the disk",
]
ASKED, KEPT = 3, 4


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(len(STEPS)))
async def test_a_rotation_killed_while_it_writes_leaves_a_usable_file_and_can_be_repeated(
    tmp_path: Path, step: int, when: str
) -> None:
    async with bench(tmp_path) as it:
        status, text = await it.rotate(killed_at=_KILLED.format(number=step + 1, when=when))
        assert status == -9, text
        is_kept = step > KEPT or (step == KEPT and when == "after")
        assert len(it.service.issued) == (step >= ASKED)
        assert it.secrets == ((*it.service.issued, it.old) if is_kept else (it.old,))
        FileSecrets(it.file)  # a receiver reads this file
        status, text = await it.rotate()
        assert status == 0, text
        # The command asks for another secret only if the first secret did not get into the file.
        assert len(it.service.issued) == (1 if is_kept or step < ASKED else 2)
        assert it.secrets == (it.service.issued[-1], it.old)
        assert os.listdir(tmp_path) == ["secrets"]


async def test_the_kill_tests_cover_every_step_of_a_rotation(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        beyond = _KILLED.format(number=len(STEPS) + 1, when="before")
        assert (await it.rotate(killed_at=beyond))[0] == 0


@pytest.mark.parametrize("target", ["/rotate-secret", "readyz"])
async def test_a_rotation_killed_while_it_waits_for_an_answer_can_be_repeated(
    tmp_path: Path, target: str
) -> None:
    async with bench(tmp_path) as it:
        # The service carries out the request, but the command is killed before it gets the answer.
        code = _KILLED.format(number=99, when="before").replace(
            "main()",
            "import httpx2\n"
            "real_send = httpx2.AsyncClient.send\n"
            "async def send(self, request, **options):\n"
            "    answer = await real_send(self, request, **options)\n"
            f"    if str(request.url).partition('?')[0].endswith({target!r}):\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    return answer\n"
            "httpx2.AsyncClient.send = send\n"
            "main()",
        )
        status, text = await it.rotate(killed_at=code)
        assert status == -9, text
        assert it.old in it.secrets
        status, text = await it.rotate()
        assert status == 0, text
        # If the answer with the new secret was lost, the command has asked for another secret.
        assert len(it.service.issued) == 1 + (target == "/rotate-secret")
        assert it.secrets == (it.service.issued[-1], it.old)


async def test_after_a_broken_answer_the_error_says_to_repeat_the_command(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        respond = it.service.respond
        it.service.api.respond = lambda asked: (respond(asked), BREAK)[1]
        status, text = await it.rotate()
        assert status == 1
        assert "run this command again within that time" in text
        assert "may end the old secret at once" in text
        assert it.secrets == (it.old,)
        assert os.listdir(tmp_path) == ["secrets"]


async def test_an_undocumented_answer_loses_no_secret(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        respond = it.service.respond

        def terse(asked: Asked) -> Said:
            answer = respond(asked)
            if asked.path.endswith("/rotate-secret"):
                return said({"secret": it.service.issued[-1], "description": None})
            return answer

        it.service.api.respond = terse
        status, text = await it.rotate()
        assert status == 0, text
        assert it.secrets == (*it.service.issued, it.old)
        assert len(it.service.issued) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_a_rotation_only_after_the_secret_is_on_the_disk(
    tmp_path: Path, number: int
) -> None:
    async with bench(tmp_path) as it:
        # The signal comes when the service has made the secret, but the command has no answer yet.
        code = (
            "import os, signal, sys, httpx2\n"
            "from hookonce.cli import main\n"
            "signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored\n"
            "real = httpx2.AsyncClient.send\n"
            "async def send(self, request, **options):\n"
            "    answer = await real(self, request, **options)\n"
            "    if request.url.path.endswith('/rotate-secret'):\n"
            f"        os.kill(os.getpid(), {int(number)})\n"
            "        import asyncio; await asyncio.sleep(0)\n"
            "    return answer\n"
            "httpx2.AsyncClient.send = send\n"
            "sys.argv[0] = 'hookonce'\n"
            "main()"
        )
        status, text = await it.rotate(killed_at=code)
        assert status == 128 + number, text
        assert it.secrets == (*it.service.issued, it.old)
        assert "the receiver knows" not in text
        assert (await it.rotate())[0] == 0
        assert len(it.service.issued) == 1


async def test_a_receiver_that_reads_another_file_never_knows_the_secret(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        other = tmp_path / "other"
        other.write_text(it.file.read_text())
        it.file = other
        status, text = await it.rotate(wait=0)
        assert status == 1
        assert "the receiver does not know the new secret" in text
        assert it.secrets == (it.service.issued[-1], it.old)
        it.let_time_pass()
        status, text = await it.rotate("--finish", wait=0)
        assert status == 1
        assert "the receiver does not know the new secret" in text
        assert it.secrets == (it.service.issued[-1], it.old)


async def test_without_the_health_token_no_secret_is_asked_for(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        it.health_token = ""
        status, text = await it.rotate()
        assert status == 2
        assert "HOOKONCE_HEALTH_TOKEN" in text
        assert it.service.issued == []


async def test_a_file_that_is_not_utf_8_is_found_before_a_secret_is_asked_for(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        it.file.write_bytes(b"# cl\xe9s\n" + it.file.read_bytes())
        status, text = await it.rotate()
        assert status == 2
        assert text.startswith("Error: ")
        assert "is not UTF-8 text" in text
        assert it.service.issued == []


async def test_a_file_that_is_mounted_by_itself_is_found_before_a_secret_is_asked_for(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        text = it.file.read_text()
        status, output = await it.rotate(mounted=f"mount --bind {it.file} {it.file}")
        assert status == 2, output
        assert "a file that is mounted by itself cannot be replaced" in output
        assert it.service.issued == []
        assert (it.file.read_text(), os.listdir(tmp_path)) == (text, ["secrets"])


async def test_a_file_that_cannot_be_replaced_is_found_before_a_secret_is_asked_for(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        status, output = await it.rotate(killed_at=_BUSY.format(allowed=0))
        assert status == 2, output
        assert "a file that is mounted by itself cannot be replaced" in output
        assert (it.service.issued, os.listdir(tmp_path)) == ([], ["secrets"])


async def test_a_read_only_folder_is_found_before_a_secret_is_asked_for(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        read_only = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path}"
        status, output = await it.rotate(mounted=read_only)
        assert status == 2, output
        assert "cannot write" in output
        assert it.service.issued == []


async def test_a_secret_that_cannot_be_written_is_reported_as_lost_and_the_old_one_stays(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        status, output = await it.rotate(killed_at=_BUSY.format(allowed=1))
        assert status == 1, output
        assert "Device or resource busy" in output
        assert "If the service has rotated wh_1, the new secret is lost" in output
        assert len(it.service.issued) == 1
        assert (it.secrets, os.listdir(tmp_path)) == ((it.old,), ["secrets"])
        assert (await it.rotate())[0] == 0
        assert it.secrets == (it.service.issued[1], it.old)


async def test_a_file_in_the_middle_of_another_rotation_is_left_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        rotation = OpenRotation("wh_other", datetime.now(UTC))
        it.file.write_text(f"{rotation}{new_secret()}\n{it.old}\n")
        status, text = await it.rotate()
        assert status == 2
        assert "in the middle of the rotation of wh_other" in text
        assert it.service.issued == []


async def test_a_file_of_several_secrets_is_refused_because_any_may_be_the_old_secret(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        before = f"{new_secret()}\n{it.file.read_text()}"
        it.file.write_text(before)
        status, text = await it.rotate()
        assert status == 2
        assert "holds 2 secrets" in text
        assert (it.file.read_text(), it.service.issued) == (before, [])


@pytest.mark.parametrize("place", ["above", "below"])
async def test_finish_removes_nothing_if_the_file_has_got_another_secret(
    tmp_path: Path, place: str
) -> None:
    async with bench(tmp_path) as it:
        await it.rotate()
        it.let_time_pass()
        other, text = f"{new_secret()}\n", it.file.read_text()
        it.file.write_text(other + text if place == "above" else text + other)
        before = it.file.read_text()
        status, text = await it.rotate("--finish")
        # The command does not find the rotation's comment if other text is above the comment.
        assert status == (0 if place == "above" else 2)
        assert ("no rotation to finish" if place == "above" else "holds 3 secrets") in text
        assert it.file.read_text() == before


async def test_a_rotation_keeps_a_mode_that_lets_the_group_read(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        it.file.chmod(0o640)
        assert (await it.rotate())[0] == 0
        assert it.file.stat().st_mode & 0o777 == 0o640


async def test_two_rotations_of_one_file_do_not_run_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        with SecretsFile(it.file).locked():
            status, text = await it.rotate()
        assert status == 2
        assert "another command is changing" in text
        assert it.service.issued == []


async def test_deliveries_are_verified_before_during_and_after_a_rotation(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        receiver = Receiver(secrets=FileSecrets(it.file), store="memory://")

        async def accepted(secret: str) -> bool:
            request = signed_request(make_event(CommentReceived), secret)
            outcome = await receiver.handle(request.body, request.headers)
            return outcome.status == 200

        assert await accepted(it.old)
        await it.rotate()
        assert await accepted(it.old)
        assert await accepted(it.service.issued[-1])
        it.let_time_pass()
        await it.rotate("--finish")
        assert not await accepted(it.old)
        assert await accepted(it.service.issued[-1])
