"""Explains why a delivery does not verify, by trying the usual mistakes one by one.

A signature that does not match says nothing about the cause. But each usual mistake (a secret that
was not decoded, a body that was parsed and rewritten, another id) gives a signature that can be
computed. The mistake whose signature matches is the cause. No delivery is accepted this way.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import cast

from ..errors import Refusal, SecretError, VerificationError
from ..senders import Sender, publishing
from ..senders.built_in import BUILT_IN
from ..verification.headers import (
    V1_LENGTH,
    DeliveryHeaders,
    RawHeaders,
    families_in,
    header_pairs,
)
from ..verification.secrets import new_secret, verifying_key
from ..verification.signature import (
    Matcher,
    VerifiedDelivery,
    hmac_matcher,
    matcher,
    verify,
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause and its fix, each in one sentence."""

    cause: str
    fix: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on a delivery, with its causes.

    Attributes:
        refusal: why the delivery is refused; None if it is genuine.
        explanations: the causes, never empty for a refused delivery; advice for a genuine one.
        delivery: the genuine delivery; its ``secret_index`` counts unusable secrets too.
    """

    refusal: Refusal | None
    explanations: tuple[Explanation, ...]
    delivery: VerifiedDelivery | None = field(default=None, repr=False, compare=False)

    @property
    def genuine(self) -> bool:
        """Whether the delivery verifies without any change."""
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An id or body that the signer may have used, with the mistakes that explain its use."""

    value: bytes
    mistakes: tuple[Explanation, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    """A key that the signer may have used, with the mistakes that explain its use."""

    matches: Matcher
    mistakes: tuple[Explanation, ...] = ()


def diagnose(
    body: bytes,
    headers: RawHeaders,
    secrets: str | Sequence[str],
    *,
    retired: str | Sequence[str] = (),
    now: float | None = None,
    tolerance: float | None = None,
    sender: Sender = publishing,
) -> Diagnosis:
    """Return why a receiver refuses a delivery, and what to change.

    Args:
        body: the body as the verifier received it.
        headers: the headers as the verifier received them.
        secrets: the configured secret or secrets; an unusable secret is explained.
        retired: secrets that are no longer configured, to recognise their signatures.
        now: Unix time in seconds; the system's clock by default.
        tolerance: how many seconds the timestamp may differ from ``now``; by default the sender's
            tolerance.
        sender: who sends.
    """
    secrets = (secrets,) if isinstance(secrets, str) else secrets
    retired = (retired,) if isinstance(retired, str) else retired
    headers = cast("RawHeaders", list(header_pairs(headers)))  # several functions read the headers
    if tolerance is None:
        tolerance = sender.tolerance_seconds
    carried = families_in(headers)
    prefix = next((one for one in sender.headers if one in carried), sender.headers[0])
    usable, unusable = _sorted_out(secrets)
    try:
        parsed = DeliveryHeaders.parse(headers, sender)
    except VerificationError as error:
        return Diagnosis(error.reason, (*unusable, _header_explanation(error, sender, carried)))
    try:
        # Without a usable secret, verify with a random secret, in order to check the timestamp.
        delivery = verify(
            body, headers, usable or [new_secret()], sender=sender, tolerance=tolerance, now=now
        )
    except VerificationError as error:
        refusal, skew = error.reason, error.skew
    else:
        index = secrets.index(usable[delivery.secret_index])
        notes = _notes(index, delivery.signature_count, secrets)
        return Diagnosis(None, (*unusable, *notes), delivery._replace(secret_index=index))
    explanations = [*unusable, *_mistakes(parsed, body, secrets, usable, retired, prefix)]
    if skew is not None:
        # Add this cause last, because it is the least likely: the timestamp of every saved request
        # is old.
        explanations.append(_skew_explanation(skew, tolerance))
    return Diagnosis(refusal, tuple(explanations))


def _sorted_out(secrets: Sequence[str]) -> tuple[list[str], list[Explanation]]:
    """Return the usable secrets, and an explanation for each unusable secret."""
    usable: list[str] = []
    explanations: list[Explanation] = []
    for number, secret in enumerate(secrets, start=1):
        try:
            verifying_key(secret)
        except SecretError as error:
            explanations.append(
                Explanation(
                    f"Secret {number} cannot be used: {error}.",
                    "Copy the whole value that the sender showed when it created the endpoint or"
                    " rotated its secret.",
                )
            )
        else:
            usable.append(secret)
    if not secrets:
        explanations.append(
            Explanation("No secret is configured.", "Set HOOKONCE_SECRETS, or name a secrets file.")
        )
    return usable, explanations


def _header_explanation(
    error: VerificationError, sender: Sender, carried: Sequence[str]
) -> Explanation:
    reason, text = error.reason, str(error)
    cause = f"{text[0].upper()}{text[1:]}."
    if reason in {Refusal.MISSING_ID, Refusal.MISSING_TIMESTAMP, Refusal.MISSING_SIGNATURE}:
        if carried and not set(carried) & set(sender.headers):
            return _foreign_explanation(sender, carried[0])
        families = " and ".join(f"{prefix}-*" for prefix in sender.headers)
        fix = f"Let proxies pass on every {families} header, and give the verifier all headers."
    elif reason in {Refusal.CONFLICTING_ID, Refusal.CONFLICTING_TIMESTAMP}:
        fix = "Find the proxy that adds a second header; the sender sends each header once."
    elif reason is Refusal.CONFLICTING_HEADERS:
        fix = "Find the proxy that changes one family; a sender puts the same values into both."
    elif reason is Refusal.MALFORMED_TIMESTAMP:
        fix = "Pass the header on unchanged: whole seconds, neither milliseconds nor a date."
    else:
        fix = "Pass the header on unchanged."
    return Explanation(cause, fix)


def _foreign_explanation(sender: Sender, prefix: str) -> Explanation:
    """Explain a delivery whose signed headers the sender does not declare."""
    known = [one.name for one in BUILT_IN.values() if prefix in one.headers]
    fix = (
        f"Name the sender that sends it, such as {known[0]}"
        if known
        else f"Declare the headers of its sender: Sender(headers=({prefix!r},), …)"
    )
    return Explanation(
        f"The signed headers of the delivery are {prefix}-id, {prefix}-timestamp and"
        f" {prefix}-signature, but the sender {sender.name!r} has others.",
        f"{fix}: in the receiver with sender=…, in commands with --sender.",
    )


def _skew_explanation(skew: float, tolerance: float) -> Explanation:
    side = "ago" if skew > 0 else "in the future"
    return Explanation(
        f"The delivery was signed {abs(skew):.0f} s {side}, but the tolerance is {tolerance:g} s.",
        "For a saved delivery, give the time of its arrival (--now); for a live one, synchronise"
        " the clock with NTP, or find the queue that delays it.",
    )


def _notes(
    secret_index: int, signature_count: int, secrets: Sequence[str]
) -> tuple[Explanation, ...]:
    notes = []
    if secret_index:
        notes.append(
            Explanation(
                f"Only secret {secret_index + 1} of {len(secrets)} matches: the sender still signs"
                " with an older secret.",
                "Keep it until deliveries match the first secret.",
            )
        )
    if signature_count > 1:
        notes.append(
            Explanation(
                f"The delivery carries {signature_count} signatures, because the sender is rotating"
                " the secret.",
                "Configure the new secret before the rotation ends.",
            )
        )
    return tuple(notes)


def _unexplained(parsed: DeliveryHeaders, usable: Sequence[str], prefix: str) -> Explanation:
    if not parsed.signatures:
        return Explanation(
            f"{prefix}-signature has no well-formed entry: neither 'v1,' and 44 characters of"
            " base64, nor 'v1a,' and 88.",
            "Pass the header on unchanged, and check that the sender signs with HMAC-SHA256 or"
            " ed25519.",
        )
    shared = {verifying_key(secret).is_shared for secret in usable}
    signed = {len(text) == V1_LENGTH for text in parsed.signatures}
    if shared == {True} and signed == {False}:
        return Explanation(
            "The delivery has only a v1a signature, and every configured secret is for v1.",
            "Configure the sender's public key (whpk_…).",
        )
    if shared == {False} and signed == {True}:
        return Explanation(
            "The delivery has only a v1 signature, and every configured key is for v1a.",
            "Configure the endpoint's secret (whsec_…), or let the sender sign with ed25519.",
        )
    return Explanation(
        "None of these secrets signed these bytes, and no usual mistake explains the signature.",
        "Compare the secret with the one that the sender shows for the endpoint (or its"
        " secretPrefix), and try the previous secret; if neither helps, the body or a header was"
        " changed, or the delivery is forged.",
    )


def _json_in(body: bytes) -> object:
    """Return the JSON value of a body; None if the body is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _has_sorted_keys(body: bytes) -> bool:
    """Return whether a publishing event's body has sorted keys; its sender never sorts keys."""
    value = _json_in(body)
    envelope = {"id", "type", "createdAt", "workspaceId", "data"}
    return isinstance(value, dict) and envelope <= set(value) and list(value) == sorted(value)


def _mistakes(
    parsed: DeliveryHeaders,
    body: bytes,
    secrets: Sequence[str],
    usable: Sequence[str],
    retired: Sequence[str],
    prefix: str,
) -> list[Explanation]:
    """Return the smallest set of mistakes that explains the signature."""
    keys = [*_keys(secrets), *_retired_keys(retired)]
    bodies = _bodies(body)
    ids = list(_ids(parsed, bodies, prefix))
    combinations = sorted(
        product(keys, ids, bodies), key=lambda combination: len(_mistakes_of(combination))
    )
    for combination in combinations:
        key, message_id, content = combination
        signed_prefix = b"%b.%d." % (message_id.value, parsed.timestamp)
        if key.matches(signed_prefix, content.value, parsed.signatures):
            return _mistakes_of(combination)
    if _has_sorted_keys(body):
        return [
            Explanation(
                "The body's keys are in alphabetical order, so it was parsed and rewritten, and the"
                " signed bytes are lost.",
                "Verify and save the raw bytes; a JSON log or a jsonb column does not keep them.",
            )
        ]
    return [_unexplained(parsed, usable, prefix)]


def _mistakes_of(combination: Iterable[_Key | _Candidate]) -> list[Explanation]:
    return [mistake for candidate in combination for mistake in candidate.mistakes]


# The beginning of a secret from which the first letters of 'whsec_' are missing.
_CUT_PREFIX = re.compile("(?:hsec|sec|ec|c)?_")


def _keys(secrets: Sequence[str]) -> Iterator[_Key]:
    for number, secret in enumerate(secrets, start=1):
        # `_sorted_out` explains a secret that is not text, such as None from a missing setting.
        if not isinstance(secret, str):
            continue
        text = secret.strip()
        if text.startswith(("whpk_", "whsk_")):  # the usual mistakes with HMAC keys do not apply
            yield from _decoded(text)
            continue
        bare = text.removeprefix("whsec_")
        yield from _decoded(text)
        whole_text = Explanation(
            f"The signer used the text of secret {number} as its key, without decoding it.",
            "Make the signer decode the part after 'whsec_' from base64, and sign with those"
            " bytes.",
        )
        yield _Key(hmac_matcher(text.encode("utf-8", "replace")), (whole_text,))
        bare_text = Explanation(
            f"The signer used secret {number} without its prefix as its key, but did not decode"
            " it.",
            "Make the signer decode that text from base64, and sign with those bytes.",
        )
        yield _Key(hmac_matcher(bare.encode("utf-8", "replace")), (bare_text,))
        misspelt = Explanation(
            f"Secret {number} is right except for its spelling: quotes, spaces, another base64"
            " alphabet, or a missing piece of 'whsec_' or of the '=' at its end.",
            "Configure it exactly as the sender showed it: 'whsec_' and standard base64.",
        )
        core = text.strip("\"'`,; \t\r\n\ufeff").removeprefix("v1,").removeprefix("whsec_")
        for spelling in (core, _CUT_PREFIX.sub("", core, count=1)):
            corrected = "".join(spelling.split()).replace("-", "+").replace("_", "/").rstrip("=")
            corrected += "=" * (-len(corrected) % 4)
            if corrected != bare:
                yield from _decoded(f"whsec_{corrected}", misspelt)


def _retired_keys(retired: Sequence[str]) -> Iterator[_Key]:
    for secret in retired:
        yield from _decoded(
            secret,
            Explanation(
                "The delivery is signed with a retired secret.",
                "During a rotation configure both secrets, the new one first; after its end,"
                " a delivery signed only with the old secret is not genuine.",
            ),
        )


def _decoded(secret: str, *mistakes: Explanation) -> Iterator[_Key]:
    try:
        yield _Key(matcher(secret), mistakes)
    except SecretError:
        return


def _ids(
    parsed: DeliveryHeaders, bodies: Sequence[_Candidate], prefix: str
) -> Iterator[_Candidate]:
    message_id = parsed.message_id
    yield _Candidate(message_id.encode())
    if message_id != message_id.strip():
        spaced = Explanation(
            f"Spaces were added to {prefix}-id after it was signed.",
            "Pass the header on unchanged.",
        )
        yield _Candidate(message_id.strip().encode(), (spaced,))
    replaced = Explanation(
        f"{prefix}-id was replaced: the signature is for the id in the body.",
        f"Pass {prefix}-id on unchanged.",
    )
    for inner in dict.fromkeys(_id_in(body.value) for body in bodies):
        if inner is not None and inner != message_id:
            yield _Candidate(inner.encode("utf-8", "replace"), (replaced,))


def _id_in(body: bytes) -> str | None:
    envelope = _json_in(body)
    inner = envelope.get("id") if isinstance(envelope, dict) else None
    return inner if isinstance(inner, str) else None


def _bodies(body: bytes) -> list[_Candidate]:
    """Return the body, and guesses at the original body before one or two usual changes."""
    candidates: dict[bytes, tuple[Explanation, ...]] = {body: ()}
    transported = list(_before_transport(body))
    rewritten = list(_rewritings(body))
    for value, mistake in (*transported, *rewritten):
        candidates.setdefault(value, (mistake,))
    for value, mistake in transported:
        # If the body is JSON, `rewritten` already contains these layouts.
        before = () if rewritten else _rewritings(value)
        for earlier, another in (*_before_transport(value), *before):
            candidates.setdefault(earlier, tuple(dict.fromkeys((mistake, another))))
    return [_Candidate(value, mistakes) for value, mistakes in candidates.items()]


def _before_transport(body: bytes) -> Iterator[tuple[bytes, Explanation]]:
    """Yield possible originals of a body: each undoes one usual change in transport."""
    line_ends = Explanation(
        "Line ends within the body, or at its end, were changed.",
        "Save and pass on the body as bytes, not as text.",
    )
    yield body.rstrip(b"\r\n"), line_ends
    yield body + b"\n", line_ends
    yield body.replace(b"\r\n", b"\n"), line_ends
    yield body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), line_ends
    yield (
        body.removeprefix(b"\xef\xbb\xbf"),
        Explanation(
            "A byte order mark was added to the body.",
            "Save and pass on the body as bytes, not as text.",
        ),
    )
    try:
        # Base64 may contain line breaks.
        decoded = base64.b64decode(b"".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        return
    yield (
        decoded,
        Explanation(
            "The body is still encoded in base64.",
            "Decode it before you verify it; on AWS Lambda check isBase64Encoded.",
        ),
    )


def _rewritings(body: bytes) -> Iterator[tuple[bytes, Explanation]]:
    """Yield the same JSON in the usual layouts; one of them may be the sender's."""
    mistake = Explanation(
        "The body was parsed and rewritten before it was verified.",
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
        except RecursionError:  # json.dumps allows less nesting than json.loads
            return
        yield text.encode("utf-8", "replace"), mistake
