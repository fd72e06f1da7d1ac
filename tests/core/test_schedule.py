import pytest
from pydantic import BaseModel, ValidationError

from erlcli.core.schedule import Schedule, constant


class Section(BaseModel):
    rate: Schedule


def rate(value):
    return Section.model_validate({"rate": value}).rate


def test_a_number_is_a_constant():
    for value in (3, 3e-4, 0):
        found = rate(value)
        assert found == constant(float(value))
        assert [found(p) for p in (0.0, 0.3, 1.0)] == [value] * 3


def test_linear():
    found = rate({"kind": "linear", "start": 1.0, "end": 0.2})
    assert [found(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1.0, 0.8, 0.6, 0.2])


def test_linear_may_rise():
    assert rate({"kind": "linear", "start": 0.0, "end": 2.0})(0.75) == 1.5


def test_cosine():
    found = rate({"kind": "cosine", "start": 1.0, "end": 0.0})
    assert [found(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx(
        [1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0.0]
    )


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_progress_is_held_within_the_run(kind):
    found = rate({"kind": kind, "start": 1.0, "end": 0.25})
    assert found(-0.5) == 1.0
    assert found(1.7) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "value",
    [
        -1e-3,
        float("nan"),
        float("inf"),
        True,
        "3e-4",
        {"kind": "linear", "start": -1.0},
        {"kind": "linear", "start": float("inf")},
        {"kind": "linear", "start": 1.0, "end": float("nan")},
        {"kind": "exponential", "start": 1.0},
        {"kind": "linear", "end": 1.0},
        {"kind": "linear", "start": 1.0, "stop": 0.0},
    ],
)
def test_what_is_no_schedule_is_refused(value):
    with pytest.raises(ValidationError):
        rate(value)


@pytest.mark.parametrize("value", [{"start": 1e-3, "end": 0.0}, {"kind": "constant", "start": 1e-3, "end": 0.0}])
def test_a_constant_with_another_end_is_refused_rather_than_ignored(value):
    with pytest.raises(ValidationError, match="kind"):
        rate(value)


@pytest.mark.parametrize(
    "value",
    [
        2.5e-4,
        {"kind": "constant", "start": 0.5},
        {"start": 0.5},
        {"kind": "linear", "start": 1e-3, "end": 0.0},
        {"kind": "linear", "start": 1e-3},
        {"kind": "cosine", "start": 1.0, "end": 0.1},
    ],
)
def test_what_is_written_reads_back_as_an_equal_schedule(value):
    section = Section.model_validate({"rate": value})
    written = section.model_dump(mode="json")
    assert Section.model_validate(written) == section
    assert Section.model_validate(written).model_dump(mode="json") == written


def test_a_constant_is_written_as_a_number():
    assert Section(rate=constant(0.25)).model_dump(mode="json") == {"rate": 0.25}


def test_schedules_are_frozen():
    with pytest.raises(ValidationError):
        constant(1.0).start = 2.0
