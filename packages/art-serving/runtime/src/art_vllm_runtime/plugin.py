"""Entry point of group ``vllm.general_plugins``: loaded by vLLM in the API server, the engine core and every worker."""

import multiprocessing


def register() -> None:
    """Ties spawned processes of vLLM to their parent and adds what the engine core needs. Idempotent."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        from art_vllm_runtime.parent_death import die_with_parent

        die_with_parent(parent.pid)
    from art_vllm_runtime import engine_swap

    engine_swap.install()
