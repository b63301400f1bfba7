"""``hookonce verify``: verify a saved delivery, and explain a refusal."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import click

from hookonce.operations.diagnosis import diagnose
from hookonce.sender import TOLERANCE_SECONDS
from hookonce.verification.secrets import fault_among

from .durations import Duration
from .loading import secrets_option, unchecked_secrets
from .numbers import FiniteRange
from .output import Output, json_option
from .statuses import Status

_file = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


class _Saved(NamedTuple):
    body: bytes
    headers: list[tuple[bytes, bytes]]


@click.command()
@click.option(
    "--request",
    "request_file",
    type=_file,
    help="A saved HTTP request: request line, headers, blank line, body. - for standard input.",
)
@click.option(
    "--headers", "headers_file", type=_file, help="A file of headers, one 'Name: value' a line."
)
@click.option("--body", "body_file", type=_file, help="The raw body. - for standard input.")
@click.option("--now", type=FiniteRange(), help="The Unix time at which the delivery arrived.")
@click.option(
    "--tolerance",
    default=f"{TOLERANCE_SECONDS:g}s",
    show_default=True,
    type=Duration(0),
    help="How far the timestamp may be off, such as 30s or 5m.",
)
@secrets_option
@click.option(
    "--retired-secrets-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Secrets that are no longer configured, to recognise their signatures.",
)
@json_option
def verify(
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
    """Verify a saved delivery, and explain why it is refused.

    Exits 0 if the delivery is genuine, 1 if it is not, and 2 if no secret can be used.

    For example: hookonce verify --headers headers.txt --body body.json
    """
    saved = _read(request_file, headers_file, body_file)
    secrets = unchecked_secrets(secrets_file)
    found = diagnose(
        saved.body,
        saved.headers,
        secrets,
        retired=unchecked_secrets(retired_secrets_file) if retired_secrets_file else (),
        now=now,
        tolerance=tolerance,
    )
    output, delivery = Output(as_json=as_json), found.delivery
    findings = [{"cause": one.cause, "fix": one.fix} for one in found.explanations]
    if delivery is None:
        record = {"genuine": False, "reason": found.refusal, "findings": findings}
        output.record(record, f"refused: {found.refusal}", "red")
    else:
        output.record(
            {
                "genuine": True,
                "id": delivery.id,
                "timestamp": delivery.timestamp,
                "skew_seconds": delivery.skew,
                "secret_index": delivery.secret_index,
                "signatures": delivery.signature_count,
                "findings": findings,
            },
            f"genuine: {delivery.id}, signed {delivery.skew:.0f} s before, with secret"
            f" {delivery.secret_index + 1} of {len(secrets)}",
            "green",
        )
    for finding in findings:
        output.say(f"- {finding['cause']}")
        output.say(f"  {finding['fix']}", "dim")
    if delivery is None:
        is_usable = any(fault_among([secret], "") is None for secret in secrets)
        raise SystemExit(Status.FOUND if is_usable else Status.CANNOT_BEGIN)


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
    """Return the headers from lines of ``Name: value``; skip the request line."""
    pairs = []
    for line in raw.splitlines():
        name, colon, value = line.partition(b":")
        if colon and b" " not in name.strip():
            pairs.append((name.strip(), value.strip()))
    return pairs
