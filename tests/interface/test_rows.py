"""Every row of the interface's rules has a test, or an exchange, that names it."""

import re
from functools import cache
from pathlib import Path

import pytest
from support.exchanges import scripts

TESTS = Path(__file__).parents[1]

ROWS = {
    "States": [
        "create with mode draft | always accepted",
        "create with mode schedule: scheduledAt present",
        "queue takes the next free slot",
        "with now, publishing starts",
        "(contributor role) | create with mode schedule",
        "(contributor role) | save with mode schedule",
        "publishing | replace",
        "publishing | delete",
        "pending_approval | replace with mode other than draft",
        "pending_approval | publish or reschedule",
        "not yet published | publish operation",
        "published | publish operation",
        "published | delete",
        "draft or another unpublished state | delete",
        "failed target | retry",
        "(new media) | start upload",
        "uploading | complete",
        "open comment | reply",
        "assigned comment | reply",
        "done comment | reply",
        "failing for 72 hours",
        "receiver answers 410",
        "PATCH with enabled true",
        "answer 2xx within 10 s",
        "next state retry scheduled",
        "holds anything scheduled to it",
    ],
    "Errors": [
        "Every failure is JSON",
        "One sentence for people",
        "401 | Key missing",
        "402 | Workspace plan does not include the API",
        "403 | The key's role does not allow the operation",
        "404 | No such row in this workspace",
        "409",
        "422 | The body did not validate",
        "When the quota is gone the API answers 429",
        "502 | The platform rejected a comment reply",
        "post.not_found",
        "a settings value has the wrong type; applies to drafts too",
        "a settings value is outside its allowed values",
        "first_comment.unsupported",
        "media.not_found | 422",
        "post.publishing",
        "post.pending_approval",
        "post.target_not_retryable",
        "post.schedule_required",
        "post.schedule_in_past",
        "webhook.url_private",
        "api.not_on_plan",
        "error.details.validations",
    ],
    "Limits": [
        "Requests per day, free",
        "Requests per day",
        "Keys per workspace",
        "Webhook endpoints per workspace",
        "A value above 100 is clamped to 100",
        "title | <= 120 characters",
        "caption, baseCaption | <= 63206 characters",
        "mediaIds, baseMediaIds, target mediaIds | <= 35 items",
        "targets | >= 1 item",
        "firstComment | <= 2200 characters",
        "reply text | 1 to 2200 characters",
        "filename | <= 255 characters",
        "size | >= 1 byte",
        "checked against the plan's storage quota",
        "Webhook answer time",
        "Delivery attempts",
        "Disable threshold",
        "Delivery log retention",
        "Dual-signature window",
        "Every authenticated response",
        "x-ratelimit-reset",
        "a monthly scheduled post limit and against X credits",
    ],
    "Authentication": [
        "Authentication 1",
        "Authentication 2",
        "Authentication 3",
        "Authentication 4",
        "Authentication 5",
        "Authentication 6",
        "Authentication 7",
        "Authentication 8",
        "Authentication 9",
        "Events, Signature, rules 1 to 3",
    ],
    "Versioning": [
        "Versioning 1",
        "Versioning 2",
        "Versioning 3",
        "Versioning 5",
        "Versioning 6",
        "Timestamp cursors handed out earlier keep working",
        "Lists only finished uploads",
    ],
}


@cache
def words() -> str:
    """Return every docstring of a test, and every line of an exchange, in one text."""
    files = [
        path
        for path in TESTS.rglob("test_*.py")
        if path != Path(__file__) and "chaos" not in path.parts
    ]
    docs = [
        doc
        for path in files
        for doc in re.findall(r'"""(.*?)"""', path.read_text("utf-8"), re.DOTALL)
    ]
    lines = [exchange.line for script in scripts() for exchange in script.exchanges]
    text = "\n".join([*docs, *lines, *(script.about for script in scripts())])
    return re.sub(r"[`\s]+", " ", text)


@pytest.mark.parametrize(
    "row", [row for rows in ROWS.values() for row in rows], ids=lambda row: row[:60]
)
def test_a_row_is_named_by_a_test(row: str) -> None:
    assert row in words()
