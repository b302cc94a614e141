"""The process of the plain loop: settings on the first line of standard input, then a step per line."""

import os
import sys

import msgspec
from benchmarks.first_loop.messages import PlainSettings, PlainStep
from benchmarks.first_loop.plain import PlainLoop


def main() -> None:
    """Answers every line with one; ends with its input."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not get among the answers
    lines = iter(sys.stdin.buffer.readline, b"")
    loop = PlainLoop(msgspec.json.decode(next(lines), type=PlainSettings))
    loop.warm_up()
    answers.write(b"{}\n")
    for line in lines:
        answers.write(msgspec.json.encode(loop.step(msgspec.json.decode(line, type=PlainStep))) + b"\n")


if __name__ == "__main__":
    main()
