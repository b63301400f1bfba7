"""``hookonce verify``: verify a saved delivery, and explain a refusal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hookonce.operations.diagnosis import diagnose
from hookonce.senders import Sender
from hookonce.verification.secrets import fault_among

from .durations import Duration
from .loading import secrets_option, unchecked_secrets
from .numbers import FiniteRange
from .output import Output, json_option
from .saved import Refused, SavedRequest, header_lines
from .senders import sender_option
from .statuses import Status

_file = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.command()
@click.option(
    "--request",
    "request_file",
    type=_file,
    help="A saved HTTP request: request line, headers, blank line, body; for example a file of"
    " hookonce serve --save-refused. - for standard input.",
)
@click.option(
    "--headers", "headers_file", type=_file, help="A file of headers, one 'Name: value' a line."
)
@click.option("--body", "body_file", type=_file, help="The raw body. - for standard input.")
@click.option(
    "--now",
    type=FiniteRange(),
    help="The Unix time at which the delivery arrived. By default the time in a file of hookonce"
    " serve --save-refused, else the current time.",
)
@click.option(
    "--tolerance",
    type=Duration(0),
    help="How far the timestamp may be off, such as 30s; by default the sender's tolerance, 5m for"
    " the built-in senders.",
)
@sender_option
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
    tolerance: float | None,
    sender: Sender,
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
    output, refused = Output(as_json=as_json), saved.refused
    if refused is not None and not refused.has_body:
        _print_refusal(output, refused.reason, [_without_body(refused)])
        raise SystemExit(Status.FOUND)
    if now is None and refused is not None:
        now = refused.received_unix
    secrets = unchecked_secrets(secrets_file)
    found = diagnose(
        saved.body,
        saved.headers,
        secrets,
        retired=unchecked_secrets(retired_secrets_file) if retired_secrets_file else (),
        now=now,
        tolerance=tolerance,
        sender=sender,
    )
    delivery = found.delivery
    findings = [{"cause": one.cause, "fix": one.fix} for one in found.explanations]
    if delivery is None:
        _print_refusal(output, str(found.refusal), findings)
        is_usable = any(fault_among([secret], "") is None for secret in secrets)
        raise SystemExit(Status.FOUND if is_usable else Status.CANNOT_BEGIN)
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
    _print_findings(output, findings)


def _print_refusal(output: Output, reason: str, findings: list[dict[str, str]]) -> None:
    record = {"genuine": False, "reason": reason, "findings": findings}
    output.record(record, f"refused: {reason}", "red")
    _print_findings(output, findings)


def _print_findings(output: Output, findings: list[dict[str, str]]) -> None:
    for finding in findings:
        output.say(f"- {finding['cause']}")
        output.say(f"  {finding['fix']}", "dim")


def _read(request: Path | None, headers: Path | None, body: Path | None) -> SavedRequest:
    if request is not None and headers is None and body is None:
        try:
            return SavedRequest.parse(_bytes(request))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if request is None and headers is not None and body is not None and headers != body:
        return SavedRequest(_bytes(body), header_lines(_bytes(headers)))
    raise click.UsageError("give either --request, or both --headers and --body")


def _bytes(path: Path) -> bytes:
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()


def _without_body(refused: Refused) -> dict[str, str]:
    return {
        "cause": f"The receiver answered {refused.status}, and the body was not saved: it was not"
        " read, or it is too large to save. So no signature can be checked.",
        "fix": f"Look up {refused.reason} with: hookonce guide troubleshooting.",
    }
