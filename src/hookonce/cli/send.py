"""``hookonce send``: build, sign and post a realistic event."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click
import httpx2
from pydantic import JsonValue

from hookonce.sender import ANSWER_SECONDS
from hookonce.testing import signed_request
from hookonce.testing.samples import event_body

from .loading import load_secrets, secrets_option
from .output import Output, json_option

__all__ = ["send"]

# A proxy in the environment is for the way out of the machine.
_WITHOUT_PROXY = dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]"))


@click.command()
@click.argument("event_type", metavar="TYPE")
@click.option("--url", required=True, help="Where to deliver to.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a field of the sample, for example data.text=Hello; VALUE may be JSON.",
)
@click.option(
    "--body",
    "body_file",
    type=click.File("rb"),
    help="Send these bytes instead of a sample; - for standard input.",
)
@click.option(
    "--id", "event_id", help="Its webhook-id; by default the id in the body, else a new one."
)
@click.option(
    "--attempt", default=1, show_default=True, type=click.IntRange(1), help="The attempt to name."
)
@click.option(
    "--times",
    default=1,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Deliver this often, one after the other: duplicates.",
)
@click.option(
    "--skew", default=0.0, help="Sign as of so many seconds ago; negative for the future."
)
@click.option("--tamper", is_flag=True, help="Change a byte after signing.")
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
    *,
    tamper: bool,
    secrets_file: Path | None,
    as_json: bool,
) -> None:
    """Deliver an event of TYPE, signed as the service signs it, and show the answer.

    Exits 0 if every answer was a 2xx.

    For example: hookonce send comment.received --url http://127.0.0.1:8000/webhooks
    """
    secret = load_secrets(secrets_file)[0]  # the newest, which the sender keeps after a rotation
    if body_file is not None and changes:
        raise click.UsageError("--set changes the sample; with --body there is none")
    output = Output(as_json=as_json)
    accepted = True
    with (
        _explained(f"cannot deliver to {url}"),
        httpx2.Client(timeout=ANSWER_SECONDS, mounts=_WITHOUT_PROXY) as client,
    ):
        body = _sample(event_type, event_id, changes) if body_file is None else body_file.read()
        for _ in range(times):
            request = signed_request(body, secret, message_id=event_id, attempt=attempt, skew=skew)
            if tamper:
                request = request.tampered()
            event_id = request.headers["webhook-id"]  # every copy has it
            headers = [(name.encode(), value.encode()) for name, value in request.headers.items()]
            started = time.perf_counter()
            response = client.post(url, content=request.body, headers=headers)
            milliseconds = (time.perf_counter() - started) * 1000
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
        raise SystemExit(1)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """End with one line where an id, a time or a text cannot be sent, or nobody answers."""
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise click.ClickException(f"{what}: {str(error) or type(error).__name__}") from error


def _sample(event_type: str, event_id: str | None, changes: tuple[str, ...]) -> bytes:
    envelope: dict[str, JsonValue] = json.loads(event_body(event_type, event_id=event_id))
    for change in changes:
        path, equals, text = change.partition("=")
        if not (path and equals):
            raise click.BadParameter(f"{change!r} is not of the form PATH=VALUE")
        *parents, name = path.split(".")
        place: JsonValue = envelope
        for parent in parents:
            if isinstance(place, dict):
                place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise click.BadParameter(f"{path!r} leads through a value that is no object")
        place[name] = _value(text)
    return _compact(envelope)


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def _compact(envelope: Mapping[str, JsonValue]) -> bytes:
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
