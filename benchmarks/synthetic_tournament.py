"""Tournaments that look real and were never played; see `synthetic.py`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from synthetic_run import LIVE, NOW, RECIPE, write_run

from erlcli.runs.jsonl import Appender, encode, write_json, write_text
from erlcli.runs.lock import RunLock

SLICE_STEPS = 262_144
STEPS_A_CALL = 2_048  # of a replay
ALGORITHMS = ("ppo", "ppo", "ppo", "sac", "td3")
TAU = 900_000.0  # env steps after which a good member has learnt most of what it can


@dataclass
class Player:
    """A member as the pretended orchestrator knows it."""

    id: str
    parent: str | None
    algorithm: str
    seed: int
    rates: dict[str, float]
    quality: float
    steps: int = 0
    slices: int = 0
    scores: list[float] = field(default_factory=list)
    gone: str = ""  # `retired` or `parked`

    def play(self, noise: np.random.Generator) -> float:
        """The score after another slice."""
        self.steps += SLICE_STEPS
        self.slices += 1
        mean = -110.0 + 412.0 * self.quality * (1.0 - math.exp(-self.steps / TAU)) + noise.normal(0.0, 7.0)
        self.scores.append(mean)
        return mean


class Orchestra:
    """Pretends to run a tournament; its rows are what the journal holds.

    Args:
        members: that may be spawned: half of them at the start, others in the place of the worst.
        slots: places to train at.
        seed: of everything.
        rounds: in which each slot trains a member for a slice; enough for each member to have some if None.
    """

    def __init__(self, members: int, slots: int, seed: int, rounds: int | None) -> None:
        self.noise = np.random.default_rng(seed)
        self.members, self.slots = members, [f"cuda:{i}" for i in range(slots)]
        self.players: dict[str, Player] = {}
        self.rows: list[dict[str, Any]] = []
        self.clock = 0.0
        self.tell("slots", slots=self.slots)
        for _ in range(max(1, members // 2)):
            self.spawn(None)
        rounds = rounds if rounds is not None else max(3, math.ceil(4 * members / slots))
        for number in range(rounds):
            self.round(number)

    def tell(self, event: str, member: str | None = None, **facts: Any) -> None:
        """Write a row."""
        self.clock += 0.25
        named = {} if member is None else {"member": member}
        row = {"seq": len(self.rows) + 1, "time": round(self.clock, 3), "event": event}
        self.rows.append({**row, **named, **facts})

    @property
    def active(self) -> list[Player]:
        """Those still in the race."""
        return [player for player in self.players.values() if not player.gone]

    def spawn(self, parent: Player | None) -> Player:
        """A new member, from scratch or with its parent's weights and changed rates."""
        draw = self.noise
        rate = float(10 ** draw.uniform(-4.5, -2.5))
        rates = {"algorithm.learning_rate": rate, "algorithm.gamma": float(1 - 10 ** draw.uniform(-2.6, -1.5)),
                 "algorithm.entropy_coef": float(draw.choice([0.0, 0.001, 0.003, 0.01]))}  # fmt: skip
        algorithm = str(draw.choice(ALGORITHMS))
        if parent is not None:
            algorithm, key = parent.algorithm, "algorithm.learning_rate"
            rates = {key: parent.rates[key] * float(draw.choice([0.8, 1.25]))}
            if draw.random() < 0.4:
                rates["algorithm.entropy_coef"] = float(draw.choice([0.0, 0.001, 0.003, 0.01]))
        merged = {**(parent.rates if parent else {}), **rates}
        distance = abs(math.log10(merged["algorithm.learning_rate"]) + 3.2)
        quality = float(np.clip(0.98 - 0.28 * distance + draw.normal(0.0, 0.05), 0.05, 1.03))
        child = Player(f"m{len(self.players):03d}", parent.id if parent else None, algorithm,
                       int(draw.integers(1_000_000)), merged, quality, parent.steps if parent else 0)  # fmt: skip
        self.players[child.id] = child
        changes = {key: float(f"{value:.4g}") for key, value in rates.items()}
        self.tell("spawn", child.id, parent=child.parent, algorithm=algorithm, changes=changes, seed=child.seed,
                  steps=child.steps, random_state="")  # fmt: skip
        return child

    def round(self, number: int) -> None:
        """One slice on each slot, then evolution."""
        queue = sorted(self.active, key=lambda player: (player.slices, player.id))[: len(self.slots)]
        for slot, player in zip(self.slots, queue, strict=False):
            self.tell("slice_start", player.id, slot=slot, from_steps=player.steps)
        self.clock += 55.0 + float(self.noise.uniform(0, 10))
        for player in queue:
            mean = player.play(self.noise)
            self.tell("slice_end", player.id, to_steps=player.steps, why="budget")
            self.evaluate(player, mean)
        ranked = sorted((p for p in self.active if p.scores), key=lambda player: -player.scores[-1])
        if number % 3 == 2 and len(ranked) > 3 and len(self.players) < self.members:
            worst, best = ranked[-1], ranked[: max(2, len(ranked) // 4)]
            chosen = best[int(self.noise.integers(len(best)))]
            scores = [round(player.scores[-1], 3) for player in best]
            self.tell("select", candidates=[player.id for player in best], scores=scores, chosen=chosen.id)
            self.retire(worst, "lowest score of the board")
            self.spawn(chosen)
        if number % 11 == 7 and len(ranked) > 4:
            ranked[-2].gone = "parked"
            self.tell("park", ranked[-2].id)
        if ranked:
            self.tell("promote", ranked[0].id, rank=1)

    def evaluate(self, player: Player, mean: float) -> None:
        """A row with a score."""
        std = 9.0 + 40.0 * math.exp(-((mean - 120.0) ** 2) / 9000.0)
        half = 1.96 * std / 10.0
        self.tell("evaluate", player.id, steps=player.steps, mean=round(mean, 3), std=round(std, 3), episodes=100,
                  ci=[round(mean - half, 3), round(mean + half, 3)])  # fmt: skip

    def retire(self, player: Player, reason: str) -> None:
        """Take a member out of the race."""
        player.gone = "retired"
        self.tell("retire", player.id, reason=reason)

    def close(self) -> None:
        """The end: all but the best leave."""
        ranked = sorted((p for p in self.active if p.scores), key=lambda player: -player.scores[-1])
        for player in self.active:
            if player is not ranked[0]:
                self.retire(player, "the budget is used")
        self.tell("promote", ranked[0].id, rank=1)


def write_tournament(
    path: Path,
    *,
    members: int = 12,
    slots: int = 4,
    seed: int = 0,
    state: str = "running",
    now: float = NOW,
    rounds: int | None = None,
    member_rows: int = 60,
    age_seconds: float = 1.0,
) -> Path:
    """Write a tournament's directory; its path.

    Args:
        path: of the tournament; must be empty or not there.
        members: that may be spawned: half of them at the start, others in the place of the worst.
        slots: places to train at.
        seed: of everything.
        state: `running` or `finished`; a running one looks dead unless someone holds the lock.
        now: seconds since the epoch at which a reader looks.
        rounds: in which each slot trains a member for a slice; some four slices a member if None.
        member_rows: metric rows of each member's run; 0 for no run directories.
        age_seconds: since the last row.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    orchestra = Orchestra(members, slots, seed, rounds)
    busy: dict[str, str] = {}
    if state == "finished":
        orchestra.close()
    else:  # cut in the middle of a round
        waiting = sorted(orchestra.active, key=lambda player: (player.slices, player.id))[:slots]
        for slot, player in zip(orchestra.slots, waiting, strict=False):
            orchestra.tell("slice_start", player.id, slot=slot, from_steps=player.steps)
            busy[player.id] = slot
    start = now - age_seconds - orchestra.clock
    for row in orchestra.rows:
        row["time"] = round(row["time"] + start, 3)
    text = "".join(encode(row) + "\n" for row in orchestra.rows)
    write_text(path / "journal.jsonl", text)
    recipe = RECIPE.format(total=8 * SLICE_STEPS, target=300.0, seed=seed, env="BipedalWalker-v3", algorithm="ppo")
    write_text(path / "recipe.toml", recipe)
    os.utime(path / "recipe.toml", (start, start))
    write_json(path / "status.json", _status(path, state, now - age_seconds, orchestra.clock))
    (path / "lock").touch()
    (path / "control").mkdir()
    for player in orchestra.players.values() if member_rows else ():
        run_state = "running" if player.id in busy else "finished" if state == "finished" else "interrupted"
        high = -110.0 + 412.0 * player.quality
        write_run(path / "members" / player.id, rows=member_rows, seed=player.seed, state=run_state, now=now,
                  planned=round(member_rows * 1.6), algorithm=player.algorithm, high=high,
                  age_seconds=None if player.id in busy else 90.0)  # fmt: skip
    return path


def _status(path: Path, state: str, at: float, seconds: float) -> dict[str, Any]:
    return {
        "kind": "tournament", "state": state, "pid": 4242, "time": at, "name": path.name, "env": "BipedalWalker-v3",
        "backend": "envpool", "algorithm": None, "seconds": round(seconds, 1), "target_return": 300.0,
        "target_reached": state == "finished", "exit_code": None if state in LIVE else 0, "error": None,
    }  # fmt: skip


class TournamentReplay:
    """A tournament in which every member trains at once: each call writes a row for each.

    Args:
        path: of the tournament; must be empty or not there.
        members: that train.
        seed: of everything.
        now: time of the first look.
    """

    def __init__(self, path: Path, *, members: int = 256, seed: int = 0, now: float = NOW) -> None:
        write_tournament(path, members=members, slots=members, seed=seed, now=now, rounds=1, member_rows=0)
        self.lock = RunLock.acquire(path / "lock")  # held, so that it looks live
        orchestra = self._orchestra = Orchestra(members, members, seed, 1)
        self._written = len(orchestra.rows) + len(orchestra.active)  # with the starts that cut the last round
        orchestra.rows.clear()
        late = [orchestra.spawn(None) for _ in range(members - len(orchestra.players))]
        for slot, player in zip(orchestra.slots[-len(late) :], late, strict=False):
            orchestra.tell("slice_start", player.id, slot=slot, from_steps=0)
        self._rows = Appender(path / "journal.jsonl")
        self._path, self._start = path, now
        self._append(now)

    def _append(self, now: float) -> None:
        for row in self._orchestra.rows:
            self._written += 1
            self._rows.append({**row, "seq": self._written, "time": now})
        self._orchestra.rows.clear()

    def step(self, now: float) -> bool:
        """Append an evaluation of every member; there is always another."""
        for player in self._orchestra.active:
            player.steps += STEPS_A_CALL - SLICE_STEPS
            self._orchestra.evaluate(player, player.play(self._orchestra.noise))
            player.scores.clear()
        self._append(now)
        write_json(self._path / "status.json", _status(self._path, "running", now, now - self._start))
        return True

    def close(self) -> None:
        """Leave, so that it looks dead."""
        self._rows.close()
        self.lock.release()
