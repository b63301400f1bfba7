"""Other packages that verify webhooks, each with a delivery signed in its own way."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping

from .measuring import Subject, installed

__all__ = ["parsing", "verifying"]


def verifying(secret: str, headers: Mapping[str, str], body: bytes) -> dict[str, Subject]:
    """Return the installed packages that verify a body without parsing it."""
    subjects: dict[str, Subject] = {}
    if reference := installed("standardwebhooks"):
        webhook = reference.Webhook(secret)
        subjects["standardwebhooks"] = lambda: webhook.verify(body, headers, json_parse=False)
    if svix := installed("svix.webhooks"):
        svix_webhook = svix.Webhook(secret)
        subjects["svix"] = lambda: svix_webhook.verify(body, headers)
    if stripe := installed("stripe"):
        line = _stripe_line(secret, body)
        verify_header = stripe.WebhookSignature.verify_header
        subjects["stripe"] = lambda: verify_header(body, line, secret, 300)
    if slack := installed("slack_sdk.signature"):
        slack_headers = _slack_headers(secret, body)
        verifier = slack.SignatureVerifier(secret)
        subjects["slack_sdk"] = lambda: verifier.is_valid_request(body, slack_headers)
    if openai := installed("openai"):
        webhooks = openai.OpenAI(api_key="unused", webhook_secret=secret).webhooks
        subjects["openai"] = lambda: webhooks.verify_signature(body, headers)
    return subjects


def parsing(secret: str, headers: Mapping[str, str], body: bytes) -> dict[str, Subject]:
    """Return the installed packages that verify and parse a body.

    The event is of none of their types; stripe and openai make their objects of it all the same.
    """
    subjects: dict[str, Subject] = {}
    if reference := installed("standardwebhooks"):
        webhook = reference.Webhook(secret)
        subjects["standardwebhooks (untyped)"] = lambda: webhook.verify(body, headers)
    if openai := installed("openai"):
        webhooks = openai.OpenAI(api_key="unused", webhook_secret=secret).webhooks
        subjects["openai (typed)"] = lambda: webhooks.unwrap(body, headers)
    if stripe := installed("stripe"):
        line = _stripe_line(secret, body)
        construct_event = stripe.Webhook.construct_event
        subjects["stripe (its own objects)"] = lambda: construct_event(body, line, secret)
    return subjects


def _stripe_line(secret: str, body: bytes) -> str:
    now = int(time.time())
    return f"t={now},v1={_hex(secret, f'{now}.'.encode() + body)}"


def _slack_headers(secret: str, body: bytes) -> dict[str, str]:
    now = int(time.time())
    return {
        "x-slack-request-timestamp": str(now),
        "x-slack-signature": f"v0={_hex(secret, f'v0:{now}:'.encode() + body)}",
    }


def _hex(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()
