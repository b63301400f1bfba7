"""A Redis URL names the servers that a reader expects, and no error shows its password."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from support.redis_servers import RedisServer, redis_server

from hookonce.clock import system_clock
from hookonce.stores import open_store
from hookonce.stores.redis import RedisStore
from hookonce.stores.values import Claimed, delivery_key, new_token

pytestmark = pytest.mark.anyio

KEY = delivery_key("default", "evt_1")


async def is_usable(url: str) -> bool:
    store = open_store(url, clock=system_clock)
    assert isinstance(store, RedisStore)
    async with aclosing(store):
        return isinstance(await store.claim(KEY, new_token(), 30.0), Claimed)


class TestServers:
    async def test_a_database_is_chosen_by_its_number(self, valkey: RedisServer) -> None:
        assert await is_usable(f"{valkey.url}/2")
        with valkey.client() as client:
            assert client.info("keyspace").keys() == {"db2"}

    async def test_a_password_may_have_any_characters(self, valkey: RedisServer) -> None:
        with valkey.client() as client:
            client.acl_setuser(
                "ann",
                enabled=True,
                passwords=["+a@b:c/d#e%"],
                keys=["*"],
                channels=["*"],
                categories=["+@all"],
            )
        assert await is_usable(f"redis://ann:a%40b%3Ac%2Fd%23e%25@127.0.0.1:{valkey.port}")

    async def test_a_socket_is_named_by_its_path(self) -> None:
        with redis_server("--unixsocket", "./redis.sock") as server:
            assert await is_usable(f"unix://{server.folder}/redis.sock?db=1")

    async def test_options_of_the_store_and_of_redis_py_may_be_mixed(
        self, valkey: RedisServer
    ) -> None:
        assert await is_usable(
            f"{valkey.url}?prefix=mine&shards=4&replicas=0&durability=memory"
            "&health_check_interval=5&client_name=hooks"
        )
        with valkey.client() as client:
            assert {name.decode().split(":")[0] for name in client.scan_iter("*")} == {"{mine"}

    @pytest.mark.parametrize(
        ("url", "shards"),
        [
            ("redis://localhost", 1),
            ("rediss://localhost:6380/0", 1),
            ("redis+sentinel://one:26379,two/hooks/1", 1),
            ("rediss+sentinel://user:pw@one/hooks?sentinel_password=x", 1),
            ("redis+cluster://one:7000,two:7001", 16),
            ("rediss+cluster://one/?ssl_cert_reqs=none", 16),
            ("REDIS://LOCALHOST?shards=3", 3),
        ],
    )
    def test_a_cluster_has_more_shards_than_a_server(self, url: str, shards: int) -> None:
        store = open_store(url, clock=system_clock)
        assert isinstance(store, RedisStore)
        assert len(store._settings.bases) == shards


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://u:hidden@host:port", "cannot be read"),
        ("redis://u:hid#den@host", "%23"),
        ("redis://u:hid\u2100den@host", "cannot be read"),
        ("redis://[u:hidden@host", "cannot be read"),
        ("redis://:hidden@host/name", "number of a database"),
        ("redis://:hidden@one,two", "names one server"),
        ("redis://:hidden@host?shards=many", "shards takes a number"),
        ("redis://:hidden@host?shards=0", "shards takes"),
        ("redis://:hidden@host?durability=disk", "durability takes"),
        ("redis://:hidden@host?colour=red", "unknown option 'colour'"),
        ("redis://:hidden@host?durabilty=fsync", "'durabilty'; did you mean 'durability'"),
        ("redis+cluster://:hidden@host?shard=4", "'shard'; did you mean 'shards'"),
        (
            "rediss+sentinel://:hidden@a/b?ssl_ca_cert=x",
            "'ssl_ca_cert'; did you mean 'ssl_ca_certs'",
        ),
        ("redis://:hidden@host?health_check_interval=often", "wrong kind"),
        ("redis+cluster://:hidden@host/3", "only database 0"),
        ("redis+sentinel://:hidden@host", "names no service"),
        ("redis+ring://:hidden@host", "no store has the scheme"),
        ("unix://", "names no socket"),
    ],
)
def test_an_unusable_url_is_refused_without_showing_its_password(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        open_store(url, clock=system_clock)
    assert "hid" not in str(caught.value)
    # A traceback must not show another library's error either: its text may hold the password.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_option_is_given_once() -> None:
    with pytest.raises(ValueError, match="given twice"):
        RedisStore("redis://localhost?shards=2", shards=2)
