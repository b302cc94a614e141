"""Which benchmarks there are, how they are run, and what has to be said about them."""

from pathlib import Path

import msgspec
from benchmarks.environments import ROOT


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of ``benchmarks/`` that runs as ``python -m benchmarks.NAME``.

    Args:
        about: what it compares, on one line.
        quick: its arguments for ``--quick``.
        full: its arguments otherwise.
        notes: what a reader of its rows must know, a sentence or two each.
        deadline_s: after so many seconds it is ended and has failed.
    """

    name: str
    about: str
    quick: tuple[str, ...]
    full: tuple[str, ...] = ()
    notes: tuple[str, ...]
    deadline_s: float = 600.0

    @property
    def module(self) -> str:
        """What ``python -m`` is given."""
        return f"benchmarks.{self.name}"

    @property
    def folder(self) -> Path:
        """Where its README.md and its requirements are."""
        return ROOT / "benchmarks" / self.name

    def arguments(self, quick: bool) -> tuple[str, ...]:
        """Its arguments, without ``--json``."""
        return self.quick if quick else self.full


SUITE = (
    Benchmark(
        name="packing",
        about="rows, whole batches and merged prefixes; beside NeMo-RL's procedure, TRL and AReaL",
        quick=("--repeats", "3"),
        notes=(
            "NeMo-RL's package on the registry is a placeholder. Its modified first fit decreasing is "
            "written in the benchmark from its description, with the same data structures.",
            "TRL's `pack_dataset` is stated twice: with columns of the same content as ART's batch, and "
            "with ids alone. Making its dataset is not timed. The aim is for the same step on both sides, "
            "plan and write. Beside TRL with ids alone it is not reached: ART writes thirteen tensors in "
            "its time, TRL one. ART with its checks of every record and its advantages, which TRL does "
            "not have, is stated as well.",
            "AReaL's side is its own function of its own package, loaded without the runtime around it. "
            "Not the masks that it makes later.",
        ),
    ),
    Benchmark(
        name="shared_memory",
        about="an array becomes one of two other processes; beside torch.multiprocessing and Ray",
        quick=("--repeats", "7"),
        notes=(
            "In a loop, memory is used again, by ART and by Ray's store; torch.multiprocessing has none "
            "to use again. ART and Ray then do the same, one copy into pages that are there, and differ "
            "in the messages and the speed of the copy: less than the aim where the copy is most of it.",
            "*New pages* states the same when nothing is used again, and there ART is the slowest: it "
            "allocates all pages and maps them before the first write, so that a full file system is an "
            "error and not a signal, and either takes longer than the copy. A store pays that once for "
            "each segment that it keeps (`recycle_bytes`).",
            "A batch that packing wrote is in the segment already, and only the message is left. The "
            "peers copy what they are given, so there is nobody to compare that with. Most of its time "
            "goes by until both consumers run: it takes longer where the processors are busy.",
        ),
    ),
    Benchmark(
        name="routes",
        about="routes of a mixture-of-experts model into a batch; beside two plain ways",
        quick=("--repeats", "5"),
        notes=(
            "The two plain ways are written in the benchmark. Both are told which record and position "
            "each token comes from. Placing only notes where runs of tokens go: the copy is in the second "
            "pair of rows.",
        ),
    ),
    Benchmark(
        name="stream",
        about="a segment over an authenticated stream; beside a bare socket",
        quick=("--mebibytes", "64", "256", "--repeats", "7"),
        full=("--mebibytes", "8", "64", "256"),
        notes=(
            "A bare socket proves and verifies nothing, so nothing that does can be faster; the ratio is "
            "the share of its speed that is left. Both processes and the kernel's copies share the "
            "machine's processors.",
            "`aes-gmac` needs the extra `art-dataplane[stream]`. `hmac-sha256` is what there is without "
            "it, and does not reach the aim: every byte is hashed at both ends, and SHA-256 of the "
            "standard library is slower than the loopback interface.",
        ),
    ),
    Benchmark(
        name="nixl",
        about="a segment over NIXL; beside NIXL by itself",
        quick=("--mebibytes", "64", "--repeats", "11"),
        full=("--mebibytes", "1", "16", "64", "256"),
        notes=(
            "NIXL by itself reads into memory that is there and verifies nothing, so nothing above it can "
            "be faster; the ratio is the share of its speed that is left. Host memory, UCX, two processes "
            "of one machine.",
        ),
    ),
    Benchmark(
        name="rank_layout",
        about="rank groups of 131,072 ranks; beside megatron-core's generator",
        quick=("--repeats", "3"),
        notes=(
            "ART computes the groups of the ranks that ask; megatron-core makes those of all ranks in "
            "every process. The five ranks' groups are the same on both sides.",
        ),
    ),
    Benchmark(
        name="first_loop",
        about="steps of `art demo`; beside a plain loop of transformers and peft",
        quick=("--steps", "3"),
        full=("--steps", "12"),
        notes=(
            "The aim is for the median over steps 1 to 12, as a run without `--quick` takes it. The first "
            "step is the one in which the plain loop is nearest; later ones have fewer groups to train "
            "on.",
        ),
        deadline_s=900.0,
    ),
)
