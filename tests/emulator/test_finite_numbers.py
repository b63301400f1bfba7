"""The emulated service refuses NaN and infinity in every number that it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.service_api import checked_error
from support.workspaces import Bakery, bakery

from hookonce.emulator import WorkspaceData

pytestmark = pytest.mark.anyio

NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"]


@pytest.fixture
async def here() -> AsyncIterator[Bakery]:
    async with bakery() as place:
        yield place


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_body_with_a_non_finite_number_is_refused_and_its_place_named(
    here: Bakery, number: str
) -> None:
    """JSON has no NaN or infinity, so the service could not return the value in an answer."""
    targets = f'[{{"channelId": "ch_insta", "settings": {{"deep": [1, {number}]}}}}]'
    for path in ("/v1/posts", "/v1/posts/validate"):
        body = f'{{"caption": "Hello.", "targets": {targets}}}'
        response = await here.api.post(
            path, content=body, headers={"content-type": "application/json"}
        )
        error = checked_error(response, 422, "validation.failed")
        [issue] = error["details"]["issues"]
        assert issue == {
            "field": "targets.0.settings.deep.1",
            "message": "Input should be a finite number",
        }


async def test_a_text_that_looks_like_a_non_finite_number_is_accepted(here: Bakery) -> None:
    body = {"caption": "NaN, Infinity", "targets": [{"channelId": "ch_insta"}]}
    assert (await here.api.post("/v1/posts", json=body)).status_code == 201


@pytest.mark.parametrize(
    ("ending", "number"),
    [
        *(("json", number) for number in NUMBERS),
        *(("yaml", number) for number in (*NUMBERS, ".nan", ".inf")),
    ],
)
def test_a_file_with_a_non_finite_number_is_refused_and_its_place_named(
    tmp_path: Path, ending: str, number: str
) -> None:
    file = tmp_path / f"workspace.{ending}"
    file.write_text(f'{{"slow": [{{"seconds": {number}}}]}}')
    with pytest.raises(ValueError, match=r"slow\.0\.seconds"):
        WorkspaceData.load(file)
