"""``hookonce verify`` and ``hookonce explain``: saved deliveries, looked at again."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import click

from hookonce.errors import VerificationError
from hookonce.operations.diagnosis import Diagnosis, diagnose
from hookonce.sender import TOLERANCE_SECONDS
from hookonce.verification.signature import verify as verify_delivery

from .durations import Duration
from .loading import load_secrets, secrets_option, unchecked_secrets
from .numbers import FiniteRange
from .output import Output, json_option, together
from .statuses import Status

_file = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
_saved_delivery = together(
    click.option(
        "--request",
        "request_file",
        type=_file,
        help="A saved HTTP request: request line, headers, blank line, body. - for standard input.",
    ),
    click.option(
        "--headers", "headers_file", type=_file, help="Its headers, one 'Name: value' a line."
    ),
    click.option("--body", "body_file", type=_file, help="Its raw body. - for standard input."),
    click.option(
        "--now",
        type=FiniteRange(),
        help="Verify as of this Unix time, for a recorded delivery.",
    ),
    click.option(
        "--tolerance",
        default=f"{TOLERANCE_SECONDS:g}s",
        show_default=True,
        type=Duration(0),
        help="How far the timestamp may be off, such as 30s or 5m.",
    ),
    secrets_option,
    json_option,
)


class _Saved(NamedTuple):
    body: bytes
    headers: list[tuple[bytes, bytes]]


@click.command()
@_saved_delivery
def verify(
    request_file: Path | None,
    headers_file: Path | None,
    body_file: Path | None,
    now: float | None,
    tolerance: float,
    secrets_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Verify a saved delivery; exit 0 if it is genuine, 1 if it is not.

    For example: hookonce verify --headers headers.txt --body body.json
    """
    saved = _read(request_file, headers_file, body_file)
    secrets = load_secrets(secrets_file)
    output = Output(as_json=as_json)
    try:
        delivery = verify_delivery(saved.body, saved.headers, secrets, tolerance=tolerance, now=now)
    except VerificationError as error:
        record = {"genuine": False, "reason": str(error.reason), "skew_seconds": error.skew}
        output.record(record, f"refused: {error}", "red")
        output.say("hookonce explain, with the same options, looks for the cause")
        raise SystemExit(Status.FOUND) from None
    output.record(
        {
            "genuine": True,
            "id": delivery.id,
            "timestamp": delivery.timestamp,
            "skew_seconds": delivery.skew,
            "secret_index": delivery.secret_index,
            "signatures": delivery.signature_count,
        },
        f"genuine: {delivery.id}, signed {delivery.skew:.0f} s before, with secret"
        f" {delivery.secret_index + 1} of {len(secrets)}",
        "green",
    )


@click.command()
@_saved_delivery
@click.option(
    "--retired-secrets-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Secrets configured no more, to recognise their signatures.",
)
def explain(
    request_file: Path | None,
    headers_file: Path | None,
    body_file: Path | None,
    now: float | None,
    tolerance: float,
    secrets_file: Path | None,
    retired_secrets_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Find out why a saved delivery does not verify, and name the fix.

    Exits 0 if it is genuine, 1 if it is not.
    """
    saved = _read(request_file, headers_file, body_file)
    found = diagnose(
        saved.body,
        saved.headers,
        unchecked_secrets(secrets_file),
        retired=unchecked_secrets(retired_secrets_file) if retired_secrets_file else (),
        now=now,
        tolerance=tolerance,
    )
    _print(found, Output(as_json=as_json))
    if not found.genuine:
        raise SystemExit(Status.FOUND)


def _print(found: Diagnosis, output: Output) -> None:
    verdict = "genuine" if found.genuine else f"refused: {found.refusal}"
    output.record(
        {
            "genuine": found.genuine,
            "reason": found.refusal,
            "findings": [{"cause": one.cause, "fix": one.fix} for one in found.explanations],
        },
        verdict,
        "green" if found.genuine else "red",
    )
    for one in found.explanations:
        output.say(f"- {one.cause}")
        output.say(f"  {one.fix}", "dim")


def _read(request: Path | None, headers: Path | None, body: Path | None) -> _Saved:
    if request is not None and headers is None and body is None:
        return _split_request(_bytes(request))
    if request is None and headers is not None and body is not None and headers != body:
        return _Saved(_bytes(body), _header_lines(_bytes(headers)))
    raise click.UsageError("give either --request, or both --headers and --body")


def _bytes(path: Path) -> bytes:
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()


def _split_request(raw: bytes) -> _Saved:
    found = re.search(rb"\r?\n\r?\n", raw)
    if found is None:
        raise click.UsageError("the saved request has no blank line between headers and body")
    return _Saved(raw[found.end() :], _header_lines(raw[: found.start()]))


def _header_lines(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Return the pairs of ``Name: value`` lines; a request line is no such line."""
    pairs = []
    for line in raw.splitlines():
        name, colon, value = line.partition(b":")
        if colon and b" " not in name.strip():
            pairs.append((name.strip(), value.strip()))
    return pairs
