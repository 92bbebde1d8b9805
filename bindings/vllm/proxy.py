"""A proxy for several prefill and decode engines of vLLM with FerryConnector (XpYd).

    proxy.py --port 8000 --prefill http://p1:8100 http://p2:8100 --decode http://d1:8200 http://d2:8200 http://d3:8200

Takes OpenAI's completions and chat completions. Each request goes to the next prefill and the next decode engine. The
proxy draws its `ferry_id`. It knows an engine's addresses (`ferry_producers`) from the engine's first answer; from then
on both engines get a request at the same time, and the decode engine takes layers while the prefill engine computes.
If the prefill engine fails, the decode engine is asked again, and computes the prompt.

An example for docs/vllm.md, without authentication, health checks and balancing. It needs aiohttp, which vLLM has.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import sys
from typing import Any

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, web

PATHS = ("/v1/completions", "/v1/chat/completions")


class Proxy:
    def __init__(self, prefills: list[str], decodes: list[str]) -> None:
        self.prefills, self.decodes = itertools.cycle(prefills), itertools.cycle(decodes)
        # The addresses of ranks, as prefill engines reported them; a restarted engine reports new ones.
        self.producers: dict[str, list[str]] = {}
        self.session: ClientSession | None = None

    async def start(self, app: web.Application) -> Any:
        """The lifetime of the connections to the engines, as aiohttp wants it."""
        async with ClientSession(timeout=ClientTimeout(total=None)) as self.session:
            yield

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prefill, id = next(self.prefills), secrets.token_hex(16)
        first = asyncio.create_task(self.prefill(prefill, request.path, body, id))
        params = {"do_remote_prefill": True, "do_remote_decode": False, "ferry_id": id}
        try:
            if prefill not in self.producers:
                await first
            wanted = body
            if prefill in self.producers:
                wanted = body | {"kv_transfer_params": params | {"ferry_producers": self.producers[prefill]}}
            decode = next(self.decodes) + request.path
            asked = asyncio.create_task(self.ask(decode, wanted))
            try:
                await asyncio.wait((first, asked), return_when=asyncio.FIRST_COMPLETED)
                if not asked.done() and not first.result() and wanted is not body:
                    # Nothing will come. The engine drops its take when the connection to it is closed.
                    asked.cancel()
                    await asyncio.wait((asked,))
                    asked = asyncio.create_task(self.ask(decode, body))
                return await hand_on(request, *await asked)
            finally:
                asked.cancel()
        finally:
            # A client that goes away ends both requests: the engines abort them, and free their blocks.
            first.cancel()

    async def prefill(self, engine: str, path: str, body: dict[str, Any], id: str) -> bool:
        """Computes the prompt, once for all samples; its one token is not looked at. False if that failed."""
        wanted = {"do_remote_decode": True, "do_remote_prefill": False, "ferry_id": id}
        changes = {"max_tokens": 1, "stream": False, "kv_transfer_params": wanted}
        if "max_completion_tokens" in body:
            changes["max_completion_tokens"] = 1
        body = {key: value for key, value in body.items() if key not in ("stream_options", "n", "best_of")} | changes
        try:
            async with self.session.post(engine + path, json=body) as answer:
                answer.raise_for_status()
                self.producers[engine] = (await answer.json())["kv_transfer_params"]["ferry_producers"]
                return True
        except (ClientError, OSError, KeyError, TypeError, ValueError) as error:
            self.producers.pop(engine, None)
            print(f"{engine}: {error!r}; a decode engine computes the prompt", file=sys.stderr)
        return False

    async def ask(self, url: str, body: dict[str, Any]) -> tuple[ClientResponse, bytes]:
        """A decode engine's answer, and the first piece of its body: from then on the engine needs no prefill engine."""
        answer = await self.session.post(url, json=body)
        try:
            return answer, await answer.content.readany()
        except BaseException:
            answer.close()
            raise


async def hand_on(request: web.Request, answer: ClientResponse, piece: bytes) -> web.StreamResponse:
    """Hands a decode engine's answer on as it comes."""
    async with answer:
        kind = answer.headers.get("Content-Type", "application/json")
        told = web.StreamResponse(status=answer.status, headers={"Content-Type": kind})
        await told.prepare(request)
        await told.write(piece)
        async for piece in answer.content.iter_any():
            await told.write(piece)
        await told.write_eof()
        return told


def application(prefills: list[str], decodes: list[str]) -> web.Application:
    proxy, app = Proxy(prefills, decodes), web.Application(client_max_size=1 << 26)
    app.cleanup_ctx.append(proxy.start)
    app.add_routes([web.post(path, proxy.answer) for path in PATHS])
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--prefill", nargs="+", required=True, metavar="URL")
    parser.add_argument("--decode", nargs="+", required=True, metavar="URL")
    options = parser.parse_args()
    web.run_app(application(options.prefill, options.decode), host=options.host, port=options.port)


if __name__ == "__main__":
    main()
