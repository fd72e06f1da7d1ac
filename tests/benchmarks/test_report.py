"""The page of results, and repeats within a budget. Nothing is measured here."""

import json
import sys
import time
from pathlib import Path

import pytest
import report
from report import NotMeasured, Settings, by_turns, put, ratio, section, spread

ORDER = ["one", "two", "three"]


def test_a_section_is_replaced_and_the_others_stay_in_order():
    page = put("", "three", "## Three\n\nold", ORDER)
    page = put(page, "one", "## One", ORDER)
    page = put(page + "\nby hand\n", "three", "## Three\n\nnew", ORDER)
    assert page == (
        "# Results\n\n<!-- section one -->\n## One\n<!-- end one -->\n\n"
        "<!-- section three -->\n## Three\n\nnew\n<!-- end three -->\n"
    )


def test_medians_and_all_that_is_behind_them():
    assert spread([3.0, 1.0, 2.0], "{:.1f}") == "2.0 (3.0, 1.0, 2.0)"
    assert spread([1234.0, None, None]) == "never (1,234, never, never)"
    assert spread([]) == "-"
    assert ratio([2.0, 4.0, 9.0], [1.0, 2.0, 8.0]) == "2.00"
    assert ratio([1.0], []) == "-"


def test_measures_take_turns():
    calls = []
    found = by_turns({"a": lambda: calls.append("a") or 1, "b": lambda: calls.append("b") or 2}, Settings(repeats=2))
    assert calls == ["a", "b", "a", "b"]
    assert found == {"a": [1, 1], "b": [2, 2]}


def test_no_round_is_begun_beyond_the_deadline():
    assert by_turns({"a": lambda: 1}, Settings(repeats=3, deadline=time.monotonic() - 1)) == {"a": [1]}
    settings = Settings(deadline=time.monotonic() + 80)
    assert settings.share(4).left == pytest.approx(20, abs=1)


def test_what_fails_is_noted_once_and_the_rest_is_measured():
    def fail():
        raise NotMeasured("no peer")

    settings = Settings(repeats=2)
    assert by_turns({"ours": lambda: 1, "peer": fail}, settings) == {"ours": [1, 1], "peer": []}
    text = section("Title", lambda settings: "| a table |", "name", settings)
    assert text.startswith("## Title\n")
    assert text.endswith("| a table |\n\n* not measured: no peer")
    assert "--only name --repeats 2`" in text


def test_a_section_says_by_which_command():
    def measure(settings):
        settings.options.append("--rllib RLLIB_VENV/bin/python")
        return ""

    settings = Settings(repeats=2, longer=1.5)
    text = section("Title", measure, "name", settings)
    assert "`python benchmarks/run.py --only name --repeats 2 --longer 1.5 --rllib RLLIB_VENV/bin/python`" in text


def test_a_section_that_can_not_be_measured_says_why():
    def fail(settings):
        raise NotMeasured("no terminal")

    assert section("Title", fail, "name", Settings()).endswith("* not measured: no terminal")


def test_commands_that_fail_say_so():
    with pytest.raises(NotMeasured, match="left with 3: told so"):
        Settings().run(sys.executable, "-c", "import sys; print('told so', file=sys.stderr); sys.exit(3)")
    assert Settings().run(sys.executable, "-c", "print(7)") == "7\n"
    settings = Settings()
    assert report.find_peer(settings) is None
    assert report.find_peer(Settings(peer=Path("/nowhere/python"), notes=settings.notes)) is None
    assert report.find_rllib(settings) is None
    assert len(settings.notes) == 3
    assert settings.options == []


def test_every_section_of_the_runner_has_what_it_needs():
    import run

    for module in (run.SECTIONS | run.MORE).values():
        assert callable(module.section) and module.TITLE and module.BUDGET_SECONDS > 0
    assert sum(module.BUDGET_SECONDS for module in run.SECTIONS.values()) <= 1830  # half an hour, as is promised


def test_our_settings_are_those_of_the_peer():
    import ppo_speed
    from sb3_tasks import PPO_TASKS

    from erlcli.recipe.load import load

    for task, theirs in PPO_TASKS.items():
        recipe = load(ppo_speed.RECIPES[task], ppo_speed.sets(task))
        ours = recipe.algorithm
        assert recipe.env.id == theirs["env"]
        assert recipe.env.num_envs == theirs["envs"]
        wanted = theirs["ppo"]
        assert (ours.rollout_length, ours.batch_size, ours.epochs) == (
            wanted["n_steps"], wanted["batch_size"], wanted["n_epochs"],
        )  # fmt: skip
        assert (ours.gamma, ours.gae_lambda) == (wanted["gamma"], wanted["gae_lambda"])
        assert recipe.normalize.obs == theirs["normalize"]


def test_the_peer_is_told_what_a_recipe_says():
    import on_policy

    from erlcli.recipe.load import load

    for name in on_policy.RECIPES:
        recipe = load(name)
        task = on_policy.task(recipe)
        assert (task["env"], task["envs"], task["algorithm"]) == (
            recipe.env.id.replace("NoVel", ""),
            recipe.env.num_envs,
            name.split("_")[-1],
        )
        assert (task["memory"] is not None) == ("NoVel" in recipe.env.id) == isinstance(task["entries"], list)
        assert task["options"]["n_steps"] == recipe.algorithm.rollout_length
        assert ("batch_size" in task["options"]) == (task["algorithm"] == "ppo")
        json.dumps(task)
    sde = on_policy.task(load("pendulum_ppo"))["options"]
    assert sde["use_sde"] and sde["sde_sample_freq"] == 4 and sde["batch_size"] == 64 and sde["n_epochs"] == 10
