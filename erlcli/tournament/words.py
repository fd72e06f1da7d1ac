"""What a tournament has to tell, in words and as JSON."""

from __future__ import annotations

from erlcli.runs.jsonl import Row, read_json
from erlcli.runs.layout import RunLayout
from erlcli.runs.progress import of
from erlcli.runs.text import count, interval, score


def summary(layout: RunLayout) -> Row:
    """A tournament in one JSON object: its status, and what its journal says about the champion.

    `score` and `ci` are of episodes that the champion was not chosen by.
    """
    status, progress = read_json(layout.status) or {}, of(layout.root)
    crown = progress.board.crown
    keys = ("state", "mode", "steps", "total_steps", "seconds", "slices", "target_return", "target_reached")
    return {
        "run": str(layout.root),
        **{key: status.get(key) for key in keys},
        "members": len(progress.board.members),
        "champion": crown.member.id if crown is not None else None,
        "score": crown.mean if crown is not None else None,
        "ci": list(crown.ci) if crown is not None and crown.ci is not None else None,
        "champion_path": str(layout.root / "champion") if crown is not None else None,
    }


def describe(row: Row) -> str | None:
    """A row as a person reads it; None for those that say nothing new."""
    event, member = row["event"], row.get("member")
    if event == "spawn":
        origin = f"from {row['parent']}" if row.get("parent") else "a founder"
        changes = ", ".join(f"{key.rpartition('.')[2]} {_short(value)}" for key, value in row["changes"].items())
        return f"{member}: {origin}" + (f"; {changes}" if changes else "")
    if event == "evaluate":
        what = {"confirm": "confirmed", "again": "played again:"}.get(str(row.get("kind")), "scored")
        played = f"{score(row['mean'])} {interval(row['ci'], row['mean'])}"
        return f"{member}: {what} {played} at {count(row['steps'])} steps"
    if event == "promote":
        return f"champion: {member}, mean return {score(row['mean'])}"
    if event in ("retire", "refuse"):
        return f"{member + ': retired, ' if member else event + ': '}{row['reason']}"
    if event == "slice_end" and row["why"] not in ("budget", "done"):
        reason = f": {row['reason']}" if row.get("reason") else ""
        return f"{member}: {row['why']} at {count(row['to_steps'])} steps{reason}"
    if event == "slots":
        return f"slots: {', '.join(row['slots']) or 'none'}"
    if event == "capacity":
        return f"slots that wait for a node: {', '.join(row['missing']) or 'none'}"
    plain = {
        "generation": f"generation {row.get('number')}",
        "park": f"{member}: parked",
        "revive": f"{member}: goes on",
        "pause": "paused",
        "resume": "goes on",
        "finish": f"finished: {row.get('reason')}",
    }
    return plain.get(event)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
