"""``hookonce send``: build, sign and post a realistic event."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

import click
import httpx2
from pydantic import JsonValue

from hookonce.errors import PayloadError
from hookonce.events import EventClass, EventParser, event_types_of
from hookonce.logs import printable
from hookonce.samples.events import event_body
from hookonce.samples.fields import Fields, body_fields
from hookonce.senders import Sender, publishing
from hookonce.testing import SignedRequest, signed_request

from .durations import Duration
from .loading import load_signing_secret, secrets_option
from .output import Output, json_option
from .senders import sender_option
from .statuses import Nothing, Status

_LOOK_SECONDS = 0.1

# Ignore proxies that the environment names: a proxy cannot reach this machine.
_WITHOUT_PROXY = dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]"))


def _types(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Return the event types that complete a word in the shell."""
    sender = context.params.get("sender")
    known = _classes_of(sender if isinstance(sender, Sender) else publishing)
    return [name for name in known if name.startswith(begun)]


@click.command()
@click.argument("event_type", metavar="TYPE", shell_complete=_types)
@click.option("--url", required=True, help="Where the receiver answers.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a field of the sample, for example data.text=Hello; VALUE may be JSON.",
)
@click.option(
    "--unchecked", is_flag=True, help="Also send a TYPE, or --set a field, that is not known here."
)
@click.option(
    "--body",
    "body_file",
    type=click.File("rb"),
    help="Send these bytes instead of a sample; - for standard input.",
)
@click.option(
    "--id",
    "event_id",
    help="The signed id; by default the id in the body if the sender signs that, else a new one.",
)
@click.option(
    "--attempt",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="The number of the attempt, for a sender with a header for it.",
)
@click.option(
    "--times",
    default=1,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="How often to deliver the same event, one after the other.",
)
@click.option(
    "--skew",
    default="0s",
    type=Duration(),
    help="Sign with a timestamp this long ago, such as 30s or 10m; -30s lies in the future.",
)
@click.option(
    "--wait",
    "wait_seconds",
    default="10s",
    show_default=True,
    type=Duration(0),
    help="How long to wait for a server whose port is still closed, such as 30s or 2m.",
)
@click.option("--tamper", is_flag=True, help="Change a byte after signing.")
@sender_option
@secrets_option
@json_option
def send(
    event_type: str,
    url: str,
    changes: tuple[str, ...],
    body_file: BinaryIO | None,
    event_id: str | None,
    attempt: int,
    times: int,
    skew: float,
    wait_seconds: float,
    *,
    unchecked: bool,
    tamper: bool,
    sender: Sender,
    secrets_file: Path | None,
    as_json: bool,
) -> None:
    """Deliver an event of TYPE, signed as its sender signs it, and show the answer.

    The sample has the envelope of the sender, and for a TYPE of publishing or openai also data.
    Give the data of other types with --set or --body.

    Exits 0 if every answer was a 2xx.

    For example: hookonce send comment.received --url http://127.0.0.1:8000/webhooks
    """
    # Sign with the newest secret: during a rotation the service signs with it, too.
    secret = load_signing_secret(secrets_file)
    if body_file is not None and changes:
        raise click.UsageError("--set changes the sample; with --body there is none")
    if attempt > 1 and sender.hints is None:
        raise click.UsageError(f"the sender {sender.name!r} has no header for --attempt")
    event_class = _classes_of(sender).get(event_type)
    if body_file is None and not unchecked and event_class is None:
        _check_type(event_type, sender)
    output = Output(as_json=as_json)
    accepted = True
    until = time.monotonic() + wait_seconds
    with (
        _explained(f"cannot deliver to {url}"),
        httpx2.Client(timeout=sender.rules.patience_seconds, mounts=_WITHOUT_PROXY) as client,
    ):
        body = (
            _sample(event_type, event_class, event_id, changes, sender, unchecked=unchecked)
            if body_file is None
            else body_file.read()
        )
        for _ in range(times):
            request = signed_request(
                body, secret, message_id=event_id, attempt=attempt, skew=skew, sender=sender
            )
            if tamper:
                request = request.tampered()
            # All copies get the id of the first copy.
            event_id = request.headers[f"{sender.headers[0]}-id"]
            response = _posted(client, url, request, until=until)
            milliseconds = response.elapsed.total_seconds() * 1000
            accepted = accepted and response.is_success
            output.record(
                {
                    "id": event_id,
                    "type": event_type,
                    "attempt": attempt,
                    "status": response.status_code,
                    "answer": response.text,
                    "milliseconds": round(milliseconds, 1),
                },
                f"{event_type} {event_id}: {response.status_code} {response.text.strip()}"
                f" ({milliseconds:.1f} ms)",
                "green" if response.is_success else "red",
            )
    if not accepted:
        raise SystemExit(Status.FOUND)


def _posted(
    client: httpx2.Client, url: str, request: SignedRequest, *, until: float
) -> httpx2.Response:
    """Post the request; repeat it while the port is closed, because the server may be starting."""
    headers = [(name.encode(), value.encode()) for name, value in request.headers.items()]
    says_so = True
    while True:
        try:
            return client.post(url, content=request.body, headers=headers)
        except httpx2.ConnectError as error:
            if not _is_refused(error) or time.monotonic() >= until:
                raise
        if says_so:
            says_so = False
            click.echo(f"waiting for a server at {printable(url)}", err=True)
        time.sleep(_LOOK_SECONDS)


def _is_refused(error: BaseException | None) -> bool:
    """Return whether the connection was refused: no server listens at the port."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Exit with one line if a value cannot be sent or the server does not answer."""
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise Nothing(f"{what}: {str(error) or type(error).__name__}") from error


def _classes_of(sender: Sender) -> dict[str, EventClass]:
    return {name: cls for cls in sender.event_classes for name in event_types_of(cls)}


def _check_type(event_type: str, sender: Sender) -> None:
    """Exit with a usage error if the sender lists its event types, and this type is not listed."""
    known = _classes_of(sender)
    if not known:
        return
    likely = get_close_matches(event_type.lower(), known, n=1)
    hint = f" (did you mean {likely[0]!r}?)" if likely else ""
    whose = "" if sender == publishing else f" of the sender {sender.name!r}"
    raise click.UsageError(
        f"{event_type!r} is no event type{whose} known here{hint}; --unchecked sends it all the"
        " same"
    )


def _sample(
    event_type: str,
    event_class: EventClass | None,
    event_id: str | None,
    changes: tuple[str, ...],
    sender: Sender,
    *,
    unchecked: bool,
) -> bytes:
    try:
        envelope: dict[str, JsonValue] = json.loads(
            event_body(event_type, event_id=event_id, sender=sender)
        )
    except TypeError:
        raise click.UsageError(
            f"no sample can be made for the sender {sender.name!r}, because its envelope has a"
            " function; give the body with --body"
        ) from None
    known = body_fields(event_class or sender.unknown_event, sender.envelope)
    is_readable = unchecked or event_class is None or not _fault_in(event_type, envelope, sender)
    for change in changes:
        path, equals, text = change.partition("=")
        if not (path and equals):
            raise click.BadParameter(f"{change!r} is not of the form PATH=VALUE")
        place: JsonValue = envelope
        fields: Fields | None = known
        *parents, last = path.split(".")
        for depth, name in enumerate([*parents, last]):
            if not isinstance(place, dict):
                raise click.BadParameter(f"{path!r} leads through a value that is no object")
            wire = name
            if fields is not None:
                wire = _wire_name(fields, name, path.split(".")[:depth], place, unchecked=unchecked)
                fields = fields.objects.get(wire)
            if depth == len(parents):
                place[wire] = _value(text)
            else:
                place = place.setdefault(wire, {})
    # Accept a change that makes a readable sample unreadable: the user may want to see how the
    # receiver quarantines it.
    if not is_readable and (fault := _fault_in(event_type, envelope, sender)) is not None:
        raise click.UsageError(
            f"there is no sample of {event_type!r}, so --set its data: {fault}; --unchecked sends"
            " it all the same"
        )
    return _compact(envelope)


def _fault_in(event_type: str, envelope: Mapping[str, JsonValue], sender: Sender) -> str | None:
    """Return why the parser rejects an event; None if the parser accepts the event."""
    try:
        EventParser(sender=sender).parse(_compact(envelope))
    except PayloadError as error:
        # Each problem begins with the event type, which the caller's message names already.
        start = f"{event_type}."
        return "; ".join(one.removeprefix(start) for one in error.problems) or str(error)
    return None


def _wire_name(
    fields: Fields,
    name: str,
    place: Sequence[str],
    known: Mapping[str, JsonValue],
    *,
    unchecked: bool,
) -> str:
    if unchecked:
        return fields.names.get(name, name)
    try:
        return fields.wire_name(name, place=place, known=known)
    except ValueError as error:
        raise click.BadParameter(f"{error}; --unchecked adds it all the same") from None


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def _compact(envelope: Mapping[str, JsonValue]) -> bytes:
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
