"""Examples of the rules on files."""

from art_topology.rule_examples.example import DENSE, A, RuleExample, example

FILE_EXAMPLES: tuple[RuleExample, ...] = (
    example(
        "ART-F001",
        "The suffix says the format: `.toml`, `.yaml`, `.yml` or `.json`. The file has to exist, be readable "
        "and hold UTF-8; YAML needs PyYAML.",
        A,
        change={},
        file="cluster.ini",
    ),
    example(
        "ART-F002",
        "Nothing can be said about what cannot be read.",
        A.replace("cpu_slots = 8", "cpu_slots ="),
        change={"cpu_slots =": "cpu_slots = 8"},
    ),
    example(
        "ART-F003",
        "Which of the two is meant? YAML and JSON parsers take the last without a word.",
        f"{A}\ncpu_slots = 16",
        change={"cpu_slots = 8\n": ""},
    ),
    example(
        "ART-F004",
        "A misspelt option must not become a default.",
        A.replace("cpu_slots", "cpu_slot"),
        change={"cpu_slot ": "cpu_slots "},
    ),
    example(
        "ART-F005",
        "The field has no default.",
        '[[cluster.hosts]]\nhost_id = "a"\ncpu_slots = 8',
        change={'host_id = "a"\n': 'host_id = "a"\naddress = "10.0.0.1"\n'},
    ),
    example(
        "ART-F006",
        "A text is not taken for a number.",
        A.replace("cpu_slots = 8", 'cpu_slots = "8"'),
        change={'"8"': "8"},
    ),
    example(
        "ART-F007",
        "Every field says its range; `art-topology schema` has all of them.",
        A.replace("cpu_slots = 8", "cpu_slots = -8"),
        change={"-8": "8"},
    ),
    example(
        "ART-F008",
        "Values more than 64 levels deep, files above 64 MiB, anchors that refer to themselves or stand for "
        "more than two million values are no topology, and would take a parser's memory.",
        f"{A}\ngpus = {'[' * 65}{']' * 65}",
        change={f"{'[' * 65}{']' * 65}": "[]"},
    ),
    example(
        "ART-F009",
        "The model's sizes come from its `config.json`. A field that is missing there is named.",
        A,
        DENSE.replace("vocab_size = 32000\n", ""),
        change={"max_position": "vocab_size = 32000\nmax_position"},
    ),
)
