"""How scaling is drawn, and the environment that it is measured in."""

from dataclasses import replace

import scaling
import scaling_page
import torch

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


def test_the_points_that_drift_are_an_environment():
    env = scaling.make_env(3)
    first = env.reset(0).clone()
    step = env.step(torch.tensor([1, 0, 1]))
    assert torch.allclose(step.obs[:, 1] - first[:, 1], torch.tensor([0.01, -0.01, 0.01]), atol=1e-6)
    for _ in range(198):
        step = env.step(torch.tensor([1, 0, 1]))
        assert not step.truncated.any()
    step = env.step(torch.tensor([1, 0, 1]))
    assert step.truncated.all() and not step.terminated.any()
    assert len(step.final_obs) == 3
