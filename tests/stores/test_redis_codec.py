"""The hand-written encoding of frequent calls gives the same bytes as the general encoding."""

import pytest

from hookonce.stores.redis.codec import claim_step, completion_step, step
from hookonce.stores.values import Token, delivery_key

IDS = ["evt_1", "", "e" * 512, "événement", "evt_\udcff"]
TOKENS = ["0123456789abcdef", "jeton n\u00ba 1"]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("event_id", IDS)
@pytest.mark.parametrize("lease", [30.0, 0.25, 1e9])
def test_a_claim_is_sent_as_any_step_is(event_id: str, token: str, lease: float) -> None:
    key = delivery_key("default", event_id)
    assert claim_step(key, Token(token), lease) == step("claim", key, token, lease)


@pytest.mark.parametrize("event_id", IDS)
def test_a_completion_is_sent_as_any_step_is(event_id: str) -> None:
    key = delivery_key("default", event_id)
    assert completion_step(key) == step("complete", key)
