"""What a script hears from gRPC itself: nothing, its errors are raised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, sys
import antiphon.clients.reward
import grpc

async def main(address):
    server, called = grpc.aio.server(), asyncio.Event()

    async def wait(request, context):
        called.set()
        await asyncio.Event().wait()

    methods = {"C": grpc.unary_unary_rpc_method_handler(wait)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", methods),))
    server.add_insecure_port(address)
    await server.start()

    async def call():
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.unary_unary("/a.B/C")(b"")

    calling = asyncio.create_task(call())
    await called.wait()
    await server.stop(0)
    try:
        await calling
    except grpc.aio.AioRpcError as error:
        print(error.code().name)

asyncio.run(main(sys.argv[1]))
"""


def test_a_server_that_ends_with_calls_under_way_leaves_no_lines_of_grpcs_own(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, f"unix:{tmp_path}/s"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == ("UNAVAILABLE\n", "")
