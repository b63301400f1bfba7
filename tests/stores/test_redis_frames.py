"""No stack frame of a Redis store's error holds the password."""

import pytest
from support.frames import leaks
from support.redis_servers import RedisServer, free_port

from hookonce.errors import StoreError
from hookonce.stores.redis import RedisStore, session, shard
from hookonce.stores.values import delivery_key, new_token

pytestmark = pytest.mark.anyio

PASSWORD = "hunter2-of-redis"
KEY = delivery_key("default", "evt_1")


def check(error: BaseException) -> None:
    assert not leaks(error, {"the password": PASSWORD}, but_in=__file__)


async def check_calls(url: str) -> None:
    store = RedisStore(url)
    with pytest.raises(StoreError) as opening:
        await store.open()
    check(opening.value)
    with pytest.raises(StoreError) as claiming:
        await store.claim(KEY, new_token(), 30.0)
    check(claiming.value)
    with pytest.raises(StoreError) as asking:
        await store.server_times()
    check(asking.value)
    await store.aclose()


@pytest.mark.parametrize("kind", ["redis", "redis+cluster"])
async def test_no_frame_holds_the_password_if_the_server_refuses_it(
    kind: str, valkey: RedisServer
) -> None:
    await check_calls(f"{kind}://app:{PASSWORD}@127.0.0.1:{valkey.port}")


@pytest.mark.parametrize("url", ["redis://{}", "redis+cluster://{}", "redis+sentinel://{}/hooks"])
async def test_no_frame_holds_the_password_if_no_server_answers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (session, shard):  # a shorter time limit, which changes no frame
        monkeypatch.setattr(module, "CALL_SECONDS", 0.5)
    place = f"app:{PASSWORD}@127.0.0.1:{free_port()}"
    await check_calls(url.format(place))


async def test_no_frame_holds_the_password_if_an_option_of_the_store_is_wrong() -> None:
    for option in ("prefix=%20", "shards=0", "durability=disk", "replicas=x", "colour=red"):
        with pytest.raises(ValueError, match=option.partition("=")[0]) as caught:
            RedisStore(f"redis://app:{PASSWORD}@host?{option}")
        check(caught.value)
