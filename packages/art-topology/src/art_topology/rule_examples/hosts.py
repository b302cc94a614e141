"""Examples of the rules on hosts and placement."""

from art_topology.rule_examples.example import (
    GPU_A,
    GPU_B,
    IB,
    A,
    B,
    RuleExample,
    example,
    gpu_trainer,
    host,
    on_cpu,
    on_gpus,
    service,
)

_UUID = "GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"
_OTHER = "GPU-77aa1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"
_SLICE, _OTHER_SLICE = _UUID.replace("GPU", "MIG"), _OTHER.replace("GPU", "MIG")

HOST_EXAMPLES: tuple[RuleExample, ...] = (
    example(
        "ART-T101",
        "Placements name hosts by their id.",
        A,
        host("a", "10.0.0.2"),
        change={'host_id = "a"\naddress = "10.0.0.2"': 'host_id = "b"\naddress = "10.0.0.2"'},
    ),
    example(
        "ART-T102",
        "Ranks are numbered host by host in this order.",
        host("a", "10.0.0.1", more="node_rank = 0"),
        host("b", "10.0.0.2", more="node_rank = 2"),
        change={"node_rank = 2": "node_rank = 1"},
    ),
    example(
        "ART-T103",
        "Two hosts with one address are one machine, on which ports and GPUs would be given out twice.",
        A,
        host("b", "10.0.0.1"),
        change={'"b"\naddress = "10.0.0.1"': '"b"\naddress = "10.0.0.2"'},
    ),
    example(
        "ART-T104",
        "The controller may be on any host, but on one of the cluster.",
        '[cluster]\ncontroller_host_id = "c"',
        A,
        B,
        change={'"c"': '"b"'},
    ),
    example(
        "ART-T105",
        "Ports are given apart from addresses, and brackets belong into URLs.",
        host("a", "10.0.0.1:22222"),
        change={"10.0.0.1:22222": "10.0.0.1"},
    ),
    example(
        "ART-T106",
        "Workers dial the controller and each other.",
        host("a", "127.0.0.1"),
        B,
        change={"127.0.0.1": "10.0.0.1"},
    ),
    example(
        "ART-T107",
        "A GPU that is listed twice would be given to two processes. An index and a UUID may name the same "
        "one.",
        f"{A}\ngpus = [0, 1, 1]",
        change={"[0, 1, 1]": "[0, 1, 2]"},
    ),
    example(
        "ART-T108",
        "CUDA takes the beginning of a UUID as well, but which GPU that is depends on the host.",
        f'{A}\ngpus = ["GPU-5f0c1a3d"]',
        change={"GPU-5f0c1a3d": _UUID},
    ),
    example(
        "ART-T109",
        "UUIDs are unique in the world: one of the two lists was copied.",
        f'{A}\ngpus = ["{_UUID}"]',
        f'{B}\ngpus = ["{_UUID}"]',
        change={f'{B}\ngpus = ["{_UUID}"]': f'{B}\ngpus = ["{_OTHER}"]'},
    ),
    example(
        "ART-T110",
        "A link-local address is another host on each interface, and a multicast group is many.",
        host("a", "169.254.10.1"),
        B,
        change={"169.254.10.1": "10.0.0.1"},
    ),
    example(
        "ART-T111",
        "Memory is checked, and layouts are planned, with the numbers of the table.",
        host("a", "10.0.0.1", gpus=8, more='gpu_model = "H20O"'),
        gpu_trainer("tp = 2"),
        change={"H20O": "H200"},
    ),
    example(
        "ART-T201",
        "There is no such machine to start a process on.",
        A,
        service("policy", on_cpu("gpu-a")),
        change={'host_id = "gpu-a"': 'host_id = "a"'},
    ),
    example(
        "ART-T202",
        "The host does not offer this GPU.",
        GPU_A,
        service("policy", on_gpus("a", 7, 8), "parallel = { tp = 2 }"),
        change={"[7, 8]": "[6, 7]"},
    ),
    example(
        "ART-T203",
        "Two processes on one GPU run out of memory. Trainer and service may take turns: `temporal_sharing`.",
        GPU_A,
        gpu_trainer("tp = 2", gpus=2),
        service("policy", on_gpus("a", 1, 2), "parallel = { tp = 2 }"),
        change={"[1, 2]": "[2, 3]"},
    ),
    example(
        "ART-T204",
        "`cpu_slots` is how many CPU processes the host may run.",
        A,
        B,
        service("policy", on_cpu("a", 9), "parallel = { dp = 9 }"),
        change={"slots = 9": "slots = 4", "dp = 9": "dp = 4"},
    ),
    example(
        "ART-T205",
        "Gloo and NCCL do not mix in one group.",
        IB,
        GPU_A,
        GPU_B,
        '[trainer]\nplacements = [\n  { device = "gpu", host_id = "a", gpus = [0] },\n'
        '  { device = "cpu", host_id = "b" },\n]',
        change={'{ device = "cpu", host_id = "b" }': '{ device = "gpu", host_id = "b", gpus = [0] }'},
    ),
    example(
        "ART-T206",
        "Rollout functions run in worker processes on free CPU slots.",
        A.replace("cpu_slots = 8", "cpu_slots = 1"),
        service("policy", on_cpu("a")),
        change={"cpu_slots = 1": "cpu_slots = 2"},
    ),
    example(
        "ART-T207",
        "There is no peer-to-peer transport between MIG slices; a single process needs none.",
        f'{A}\ngpus = ["{_SLICE}", "{_OTHER_SLICE}"]',
        "[trainer]\nplacements = "
        f'[{{ device = "gpu", host_id = "a", gpus = ["{_SLICE}", "{_OTHER_SLICE}"] }}]',
        change={
            f'"a", gpus = ["{_SLICE}", "{_OTHER_SLICE}"]': f'"a", gpus = ["{_SLICE}"]',
        },
    ),
    example(
        "ART-T208",
        "A service that takes turns stands still while the trainer runs, here for nothing.",
        GPU_A,
        gpu_trainer("tp = 2", gpus=2),
        service("policy", on_gpus("a", 2, 3), "parallel = { tp = 2 }\ntemporal_sharing = true"),
        change={"[2, 3]": "[0, 1]"},
    ),
)
