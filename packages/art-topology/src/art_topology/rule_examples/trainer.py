"""Examples of the rules on the trainer's mesh."""

from art_topology.rule_examples.example import GPU_A, GPU_B, IB, RuleExample, example, gpu_trainer

TRAINER_EXAMPLES: tuple[RuleExample, ...] = (
    example(
        "ART-T301",
        "The ranks of a host are consecutive.",
        GPU_A,
        gpu_trainer("tp = 2", gpus=2, hosts="aa").replace("[0, 1] },\n]", "[2, 3] },\n]"),
        change={
            '[0, 1] },\n  { device = "gpu", host_id = "a", gpus = [2, 3] },': "[0, 1, 2, 3] },",
        },
    ),
    example(
        "ART-T302",
        "A rank's host is computed from its number.",
        IB,
        GPU_A,
        GPU_B,
        gpu_trainer("tp = 2", gpus=4, hosts="ab").replace("[0, 1, 2, 3] },\n]", "[0, 1] },\n]"),
        change={"[0, 1] },\n]": "[0, 1, 2, 3] },\n]"},
    ),
    example(
        "ART-T303",
        "Rank 0 is on the first placement, and ranks are numbered in the order of the hosts.",
        IB,
        GPU_A,
        GPU_B,
        gpu_trainer("tp = 2", gpus=2, hosts="ba"),
        change={
            gpu_trainer("tp = 2", gpus=2, hosts="ba"): gpu_trainer("tp = 2", gpus=2, hosts="ab"),
        },
    ),
    example(
        "ART-T304",
        "`parallel_state.initialize_model_parallel` of megatron-core refuses it.",
        GPU_A,
        gpu_trainer("pp = 3"),
        change={"pp = 3": "pp = 2"},
    ),
    example(
        "ART-T305",
        "`world / (tp * cp * pp)` is the number of copies, and has to be whole.",
        GPU_A,
        gpu_trainer("pp = 2, tp = 2, cp = 4"),
        change={"cp = 4": "cp = 2"},
    ),
    example(
        "ART-T306",
        "`world / (etp * ep * pp)` is how often each expert is held, and has to be whole.",
        GPU_A,
        gpu_trainer("ep = 3"),
        change={"ep = 3": "ep = 4"},
    ),
    example(
        "ART-T307",
        "The interleaved schedule needs a pipeline to interleave.",
        GPU_A,
        gpu_trainer("vpp = 2"),
        change={"vpp = 2": "pp = 2, vpp = 2"},
    ),
    example(
        "ART-T308",
        "A group of fewer microbatches than stages leaves the pipeline empty; megatron-core refuses it.",
        GPU_A,
        gpu_trainer("pp = 4, vpp = 2, vpp_microbatch_group_size = 3"),
        change={"group_size = 3": "group_size = 4"},
    ),
    example(
        "ART-T309",
        "Tensor parallelism communicates twice in every layer: over NVLink, not over the network.",
        IB,
        GPU_A,
        GPU_B,
        gpu_trainer("tp = 8", gpus=4, hosts="ab"),
        change={"tp = 8": "tp = 4"},
    ),
    example(
        "ART-T310",
        "`ModelParallelConfig` of megatron-core refuses it.",
        GPU_A,
        gpu_trainer("sequence_parallel = true"),
        change={"sequence_parallel": "tp = 2, sequence_parallel"},
    ),
    example(
        "ART-T311",
        "`MoELayer` of megatron-core fails in the first training step.",
        GPU_A,
        gpu_trainer("tp = 2, ep = 4, sequence_parallel = false"),
        change={", sequence_parallel = false": ""},
    ),
    example(
        "ART-T312",
        "The layout has one stage more or less than there are to fill.",
        GPU_A,
        gpu_trainer('pp = 2, pipeline_layout = "Et|t|tL"'),
        change={"Et|t|tL": "Et|t|t|tL"},
    ),
    example(
        "ART-T313",
        "A layout string says where every layer stands.",
        GPU_A,
        gpu_trainer('pp = 2, pipeline_layout = "Ett|ttL", num_layers_in_first_pipeline_stage = 2'),
        change={", num_layers_in_first_pipeline_stage = 2": ""},
    ),
    example(
        "ART-T314",
        "A rank's layers are divided evenly among its virtual stages.",
        GPU_A,
        gpu_trainer("pp = 4, vpp = 2, num_layers_in_first_pipeline_stage = 3"),
        change={"stage = 3": "stage = 4"},
    ),
)
