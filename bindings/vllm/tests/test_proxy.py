"""The proxy between engines that only record the requests they get."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

sys.path.insert(0, str(Path(__file__).parents[1]))
from proxy import application  # noqa: E402


class FakeEngine:
    """Notes requests, and answers when it may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[dict[str, Any]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails = False
        # If set, answers to requests with a handoff wait for it; `dropped` is set when one is given up meanwhile.
        self.takes: asyncio.Event | None = None
        self.dropped = asyncio.Event()
        app = web.Application()
        app.add_routes([web.post("/v1/completions", self.answer)])
        self.server = TestServer(app)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        await self.may_answer.wait()
        if self.takes and "kv_transfer_params" in self.asked[-1]:
            try:
                await self.takes.wait()
            except asyncio.CancelledError:
                self.dropped.set()
                raise
        if self.fails:
            return web.Response(status=500)
        return web.json_response({"from": self.name, "kv_transfer_params": {"ferry_producers": [self.name]}})

    async def __aenter__(self) -> FakeEngine:
        await self.server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.may_answer.set()
        await self.server.close()

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")


async def ask(client: TestClient, **more: Any) -> dict[str, Any]:
    body = {"prompt": [1, 2], "max_tokens": 9, "stream": False} | more
    async with client.post("/v1/completions", json=body) as answer:
        assert answer.status == 200
        return await answer.json()


def test_requests_go_around_and_both_sides_have_the_id() -> None:
    async def run() -> None:
        async with FakeEngine("p1") as p1, FakeEngine("p2") as p2, FakeEngine("d1") as d1:
            app = application([p1.url, p2.url], [d1.url])
            async with TestClient(TestServer(app)) as client:
                for _ in range(4):
                    assert (await ask(client))["from"] == "d1"
            assert (len(p1.asked), len(p2.asked), len(d1.asked)) == (2, 2, 4)
            prefills = [asked["kv_transfer_params"]["ferry_id"] for asked in p1.asked + p2.asked]
            decodes = [asked["kv_transfer_params"] for asked in d1.asked]
            assert sorted(prefills) == sorted(params["ferry_id"] for params in decodes)
            assert len(set(prefills)) == 4
            assert [params["ferry_producers"] for params in decodes] == [["p1"], ["p2"], ["p1"], ["p2"]]
            assert all(asked["max_tokens"] == 1 for asked in p1.asked)
            assert all(asked["max_tokens"] == 9 for asked in d1.asked)

    asyncio.run(run())


def test_a_known_prefill_engine_is_not_awaited() -> None:
    async def run() -> None:
        async with FakeEngine("p") as p, FakeEngine("d") as d:
            async with TestClient(TestServer(application([p.url], [d.url]))) as client:
                await ask(client)
                p.may_answer.clear()
                await asyncio.wait_for(ask(client), 5)
            assert len(d.asked) == 2

    asyncio.run(run())


def test_a_prefill_engine_that_answers_with_an_error_costs_no_wait() -> None:
    async def run() -> None:
        async with FakeEngine("p") as p, FakeEngine("d") as d:
            async with TestClient(TestServer(application([p.url], [d.url]))) as client:
                await ask(client)
                p.fails, d.takes = True, asyncio.Event()
                assert (await asyncio.wait_for(ask(client), 5))["from"] == "d"
                assert [("kv_transfer_params" in asked) for asked in d.asked] == [True, True, False]
                await asyncio.wait_for(d.dropped.wait(), 5)

    asyncio.run(run())


def test_samples_of_a_prompt_are_prefilled_once() -> None:
    async def run() -> None:
        async with FakeEngine("p") as p, FakeEngine("d") as d:
            async with TestClient(TestServer(application([p.url], [d.url]))) as client:
                await ask(client, n=3)
            assert ("n" in p.asked[0], d.asked[0]["n"]) == (False, 3)

    asyncio.run(run())


def test_a_prefill_engine_that_fails_is_left_out() -> None:
    async def run() -> None:
        async with FakeEngine("p") as p, FakeEngine("d") as d:
            async with TestClient(TestServer(application([p.url], [d.url]))) as client:
                p.fails = True
                await ask(client)
                p.fails = False
                await ask(client)
            assert "kv_transfer_params" not in d.asked[0]
            assert d.asked[1]["kv_transfer_params"]["ferry_producers"] == ["p"]

    asyncio.run(run())
