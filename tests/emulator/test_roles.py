"""The roles of operations, and operations that do not exist: Authentication, Endpoints (v1)."""

from collections.abc import AsyncIterator

import pytest
from support.exchanges import scripts
from support.service_api import checked_error
from support.workspaces import Bakery, bakery

from hookonce.emulator.access import ROLES
from hookonce.emulator.operations import NOT_SHOWN, OPERATIONS, ApiOperation, operation_for
from hookonce.emulator.refusals import RefusedError

pytestmark = pytest.mark.anyio

IDS = {
    "{postId}": "post_draft",
    "{mediaId}": "med_bread",
    "{commentId}": "cmt_gluten",
    "{webhookId}": "wh_none",
}


@pytest.fixture
async def here() -> AsyncIterator[Bakery]:
    async with bakery() as place:
        yield place


def path_of(operation: ApiOperation) -> str:
    path = operation.path
    for name, row_id in IDS.items():
        path = path.replace(name, row_id)
    return path


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
async def test_an_operation_accepts_its_role_and_higher_roles(
    here: Bakery, operation: ApiOperation
) -> None:
    """Interface, Authentication 8: "A role that does not allow the operation is answered with
    403".
    """
    for role in ROLES:
        response = await here.as_role(role, operation.method, path_of(operation), {})
        if ROLES.index(role) < ROLES.index(operation.role):
            assert checked_error(response, 403, "api.forbidden")["kind"] == "permission"
        else:
            assert response.status_code not in {401, 403, 405, 500}, response.text


def test_only_webhooks_need_the_admin_role() -> None:
    """Interface, Authentication 6: create, update, test, deliveries, rotate-secret; the interface
    shows no others.
    """
    admins = {one.path for one in OPERATIONS if one.role == "admin"}
    assert admins == {one.path for one in OPERATIONS if "/webhooks" in one.path}
    assert {one.role for one in OPERATIONS if one.method == "GET"} == {"viewer", "admin"}


def test_every_operation_of_the_interface_is_served() -> None:
    """Interface, Endpoints, row by row."""
    assert [f"{one.method} {one.path}" for one in OPERATIONS] == [
        "GET /v1/me",
        "GET /v1/channels",
        "GET /v1/posts",
        "POST /v1/posts",
        "POST /v1/posts/validate",
        "GET /v1/posts/{postId}",
        "PATCH /v1/posts/{postId}",
        "DELETE /v1/posts/{postId}",
        "POST /v1/posts/{postId}/publish",
        "GET /v1/media",
        "POST /v1/media/uploads",
        "POST /v1/media/{mediaId}/complete",
        "GET /v1/comments",
        "POST /v1/comments/{commentId}/reply",
        "POST /v1/webhooks",
        "PATCH /v1/webhooks/{webhookId}",
        "POST /v1/webhooks/{webhookId}/test",
        "GET /v1/webhooks/{webhookId}/deliveries",
        "POST /v1/webhooks/{webhookId}/rotate-secret",
    ]


def test_every_operation_is_in_an_exchange_with_a_success_of_its_status() -> None:
    shown: dict[tuple[str, str], set[int]] = {}
    for script in scripts():
        for exchange in script.exchanges:
            try:
                operation, _ = operation_for(
                    exchange.request["method"], exchange.request.get("path", "/")
                )
            except RefusedError:
                continue
            shown.setdefault((operation.path, operation.method), set()).add(
                exchange.response["status"]
            )
    missing = [
        f"{one.method} {one.path}"
        for one in OPERATIONS
        if one.status not in shown.get((one.path, one.method), set())
    ]
    # This operation's effect is a delivery, which an exchange cannot show.
    assert missing == ["POST /v1/webhooks/{webhookId}/test"]


@pytest.mark.parametrize("named", [one for one in NOT_SHOWN if " /v1/" in one])
async def test_an_operation_without_a_shown_shape_is_not_served(here: Bakery, named: str) -> None:
    """Interface, Endpoints, Gaps: "Paths, methods and shapes of the operations … not shown"."""
    method, path = named.split()
    checked_error(await here.api.request(method, path), 404, "api.not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/channels/ch_insta"),
        ("POST", "/v1/posts/post_draft/approve"),
        ("POST", "/v1/posts/post_draft/retry"),
        ("GET", "/v1/conversations"),
        ("GET", "/v1/media/med_bread"),
        ("GET", "/v1/comments/cmt_gluten"),
    ],
)
async def test_operations_of_the_change_history_are_not_served(
    here: Bakery, method: str, path: str
) -> None:
    """Interface, Endpoints: "Other channel operations named in the change history", and so on.

    "Other post operations named in the change history"; "Other media operations named in the change
    history"; "Other comment operations named in the change history": their paths are not shown.
    """
    checked_error(await here.api.request(method, path), 404, "api.not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/posts", "GET, POST"),
        ("PUT", "/v1/posts/post_draft", "GET, PATCH, DELETE"),
        ("POST", "/v1/me", "GET"),
        ("GET", "/v1/webhooks", "POST"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_answered_405(
    here: Bakery, method: str, path: str, allowed: str
) -> None:
    response = await here.api.request(method, path)
    checked_error(response, 405, "api.method_not_allowed")
    assert response.headers["allow"] == allowed
