"""WSGI behind nginx with the settings of the guide: unfinished bodies reach no thread."""

import asyncio
from pathlib import Path

import pytest
from support.servers import RawConnection, request_bytes, whole

from hookonce.events import CommentReceived
from hookonce.testing import Answer, make_event, signed_request
from hookonce.verification.secrets import new_secret
from integrations.gunicorn_apps import behind_gunicorn
from integrations.nginx import behind_nginx

pytestmark = [pytest.mark.anyio, pytest.mark.costs("3 s")]

SECRET = new_secret()


async def deliver(port: int, *, body: bytes | None = None) -> Answer:
    request = signed_request(body or make_event(CommentReceived), SECRET)
    async with await RawConnection.at(port) as connection:
        await connection.write(whole(request))
        return await connection.answer()


async def test_nginx_keeps_unfinished_bodies_back_and_passes_deliveries_on(tmp_path: Path) -> None:
    with (
        behind_gunicorn("wsgi", here=tmp_path, secret=SECRET) as (behind, gunicorn),
        behind_nginx(behind, here=tmp_path / "nginx") as port,
    ):
        (await deliver(port)).expect(200, "handled")
        head = request_bytes(signed_request(b"{}", SECRET), headers={"content-length": "1000"})
        unfinished = [await RawConnection.at(port) for _ in range(8)]
        for connection in unfinished:
            await connection.write(head + b"{")
        (await deliver(port)).expect(200, "handled")
        answers = await asyncio.gather(*(one.answer_if_any() for one in unfinished))
        assert {answer.status for answer in answers if answer is not None} <= {408}
        for connection in unfinished:
            await connection.close()
        assert "had not arrived in time" not in gunicorn.errors, "one came through"


async def test_nginx_passes_a_chunked_body_on_and_refuses_one_that_is_too_large(
    tmp_path: Path,
) -> None:
    with (
        behind_gunicorn("flask", here=tmp_path, secret=SECRET) as (behind, gunicorn),
        behind_nginx(behind, here=tmp_path / "nginx") as port,
    ):
        request = signed_request(make_event(CommentReceived), SECRET)
        async with await RawConnection.at(port) as connection:
            chunked = {"transfer-encoding": "chunked"}
            await connection.write(request_bytes(request, headers=chunked))
            await connection.write_chunk(request.body)
            await connection.write_chunk(b"")
            (await connection.answer()).expect(200, "handled")
        async with await RawConnection.at(port) as connection:
            await connection.write(request_bytes(request, headers={"content-length": "3000000"}))
            assert (await connection.answer()).status == 413
        assert "refused a body" not in gunicorn.errors, "it came through"
