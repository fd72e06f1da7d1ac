"""The figures of `results.md`, measured on this machine: `make bench`.

    python benchmarks/run.py                             all sections, at most half an hour on two cores
    python benchmarks/run.py --peer PEER_VENV/bin/python side by side with Stable-Baselines3 in a venv of its own
    python benchmarks/run.py --rllib VENV/bin/python     and PPO with RLlib in another
    python benchmarks/run.py --only ppo_speed startup    some sections; the others stay as they are
    python benchmarks/run.py --only on_policy            what `make bench` has no time for
    python benchmarks/run.py --only workers --longer 3   with three times its budget, for all repeats
    python benchmarks/run.py --quick                     whether it all works: tiny settings, nothing is written

A section has a budget of time: where the machine is too slow for it, figures are of fewer repeats. Leave the machine
alone meanwhile: whole-process wall times on all cores are what is measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

import dashboard
import off_policy
import on_policy
import overhead
import ppo_speed
import report
import startup
import time_to_score
import workers

RESULTS = Path(__file__).parent / "results.md"
SECTIONS = {
    "startup": startup,
    "ppo_speed": ppo_speed,
    "time_to_score": time_to_score,
    "workers": workers,
    "overhead": overhead,
    "off_policy": off_policy,
    "dashboard": dashboard,
}
MORE = {"on_policy": on_policy}  # which are measured only if asked for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS | MORE, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--peer", type=Path, help="python of a venv with stable-baselines3; without it, ours alone")
    parser.add_argument("--rllib", type=Path, help="python of a venv with ray[rllib]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--longer", type=float, default=1.0, metavar="TIMES", help="its budget a section may take")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="tiny settings, one repeat, nothing is written")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what runs is ended, too
    repeats = 1 if options.quick else options.repeats
    for name in options.only:
        module = (SECTIONS | MORE)[name]
        deadline = time.monotonic() + (20.0 if options.quick else options.longer * module.BUDGET_SECONDS)
        settings = report.Settings(options.peer, options.rllib, repeats, options.longer, deadline, options.quick)
        began = time.monotonic()
        text = report.section(module.TITLE, module.section, name, settings)
        print(f"{text}\n\n[{name}: {time.monotonic() - began:.0f} s]\n", flush=True)
        if not options.quick:
            page = options.out.read_text() if options.out.exists() else ""
            options.out.write_text(report.put(page, name, text, [*SECTIONS, *MORE]))


if __name__ == "__main__":
    main()
