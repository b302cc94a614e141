"""Entry point ``vllm.general_plugins``: vLLM loads it in API server, engine core and every worker."""

import multiprocessing


def register() -> None:
    """Ties spawned processes of vLLM to their parent and adds what engine core and workers need."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        from art_vllm_runtime.parent_death import die_with_parent

        die_with_parent(parent.pid)
    from vllm.platforms import current_platform

    from art_vllm_runtime import engine_swap

    engine_swap.install()
    if current_platform.is_cpu():
        from art_vllm_runtime import cpu_layers, cpu_lora, cpu_seeds

        for module in (cpu_layers, cpu_lora, cpu_seeds):
            module.install()
