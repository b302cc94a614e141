"""One atomic step in the engine core: stand still, activate on every worker, change the label, go on.

Nothing is computed between two versions and no step is computed by workers of different versions, so the
label that vLLM attaches to the outputs of a step is that of the weights that computed it.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreRequestType, core

ADAPTER_ID = 1


def adapter_request(name: str, activation: int) -> LoRARequest:
    """How vLLM knows the adapter: one name and id for ever, and a path that no other activation has.

    The path names nothing on disk. It is part of the prefix cache's keys, so that keys and values of one
    activation are never reused under another.
    """
    return LoRARequest(name, ADAPTER_ID, f"art:{name}:{activation}")


def _art_stage(self: Any, manifest: bytes) -> None:
    """Starts reading and checking a snapshot in every worker; the engine keeps stepping."""
    self.collective_rpc("art_stage", args=(manifest,))


def _art_activate(self: Any, name: str, activation: int, version: int) -> Any:
    """Activates what every worker has staged, between two steps.

    A call waits for the end of the running step, so it asks the workers and swaps at once. It changes nothing
    while a worker still reads.

    Returns:
        A dict, or a future of one: ``staged`` (False: call again), ``ok``, ``in_doubt`` (some worker may hold
        another version than the label says), ``errors``, ``digests`` (one per worker), ``read_ms``,
        ``wait_ms`` until the engine stood still, ``pause_ms`` it stood still.
    """
    asked = time.monotonic()
    staged = self.collective_rpc("art_staged")
    errors = [worker["error"] for worker in staged if worker["error"]]
    if errors:
        return {"staged": True, "ok": False, "in_doubt": False, "errors": errors}
    if not all(worker["done"] for worker in staged):
        return {"staged": False}
    read_ms = max(worker["read_ms"] for worker in staged)

    def swap() -> dict[str, Any]:
        paused = time.monotonic()
        try:
            outcome = _swap(self, name, activation, version)
        finally:
            self.resume_scheduler()
            # When the pause completed by callback, the busy loop is about to block on this queue though there
            # is work.
            if hasattr(self, "input_queue"):
                self.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))
        now = time.monotonic()
        return outcome | {
            "staged": True,
            "read_ms": read_ms,
            "wait_ms": (paused - asked) * 1e3,
            "pause_ms": (now - paused) * 1e3,
        }

    pause = self.pause_scheduler("keep", False)
    return swap() if pause is None else _then(pause, swap)


def _swap(engine: Any, name: str, activation: int, version: int) -> dict[str, Any]:
    results = engine.collective_rpc("art_activate", args=(version,))
    errors = [result["error"] for result in results if result["error"]]
    if errors:
        restored = engine.collective_rpc("art_restore")
        return {"ok": False, "in_doubt": not all(restored), "errors": errors, "digests": []}
    engine.scheduler.activate(adapter_request(name, activation), version)
    engine.set_weight_version(str(version))
    return {"ok": True, "in_doubt": False, "errors": [], "digests": [result["digest"] for result in results]}


def _then(pause: "Future[None]", swap: Callable[[], dict[str, Any]]) -> "Future[dict[str, Any]]":
    outcome: Future[dict[str, Any]] = Future()

    def paused(done: "Future[None]") -> None:
        try:
            done.result()
            outcome.set_result(swap())
        except Exception as error:  # noqa: BLE001 - the caller waits on the future, whatever happened
            outcome.set_exception(error)

    pause.add_done_callback(paused)
    return outcome


def install() -> None:
    """Makes the methods callable as utilities of the engine core."""
    core.EngineCore.art_stage = _art_stage
    core.EngineCore.art_activate = _art_activate
