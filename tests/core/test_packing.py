import json

import pytest
import torch

from erlcli.core.packing import image, packed, vector, vector_size
from erlcli.core.types import Box, Discrete, EnvSpec

INF = float("inf")


def box(shape, dtype="float32"):
    size = int(torch.Size(shape).numel())
    low, high = (0.0, 255.0) if dtype == "uint8" else (-INF, INF)
    return Box(shape, dtype, (low,) * size, (high,) * size)


SPACE = packed(
    [("camera", box((3, 3, 1), "uint8")), ("pose", box((2,))), ("map", box((2, 5), "uint8")), ("t", box(()))]
)


def test_vectors_come_first_and_rows_are_a_multiple_of_four_bytes():
    assert [(p.name, p.offset) for p in SPACE.parts] == [("pose", 0), ("t", 8), ("camera", 12), ("map", 21)]
    assert SPACE.shape == (32,) and SPACE.dtype == "uint8"  # 31 bytes and one more
    assert vector_size(SPACE) == 3


def test_parts_are_views_of_any_batch_of_rows(draws):
    rows = torch.zeros(5, 4, 32, dtype=torch.uint8)
    floats, pixels = torch.randn(5, 4, 3, generator=draws), torch.randint(0, 256, (5, 4, 3, 3, 1), generator=draws)
    camera = SPACE.parts[2]
    vector(rows, 3).copy_(floats)
    image(rows, camera).copy_(pixels)
    for view in (rows, rows[1:], rows[:, 2:], rows.flatten(0, 1).index_select(0, torch.arange(20)).view(5, 4, 32)):
        assert vector(view, 3).dtype == torch.float32
    assert torch.equal(vector(rows[1:, 2:], 3), floats[1:, 2:])
    assert torch.equal(image(rows[:, 1], camera), pixels[:, 1].to(torch.uint8))
    assert image(rows, camera).data_ptr() == rows.data_ptr() + camera.offset
    rows[..., 31] = 7
    assert torch.equal(vector(rows, 3), floats)  # every bit of it, NaN too
    vector(rows, 3)[0, 0, 0] = float("nan")
    assert vector(rows.clone(), 3)[0, 0, 0].isnan()


def test_other_kinds_are_refused():
    with pytest.raises(ValueError, match="int64"):
        packed([("a", Box((1,), "int64", (0.0,), (1.0,)))])


def test_a_packed_spec_survives_json_and_stays_small():
    spec = EnvSpec(SPACE, Discrete(2), 1)
    text = json.dumps(spec.to_json(), allow_nan=False)
    assert EnvSpec.from_json(json.loads(text)) == spec
    big = EnvSpec(box((4, 84, 84), "uint8"), Discrete(2), 1)
    text = json.dumps(big.to_json())
    assert len(text) < 500 and EnvSpec.from_json(json.loads(text)) == big
