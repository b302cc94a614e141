"""The hardware table, and files that extend it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.hardware import default_hardware, load_hardware, parse_hardware
from art_topology.spec import SpecError

GPU = """
[gpus.X1]
memory_bytes = 1_000_000_000
memory_bandwidth_bytes_per_s = 1e12
peak_flops = { bfloat16 = 1e14 }
source = { title = "A data sheet" }
"""
NODE = """
[nodes.My-H200]
gpu = "H200"
gpus_per_host = 8
scale_up = "NVLink4"
scale_up_gpus = 8
scale_out = "RoCE-400"
host_link = "Host-PCIe5"
source = { title = "My cluster" }
"""


def test_every_entry_has_a_source() -> None:
    table = default_hardware()
    for entry in (*table.gpus.values(), *table.links.values(), *table.nodes.values()):
        assert entry.source.title
        assert entry.source.url or entry.source.note, entry.name


@pytest.mark.parametrize(
    ("name", "bfloat16", "bandwidth", "gibibytes"),
    [
        ("A100", 312e12, 2039e9, 80),
        ("NVIDIA A100-SXM4-40GB", 312e12, 1555e9, 40),
        ("H100", 989.4e12, 3.35e12, 79.6),
        ("h100-pcie", 756e12, 2.0e12, 79.6),
        ("H200", 989.4e12, 4.8e12, 140.4),
        ("B200", 2.25e15, 8e12, 179.1),
        ("b300", 2.25e15, 8e12, 268.6),
        ("GB200", 2.5e15, 8e12, 185.0),
        ("GB300", 2.5e15, 8e12, 277.5),
        ("L40S", 362e12, 864e9, 45.0),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 1008e9, 24.0),
        ("rtx_5090", 209.5e12, 1792e9, 31.8),
    ],
)
def test_gpus_are_those_of_the_data_sheets(
    name: str, bfloat16: float, bandwidth: float, gibibytes: float
) -> None:
    gpu = default_hardware().gpu(name)
    assert gpu.flops("bfloat16") == bfloat16
    assert gpu.memory_bandwidth_bytes_per_s == bandwidth
    assert gpu.memory_bytes / 2**30 == pytest.approx(gibibytes, abs=0.05)


def test_tensor_cores_are_about_twice_as_fast_with_half_as_many_bits() -> None:
    for gpu in default_hardware().gpus.values():
        peaks = gpu.peak_flops
        assert peaks["bfloat16"] == peaks["float16"]
        assert peaks["bfloat16"] / peaks["tf32"] == pytest.approx(2, rel=0.02), gpu.name
        if "fp8" in peaks:
            assert peaks["fp8"] / peaks["bfloat16"] == pytest.approx(2, rel=0.03), gpu.name


@pytest.mark.parametrize(
    ("name", "gigabits"),
    [("InfiniBand-NDR", 400), ("InfiniBand-XDR", 800), ("RoCE-400", 400), ("EFA-p5", 400), ("EFA-p4d", 50)],
)
def test_networks_are_per_gpu_and_direction(name: str, gigabits: float) -> None:
    assert default_hardware().links[name].bandwidth_bytes_per_s * 8 == gigabits * 1e9


def test_a_gpu_stands_for_its_first_node() -> None:
    table = default_hardware()
    assert table.machine("B300").name == "DGX-B300"
    assert table.machine("B300").scale_out.name == "InfiniBand-XDR"
    assert table.machine("ec2-p5").scale_out.name == "EFA-p5"
    assert table.machine("GB200").scale_up_gpus == 72


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"no GPU 'H300'.*H200.*load_hardware"):
        default_hardware().machine("H300")
    with pytest.raises(SpecError, match="no peak for fp8; it has bfloat16"):
        default_hardware().gpu("A100").flops("fp8")


def test_a_file_adds_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GPU + NODE + GPU.replace("X1", "H200").replace("1e14", "2e14"))
    table = load_hardware(path)
    assert table.gpu("x1").peak_flops == {"bfloat16": 1e14}
    assert table.machine("My-H200").gpu.flops("bfloat16") == 2e14
    assert table.gpu("B300") == default_hardware().gpu("B300")
    assert default_hardware().gpu("H200").flops("bfloat16") == 989.4e12


def test_a_gpu_without_a_node_says_so() -> None:
    with pytest.raises(SpecError, match="no node has it; add one"):
        parse_hardware(GPU).machine("X1")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (GPU.replace("1e12", "-1e12"), 4, "memory_bandwidth_bytes_per_s"),
        (GPU.replace("bfloat16", "int3"), 5, "peak_flops"),
        (GPU.replace("memory_bytes", "memory"), 3, "memory"),
        (GPU.replace("source", "origin"), 6, "origin"),
        (GPU + 'name = "Y"\n', 7, "stands in the header"),
        (NODE.replace("NVLink4", "NVLink9"), 5, "scale_up 'NVLink9', which is not among the links"),
        (NODE.replace("H200", "H300", 2), 3, "GPU 'H300', which is not in the table"),
        (NODE.replace("RoCE-400", "Host-PCIe5"), 7, "of kind 'host'; it is one of kind network"),
        (NODE + "[what]\n", 10, "not 'what'"),
        ("\n\nx = \n", 3, "not TOML"),
        (GPU + GPU, 8, "not TOML"),
        ("gpus = 3\n", 1, "not 'gpus'"),
        ("[gpus]\nX = 3\n", 1, "a table of fields"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_hardware(path)
    assert str(caught.value).startswith(f"{path}:{line}:"), str(caught.value)
    assert message in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_hardware(path)
    with pytest.raises(FileNotFoundError):
        load_hardware(tmp_path / "none.toml")


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    refusals = []
    try:
        parse_hardware(text)
    except SpecError as error:
        refusals.append(str(error))
    assert all(refusal.startswith("<hardware>:") for refusal in refusals)


def test_everything_wrong_with_an_entry_is_said_in_plain_words() -> None:
    with pytest.raises(SpecError) as caught:
        parse_hardware('[gpus.X1]\nmemory_bytes = "80"\nmemori = 1\n')
    told = str(caught.value)
    assert "'memory_bytes' is an integer, but '80' is a text; write 80" in told
    assert "memori" in told
    assert "Expected" not in told
    assert "$." not in told
