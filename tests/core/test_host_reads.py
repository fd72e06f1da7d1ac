"""What waits for a device is found, wherever it is run."""

import pytest
import torch

from erlcli.core.host_reads import HostReads

X = torch.arange(6.0)


@pytest.mark.parametrize(
    ("look", "operation"),
    [
        (lambda: X.sum().item(), "_local_scalar_dense"),
        (lambda: float(X[0]), "_local_scalar_dense"),
        (lambda: 1 if X.sum() > 0 else 2, "_local_scalar_dense"),
        (lambda: X[X > 2], "index"),
        (lambda: X.clone().index_put_((X > 2,), torch.tensor(1.0)), "index_put_"),
        (lambda: X.clone().__setitem__(X > 2, torch.ones(3)), "index_put_"),
        (lambda: X.masked_select(X > 2), "masked_select"),
        (lambda: (X > 2).nonzero(), "nonzero"),
        (lambda: X.unique(), "_unique2"),
        (lambda: X.tolist(), "tolist"),
        (lambda: X.numpy(), "numpy"),
        (lambda: X.cpu(), "cpu"),
        (lambda: torch.equal(X, X), "equal"),
        (lambda: X.to("meta"), "_to_copy"),
        (lambda: torch.empty(6, device="meta").copy_(X), "copy_"),
    ],
)
def test_a_look_is_found_with_its_place(look, operation):
    with HostReads() as watch:
        look()
    assert operation in [read.operation for read in watch.found]
    assert all(__file__ in read.where for read in watch.found)
    assert __file__ in str(watch.found[0])


def test_what_looks_at_nothing_is_not_blamed():
    with HostReads() as watch, torch.no_grad():
        y = torch.where(X > 2, X, 0.0).cumsum(0).masked_fill(X > 3, 1.0)
        y = y[torch.tensor([0, 2])].clone().copy_(y[:2]).to(torch.float64)
        y.normal_(generator=torch.Generator())
        torch.empty(2, device="meta").copy_(y.float(), non_blocking=True)
        y[1:] = y.view(1, -1)[:, :1].sum()
    assert watch.found == []


def test_it_ends_with_its_context_even_where_something_is_raised():
    with pytest.raises(ZeroDivisionError), HostReads() as watch:
        1 / 0  # noqa: B018
    X.tolist()
    assert watch.found == []
