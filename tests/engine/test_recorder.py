"""What TensorBoard is given."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from erlcli.engine.recorder import Recorder
from erlcli.recipe.load import load
from erlcli.runs.jsonl import Appender
from erlcli.runs.layout import RunLayout


def test_what_a_crashed_learner_did_in_vain_is_superseded(tmp_path):
    """The evaluator, which records, outlives it."""
    layout = RunLayout(tmp_path / "run")
    layout.create()
    recorder, rows = Recorder(layout, load("cartpole_ppo")), Appender(layout.metrics)
    for attempt, steps in ((1, range(1, 8)), (2, range(4, 10))):
        for step in steps:
            row = {"attempt": attempt, "steps": step, "loss/policy": attempt + step / 10, "time/wall": float(step)}
            rows.append(row)
        recorder.record()
    recorder._writer.close()
    found = EventAccumulator(str(layout.tensorboard))
    found.Reload()
    scalars = [(event.step, round(event.value, 3)) for event in found.Scalars("loss/policy")]
    assert scalars == [(1, 1.1), (2, 1.2), (3, 1.3), *((step, round(2 + step / 10, 3)) for step in range(4, 10))]
