"""``hookonce endpoints rotate``: replace an endpoint's secret while deliveries go on.

For 24 hours after a rotation every delivery carries two signatures (interface, Events: secret
rotation). No delivery is lost if the receiver gets the new secret within that day, and keeps the
old secret until then. Every step can be repeated, except the request for a new secret. That request
is sent only if the file shows no open rotation.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import httpx2

from hookonce.client import ApiError, Client, NoAnswerError, UnreadableAnswerError
from hookonce.errors import SecretError
from hookonce.senders import publishing
from hookonce.verification.secrets import fingerprint, secret_lines

from .durations import Duration
from .ending import ended_after_this
from .listeners import DEFAULT_PORT, HEALTH_TOKEN_VARIABLE
from .output import Output, system_fault
from .secrets_file import OpenRotation, SecretsFile, without_old_secret
from .service import read_id, service_options, with_client
from .statuses import CannotBegin, Nothing, Status

_LOOK_SECONDS = 0.5
# This many answers in a row must confirm the new secret: several processes may share one address,
# and each of them must know the secret.
_ANSWERS_IN_A_ROW = 3

# The service signs with two secrets (interface, Events: Delivery behaviour). The interface does not
# say whether a second rotation ends the first secret at once.
_IF_LOST = (
    "If the service has rotated {}, the new secret is lost. The service signs with the old secret"
    " too for 24 hours: run this command again within that time. The second rotation may end the"
    " old secret at once, so the receiver must read the file without a restart; the service retries"
    " what the receiver refuses until then"
)


@click.command()
@click.argument("webhook_id", metavar="WEBHOOK", callback=read_id)
@click.option(
    "--secrets-file",
    required=True,
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="The file that the receiver reads its secrets from.",
)
@click.option(
    "--ready-url",
    "ready_urls",
    multiple=True,
    help="The receiver's /readyz, which tells which secrets it knows; repeat the option for several"
    " receivers. By default http://127.0.0.1:$PORT/readyz.",
)
@click.option(
    "--wait",
    "wait_seconds",
    default="60s",
    show_default=True,
    type=Duration(0),
    help="How long to wait until the receiver knows the new secret, such as 30s or 2m.",
)
@click.option("--finish", is_flag=True, help="Remove the old secret, once nothing needs it.")
@service_options
def rotate(
    webhook_id: str,
    secrets_file: Path,
    ready_urls: tuple[str, ...],
    wait_seconds: float,
    api_url: str,
    key_file: Path | None,
    *,
    finish: bool,
    as_json: bool,
) -> None:
    """Rotate the secret of WEBHOOK without downtime.

    The command asks for a new secret, writes it into the file above the old one, waits until the
    receiver knows it, and says when --finish can remove the old secret. If the command is
    interrupted or fails, run it again: it continues where it stopped.

    Exits 0 if all is well; 1 if the receiver does not know the new secret, or it is too early for
    --finish. The file holds both secrets then.
    """
    token = os.environ.get(HEALTH_TOKEN_VARIABLE)
    if not token:
        raise CannotBegin(
            "a receiver tells which secrets it knows only to requests with its health token: set"
            f" {HEALTH_TOKEN_VARIABLE} for `hookonce serve`, or use health_routes(token=…), and set"
            " it here too"
        )
    urls = ready_urls or (f"http://127.0.0.1:{os.environ.get('PORT') or DEFAULT_PORT}/readyz",)
    file, output = SecretsFile(secrets_file), Output(as_json=as_json)
    rotation = _Rotation(webhook_id, file, output, urls, token, wait_seconds)
    if not with_client(
        api_url, key_file, lambda client: rotation.finish() if finish else rotation.run(client)
    ):
        raise SystemExit(Status.FOUND)


@contextmanager
def changing(file: SecretsFile) -> Iterator[None]:
    """Lock a file during the block, and report an error of the file in one line."""
    try:
        with file.locked():
            yield
    except BlockingIOError:
        raise CannotBegin(
            f"another command is changing {str(file.path)!r}; wait until it has ended"
        ) from None
    except SecretError as error:
        raise CannotBegin(str(error)) from None
    except OSError as error:
        fault = f"cannot write {str(file.path)!r}: {system_fault(error)}"
        if error.errno == errno.EBUSY:
            fault += "; a file that is mounted by itself cannot be replaced: mount its folder"
        raise CannotBegin(fault) from None


@contextmanager
def asking(file: SecretsFile, if_lost: str) -> Iterator[Callable[[str, str], None]]:
    """Yield a function that writes a new secret and its comment into the locked file.

    Request the secret inside the block. Signals that end the command wait for the end of the block.

    Args:
        file: holds no secret of another endpoint.
        if_lost: what to add to an error after which the service may have issued a secret.
    """
    file.prove_replaceable()
    is_kept = False

    def keep(secret: str, comment: str) -> None:
        nonlocal is_kept
        file.replace(f"{comment}{secret}\n{file.read()}")
        is_kept = True

    with ended_after_this("the service may have given a secret that has to be written"):
        try:
            yield keep
        except (NoAnswerError, UnreadableAnswerError, ApiError, OSError) as error:
            was_refused = isinstance(error, ApiError) and error.status < 500
            was_not_sent = isinstance(error, NoAnswerError) and not error.may_have_arrived
            if is_kept or was_refused or was_not_sent:
                raise
            fault = system_fault(error) if isinstance(error, OSError) else error
            raise Nothing(f"{fault}. {if_lost}") from None


@dataclass(frozen=True)
class _Rotation:
    """The steps of a rotation; ``token`` is the health token of the receivers."""

    webhook_id: str
    file: SecretsFile
    output: Output
    ready_urls: Sequence[str]
    token: str
    wait_seconds: float

    async def run(self, client: Client) -> bool:
        """Begin a rotation, or continue an open rotation; return whether every step succeeded."""
        with changing(self.file):
            rotation = self._open_rotation()
            if rotation is None:
                rotation = await self._rotated(client)
                self._say("written", f"the new secret is in {self.file.path}, the old one kept")
            else:
                self._say("resumed", f"continuing the rotation of {_time(rotation.at)}")
            if not await self._is_known():
                return False
        ends = rotation.at + timedelta(seconds=publishing.rules.two_signatures_seconds or 0.0)
        self._say(
            "ready",
            f"to remove the old secret, run this with --finish from {_time(_removable(rotation))}"
            f" on; the sender signs with both until {_time(ends)}",
            removable_at=_removable(rotation).isoformat(),
        )
        return True

    async def finish(self) -> bool:
        """Remove the old secret; return whether that was possible."""
        with changing(self.file):
            rotation = self._open_rotation()
            if rotation is None:
                self._say("finished", "there is no rotation to finish; the file stays as it is")
                return True
            if datetime.now(UTC) < _removable(rotation):
                return self._fail(
                    "early",
                    f"not before {_time(_removable(rotation))}: a delivery signed before the"
                    " rotation may still be on its way",
                )
            if not await self._is_known():
                return False
            self.file.replace(without_old_secret(self.file.read()))
        self._say("finished", f"{self.file.path} holds the new secret only")
        return True

    def _open_rotation(self) -> OpenRotation | None:
        text = self.file.read()
        if not secret_lines(text):
            raise CannotBegin(f"{str(self.file.path)!r} holds no secret; is it the right file?")
        rotation = OpenRotation.of(text)
        if rotation is not None and rotation.webhook_id != self.webhook_id:
            raise CannotBegin(
                f"{str(self.file.path)!r} is in the middle of the rotation of"
                f" {rotation.webhook_id}; finish that first"
            )
        return rotation

    async def _rotated(self, client: Client) -> OpenRotation:
        """Rotate the secret at the service, and write the new secret into the file at once."""
        count = len(secret_lines(self.file.read()))
        if count > 1:
            raise CannotBegin(
                f"{str(self.file.path)!r} holds {count} secrets: remove those that are not used any"
                " more, and keep the secret of each endpoint in a file of its own"
            )
        rotation = None
        if_lost = _IF_LOST.format(self.webhook_id)
        with asking(self.file, if_lost) as keep:

            def keep_it(secret: str, _: str | None) -> None:
                nonlocal rotation
                rotation = OpenRotation(self.webhook_id, datetime.now(UTC).replace(microsecond=0))
                keep(secret, str(rotation))

            try:
                await client.webhooks.rotate_secret(self.webhook_id, keep=keep_it)
            except UnreadableAnswerError:
                if rotation is None:
                    raise
        if rotation is None:
            raise Nothing(f"the service gave no secret. {if_lost}")
        return rotation

    async def _is_known(self) -> bool:
        """Wait until every receiver knows the newest secret; return False after the time limit."""
        wanted = fingerprint(secret_lines(self.file.read())[0])
        for url in self.ready_urls:
            deadline = time.monotonic() + self.wait_seconds
            in_a_row = 0
            while in_a_row < _ANSWERS_IN_A_ROW:
                fault = await self._fault(url, wanted)
                in_a_row = 0 if fault else in_a_row + 1
                if fault and time.monotonic() >= deadline:
                    return self._fail(
                        "unknown", f"{url}: {fault}; the file holds both secrets: run this again"
                    )
                if fault:
                    await asyncio.sleep(_LOOK_SECONDS)
            self._say("known", f"{url}: the receiver knows the new secret")
        return True

    async def _fault(self, url: str, wanted: str) -> str | None:
        """Ask ``/readyz`` once; return why the receiver does not know the secret, or None."""
        headers = {"authorization": f"Bearer {self.token}"}
        try:
            # Use a new connection for each request, because another process may accept the next
            # connection.
            async with httpx2.AsyncClient(timeout=5.0, trust_env=False) as http:
                answer = (await http.get(url, headers=headers)).json()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return f"no answer ({type(error).__name__})"
        except ValueError:
            return "this is not an answer of /readyz"
        known = answer.get("secrets") if isinstance(answer, dict) else None
        if not isinstance(known, list):
            return "the answer has no fingerprints of secrets: this is not its health token"
        return None if wanted in known else "the receiver does not know the new secret"

    def _say(self, step: str, line: str, **more: object) -> None:
        self.output.record({"webhook": self.webhook_id, "step": step, **more}, line)

    def _fail(self, step: str, line: str) -> bool:
        """Report that a step has failed, and return False."""
        self.output.record({"webhook": self.webhook_id, "step": step, "fault": line}, line, "red")
        return False


def _removable(rotation: OpenRotation) -> datetime:
    """Return the time after which deliveries with only the old signature are too old to accept."""
    return rotation.at + timedelta(seconds=publishing.tolerance_seconds)


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")
