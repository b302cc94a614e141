"""Kills processes of the data plane at random and says whether anything was lost.

    PYTHONPATH=tests python -m chaos --seconds 300 --seed 1

Exit status 1 when something was: see :func:`chaos.facts.faults`.
"""

import argparse

from chaos.facts import summary
from chaos.launch import run_session
from chaos.planted import OTHERS, QUEUES


def main() -> int:
    """Runs one session and prints its summary."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of who is killed and when")
    parser.add_argument("--seconds", type=float, default=300.0, help="of kills, at least")
    parser.add_argument(
        "--fault", choices=[*QUEUES, *OTHERS], default="", help="plant a fault, to see it caught"
    )
    options = parser.parse_args()
    facts, wrong = run_session(options.seed, options.seconds, options.fault)
    print(summary(facts))
    print(f"wrong     {len(wrong) or 'nothing'}")
    for line in wrong:
        print(f"  {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
