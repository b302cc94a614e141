"""A smoke test of the runtime on every host of a launch: no GPU, no model, no server.

One rollout worker on each host answers "yes", "no" and "maybe". The controller checks that every host took
part, in a process of its own, and that the rewards came back. Run it on this machine:

    art-monarch local --program examples/multinode/program.py:main
"""

import asyncio
import os
import socket

import art
from art.distributed import ArtLaunchContext, ArtRuntime, InstalledAsyncCallable, compile_topology

WORTH = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


async def answer(model: art.TrainableModel, word: str, _config: None) -> art.Trajectory:
    """Plays one question and answer; a real rollout would ask ``model.openai_client()``."""
    return art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": f"Please say {word}."},
            {"role": "assistant", "content": word},
        ],
        reward=WORTH[word],
        metadata={"host": socket.gethostname(), "pid": os.getpid(), "run": model.run_name, "word": word},
    )


async def main(launch: ArtLaunchContext) -> None:
    """Runs the three rollouts on each host and checks what came back."""
    cluster = launch.homogeneous_cluster(cpu_slots=1, startup_timeout_s=90, rpc_timeout_s=30)
    runtime = await ArtRuntime.start(launch.host_mesh, compile_topology(cluster=cluster))
    async with runtime:
        executor = runtime.rollout_executor(
            InstalledAsyncCallable.from_callable(answer), target_workers=launch.host_count
        )
        model = art.TrainableModel(
            name="multinode-smoke", project="examples", base_model="not-loaded", run_name="smoke"
        )
        played = await asyncio.gather(
            *(
                executor.run(worker, answer, model, word, None)
                for word in WORTH
                for worker in executor.workers
            )
        )
    check(played, launch.host_count)
    total = sum(trajectory.reward for trajectory in played)
    print(f"ART_MULTINODE_SMOKE_PASS hosts={launch.host_count} rollouts={len(played)} reward={total:g}")


def check(played: list[art.Trajectory], host_count: int) -> None:
    """Fails unless each word came back from each host, with its reward, from one process per host."""
    places = {(trajectory.metadata["host"], trajectory.metadata["pid"]) for trajectory in played}
    if len(places) != host_count or any(pid == os.getpid() for _, pid in places):
        raise RuntimeError(f"{host_count} hosts should have run one worker each; rollouts ran in {places}")
    for word, reward in WORTH.items():
        rewards = [trajectory.reward for trajectory in played if trajectory.metadata["word"] == word]
        if rewards != [reward] * host_count:
            raise RuntimeError(
                f"{word!r} came back with the rewards {rewards}, expected {host_count} of {reward}"
            )


if __name__ == "__main__":
    raise SystemExit("run me with: art-monarch local --program examples/multinode/program.py:main")
