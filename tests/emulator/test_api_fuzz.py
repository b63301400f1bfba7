"""The API answers every possible request without an internal error."""

import json

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.workspaces import bakery

from hookonce.emulator.operations import OPERATIONS, ApiOperation
from hookonce.resources import ErrorResponse

ERROR_STATUSES = {401, 402, 403, 404, 409, 422, 429, 502}
IDS = {
    "{postId}": "post_draft",
    "{mediaId}": "med_bread",
    "{commentId}": "cmt_gluten",
    "{webhookId}": "wh_none",
}
NAMES = st.sampled_from(
    [
        *("title", "caption", "baseCaption", "mediaIds", "targets", "scheduledAt", "mode"),
        *("channelId", "socialAccountId", "contentType", "firstComment", "settings", "text"),
        *("filename", "mime", "size", "width", "durationMs", "url", "events", "enabled"),
    ]
)
VALUES = st.sampled_from(
    [
        *("ch_insta", "ch_tube", "med_bread", "med_half", "image/png", "now", "schedule", "queue"),
        *("2026-12-01T09:00:00+01:00", "9999-12-31T23:59:59-23:59", "feed", "post_draft", "\ud83d"),
        *(0, 1, 2**63, -1, 1.5, True, None),
    ]
)
JSON = st.recursive(
    VALUES | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=12,
)
BODIES = JSON | st.fixed_dictionaries(
    {"targets": st.lists(st.dictionaries(NAMES, JSON, max_size=4), max_size=2)},
    optional={"mode": VALUES, "caption": JSON, "scheduledAt": JSON, "mediaIds": JSON},
)
QUERIES = st.dictionaries(
    st.sampled_from(["limit", "cursor", "status", "channels", "q", "type", "postId", "sort"]),
    st.text(max_size=12)
    | st.sampled_from(["1", "101", "2026-11-13T15:00:00Z", "post_draft", "all"]),
)


@pytest.mark.full("3 s")
@given(operation=st.sampled_from(OPERATIONS), body=BODIES, query=QUERIES)
@settings(max_examples=60)
def test_every_request_is_answered_as_the_interface_says(
    operation: ApiOperation, body: object, query: dict[str, str]
) -> None:
    """Interface, Errors: "Every failure is JSON under an `error` key"; no error is of the kind
    internal.

    Endpoints: "All success bodies are JSON"; "Every operation may answer the error statuses listed
    under Errors", and no others.
    """

    async def send() -> None:
        async with bakery() as here:
            path = operation.path
            for name, row_id in IDS.items():
                path = path.replace(name, row_id)
            response = await here.api.request(
                operation.method, path, params=query, content=json.dumps(body)
            )
            if response.status_code >= 400:
                assert response.status_code in ERROR_STATUSES
                error = ErrorResponse.model_validate_json(response.content).error
                assert error.kind != "internal"
            else:
                assert response.headers["content-type"] == "application/json"
                assert "data" in response.json()
            await here.service.advance(hours=1)

    anyio.run(send)
