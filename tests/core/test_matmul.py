"""Which library multiplies: never at the price of exactness, and only where it pays."""

import pytest
import torch

from erlcli.core import matmul


@pytest.fixture(autouse=True)
def as_before():
    matmul._onednn_pays.cache_clear()
    yield
    matmul._onednn_pays.cache_clear()
    matmul.choose(wide=False)


def machine(monkeypatch, capability, vendor):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(matmul, "_vendor", lambda: vendor)


@pytest.mark.parametrize(("capability", "vendor"), [("AVX512", "GenuineIntel"), ("AVX2", "AuthenticAMD"), ("AVX2", "")])
def test_other_machines_keep_the_default(monkeypatch, capability, vendor):
    machine(monkeypatch, capability, vendor)
    assert not matmul.choose(wide=True)
    assert torch.backends.mkldnn.matmul.fp32_precision == matmul.DEFAULT


def test_an_inexact_library_is_refused(monkeypatch):
    machine(monkeypatch, "AVX512", "AuthenticAMD")
    monkeypatch.setattr(matmul, "_error", lambda: 3e-3)  # what bfloat16 would give
    assert not matmul.choose(wide=True)
    assert torch.backends.mkldnn.matmul.fp32_precision == matmul.DEFAULT


def test_narrow_networks_keep_the_default_wide_ones_get_the_faster(monkeypatch):
    machine(monkeypatch, "AVX512", "AuthenticAMD")
    monkeypatch.setattr(matmul, "_error", lambda: 2e-7)
    assert matmul.choose(wide=True)
    assert torch.backends.mkldnn.matmul.fp32_precision == matmul.ONEDNN
    assert not matmul.choose(wide=False)
    assert torch.backends.mkldnn.matmul.fp32_precision == matmul.DEFAULT


def test_products_are_float32_exact_either_way():
    for wide in (False, True):
        matmul.choose(wide=wide)
        assert matmul._error() < matmul.TOLERANCE


def test_the_error_of_bfloat16_would_be_seen():
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=source) for _ in range(2))
    exact = a.double() @ b.double()
    rounded = (a.bfloat16() @ b.bfloat16()).double()
    assert float((rounded - exact).norm() / exact.norm()) > 1000 * matmul.TOLERANCE


def test_rounded_factors_are_summed_in_float32():
    if not matmul.rounds():
        pytest.skip("needs a processor with AMX or AVX-512 BF16")
    assert matmul.choose(wide=False, rounded=True)
    assert 1e-3 < matmul._error() < 4e-3  # of 8 bits; a sum in bfloat16 would be off by a multiple
    assert not matmul.choose(wide=False)
    assert matmul._error() < matmul.TOLERANCE


@pytest.mark.parametrize("known", [True, False])
def test_a_process_rounds_where_it_is_told_to_and_the_processor_can(known, monkeypatch):
    monkeypatch.setattr(matmul, "rounds", lambda: known)
    assert not matmul.rounding()
    matmul.choose(wide=False, rounded=True)
    assert matmul.rounding() is known
    with matmul.exact():
        assert not matmul.rounding()


def test_products_are_exact_for_a_while():
    matmul.choose(wide=False, rounded=True)
    with pytest.raises(KeyError), matmul.exact():
        assert matmul._error() < matmul.TOLERANCE
        assert matmul.precision() == matmul.DEFAULT
        raise KeyError
    assert matmul.precision() == matmul.ONEDNN
