"""The two schemes cannot be confused: the kind of a key alone decides what it can match."""

import base64
import hashlib
import hmac
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.node import node_program
from support.processes import run_python
from support.secrets import ChangingSecrets

from hookonce import (
    EnvironmentSecrets,
    FileSecrets,
    Receiver,
    Refusal,
    SecretError,
    VerificationError,
    Verifier,
    sign,
    verify,
)
from hookonce.verification.headers import DeliveryHeaders
from hookonce.verification.secrets import (
    KeyPair,
    fingerprint,
    new_key_pair,
    new_secret,
    verifying_key,
)

NOW = 1_700_000_000
BODY = b'{"amount":1}'
MESSAGE_ID = "evt_1"
SIGNED = f"{MESSAGE_ID}.{NOW}.".encode() + BODY

PAIR, OTHER_PAIR = new_key_pair(), new_key_pair()
SECRET, OTHER_SECRET = new_secret(), new_secret()


def headers_of(*entries: str) -> dict[str, str]:
    return {
        "webhook-id": MESSAGE_ID,
        "webhook-timestamp": str(NOW),
        "webhook-signature": " ".join(entries),
    }


def entry_of(secret: str) -> str:
    return sign(secret, MESSAGE_ID, BODY, timestamp=NOW)["webhook-signature"]


def matched(secrets: Sequence[str] | str, *entries: str) -> int | None:
    """Return the index of the secret that matches; None if the delivery is refused."""
    try:
        return verify(BODY, headers_of(*entries), secrets, now=NOW).secret_index
    except VerificationError as error:
        if error.reason is not Refusal.NO_MATCHING_SIGNATURE:
            raise
        return None


def raw(text: str) -> bytes:
    return base64.b64decode(text.partition("_")[2])


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def hmac_of(key: bytes, digest: str = "sha256") -> bytes:
    return hmac.digest(key, SIGNED, digest)


V1, V1A = entry_of(SECRET), entry_of(PAIR.private)
V1_TEXT, V1A_TEXT = V1.removeprefix("v1,"), V1A.removeprefix("v1a,")
SIGNATURE = base64.b64decode(V1A_TEXT)

# Forgeries by an attacker who knows the receiver's public key.
FORGERIES = {
    "HMAC with the public key as its key": f"v1,{b64(hmac_of(raw(PAIR.public)))}",
    "HMAC with the text of the public key": f"v1,{b64(hmac_of(PAIR.public.encode()))}",
    "HMAC with the base64 of the public key": f"v1,{b64(hmac_of(PAIR.public[5:].encode()))}",
    "HMAC of 32 bytes as v1a": f"v1a,{b64(hmac_of(raw(PAIR.public)))}",
    "HMAC-SHA512 with the public key": f"v1a,{b64(hmac_of(raw(PAIR.public), 'sha512'))}",
    "HMAC twice, as long as v1a": f"v1a,{b64(hmac_of(raw(PAIR.public)) * 2)}",
    "HMAC with an empty key": f"v1a,{b64(hmac_of(b'', 'sha512'))}",
    "the hash of the message": f"v1a,{b64(hashlib.sha512(SIGNED).digest())}",
    "the public key as the signature": f"v1a,{b64(raw(PAIR.public) * 2)}",
    "zeros": f"v1a,{b64(bytes(64))}",
    "ones": f"v1a,{b64(bytes([255]) * 64)}",
    "a genuine v1": V1,
    "a genuine v1 as v1a": f"v1a,{V1_TEXT}",
    "a genuine v1 padded to the length of v1a": f"v1a,{b64(raw('x_' + V1_TEXT) + bytes(32))}",
    "a genuine v1a as v1": f"v1,{V1A_TEXT}",
    "the first half of v1a as v1": f"v1,{b64(SIGNATURE[:32])}",
    "the last half of v1a as v1": f"v1,{b64(SIGNATURE[32:])}",
    "v1,a": f"v1,a{V1A_TEXT}",
    "v1,a,": f"v1,a,{V1A_TEXT}",
    "v1 ,a": f"v1 ,a,{V1A_TEXT}",
    "v1A": f"v1A,{V1A_TEXT}",
    "V1a": f"V1a,{V1A_TEXT}",
    "v1aa": f"v1aa,{V1A_TEXT}",
    "v1a without a comma": f"v1a{V1A_TEXT}",
    "v1a and two commas": f"v1a,,{V1A_TEXT}",
    "v1a:": f"v1a:{V1A_TEXT}",
    "v1a=": f"v1a={V1A_TEXT}",
    "a": f"a,{V1A_TEXT}",
    "va": f"va,{V1A_TEXT}",
    "v2a": f"v2a,{V1A_TEXT}",
    "v1b": f"v1b,{V1A_TEXT}",
    "no version": V1A_TEXT,
    "URL-safe base64": "v1a," + V1A_TEXT.replace("+", "-").replace("/", "_").replace("=", ""),
    "no padding": V1A.rstrip("="),
    "hexadecimal": "v1a," + SIGNATURE.hex(),
    "junk for one character": f"{V1A[:20]}!{V1A[21:]}",
    "the halves exchanged": f"v1a,{b64(SIGNATURE[32:] + SIGNATURE[:32])}",
    "another private key": entry_of(OTHER_PAIR.private),
    "another id": sign(PAIR.private, "evt_2", BODY, timestamp=NOW)["webhook-signature"],
    "another second": sign(PAIR.private, MESSAGE_ID, BODY, timestamp=NOW + 1)["webhook-signature"],
    "another body": sign(PAIR.private, MESSAGE_ID, BODY + b" ", timestamp=NOW)["webhook-signature"],
    "the id and the second moved": sign(PAIR.private, "evt_", BODY, timestamp=int(f"1{NOW}"))[
        "webhook-signature"
    ],
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forgery_does_not_match_a_public_key(forged: str) -> None:
    assert matched(PAIR.public, V1A) == 0
    assert matched(PAIR.public, forged) is None
    # The forgery also fails beside a secret unknown to the attacker, and beside other forgeries.
    if forged != V1:
        assert matched([OTHER_SECRET, PAIR.public], forged, V1) is None
        assert matched([PAIR.public, OTHER_SECRET, OTHER_PAIR.public], V1, forged) is (
            2 if forged == FORGERIES["another private key"] else None
        )


@pytest.mark.parametrize(
    "entry",
    [
        V1A,
        f"v1,{V1A_TEXT}",
        f"v1a,{V1_TEXT}",
        f"v1a,{b64(raw('x_' + V1_TEXT) * 2)}",
        f"v1a,{b64(hmac_of(verifying_key(SECRET).raw, 'sha512'))}",
    ],
    ids=range(5),
)
def test_a_secret_matches_no_entry_of_the_other_scheme(entry: str) -> None:
    assert matched(SECRET, V1) == 0
    assert matched(SECRET, entry) is None


def test_every_mix_and_order_of_keys_matches_each_of_its_signatures() -> None:
    keys = {0: (SECRET, V1), 1: (PAIR.public, V1A), 2: (OTHER_SECRET, entry_of(OTHER_SECRET)),
            3: (OTHER_PAIR.public, entry_of(OTHER_PAIR.private))}  # fmt: skip
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]):
        secrets = [keys[n][0] for n in order]
        for n, (secret, entry) in keys.items():
            strangers = [entry_of(new_secret()), entry_of(new_key_pair().private), "v9,x"]
            assert matched(secrets, *strangers, entry) == order.index(n)
            assert matched([one for one in secrets if one != secret], *strangers, entry) is None


def test_one_match_is_enough_so_a_secret_that_stays_configured_still_signs() -> None:
    """There is no downgrade: without the old secret, a receiver accepts only `v1a`."""
    assert matched([PAIR.public, SECRET], V1) == 1
    assert matched([PAIR.public], V1) is None
    assert matched([SECRET], V1A) is None


def test_a_prefix_is_never_ignored() -> None:
    body = raw(PAIR.public)
    for text in (f"whsec_{PAIR.public}", f"v1,{PAIR.public}", f"whpk_{PAIR.public}"):
        with pytest.raises(SecretError):
            verify(BODY, headers_of(V1A), text, now=NOW)
    # The same bytes with the prefix of a secret are another key, with another fingerprint.
    as_secret = f"whsec_{b64(body)}"
    assert matched(as_secret, V1A) is None
    assert fingerprint(as_secret) != fingerprint(PAIR.public)


def test_a_public_key_whose_prefix_has_lost_its_underscore_is_no_secret() -> None:
    """The text is base64 too, so it would be an HMAC key that everybody knows."""
    damaged = PAIR.public.replace("_", "", 1)
    forged = {**headers_of(V1A), "webhook-signature": entry_of(f"whsec_{damaged}")}
    for text in (damaged, PAIR.private.replace("_", "", 1)):
        with pytest.raises(SecretError, match="its prefix has no '_'"):
            verify(BODY, forged, text, now=NOW)


@pytest.mark.parametrize("prefix", ["", "whsec_"])
def test_a_public_key_of_a_pem_file_is_no_secret(prefix: str) -> None:
    """Its base64 would be an HMAC key that everybody knows."""
    public = Ed25519PublicKey.from_public_bytes(raw(PAIR.public))
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    [_, line, _] = pem.strip().splitlines()
    with pytest.raises(SecretError, match="the public key of a PEM file; write 'whpk_'"):
        verify(BODY, headers_of(V1A), prefix + line, now=NOW)
    assert f"whpk_{b64(base64.b64decode(line)[-32:])}" == PAIR.public


def test_a_private_key_is_refused_where_deliveries_are_verified() -> None:
    with pytest.raises(SecretError, match="only the sender may have it") as caught:
        Verifier([SECRET, PAIR.private])
    assert PAIR.private[5:20] not in str(caught.value)
    with pytest.raises(SecretError, match="only the sender may have it"):
        Receiver(secrets=[SECRET, PAIR.private], store="memory://")
    with pytest.raises(SecretError, match="only the sender may have it"):
        verify(BODY, headers_of(V1A), PAIR.private, now=NOW)


def test_a_public_key_cannot_sign() -> None:
    with pytest.raises(SecretError, match="only verifies; sign with the private key"):
        sign([SECRET, PAIR.public], MESSAGE_ID, BODY)


def test_at_most_four_of_the_expensive_signatures_are_checked() -> None:
    strangers = [entry_of(new_key_pair().private) for _ in range(4)]
    assert matched(PAIR.public, *strangers[:3], V1A) == 0
    assert matched(PAIR.public, *strangers, V1A) is None
    assert matched([PAIR.public, SECRET], *strangers, *strangers, V1) == 1
    headers = headers_of(*strangers, *[V1A] * 100, *[V1] * 100)
    signatures = DeliveryHeaders.parse(headers).signatures
    assert len(signatures) == 16
    assert sorted(map(len, signatures)) == [44] * 12 + [88] * 4


def test_a_rotation_from_one_kind_to_the_other_counts_both_signatures() -> None:
    headers = sign([PAIR.private, SECRET], MESSAGE_ID, BODY, timestamp=NOW)
    for secrets in (SECRET, PAIR.public, [SECRET, PAIR.public]):
        assert verify(BODY, headers, secrets, now=NOW).signature_count == 2


def test_files_environment_and_providers_take_both_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets").write_text(f"# newest first\n{PAIR.public}\n\n{SECRET}\n")
    monkeypatch.setenv("HOOKONCE_SECRETS", f"{SECRET} {OTHER_SECRET},{PAIR.public}")
    changing = ChangingSecrets(SECRET)
    for source in (FileSecrets(tmp_path / "secrets"), EnvironmentSecrets(), changing):
        verifier = Verifier(source)
        changing.secrets = [OTHER_SECRET, PAIR.public, SECRET]
        for entry in (V1, V1A):
            assert verifier.verify(BODY, headers_of(entry), now=NOW).id == MESSAGE_ID


def test_a_private_key_in_a_file_leaves_the_last_good_keys_in_force(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(PAIR.public)
    source = FileSecrets(file)
    file.write_text(f"{PAIR.private}\n")
    assert source.current() == (PAIR.public,)
    assert source.fault is not None
    assert "this is a private key" in source.fault
    assert PAIR.private[5:20] not in source.fault


def test_no_key_pair_shows_its_private_key() -> None:
    assert PAIR.private[5:20] not in f"{PAIR!r} {PAIR}"
    assert PAIR.public in repr(PAIR)
    assert KeyPair.of(PAIR.private) == PAIR


def test_without_the_extra_an_asymmetric_key_names_it_and_a_secret_does_not_need_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "secrets"
    file.write_text(PAIR.public)
    printed = run_python(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'cryptography':\n"
        "            raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from hookonce import FileSecrets, Receiver, SecretError, Verifier, sign, verify\n"
        "from hookonce.verification.secrets import new_key_pair, new_secret\n"
        "secret = new_secret()\n"
        "Receiver(secrets=secret, store='memory://')\n"
        "verify(b'', sign(secret, 'evt_1', b''), secret)\n"
        f"uses = [lambda: Verifier({PAIR.public!r}), lambda: FileSecrets({str(file)!r}),\n"
        f"    lambda: sign({PAIR.private!r}, 'evt_1', b''), new_key_pair]\n"
        "for use in uses:\n"
        "    try: use()\n"
        "    except SecretError as error: print(error)\n"
    )
    assert len(printed.splitlines()) == 4
    for line in printed.splitlines():
        assert line.endswith(" needs cryptography: pip install 'hookonce[v1a]'")


def test_nothing_imports_cryptography_for_a_secret() -> None:
    printed = run_python(
        "import sys\n"
        "from hookonce import Receiver, sign, verify\n"
        "from hookonce.testing import signed_request\n"
        "from hookonce.verification.secrets import new_secret\n"
        "secret = new_secret()\n"
        "Receiver(secrets=secret, store='memory://')\n"
        "verify(b'', sign(secret, 'evt_1', b''), secret)\n"
        "print('cryptography' in sys.modules)\n"
    )
    assert printed == "False\n"


# Node's own ed25519: neither standardwebhooks (Python, Node) nor svix (Python) knows `v1a`.
NODE_PROGRAM = """
const crypto = require("node:crypto");
const [seed, body, signature] = process.argv.slice(1).map((text) => Buffer.from(text, "base64"));
const pkcs8 = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]);
const key = crypto.createPrivateKey({ key: pkcs8, format: "der", type: "pkcs8" });
const verified = crypto.verify(null, body, crypto.createPublicKey(key), signature);
process.stdout.write(`${verified} ${crypto.sign(null, body, key).toString("base64")}`);
"""


def test_node_makes_the_signature_that_we_make_and_verifies_ours() -> None:
    node = node_program()
    arguments = [b64(raw(PAIR.private)[:32]), b64(SIGNED), V1A_TEXT]
    done = subprocess.run(
        [node, "-e", NODE_PROGRAM, "--", *arguments], capture_output=True, check=True, timeout=60
    )
    assert done.stdout.decode() == f"true {V1A_TEXT}"


@pytest.mark.parametrize("library", ["standardwebhooks", "svix"])
def test_the_public_libraries_do_not_know_the_asymmetric_scheme(library: str) -> None:
    """The libraries skip `v1a` signatures, so they refuse a sender that signs only with `v1a`."""
    webhooks = pytest.importorskip(f"{library}.webhooks")
    headers = sign(PAIR.private, MESSAGE_ID, BODY)
    if library == "svix":
        headers = {name.replace("webhook-", "svix-"): value for name, value in headers.items()}
    with pytest.raises(webhooks.WebhookVerificationError):
        webhooks.Webhook(SECRET).verify(BODY, headers)
