"""Verification without a server or a store: pure functions over bytes.

python examples/standalone_verify.py
"""

from hookonce import Refusal, VerificationError, Verifier, sign, unwrap
from hookonce.events import CommentReceived
from hookonce.testing import make_event
from hookonce.verification.secrets import new_secret

new, old = new_secret(), new_secret()
event = make_event(CommentReceived, data={"text": "Lovely bread!"})
body = event.model_dump_json(exclude_unset=True).encode()

# During a rotation the service signs with both secrets; one valid signature is enough.
verifier = Verifier([new, old])
delivery = verifier.verify(body, sign(old, event.id, body))
print(f"{delivery.id == event.id=}, {delivery.secret_index=}")

# unwrap verifies the delivery, then returns the typed event.
received = unwrap(body, sign([new, old], event.id, body), [new])
if isinstance(received, CommentReceived):
    print(received.data.text)

# Every refused delivery raises VerificationError; its reason is an enum.
try:
    verifier.verify(body + b" ", sign(new, event.id, body))
except VerificationError as error:
    print(f"refused: {error.reason}", error.reason is Refusal.NO_MATCHING_SIGNATURE)
