"""The process that owns the bytes: ``python -m benchmarks.nixl.owner RUN TRANSPORTS BYTES ...``."""

import asyncio
import json
import sys
from base64 import b64encode

from benchmarks.nixl.raw import RawMemory, content, raw_agent

from art_dataplane import ShmSegmentStore, encode
from art_dataplane.nixl import NixlTransport


async def _main() -> None:
    run_id, transports = sys.argv[1], [name for name in sys.argv[2].split(",") if name]
    sizes = [int(size) for size in sys.argv[3:]]
    transport = NixlTransport(["lo"], transports=transports)
    agent = raw_agent(f"{run_id}-owner", transports)
    memories = []
    with ShmSegmentStore(run_id, 2 * sum(sizes) + (1 << 20)) as segments:
        try:
            told = []
            for size in sizes:
                with segments.reserve(size) as reservation:
                    reservation.buffer[:] = content(size)
                    source = reservation.commit()
                location = await transport.offer(source, duration_s=3600.0, reads=1_000_000)
                memory = RawMemory(size)
                memory.bytes[:] = content(size)
                agent.register_memory([(memory.address, size, 0, "")], "DRAM")
                memories.append(memory)
                told.append([b64encode(encode(location)).decode(), memory.address])
            metadata = b64encode(agent.get_agent_metadata()).decode()
            print(json.dumps({"offers": told, "metadata": metadata}), flush=True)
            await asyncio.to_thread(sys.stdin.read)  # until the reader closes it
        finally:
            await transport.close(5.0)


if __name__ == "__main__":
    asyncio.run(_main())
