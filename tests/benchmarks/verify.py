"""What verification costs, beside its floor and the reference library.

python tests/benchmarks/verify.py

The floor is what cannot be left out: one HMAC-SHA256, base64, one comparison in constant time.
Rounds are interleaved, so that a drift of the machine's speed meets all alike; medians are quoted.
"""

import base64
import hmac
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from standardwebhooks import Webhook

from hookonce import Verifier, sign, verify
from hookonce.secrets import new_secret
from hookonce.signature import signer

ROUNDS = 15
CALLS = 3_000
SIZES = (512, 2_048)
MESSAGE_ID = "evt_0123456789abcdef01234567"


def subjects(size: int) -> dict[str, Callable[[], object]]:
    """Return what is measured, the floor first."""
    secret = new_secret()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    body = b"x" * size
    headers = sign(secret, MESSAGE_ID, body)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    prefix = f"{MESSAGE_ID}.{headers['webhook-timestamp']}.".encode()
    content = prefix + body
    expected = headers["webhook-signature"].removeprefix("v1,").encode()
    kept = signer(key)
    verifier, reference = Verifier(secret), Webhook(secret)

    def floor() -> bool:
        digest = hmac.digest(key, content, "sha256")
        return hmac.compare_digest(base64.b64encode(digest), expected)

    return {
        "floor": floor,
        "floor with the hash states kept": lambda: hmac.compare_digest(
            kept(prefix, body), expected
        ),
        "hookonce Verifier, raw headers": lambda: verifier.verify(body, raw),
        "hookonce verify, a dict": lambda: verify(body, headers, secret),
        "standardwebhooks": lambda: reference.verify(body, headers, json_parse=False),
    }


def medians(measured: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median microseconds a call of each takes."""
    rounds: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(ROUNDS):
        for name, call in measured.items():
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            rounds[name].append((time.perf_counter() - started) / CALLS * 1e6)
    return {name: statistics.median(times) for name, times in rounds.items()}


def main() -> None:
    """Measure and print."""
    print(f"{platform.python_implementation()} {sys.version.split()[0]}, {platform.machine()},")
    print(f"{datetime.now(UTC):%Y-%m-%d}; medians of {ROUNDS} rounds of {CALLS} calls")
    for size in SIZES:
        print(f"\n{size} bytes")
        taken = medians(subjects(size))
        for name, microseconds in taken.items():
            print(
                f"  {name:34} {microseconds:6.2f} µs  {microseconds / taken['floor']:5.2f} x floor"
            )


if __name__ == "__main__":
    main()
