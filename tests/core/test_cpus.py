"""How many CPUs there are to use."""

from erlcli.core.cpus import LIMIT, usable_cpus


def test_a_limit_is_kept_and_never_more_than_there_are(monkeypatch):
    monkeypatch.delenv(LIMIT, raising=False)
    here = usable_cpus()
    monkeypatch.setenv(LIMIT, "1")
    assert usable_cpus() == 1
    monkeypatch.setenv(LIMIT, str(here + 5))
    assert usable_cpus() == here
