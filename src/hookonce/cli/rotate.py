"""``hookonce endpoints rotate``: another secret without a delivery that nobody can verify.

For 24 hours after a rotation every delivery carries two signatures (interface, Events: secret
rotation). So nothing is lost as long as the receiver keeps the old secret until it knows the new
one, and knows the new one within that day. Each step can be repeated. The one that cannot, asking
for the secret, is done only while the file shows no rotation that was begun, and its answer is on
the disk before anything else.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import click
import httpx2

from hookonce.client import ApiError, Client, NoAnswerError, UnreadableAnswerError
from hookonce.errors import SecretError
from hookonce.resources import WebhookDelivery
from hookonce.sender import TOLERANCE_SECONDS, TWO_SIGNATURES_SECONDS
from hookonce.verification.clock import system_clock
from hookonce.verification.loggers import printable
from hookonce.verification.secrets import fingerprint

from .durations import Duration
from .ending import ended_after_this
from .listeners import DEFAULT_PORT, HEALTH_TOKEN_VARIABLE
from .output import Output, system_fault
from .secrets_file import Keep, Mark, SecretsFile
from .service import read_id, service_options, with_client
from .statuses import CannotBegin, Nothing, Status

_LOOK_SECONDS = 0.5
# Behind one address there may be several processes, each of which has to know it.
_ANSWERS_IN_A_ROW = 3
_TEST_SECONDS = 20.0

# A delivery carries two signatures, one per secret (interface, Events: Delivery behaviour). What a
# second rotation does to the first is not shown.
_IF_LOST = (
    "If the service has rotated {}, the new secret is lost, and deliveries are signed with the old"
    " one too for 24 hours. Rotate again within them. As a delivery carries two signatures, the old"
    " secret may then end at once: see that the receiver reads the file without a restart; what it"
    " refuses until then is delivered again"
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
    help="The receiver's /readyz, which has to know the new secret; several times for several"
    " receivers. By default http://127.0.0.1:$PORT/readyz.",
)
@click.option(
    "--ready-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"The token for /readyz. By default it is taken from ${HEALTH_TOKEN_VARIABLE}.",
)
@click.option(
    "--wait",
    "wait_seconds",
    default="60s",
    show_default=True,
    type=Duration(0),
    help="How long to wait until the receiver knows the new secret, such as 30s or 2m.",
)
@click.option("--finish", is_flag=True, help="Remove the old secret, once it is not needed.")
@service_options
def rotate(
    webhook_id: str,
    secrets_file: Path,
    ready_urls: tuple[str, ...],
    ready_token_file: Path | None,
    wait_seconds: float,
    api_url: str,
    key_file: Path | None,
    *,
    finish: bool,
    as_json: bool,
) -> None:
    """Rotate the secret of WEBHOOK without downtime.

    Asks for a new secret and writes it into the file, before the old one; waits until the receiver
    knows it; has a test delivered; and says from when on --finish may remove the old one. Broken
    off at any point it can be run again, and goes on where it was.

    Exits 0 if all is well; 1 if the receiver does not know the new secret, or the test failed, or
    it is too early for --finish. The new secret is in the file all the same: run it again.
    """
    urls = ready_urls or (f"http://127.0.0.1:{os.environ.get('PORT') or DEFAULT_PORT}/readyz",)
    token = os.environ.get(HEALTH_TOKEN_VARIABLE) or None
    if ready_token_file is not None:
        token = _token_in(ready_token_file)
    if token is None:
        raise CannotBegin(
            "a receiver names the secrets it knows to those alone that show its health token: set"
            f" {HEALTH_TOKEN_VARIABLE} for `hookonce serve`, or use health_routes(token=…), and set"
            " it here too, or name a --ready-token-file"
        )
    rotation = _Rotation(
        webhook_id, SecretsFile(secrets_file), Output(as_json=as_json), urls, token, wait_seconds
    )
    step = rotation.finish if finish else rotation.run
    if not with_client(api_url, key_file, step):
        raise SystemExit(Status.FOUND)


def _token_in(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except UnicodeDecodeError:
        raise CannotBegin(f"{str(file)!r} has to hold a token, and is not UTF-8 text") from None


@contextmanager
def writing(file: SecretsFile) -> Iterator[None]:
    """Hold the file while the block lasts, or end with what is wrong with it."""
    try:
        with file.held():
            for note in file.take_up():
                click.echo(printable(f"Warning: {note}"), err=True)
            yield
    except BlockingIOError:
        raise CannotBegin(
            f"another command is changing {str(file.path)!r}; wait until it has ended"
        ) from None
    except SecretError as error:
        raise CannotBegin(f"{error}{_kept_in(file)}") from None
    except OSError as error:
        fault = f"cannot write {str(file.path)!r}: {system_fault(error)}"
        if error.errno == errno.EBUSY:
            fault += "; a file that is mounted by itself cannot be replaced: mount its folder"
        raise CannotBegin(f"{fault}{_kept_in(file)}") from None


def _kept_in(file: SecretsFile) -> str:
    if file.journal is None:
        return ""
    return (
        f". The new secret is in {str(file.journal)!r}, and nowhere else: keep that file, mend"
        " this, and the next command that writes the secrets takes it from there"
    )


@contextmanager
def asking(file: SecretsFile, if_lost: str) -> Iterator[Keep]:
    """Ask for a secret in the block; where no secret comes, say what may have become of it."""
    held_back = "the service may have given a secret that has to be written"
    with ended_after_this(held_back), file.asking(if_lost) as keep:
        try:
            yield keep
        except (NoAnswerError, UnreadableAnswerError, ApiError, OSError) as error:
            if file.journal is not None or not _may_be_done(error):
                raise
            fault = system_fault(error) if isinstance(error, OSError) else error
            raise Nothing(f"{fault}. {if_lost}") from None


def _may_be_done(error: Exception) -> bool:
    if isinstance(error, NoAnswerError):
        return error.may_have_arrived
    return not isinstance(error, ApiError) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class _Rotation:
    """A rotation, step by step.

    Args:
        webhook_id: of which endpoint.
        file: where the receiver reads its secrets.
        output: where to say what was done.
        ready_urls: where receivers say which secrets they know.
        token: what they want to be shown.
        wait_seconds: how long they may take.

    """

    def __init__(
        self,
        webhook_id: str,
        file: SecretsFile,
        output: Output,
        ready_urls: Sequence[str],
        token: str,
        wait_seconds: float,
    ) -> None:
        self._webhook_id = webhook_id
        self._file = file
        self._output = output
        self._ready_urls = ready_urls
        self._headers = {"authorization": f"Bearer {token}"}
        self._wait_seconds = wait_seconds

    async def run(self, client: Client) -> bool:
        """Rotate, or go on with a rotation that was begun; return whether all is well."""
        with writing(self._file):
            mark = self._begun()
            if mark is None:
                mark = await self._ask(client)
                self._say("written", f"the new secret is in {self._file.path}, the old one kept")
            else:
                self._say("resumed", f"going on with the rotation of {_time(mark.at)}")
            is_known = await self._is_known()
            if not is_known:
                return False
            if not await self._is_delivered(client):
                return False
        self._say(
            "ready",
            f"the old secret can go from {_time(_removable(mark))} on: run this with --finish; the"
            f" sender signs with both until {_time(_ends(mark))}",
            removable_at=_removable(mark).isoformat(),
        )
        return True

    async def finish(self, client: Client) -> bool:  # noqa: ARG002 - a step like the other
        """Remove the old secret; return whether it could go."""
        with writing(self._file):
            mark = self._begun()
            if mark is None:
                self._say("finished", "there is no rotation to finish; the file stays as it is")
                return True
            if _now() < _removable(mark):
                self._fail(
                    "early",
                    f"not before {_time(_removable(mark))}: a delivery signed before the rotation"
                    " may still be on its way",
                )
                return False
            if not await self._is_known():
                return False
            removed = self._file.finish()
        self._say(
            "finished", f"{removed} old secret{'s' * (removed != 1)} removed", removed=removed
        )
        return True

    def _begun(self) -> Mark | None:
        mark = self._file.mark()
        if not self._file.secrets():
            raise CannotBegin(f"{str(self._file.path)!r} holds no secret; is it the right file?")
        if mark is not None and mark.webhook_id != self._webhook_id:
            raise CannotBegin(
                f"{str(self._file.path)!r} is in the middle of the rotation of {mark.webhook_id};"
                " finish that first"
            )
        return mark

    async def _ask(self, client: Client) -> Mark:
        """Ask for a new secret, and put it on the disk before anything else."""
        marks: list[Mark] = []
        with asking(self._file, _IF_LOST.format(self._webhook_id)) as keep:

            def keep_it(secret: str, _: str | None) -> None:
                marks.append(Mark(self._webhook_id, _now()))
                keep(marks[0], secret)

            try:
                await client.webhooks.rotate_secret(self._webhook_id, keep=keep_it)
            except UnreadableAnswerError:
                if not marks:
                    raise
        if not marks:
            raise Nothing(f"the service gave no secret. {_IF_LOST.format(self._webhook_id)}")
        return marks[0]

    async def _is_known(self) -> bool:
        """Return whether every receiver knows the newest secret, after waiting for that."""
        wanted = fingerprint(self._file.newest())
        for url in self._ready_urls:
            fault = await self._awaited(url, wanted)
            if fault is not None:
                self._fail(
                    "unknown", f"{url}: {fault}; the file holds both secrets: run this again"
                )
                return False
            self._say("known", f"{url}: the receiver knows the new secret")
        return True

    async def _awaited(self, url: str, wanted: str) -> str | None:
        """Return None once a receiver knows the secret, or why it does not in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds
        in_a_row = 0
        while True:
            fault = await self._fault(url, wanted)
            in_a_row = in_a_row + 1 if fault is None else 0
            if in_a_row == _ANSWERS_IN_A_ROW:
                return None
            if fault is not None:
                if loop.time() >= deadline:
                    return fault
                await asyncio.sleep(_LOOK_SECONDS)

    async def _fault(self, url: str, wanted: str) -> str | None:
        try:
            # A connection for each look, since another process may take it.
            async with httpx2.AsyncClient(timeout=5.0, trust_env=False) as http:
                answer = (await http.get(url, headers=self._headers)).json()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return f"no answer ({type(error).__name__})"
        except ValueError:
            return "it answers something else than /readyz does"
        known = answer.get("secrets") if isinstance(answer, dict) else None
        if not isinstance(known, list):
            return "it does not tell its secrets' fingerprints: this is not its health token"
        if not known:
            return "the receiver can use no secret at all"
        return None if wanted in known else "the receiver does not know the new secret"

    async def _is_delivered(self, client: Client) -> bool:
        """Have a test delivered, and return whether the log says that it was accepted."""
        before = {delivery.id for delivery in await self._tests(client)}
        await client.webhooks.test(self._webhook_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TEST_SECONDS
        while True:
            new = [one for one in await self._tests(client) if one.id not in before]
            if any(one.delivered_at is not None for one in new):
                self._say("tested", "a test was delivered and accepted")
                return True
            failed = next((one for one in new if one.error_message or one.response_status), None)
            if failed is not None or loop.time() >= deadline:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        answer = (
            "no answer yet" if failed is None else failed.error_message or failed.response_status
        )
        self._fail(
            "test failed", f"the test was not accepted ({answer}); mend it and run this again"
        )
        return False

    async def _tests(self, client: Client) -> list[WebhookDelivery]:
        page = await anext(aiter(client.webhooks.deliveries(self._webhook_id).pages()))
        return [delivery for delivery in page.data if delivery.is_test]

    def _say(self, step: str, line: str, **more: object) -> None:
        self._output.record({"webhook": self._webhook_id, "step": step, **more}, line)

    def _fail(self, step: str, line: str) -> None:
        self._output.record({"webhook": self._webhook_id, "step": step, "fault": line}, line, "red")


def _now() -> datetime:
    return datetime.fromtimestamp(system_clock(), UTC).replace(microsecond=0)


def _removable(mark: Mark) -> datetime:
    """Return when nothing can arrive any more that only the old secret has signed."""
    return mark.at + timedelta(seconds=TOLERANCE_SECONDS)


def _ends(mark: Mark) -> datetime:
    return mark.at + timedelta(seconds=TWO_SIGNATURES_SECONDS)


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")
