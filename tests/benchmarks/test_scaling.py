"""How scaling is drawn, and that what is timed can be run."""

from dataclasses import replace

import overhead
import scaling
import scaling_page

PARTS = {
    "envs": {
        "title": "Environments", "across": "environments", "unit": "steps/s", "shown": ["fast", "slow"],
        "points": [{"value": n, "fast": 1e3 * n, "slow": 0.5} for n in (1, 10, 4096)],
        "machine": "2 cores", "date": "2026-01-01", "not_measured": ["Replay beyond 10"], "note": "It bends at 10.",
    },
    "workers": {
        "title": "Workers", "across": "workers", "unit": "steps/s", "shown": ["fast"],
        "points": [{"value": n, "fast": 100.0 + n} for n in (0, 1, 2)],
        "machine": "2 cores", "date": "2026-01-01", "not_measured": [], "note": "",
    },
}  # fmt: skip


def test_the_page_has_tables_notes_and_a_picture(tmp_path):
    scaling_page.write(PARTS, tmp_path)
    text = (tmp_path / "scaling.md").read_text()
    assert "| 4,096 | 4,096,000 | 0.5 |" in text
    assert "\nIt bends at 10.\n" in text
    assert "\nNot measured: Replay beyond 10\n" in text
    picture = (tmp_path / "scaling.svg").read_text()
    assert "Environments" in picture and "Workers" in picture
    assert picture.count("slow") == 1


def test_a_part_ends_at_its_budget_or_at_what_can_not_be_measured():
    def measure(value, settings):
        if value == 3:
            raise MemoryError("too large")
        return {"cost": float(value)}

    part = scaling.Part("Thing", "things", "s", [1, 2, 3, 4], measure, ["cost"])
    found = scaling.measure(part, scaling.report.Settings())
    assert [point["value"] for point in found["points"]] == [1, 2]
    assert "Thing, 3: MemoryError" in found["not_measured"][0]
    found = scaling.measure(replace(part, budget_seconds=-1.0), scaling.report.Settings())
    assert found["points"] == []
    assert "budget" in found["not_measured"][0]


def test_what_it_times_runs():
    """The engine's own parts, put together there: they change, and the script has to follow."""
    point = scaling.ppo_speed(num_envs=4, width=8, seconds=0.0)
    assert 0 < point["training, steps/s"] < point["collecting, steps/s"]
    assert all(cost > 0 for cost in overhead.microseconds(0.0))
