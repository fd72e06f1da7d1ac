"""Which snapshots are played with, and for how long."""

import threading
from types import SimpleNamespace

import pytest
import torch

from erlcli.engine import build, checkpoint
from erlcli.engine import evaluator as module
from erlcli.engine.evaluate import Scores
from erlcli.engine.evaluator import Evaluator
from erlcli.engine.look import Look
from erlcli.recipe.load import load
from erlcli.runs.curve import Curve
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout

EPISODES, PROBE = 10, 2


class Run:
    """An evaluator whose snapshots say themselves what they score, and which may be joined by others meanwhile."""

    def __init__(self, tmp_path, target=None):
        self.layout = RunLayout(tmp_path / "run")
        if not self.layout.root.exists():
            self.layout.create()
        (self.layout.control / "finish").unlink(missing_ok=True)
        sets = [f"eval.episodes={EPISODES}", f"eval.probe_episodes={PROBE}", "eval.num_envs=1", "log.tensorboard=false"]
        self.recipe = load("cartpole_ppo", sets)
        train = self.recipe.train.model_copy(update={"target_return": target})
        self.recipe = self.recipe.model_copy(update={"train": train})
        self.evaluator = Evaluator(self.layout, self.recipe, 1, threading.Event())
        self.policy = build.policy(self.recipe, self.evaluator.evaluation.spec)
        self.later = []  # snapshots that come one by one, each during a probe
        self.played = []  # score and episodes of each call
        self.evaluator.evaluation.at_once = EPISODES
        self.evaluator.evaluation.run = self.play
        self.evaluator.filmer.offer = self.evaluator.filmer.last = lambda subject: None

    def play(self, policy, episodes, **_):
        score = next(policy.parameters()).flatten()[0].item()
        self.played.append((score, len(episodes)))
        if self.later and episodes[0] == 0:
            self.snapshot(*self.later.pop(0))
        elif not self.later:
            self.finish()
        return Scores([score] * len(episodes), [1] * len(episodes))

    def snapshot(self, steps, score, attempt=1):
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.fill_(score)
        facts = {"steps": steps, "version": steps, "attempt": attempt, "seconds": steps, "wall": steps}
        facts = {name: str(value) for name, value in facts.items()}
        checkpoint.save_snapshot(self.layout, self.policy.state_dict(), steps, facts)

    def finish(self):
        self.layout.control.mkdir(exist_ok=True)
        (self.layout.control / "finish").touch()

    def evaluate(self):
        self.evaluator.run()
        curve = Curve(self.layout.evals)
        curve.refresh()
        return [(row["steps"], row["return_mean"], row["kind"]) for row in curve.rows]


def test_rows_that_somebody_has_edited_are_no_obstacle(tmp_path):
    layout = RunLayout(tmp_path / "run")
    layout.create()
    layout.evals.write_text(
        '{"steps": 10, "kind": "full", "return_mean": 7}\n{"steps": 20, "kind": "full"}\n{"steps": 30}\n'
    )
    evaluator = Evaluator(layout, load("cartpole_ppo"), 1, threading.Event())
    assert (evaluator.best, evaluator.seen) == (7, (0, 20))


def test_a_target_that_is_lowered_to_the_best_ends_the_run(tmp_path):
    run = Run(tmp_path, target=40.0)
    run.snapshot(1, 30.0)
    assert run.evaluate() == [(1, 30.0, "full")]
    lowered = Run(tmp_path, target=25.0)
    lowered.later = [(3, 26.0), (4, 99.0)]
    lowered.snapshot(2, 20.0)
    assert lowered.evaluate()[1:] == [(2, 20.0, "probe"), (3, 26.0, "full")]
    event = read(run.layout.events("evaluator"))[-1]
    assert (event["event"], event["steps"]) == ("target_reached", 3)


def test_a_run_that_has_ended_at_its_target_is_ended_by_a_higher_one_alone(tmp_path):
    run = Run(tmp_path, target=25.0)
    run.snapshot(1, 30.0)
    run.evaluate()
    assert [Run(tmp_path, target).evaluator.target for target in (25.0, 30.0, 31.0)] == [None, None, 31.0]


def test_a_fast_learner_is_followed_by_probes_and_the_best_of_them_is_crowned_at_last(tmp_path):
    run = Run(tmp_path)
    run.later = [(2, 30.0), (3, 20.0), (4, 10.0)]
    run.snapshot(1, 5.0)
    assert run.evaluate() == [(1, 5.0, "probe"), (2, 30.0, "full"), (3, 20.0, "probe"), (4, 10.0, "full")]
    assert run.played == [(5.0, 2), (30.0, 2), (20.0, 2), (10.0, 2), (10.0, 8), (30.0, 8)]
    assert run.evaluator.best == 30


@pytest.mark.parametrize(("seconds", "waited"), [(60.0, 60), (10.0, 40)])
def test_with_always_a_newer_one_the_best_probe_waits_only_so_long(seconds, waited, tmp_path, monkeypatch):
    """A second an episode: 8 s for the rest of a full number, which waits for five times as long or for `seconds`."""
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(module, "PUT_OFF_SECONDS", seconds)
    run = Run(tmp_path)
    play = run.play

    def passing(policy, episodes, **_):
        clock[0] += len(episodes)
        return play(policy, episodes)

    run.evaluator.evaluation.run = passing
    run.later = [(steps, 1.0) for steps in range(2, 50)]
    run.snapshot(1, 5.0)
    run.evaluate()
    before = run.played.index((5.0, 8))
    assert run.played[:before] == [(5.0, 2)] + [(1.0, 2)] * (waited // 2)


def test_one_put_off_that_has_been_outdone_keeps_nobody_waiting(tmp_path, monkeypatch):
    """The target's own episodes may make a best that is above it, when its minute is over."""
    monkeypatch.setattr(module, "PUT_OFF_SECONDS", 0.0)
    run = Run(tmp_path)
    run.snapshot(1, 5.0)
    run.evaluator.best = 10.0
    run.evaluator.put_off = Look({"attempt": "1", "steps": "0"}, {}, Scores([7.0], [1]))
    assert run.evaluator._next().steps == 1
    assert run.evaluator.put_off is None


def test_where_training_needs_every_core_it_rests_after_each_snapshot(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    run = Run(tmp_path)
    run.evaluator.share = 0.2
    run.later = [(2, 3.0), (3, 2.0)]
    began, play = [], run.play

    def passing(policy, episodes, **_):
        began.append(clock[0])
        clock[0] += 10.0
        return play(policy, episodes)

    def wait(seconds):
        clock[0] += 1.0

    run.evaluator.evaluation.run, run.evaluator.stop.wait = passing, wait
    run.snapshot(1, 5.0)
    assert run.evaluate() == [(1, 5.0, "full"), (2, 3.0, "probe"), (3, 2.0, "full")]
    # Four times as long as it has played each time, until the learner is done.
    assert began == [100, 150, 200, 210, 220]


def test_with_nothing_newer_a_promising_one_is_played_with_at_once(tmp_path):
    run = Run(tmp_path)
    run.snapshot(1, 5.0)
    assert run.evaluate() == [(1, 5.0, "full")]
    assert run.played == [(5.0, 2), (5.0, 8)]


def test_what_was_put_off_is_played_with_in_between_a_few_episodes_at_a_time(tmp_path):
    run = Run(tmp_path)
    run.evaluator.evaluation.at_once, run.evaluator.best = 3, 4.0
    arrivals = {1: (2, 3.0), 3: (3, 1.0)}  # by the number of calls before

    def play(policy, episodes, **_):
        score = next(policy.parameters()).flatten()[0].item()
        run.played.append((score, len(episodes)))
        if len(run.played) in arrivals:
            run.snapshot(*arrivals[len(run.played)])
        if len(run.played) == 6:
            run.finish()
        return Scores([score] * len(episodes), [1] * len(episodes))

    run.evaluator.evaluation.run = play
    run.snapshot(1, 5.0)
    assert run.evaluate() == [(1, 5.0, "full"), (2, 3.0, "probe"), (3, 1.0, "probe")]
    assert run.played == [(5.0, 2), (3.0, 2), (5.0, 3), (1.0, 2), (5.0, 3), (5.0, 2)]
    assert run.evaluator.best == 5.0


def test_one_that_can_not_be_at_the_target_any_more_is_left_for_newer_ones(tmp_path):
    run = Run(tmp_path, target=25.0)
    run.evaluator.evaluation.at_once = 3
    play = run.play

    def stumbling(policy, episodes, **_):
        scores = play(policy, episodes)
        if scores.returns[0] == 26.0 and 3 in episodes:
            scores.returns[list(episodes).index(3)] = -100.0
        return scores

    run.evaluator.evaluation.run = stumbling
    run.later = [(2, 30.0), (3, 20.0)]
    run.snapshot(1, 26.0)
    assert run.evaluate() == [(1, pytest.approx(0.8), "probe"), (2, 30.0, "full")]
    assert run.played == [(26.0, 2), (26.0, 3), (30.0, 2), (30.0, 3), (30.0, 3), (30.0, 2)]


def test_the_target_waits_for_nobody(tmp_path):
    run = Run(tmp_path, target=25.0)
    run.later = [(2, 30.0), (3, 20.0)]
    run.snapshot(1, 5.0)
    assert run.evaluate() == [(1, 5.0, "probe"), (2, 30.0, "full")]
    assert run.layout.stop_request.exists()


def test_what_a_new_learner_has_gone_back_before_is_not_crowned(tmp_path):
    run = Run(tmp_path)
    run.later = [(2, 20.0, 2), (3, 10.0, 2)]
    run.snapshot(9, 30.0)
    assert run.evaluate() == [(2, 20.0, "full"), (3, 10.0, "full")]
    assert run.evaluator.best == 20
