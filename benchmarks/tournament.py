"""Tournaments: what scheduling costs, whether anyone starves, and what evolution is worth.

    python benchmarks/tournament.py overhead        # 64 members, simulated slices of 1 s
    python benchmarks/tournament.py cluster         # 1,000 members on 256 simulated slots
    python benchmarks/tournament.py compare --seeds 0 1 2 3 4 --slots 2 [--modes tournament independent generational]
    python benchmarks/tournament.py refill          # real members: from the order to the first env step

Each with `--write` for its section of `benchmarks/tournament.md`.

`overhead` and `cluster` are simulations: slices are a clock's entries, but orchestrator, decisions and the journal with
its fsyncs are the real ones, and the time that they take passes for the slots, too. `compare` trains for real, on
LunarLanderContinuous in the search space of `tournament_lunarlander`, most of which learns nothing: the same founders
and the same budget for every mode, until the champion is confirmed at 200.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import die_with_parent, machine, put, table

from erlcli.recipe.tournament import TournamentRecipe, load_tournament
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.tournament.draws import derive
from erlcli.tournament.orchestrator import Orchestrator
from erlcli.tournament.simulate import MemoryStore, SimulatedBackend

SLICE = 1000
PAGE = Path(__file__).with_name("tournament.md")
TITLES = {
    "compare": "Evolution against none",
    "refill": "Refill of a slot",
    "overhead": "Overhead of scheduling, simulated",
    "cluster": "A thousand members on 256 slots, simulated",
}


def recipe(mode: str, members: int, slices: int) -> TournamentRecipe:
    """A tournament of so many slices, which no target ends."""
    sets = [
        f"tournament.mode={mode}", f"tournament.members={members}", f"tournament.slice.steps={SLICE}",
        f"tournament.budget.steps={slices * SLICE}", "train.target_return=1e9", "train.total_steps=1_000_000_000",
    ]  # fmt: skip
    return load_tournament("tournament_lunarlander", sets)


def simulate(mode: str, members: int, slots: int, slices: int, shortest: float, longest: float) -> dict:
    """One simulated tournament, and how idle its slots were until the last slice was given out."""
    with tempfile.TemporaryDirectory(prefix="erl-tournament-") as folder:
        made, store = recipe(mode, members, slices), MemoryStore(slice_steps=SLICE)

        def seconds(member: str, number: int) -> float:
            return shortest + (longest - shortest) * derive(0, member, number) / 2**31

        backend = SimulatedBackend(store, slice_seconds=seconds, evaluate_seconds=0.0, charge=True)
        orchestrator = Orchestrator(RunLayout(Path(folder)), made, backend, store)
        began = time.perf_counter()
        orchestrator.run([f"cpu:{i}" for i in range(slots)])
        real = time.perf_counter() - began
        rows = read(Path(folder) / "journal.jsonl")
    starts = [row for row in rows if row["event"] == "slice_start"]
    span = backend.orders[-1][0] - backend.orders[0][0]
    gaps = waits_in_slices([row["member"] for row in starts]) if mode != "tournament" else None
    founders = [row for row in starts if int(row["member"][1:]) < members]
    return {
        "mode": mode,
        "members": members,
        "slots": slots,
        "slices": orchestrator.ledger.completed,
        "rows": len(rows),
        "simulated_seconds": round(span, 1),
        "idle_share": sum(backend.waits) / (slots * span),
        "longest_wait_of_a_slot_seconds": max(backend.waits),
        "orchestrator_seconds_per_slice": real / orchestrator.ledger.completed,
        "founders_served": len({row["member"] for row in founders}),
        "largest_wait_of_a_member_in_rounds": None if gaps is None else max(gaps, default=0) / members,
    }


def waits_in_slices(starts: list[str]) -> list[int]:
    """Slices given to anyone between two of the same member."""
    places: dict[str, list[int]] = {}
    for place, member in enumerate(starts):
        places.setdefault(member, []).append(place)
    return [later - earlier for spots in places.values() for earlier, later in itertools.pairwise(spots)]


def erl(command: list[str]) -> str:
    """What a command prints. It ends with this process, however that ends: the tournament notices that its parent left.

    A signal to this process ends the command first: it saves and leaves, its members with it.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)

    def leave(number: int, frame: object) -> None:
        process.terminate()
        process.wait(timeout=60)
        sys.exit(128 + number)

    handlers = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        out, _ = process.communicate()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return out


def train(mode: str, seed: int, slots: int, budget: int, sets: list[str]) -> dict:
    """One real tournament: wall time and env steps until its champion was confirmed at the target."""
    with tempfile.TemporaryDirectory(prefix="erl-tournament-") as folder:
        root = Path(folder) / "run"
        command = [
            sys.executable, "-m", "erlcli", "tournament", "tournament_lunarlander", "--slots", str(slots), "--seed",
            str(seed), "--run-dir", str(root), "--json", "--set", f"tournament.mode={mode}", "--set",
            f"tournament.budget.steps={budget}", *(part for key in sets for part in ("--set", key)),
        ]  # fmt: skip
        began = time.perf_counter()
        summary = json.loads(erl(command))
        wall = time.perf_counter() - began
    row = {"mode": mode, "seed": seed, "reached": summary["target_reached"], "steps": summary["steps"],
           "seconds": round(wall, 1), "score": summary["score"], "slices": summary["slices"]}  # fmt: skip
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def compare(modes: list[str], seeds: list[int], slots: int, budget: int, sets: list[str]) -> dict:
    """All modes on all seeds; a run that misses the target counts with all of its budget."""
    rows = [train(mode, seed, slots, budget, sets) for seed in seeds for mode in modes]
    table = {}
    for mode in modes:
        mine = [row for row in rows if row["mode"] == mode]
        table[mode] = {
            "reached": sum(row["reached"] for row in mine),
            "of": len(mine),
            "median_steps": statistics.median(row["steps"] for row in mine),
            "median_seconds": statistics.median(row["seconds"] for row in mine),
            "median_score": statistics.median(row["score"] for row in mine),
        }
    return {"table": table, "rows": rows}


def refill(slots: int) -> dict:
    """Real members: seconds from the order to the first env step, and between two slices of a slot."""
    with tempfile.TemporaryDirectory(prefix="erl-tournament-") as folder:
        root = Path(folder) / "run"
        command = [sys.executable, "-m", "erlcli", "tournament", "tournament_lunarlander", "--slots", str(slots),
                   "--run-dir", str(root), "--json", "--set", "tournament.slice.steps=8192", "--set",
                   "tournament.budget.steps=400_000", "--set", "train.target_return=1e9"]  # fmt: skip
        erl(command)
        rows = read(root / "journal.jsonl")
    ends = [row for row in rows if row["event"] == "slice_end" and "setup_seconds" in row]
    setups = sorted(row["setup_seconds"] for row in ends)
    p95 = setups[int(0.95 * len(setups))]
    return {"slices": len(ends), "median_setup_seconds": statistics.median(setups), "p95": p95, "max": setups[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "cluster", "compare", "refill"])
    parser.add_argument("--modes", nargs="+", default=["tournament", "independent", "generational"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--budget", type=int, default=3_000_000)
    parser.add_argument("--set", action="append", default=[], help="of the recipe, in all modes")
    parser.add_argument("--write", action="store_true", help="put the figures into benchmarks/tournament.md")
    arguments = parser.parse_args()
    if arguments.what == "overhead":
        found = [
            simulate(mode, 64, slots, 64 * 20, 1.0, 1.0) for mode in ("tournament", "pbt") for slots in (2, 16, 64)
        ]
    elif arguments.what == "cluster":
        found = [simulate(mode, 1000, 256, 8000, 30.0, 90.0) for mode in ("tournament", "pbt", "independent")]
    elif arguments.what == "refill":
        found = refill(arguments.slots)
    else:
        found = compare(arguments.modes, arguments.seeds, arguments.slots, arguments.budget, arguments.set)
    print(json.dumps(found, indent=2))
    if arguments.write:
        write(arguments.what, found, " ".join(sys.argv[1:]).replace(" --write", ""))


def write(what: str, found: Any, arguments: str) -> None:
    """Put a section into the page; the others stay as they are."""
    if what == "compare":
        rows = []
        for mode, row in found["table"].items():
            mine = [r for r in found["rows"] if r["mode"] == mode]
            each = ", ".join(f"{r['steps'] / 1e3:,.0f}k{'' if r['reached'] else ' (missed)'}" for r in mine)
            seconds = ", ".join(f"{r['seconds']:.0f}" for r in mine)
            medians = f"{row['median_steps'] / 1e3:,.0f}k", f"{row['median_seconds']:.0f}"
            rows.append([mode, f"{row['reached']} of {row['of']}", medians[0], each, medians[1], seconds])
        text = table(["mode", "target reached", "steps, median", "each seed", "seconds, median", "each seed"], rows)
    else:
        dicts = found if isinstance(found, list) else [found]
        cells = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in dicts]
        text = table([key.replace("_", " ") for key in dicts[0]], cells)
    facts = f"{machine()}; {datetime.date.today()}; `python benchmarks/tournament.py {arguments}`."
    page = PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(put(page, what, f"## {TITLES[what]}\n\n{facts}\n\n{text}", list(TITLES), "Tournaments"))


if __name__ == "__main__":
    main()
