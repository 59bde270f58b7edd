"""The same bytes in the same pieces over gRPC for asyncio, without anything else: no protobuf, no
checksums, nothing kept. What is left of a push's time above this is the project's own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import grpc
import grpc.aio
from benchmarks.processes import cpu_seconds

from antiphon.clients.push import CHUNK_BYTES

_RECEIVER = """
import asyncio, grpc, grpc.aio
async def take(messages, context):
    return str(sum([len(message) async for message in messages])).encode()
async def serve():
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    push = grpc.stream_unary_rpc_method_handler(take)
    handler = grpc.method_handlers_generic_handler("bare", {"Push": push})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()
asyncio.run(serve())
"""


async def seconds_to_send(buffers: Sequence[memoryview], receivers: int) -> tuple[float, float]:
    """Seconds until each of so many processes has been sent all buffers, all side by side.

    The second number are processor seconds of all of them and of this process.
    """
    processes = [_receiver() for _ in range(receivers)]
    channels = []
    try:
        for process in processes:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
            await channels[-1].channel_ready()
        used, began = cpu_seconds(os.getpid()), time.perf_counter()
        counts = await asyncio.gather(*(_send(channel, buffers) for channel in channels))
        seconds = time.perf_counter() - began
        used = cpu_seconds(os.getpid()) - used
        if set(counts) != {sum(buffer.nbytes for buffer in buffers)}:
            raise RuntimeError(f"the receivers of bare gRPC counted {counts}")
        return seconds, used
    finally:
        for channel in channels:
            await channel.close()
        for process in processes:
            process.kill()
            process.wait()


def _receiver() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _RECEIVER], stdout=subprocess.PIPE)


async def _send(channel: grpc.aio.Channel, buffers: Sequence[memoryview]) -> int:
    call = channel.stream_unary("/bare/Push")()
    for buffer in buffers:
        for start in range(0, buffer.nbytes, CHUNK_BYTES):
            await call.write(bytes(buffer[start : start + CHUNK_BYTES]))
    await call.done_writing()
    return int(await call)
