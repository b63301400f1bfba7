"""Keys of both kinds, end to end: a real server, its file of secrets, and the commands."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest

from hookonce.testing import event_body, new_event_id, signed_request
from hookonce.verification.secrets import KeyPair, fingerprint, new_secret

from .running import eventually, invoke, running

pytestmark = pytest.mark.sample(1, of="file")

APP = """
from hookonce import FileSecrets, Receiver
from hookonce.events import CommentReceived
receiver = Receiver(secrets=FileSecrets("webhooks"), store="memory://")

@receiver.on(CommentReceived, name="note")
async def note(event: CommentReceived) -> None: ...
"""

TOKEN = "a token for those who may know"


@pytest.fixture
def pair(tmp_path: Path) -> KeyPair:
    """Return a key pair as the command makes it: the private key is in a file."""
    file = tmp_path / "private-key"
    public = invoke("secret", "--private-key", str(file)).output.strip()
    return KeyPair(file.read_text().strip(), public)


@pytest.fixture
def url(tmp_path: Path, pair: KeyPair) -> Iterator[str]:
    """Serve a receiver that reads the public key from the file ``webhooks``; yield its URL."""
    (tmp_path / "hooks.py").write_text(APP)
    (tmp_path / "webhooks").write_text(f"{pair.public}\n")
    environment = {"HOOKONCE_HEALTH_TOKEN": TOKEN}
    arguments = ("serve", "hooks:receiver", "--port", "0")
    with running(*arguments, here=tmp_path, environment=environment) as server:
        yield server.printed(r"http://[\d.]+:\d+")[0]
        printed = server.output + server.errors
    assert pair.private[5:] not in printed


def deliver(url: str, *secrets: str) -> int:
    body = event_body("comment.received", event_id=new_event_id())
    request = signed_request(body, secrets)
    return httpx2.post(f"{url}/webhooks", content=request.body, headers=request.headers).status_code


def ready(url: str) -> dict[str, Sequence[str]]:
    answer = httpx2.get(f"{url}/readyz", headers={"authorization": f"Bearer {TOKEN}"})
    found: dict[str, Sequence[str]] = answer.json()
    return found


def test_an_event_that_is_sent_with_a_private_key_is_handled(
    url: str, tmp_path: Path, pair: KeyPair
) -> None:
    file = tmp_path / "private-key"
    arguments = ("send", "comment.received", "--url", f"{url}/webhooks", "--json")
    sent = invoke(*arguments, "--secrets-file", str(file))
    assert (sent.status, json.loads(sent.output)["status"]) == (0, 200), sent
    assert pair.private[5:] not in sent.output + sent.errors
    tampered = invoke(*arguments, "--tamper", "--secrets-file", str(file))
    assert json.loads(tampered.output)["status"] == 401
    other = tmp_path / "other-key"
    invoke("secret", "--private-key", str(other))
    assert json.loads(invoke(*arguments, "--secrets-file", str(other)).output)["status"] == 401
    shared = invoke(*arguments, secrets=[new_secret()])
    assert json.loads(shared.output)["status"] == 401


def rotations(url: str) -> list[str]:
    return [text for text in ready(url)["warnings"] if "rotated" in text]


@pytest.mark.parametrize("secrets", ["whpk", "nothing"])
def test_send_reports_that_a_public_key_cannot_sign(
    secrets: str, tmp_path: Path, pair: KeyPair
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(pair.public if secrets == "whpk" else "whsk_")
    url = "http://127.0.0.1:9/webhooks"  # no server: the command must send nothing
    result = invoke("send", "webhook.test", "--url", url, "--secrets-file", str(wrong))
    result.says("secret 1 in ", "key", status=2)


@pytest.mark.parametrize("begins_with", ["public key", "secret"])
def test_a_real_server_refuses_nothing_while_its_sender_changes_the_kind_of_key(
    begins_with: str, url: str, tmp_path: Path, pair: KeyPair
) -> None:
    """The server has the old key, then both keys, then the new key, and is never restarted."""
    shared = new_secret()
    file = tmp_path / "webhooks"
    old, new = (pair.private, pair.public), (shared, shared)
    if begins_with == "secret":
        old, new = new, old
        file.write_text(f"{shared}\n")
        eventually(lambda: ready(url)["secrets"] == [fingerprint(shared)], what="read the secret")
    assert deliver(url, old[0]) == 200
    assert deliver(url, new[0]) == 401
    assert [deliver(url, new[0], old[0]) for _ in range(3)] == [200] * 3
    eventually(lambda: rotations(url), what="warned of the rotation")
    assert "only one of the two secrets is configured here" in rotations(url)[0]
    file.write_text(f"{new[1]}\n{old[1]}\n")
    both = [fingerprint(new[1]), fingerprint(old[1])]
    eventually(lambda: ready(url)["secrets"] == both, what="read both keys")
    for signing in [(old[0],), (new[0], old[0]), (old[0], new[0]), (new[0],)]:
        assert deliver(url, *signing) == 200

    def is_at_rest() -> bool:
        return deliver(url, new[0], old[0]) == 200 and not rotations(url)

    eventually(is_at_rest, what="stopped the warning")
    file.write_text(f"{new[1]}\n")
    assert deliver(url, new[0]) == 200
    assert deliver(url, old[0]) == 401


def test_a_saved_delivery_is_verified_and_explained(tmp_path: Path, pair: KeyPair) -> None:
    body = event_body("comment.received")
    request = signed_request(body, pair.private)
    (tmp_path / "body").write_bytes(body)
    (tmp_path / "headers").write_text(
        "".join(f"{name}: {value}\n" for name, value in request.headers.items())
    )
    (tmp_path / "rewritten").write_bytes(json.dumps(json.loads(body), indent=2).encode())
    arguments = ("verify", "--headers", str(tmp_path / "headers"), "--body")
    genuine = invoke(*arguments, str(tmp_path / "body"), secrets=[new_secret(), pair.public])
    assert "with secret 2 of 2" in genuine.output
    rewritten = invoke(*arguments, str(tmp_path / "rewritten"), secrets=[pair.public])
    assert rewritten.status == 1
    assert "parsed and rewritten" in rewritten.output
    other_kind = invoke(*arguments, str(tmp_path / "body"), secrets=[new_secret()])
    assert "only a v1a signature, and every configured secret is for v1" in other_kind.output
    private = invoke(*arguments, str(tmp_path / "body"), secrets=[pair.private])
    assert private.status == 2
    assert "this is a private key" in private.output
    assert pair.private[5:] not in private.output + private.errors
