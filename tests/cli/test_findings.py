import sys

from erlcli.cli.findings import FindingPrinter, finding_lines, tally
from erlcli.envs.finding import Finding


def test_lines_are_wrapped_under_the_message():
    lines = finding_lines(Finding("a name", "warn", "many words " * 12, "mend it " * 12))
    assert lines[0].startswith("warn  a name         many words")
    assert all(len(line) <= 80 for line in lines)
    assert all(line.startswith(" " * 21) for line in lines[1:] if "->" not in line)
    assert [line.index("->") for line in lines if "->" in line] == [18]


def test_long_words_stay_whole():
    path = "/a-very-long-path/" * 8
    assert any(path in line for line in finding_lines(Finding("n", "fail", f"see {path} there")))


def test_tally():
    findings = [Finding("n", status, "m") for status in ("ok", "fail", "ok")]
    assert tally(findings) == "2 ok, 0 warn, 1 fail"


def test_piped_output_has_no_colour_and_no_progress(capsys):
    printer = FindingPrinter(quiet=False)
    printer.looking_at("something")
    printer(Finding("name", "ok", "message"))
    printer.done()
    assert capsys.readouterr() == ("ok    name           message\n", "")


def test_a_terminal_sees_colour_and_what_is_under_way(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    printer = FindingPrinter(quiet=False)
    printer.looking_at("something")
    printer(Finding("name", "fail", "message"))
    out, err = capsys.readouterr()
    assert out == "\x1b[31mfail\x1b[0m  name           message\n"
    assert err == "\r\x1b[2Klooking at something ...\r\x1b[2K"
    monkeypatch.setenv("NO_COLOR", "1")
    FindingPrinter(quiet=False)(Finding("name", "fail", "message"))
    assert capsys.readouterr().out == "fail  name           message\n"


def test_json_has_stdout_for_itself(capsys):
    FindingPrinter(quiet=True)(Finding("name", "ok", "message"))
    assert capsys.readouterr().out == ""
