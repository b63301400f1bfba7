"""No frame of an error holds a secret: error trackers send the local variables of every frame."""

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.frames import leaks

from hookonce import EnvironmentSecrets, FileSecrets, Verifier, WebhookError, sign, unwrap, verify
from hookonce.clock import system_clock
from hookonce.stores import open_store
from hookonce.verification.secrets import verifying_key

NOW = 1_700_000_000
KEY = b"correct-horse-battery-staple"
CORE = base64.b64encode(KEY).decode()
SECRET = f"whsec_{CORE}"
STRANGER = "whsec_" + base64.b64encode(b"of somebody else, and long").decode()
BODY = b"{}"
GENUINE = sign(SECRET, "evt_1", BODY, timestamp=NOW)
FORGED = sign(STRANGER, "evt_1", BODY, timestamp=NOW)
PASSWORD = "hunter2-of-redis"


def derivatives() -> dict[str, str]:
    """Return texts that reveal the secret or a signature, in the form that a repr shows."""
    block = KEY.ljust(64, b"\0")
    states = {
        "inner": bytes(byte ^ 0x36 for byte in block),
        "outer": bytes(byte ^ 0x5C for byte in block),
    }
    expected = base64.b64decode(GENUINE["webhook-signature"].removeprefix("v1,"))
    raw = {
        "the key": KEY,
        "a hash of the key": hashlib.sha256(KEY).digest(),
        "the expected signature, as bytes": expected,
        **states,
    }
    return {
        "the secret": CORE,
        "the end of the secret": CORE[-16:],
        "the key in hexadecimal": KEY.hex(),
        "the expected signature": base64.b64encode(expected).decode(),
        "a password": PASSWORD,
        **{name: repr(value)[2:-1] for name, value in raw.items()},
    }


@dataclass(frozen=True)
class Outspoken:
    """A provider whose repr shows its secrets."""

    secrets: Any

    def current(self) -> Any:
        return self.secrets


@dataclass(frozen=True)
class Failing:
    """A provider that returns its secrets only once, and whose repr shows them."""

    secrets: Any
    calls: list[int]

    def current(self) -> Any:
        self.calls.append(1)
        if len(self.calls) > 1:
            return fetched()
        return self.secrets


def fetched() -> Any:
    raise ConnectionError("no answer")


SPOILT = {
    "a bad character": f"{SECRET}!",
    "cut": SECRET[:-1],
    "a public key": f"whpk_{CORE}",
    "no prefix, in quotes": f'"{SECRET}"',
    "bytes": SECRET.encode(),
    "a nested list": [SECRET],
    "a set": {SECRET},
}

HEADERS: dict[str, dict[str, str]] = {
    "forged": FORGED,
    "no id": {**FORGED, "webhook-id": ""},
    "bad id": {**FORGED, "webhook-id": "a.b"},
    "bad timestamp": {**FORGED, "webhook-timestamp": "x"},
    "two ids": {**FORGED, "Webhook-Id": "evt_2"},
    "old": {**FORGED, "webhook-timestamp": "1"},
    "new": {**FORGED, "webhook-timestamp": "9" * 11},
}

ODD: Any = "text, not bytes"


def refused_ways() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every call that fails although its secrets are valid."""
    forms: dict[str, Any] = {
        "one": SECRET,
        "several": [STRANGER.replace("b", "B"), SECRET],
        "tuple": (SECRET, SECRET),
        "provider": Outspoken((SECRET,)),
    }
    for form, good in forms.items():
        for fault, headers in HEADERS.items():
            for name, judge in (("verify", verify), ("unwrap", unwrap)):
                yield (
                    f"{name} {form} {fault}",
                    lambda j=judge, h=headers, g=good: j(BODY, h, g, now=NOW),  # type: ignore[misc]
                )
            verifier = Verifier(good)
            yield (
                f"Verifier {form} {fault}",
                lambda h=headers, v=verifier: v.verify(BODY, h, now=NOW),  # type: ignore[misc]
            )
        for name, judge in (("verify", verify), ("unwrap", unwrap)):
            yield (
                f"{name} {form} tolerance",
                lambda j=judge, g=good: j(BODY, FORGED, g, tolerance=-1),  # type: ignore[misc]
            )
            yield (
                f"{name} {form} body",
                lambda j=judge, g=good: j(ODD, FORGED, g, now=NOW),  # type: ignore[misc]
            )
        yield f"Verifier {form} tolerance", lambda g=good: Verifier(g, tolerance=-1)  # type: ignore[misc]
    other = sign(SECRET, "evt_2", BODY, timestamp=NOW)
    yield "unwrap a payload", lambda: unwrap(BODY, other, SECRET, now=NOW)
    yield "sign id", lambda: sign(SECRET, "a.b", BODY)
    yield "sign timestamp", lambda: sign([SECRET], "evt_1", BODY, timestamp=-1)
    yield "sign body", lambda: sign([SECRET], "evt_1", ODD)


def unusable_ways() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every call whose secrets cannot be used."""
    for fault, bad in SPOILT.items():
        forms: dict[str, Any] = {
            "one": bad,
            "beside": [SECRET, bad],
            "provider": Outspoken((SECRET, bad)),
            "given as one": Outspoken(bad),
        }
        for form, secrets in forms.items():
            if secrets in ([SECRET], {SECRET}, Outspoken([SECRET]), Outspoken({SECRET})):
                continue  # the fault does not change this form
            for name, judge in (("verify", verify), ("unwrap", unwrap)):
                yield (
                    f"{name} {form} {fault}",
                    lambda j=judge, s=secrets: j(BODY, FORGED, s, now=NOW),  # type: ignore[misc]
                )
            yield f"Verifier {form} {fault}", lambda s=secrets: Verifier(s)  # type: ignore[misc]
            yield f"sign {form} {fault}", lambda s=secrets: sign(s, "evt_1", b"")  # type: ignore[misc]
        yield f"decode {fault}", lambda b=bad: verifying_key(b)  # type: ignore[misc]
    yield "a failing provider", lambda: Verifier(Failing((SECRET,), [1]))
    yield "verify with a failing provider", lambda: verify(BODY, FORGED, Failing((SECRET,), [1]))
    yield "unwrap with a failing provider", lambda: unwrap(BODY, FORGED, Failing((SECRET,), [1]))
    yield "a provider that fails later", late_failure


def late_failure() -> None:
    Verifier(Failing((SECRET,), [])).verify(BODY, FORGED, now=NOW)


def check(call: Callable[[], object]) -> BaseException:
    with pytest.raises((WebhookError, ValueError, TypeError)) as caught:
        call()
    assert not leaks(caught.value, derivatives(), but_in=__file__)
    return caught.value


@pytest.mark.sample(40)
@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in refused_ways()])
def test_no_frame_of_a_refusal_holds_a_secret_or_key(call: Callable[[], object]) -> None:
    check(call)


@pytest.mark.sample(40)
@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in unusable_ways()])
def test_no_frame_of_a_secret_error_holds_a_secret_or_key(call: Callable[[], object]) -> None:
    assert isinstance(check(call), WebhookError)


def test_the_walk_through_the_frames_finds_what_is_there() -> None:
    namespace: dict[str, Any] = {}
    exec(compile("def leak(secret):\n    raise LookupError", "elsewhere.py", "exec"), namespace)
    for hidden in (SECRET, KEY, [KEY], {"a": SECRET}):
        with pytest.raises(LookupError) as caught:
            namespace["leak"](hidden)
        assert leaks(caught.value, derivatives(), but_in=__file__)


@pytest.mark.parametrize(
    "fault", ["a bad character", "cut", "a public key", "no prefix, in quotes"]
)
def test_no_frame_of_a_provider_holds_a_secret(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad: Any = SPOILT[fault]
    monkeypatch.setenv("HOOKONCE_SECRETS", f"{SECRET} {bad}")
    check(EnvironmentSecrets)
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n{bad}")
    check(lambda: FileSecrets(file))
    file.write_bytes(f"{SECRET}\n{bad}".encode() + b"\xff")
    check(lambda: FileSecrets(file))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://u:{PASSWORD}@host:port",
        f"redis://u:{PASSWORD}@host/name",
        f"redis://u:{PASSWORD}@host?colour=red",
        f"redis://u:{PASSWORD}@host?durability=disk",
        f"redis://u:{PASSWORD}@host?health_check_interval=often",
        f"redis://u:{PASSWORD}\u2100@host",
        f"redis://[u:{PASSWORD}@host",
        f"redis+sentinel://u:{PASSWORD}@host",
        f"redis+sentinel://host/x?sentinel_password={PASSWORD}&colour=red",
        f"redis+cluster://u:{PASSWORD}@host/3",
        f"redis+ring://u:{PASSWORD}@host",
        f"mysql://u:{PASSWORD}@host",
    ],
)
def test_no_frame_of_a_url_that_names_no_store_holds_its_password(url: str) -> None:
    check(lambda: open_store(url, clock=system_clock))
