"""The sender `publishing` with a time-out of only two seconds, which makes tests short."""

from dataclasses import replace

from hookonce.senders import publishing

PATIENCE_SECONDS = 2.0

sender = replace(
    publishing, name="quick", rules=replace(publishing.rules, answer_seconds=PATIENCE_SECONDS)
)
