"""Why a delivery does not verify: the usual mistakes, tried one after the other.

A signature says only yes or no. But each usual mistake (an undecoded secret, a body that was parsed
and written again, another id) leads to a signature that can be computed; the one that matches names
the mistake. Nothing of this is used to accept a delivery.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from itertools import product
from typing import cast

from ..errors import Refusal, SecretError, VerificationError
from ..verification.headers import DeliveryHeaders, RawHeaders, header_pairs
from ..verification.secrets import decode_secret, new_secret
from ..verification.signature import DEFAULT_TOLERANCE, signer, verify


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing, and what to do about it."""

    cause: str
    fix: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found.

    Attributes:
        refusal: why the delivery is refused; None where it is genuine.
        findings: the causes; never empty for a refused delivery.

    """

    refusal: Refusal | None
    findings: tuple[Finding, ...]

    @property
    def genuine(self) -> bool:
        """Whether the delivery verifies as it is."""
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class _Guess:
    """A value that may have been signed instead, and what that would mean (nothing: as it is)."""

    value: bytes
    findings: tuple[Finding, ...] = ()


def diagnose(
    body: bytes,
    headers: RawHeaders,
    secrets: str | Sequence[str],
    *,
    retired: str | Sequence[str] = (),
    now: float | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> Diagnosis:
    """Return why a delivery is refused, and what to change.

    Args:
        body: the body as the verifier got it.
        headers: the headers as the verifier got them.
        secrets: the configured secret or secrets; unusable ones are among the findings.
        retired: secrets that are configured no more, to recognise their signatures.
        now: Unix time in seconds; the system's clock by default.
        tolerance: how many seconds the timestamp may lie from ``now``.

    """
    secrets = (secrets,) if isinstance(secrets, str) else secrets
    retired = (retired,) if isinstance(retired, str) else retired
    headers = cast("RawHeaders", list(header_pairs(headers)))  # they are read twice
    usable, unusable = _sorted_out(secrets)
    try:
        parsed = DeliveryHeaders.parse(headers)
    except VerificationError as error:
        return Diagnosis(error.reason, (*unusable, _header_finding(error.reason)))
    try:
        # Where none is usable, with nobody's: the timestamp is judged all the same.
        delivery = verify(body, headers, usable or [new_secret()], tolerance=tolerance, now=now)
    except VerificationError as error:
        refusal, skew = error.reason, error.skew
    else:
        index = secrets.index(usable[delivery.secret_index])
        notes = _notes(index, delivery.signature_count, secrets)
        return Diagnosis(None, (*unusable, *notes))
    findings = [*unusable, *_mistakes(parsed, body, secrets, retired)]
    if skew is not None:
        # Last: a saved request is old by nature.
        findings.append(_skew_finding(skew, tolerance))
    return Diagnosis(refusal, tuple(findings))


def _sorted_out(secrets: Sequence[str]) -> tuple[list[str], list[Finding]]:
    usable: list[str] = []
    findings: list[Finding] = []
    for number, secret in enumerate(secrets, start=1):
        try:
            decode_secret(secret)
        except SecretError as error:
            findings.append(
                Finding(
                    f"Secret {number} cannot be used: {error}.",
                    "Copy the whole value that creation or rotation of the endpoint showed.",
                )
            )
        else:
            usable.append(secret)
    if not secrets:
        findings.append(
            Finding("No secret is configured.", "Set HOOKONCE_SECRETS or name a secrets file.")
        )
    return usable, findings


def _header_finding(reason: Refusal) -> Finding:
    text = str(VerificationError(reason))
    cause = f"{text[0].upper()}{text[1:]}."
    if reason in {Refusal.MISSING_ID, Refusal.MISSING_TIMESTAMP, Refusal.MISSING_SIGNATURE}:
        fix = "Let every webhook-* header through, and hand the verifier all headers."
    elif reason in {Refusal.CONFLICTING_ID, Refusal.CONFLICTING_TIMESTAMP}:
        fix = "Find the proxy that adds a second one; the sender puts each header once."
    elif reason is Refusal.MALFORMED_TIMESTAMP:
        fix = "Pass the header on as it came: whole seconds, neither milliseconds nor a date."
    else:
        fix = "Pass the header on as it came."
    return Finding(cause, fix)


def _skew_finding(skew: float, tolerance: float) -> Finding:
    side = "ago" if skew > 0 else "in the future"
    return Finding(
        f"It was signed {abs(skew):.0f} s {side}; {tolerance:g} s are tolerated.",
        "For a delivery recorded earlier that is expected. Otherwise set this machine's clock by"
        " NTP, and look for a queue or proxy that holds deliveries back.",
    )


def _notes(secret_index: int, signature_count: int, secrets: Sequence[str]) -> tuple[Finding, ...]:
    notes = []
    if secret_index:
        notes.append(
            Finding(
                f"Only secret {secret_index + 1} of {len(secrets)} matches.",
                "Keep it until deliveries match the first; a rotation lasts 24 hours.",
            )
        )
    if signature_count > 1:
        notes.append(
            Finding(
                f"It carries {signature_count} signatures: a rotation of the secret is under way.",
                "Configure the new secret before the 24 hours of the rotation are over.",
            )
        )
    return tuple(notes)


def _stranger(parsed: DeliveryHeaders) -> Finding:
    if not parsed.signatures:
        return Finding(
            "webhook-signature has no well-formed v1 entry ('v1,' and 44 characters of base64).",
            "Pass the header on as it came, and check that the sender signs with HMAC-SHA256.",
        )
    return Finding(
        "None of these secrets signed these bytes, in none of the usual mistaken ways.",
        "Compare the secret with the endpoint's secretPrefix: it may be another endpoint's, or have"
        " been rotated (try the old one too). Otherwise the body or a header was changed on its"
        " way, or the delivery is forged.",
    )


def _json_in(body: bytes) -> object:
    """Return the value that a body is in JSON; None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _has_sorted_keys(body: bytes) -> bool:
    """Return whether an event's keys are in alphabetical order, in which no sender writes them."""
    value = _json_in(body)
    envelope = {"id", "type", "createdAt", "workspaceId", "data"}
    return isinstance(value, dict) and envelope <= set(value) and list(value) == sorted(value)


def _mistakes(
    parsed: DeliveryHeaders, body: bytes, secrets: Sequence[str], retired: Sequence[str]
) -> list[Finding]:
    """Return the findings of the simplest combination of guesses that gives the signature."""
    keys = [*_key_guesses(secrets), *_retired_guesses(retired)]
    bodies = _body_guesses(body)
    ids = list(_id_guesses(parsed, bodies))
    combinations = sorted(
        product(keys, ids, bodies), key=lambda combination: len(_findings(combination))
    )
    for combination in combinations:
        key, message_id, content = (guess.value for guess in combination)
        expected = signer(key)(b"%b.%d." % (message_id, parsed.timestamp), content)
        if any(compare_digest(signature, expected) for signature in parsed.signatures):
            return _findings(combination)
    if _has_sorted_keys(body):
        return [
            Finding(
                "The body's keys are in alphabetical order, so it was parsed and written again;"
                " what was signed can no longer be told.",
                "Verify and save the raw bytes; a JSON log or a jsonb column does not keep them.",
            )
        ]
    return [_stranger(parsed)]


def _findings(combination: Sequence[_Guess]) -> list[Finding]:
    return [finding for guess in combination for finding in guess.findings]


# What is left of 'whsec_' where copying missed its start.
_CUT_PREFIX = re.compile("(?:hsec|sec|ec|c)?_")


def _key_guesses(secrets: Sequence[str]) -> Iterator[_Guess]:
    for number, secret in enumerate(secrets, start=1):
        if not isinstance(secret, str):  # a setting that is missing; its finding says so
            continue
        text = secret.strip()
        bare = text.removeprefix("whsec_")
        yield from _decoded(text)
        whole_text = Finding(
            f"The signer used the text of secret {number} as its key.",
            "Make it decode what follows 'whsec_' from base64, and sign with those bytes.",
        )
        yield _Guess(text.encode("utf-8", "replace"), (whole_text,))
        bare_text = Finding(
            f"The signer used secret {number} without its prefix, but not decoded, as its key.",
            "Make it decode that text from base64, and sign with those bytes.",
        )
        yield _Guess(bare.encode("utf-8", "replace"), (bare_text,))
        misspelt = Finding(
            f"Secret {number} is right but for its spelling: quotes, white space, another base64"
            " alphabet, or a piece missing of 'whsec_' or of the '=' at its end.",
            "Configure it exactly as it was shown: 'whsec_' and standard base64.",
        )
        core = text.strip("\"'`,; \t\r\n\ufeff").removeprefix("v1,").removeprefix("whsec_")
        for spelling in (core, _CUT_PREFIX.sub("", core, count=1)):
            mended = "".join(spelling.split()).replace("-", "+").replace("_", "/").rstrip("=")
            mended += "=" * (-len(mended) % 4)
            if mended != bare:
                yield from _decoded(f"whsec_{mended}", misspelt)


def _retired_guesses(retired: Sequence[str]) -> Iterator[_Guess]:
    for secret in retired:
        yield from _decoded(
            secret,
            Finding(
                "It is signed with a retired secret.",
                "During a rotation configure both, the new one first; after its 24 hours a"
                " delivery with the old one alone is no longer genuine.",
            ),
        )


def _decoded(secret: str, *findings: Finding) -> Iterator[_Guess]:
    try:
        yield _Guess(decode_secret(secret), findings)
    except SecretError:
        return


def _id_guesses(parsed: DeliveryHeaders, bodies: Sequence[_Guess]) -> Iterator[_Guess]:
    message_id = parsed.message_id
    yield _Guess(message_id.encode())
    if message_id != message_id.strip():
        spaced = Finding("webhook-id has gained white space.", "Pass the header on as it came.")
        yield _Guess(message_id.strip().encode(), (spaced,))
    replaced = Finding(
        "The id in the body was signed, and webhook-id is another.",
        "Pass webhook-id on as it came; nothing on the way may replace it.",
    )
    for inner in dict.fromkeys(_id_in(body.value) for body in bodies):
        if inner is not None and inner != message_id:
            yield _Guess(inner.encode("utf-8", "replace"), (replaced,))


def _id_in(body: bytes) -> str | None:
    envelope = _json_in(body)
    inner = envelope.get("id") if isinstance(envelope, dict) else None
    return inner if isinstance(inner, str) else None


def _body_guesses(body: bytes) -> list[_Guess]:
    """Return the body as it is, and what it may have been before one change on its way or two."""
    guesses: dict[bytes, tuple[Finding, ...]] = {body: ()}
    transported = list(_transport_changes(body))
    rewritten = list(_rewritings(body))
    for value, finding in (*transported, *rewritten):
        guesses.setdefault(value, (finding,))
    for value, finding in transported:
        # What can be parsed as it is gives no other rewritings without its changes.
        before = () if rewritten else _rewritings(value)
        for earlier, another in (*_transport_changes(value), *before):
            guesses.setdefault(earlier, tuple(dict.fromkeys((finding, another))))
    return [_Guess(value, findings) for value, findings in guesses.items()]


def _transport_changes(body: bytes) -> Iterator[tuple[bytes, Finding]]:
    line_ends = Finding(
        "Line ends at the body's end or within it were changed.",
        "Save and pass the body as bytes, not as text.",
    )
    yield body.rstrip(b"\r\n"), line_ends
    yield body + b"\n", line_ends
    yield body.replace(b"\r\n", b"\n"), line_ends
    yield body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), line_ends
    yield (
        body.removeprefix(b"\xef\xbb\xbf"),
        Finding("The body has gained a byte order mark.", "Save and pass the body as bytes."),
    )
    try:
        decoded = base64.b64decode(b"".join(body.split()), validate=True)  # lines of 76, say
    except (binascii.Error, ValueError):
        return
    yield (
        decoded,
        Finding(
            "The body is still encoded in base64.",
            "Decode it first; on AWS Lambda look at isBase64Encoded.",
        ),
    )


def _rewritings(body: bytes) -> Iterator[tuple[bytes, Finding]]:
    """Yield the usual ways of writing the same JSON: the sender's own may be among them."""
    finding = Finding(
        "The body was parsed and written again before it was verified.",
        "Verify the raw bytes first, and parse them afterwards: `await request.body()` in Starlette"
        " and FastAPI, `request.get_data()` in Flask, `request.body` in Django.",
    )
    value = _json_in(body)
    if value is None:
        return
    layouts: tuple[tuple[int | None, tuple[str, str] | None], ...] = (
        (None, (",", ":")),
        (None, None),
        (2, None),
        (4, None),
    )
    for (indent, separators), ascii_only, ordered in product(layouts, (False, True), (False, True)):
        try:
            text = json.dumps(
                value,
                indent=indent,
                separators=separators,
                ensure_ascii=ascii_only,
                sort_keys=ordered,
            )
        except RecursionError:  # reading may go deeper than writing
            return
        yield text.encode("utf-8", "replace"), finding
