"""Writes the files of a release; run it once, with that release.

After the release, the files never change. Before the release, write them again after each change of
a format.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing, closing
from pathlib import Path

import apsw
from support.postgres import postgres_server
from support.redis_servers import redis_server

from hookonce.effects.table import create_sql
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.postgres.schema import schema_sql
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore

from .content import NOW, fill_ledger, fill_store, read_keys, read_rows

SECRETS = """\
# rotating wh_1 since 2027-01-15T08:00:00Z, by hookonce: new below, old after it
whsec_bmV3IHNlY3JldCBvZiB0aGUgZml4dHVyZXMgMDE=
whsec_b2xkIHNlY3JldCBvZiB0aGUgZml4dHVyZXMgMDE=
"""


async def _fill_file(path: Path) -> None:
    async with aclosing(SQLiteStore(path, clock=lambda: NOW)) as store:
        await fill_store(store)


async def _fill_server(url: str) -> None:
    async with aclosing(RedisStore(url, shards=3, clock=lambda: NOW)) as store:
        await fill_store(store)


async def _fill_database(url: str) -> None:
    async with aclosing(PostgresStore(url, clock=lambda: NOW)) as store:
        await fill_store(store)


def _write(folder: Path) -> None:
    folder.mkdir()
    draft = folder / "draft.db"
    asyncio.run(_fill_file(draft))
    with closing(apsw.Connection(str(draft))) as connection:
        connection.execute("VACUUM INTO ?", (str(folder / "hooks.db"),))
    for file in folder.glob("draft.db*"):
        file.unlink()
    with redis_server() as server:
        asyncio.run(_fill_server(server.url))
        with server.client() as client:
            lines = [json.dumps(words) for words in read_keys(client)]
    (folder / "redis.jsonl").write_text("\n".join(lines) + "\n")
    with postgres_server() as database:
        asyncio.run(_fill_database(database.url))
        rows = read_rows(database)
    (folder / "store.postgresql.sql").write_text(schema_sql())
    (folder / "rows.postgresql.sql").write_text("".join(f"{statement};\n" for statement in rows))
    (folder / "secrets").write_text(SECRETS)
    fill_ledger(folder / "ledger.db")
    (folder / "ledger.postgresql.sql").write_text(create_sql("postgresql"))


if __name__ == "__main__":
    _write(Path(__file__).with_name("files") / sys.argv[1])
