from types import SimpleNamespace

from erlcli.tui.app import Dashboard
from erlcli.tui.screens import lineage
from erlcli.tui.screens.lineage import Branch, LineageScreen, branches, twigs_of
from erlcli.tui.standings import StandingsReader
from erlcli.tui.widgets.banner import Banner
from erlcli.tui.widgets.table import Table


def test_twigs_of_a_tree_by_hand():
    #        a  b  c  d  e  f  g
    depths = [0, 1, 2, 1, 2, 2, 0]
    assert twigs_of(depths) == ["", "├─", "│ └─", "└─", "  ├─", "  └─", ""]
    assert twigs_of([]) == []
    assert twigs_of([0, 1, 2, 3, 1]) == ["", "├─", "│ └─", "│   └─", "└─"]


def test_the_champions_line_is_marked(tournament):
    reading = StandingsReader(tournament)
    reading.refresh()
    standings = reading.latest
    tree = branches(standings)
    assert [branch.entry.id for branch in tree] == [member for _, member in standings.tree]
    champion = standings.entry(standings.champion)
    assert [branch.entry.id for branch in tree if branch.royal] == list(champion.lineage)
    assert [branch.entry.id for branch in tree if branch.champion] == [champion.id]


async def test_it_begins_at_the_champion_and_opens_runs(tournament, clock):
    from erlcli.tui.screens.run import RunScreen

    app = Dashboard(tournament, clock=clock)
    async with app.run_test(size=(100, 30)) as pilot:
        while not app.screen.query(Table) or not app.screen.query_one(Table).rows.items:
            await pilot.pause(0.01)
        champion = app.screen.standings.champion
        await pilot.press("t")
        await pilot.pause()
        assert isinstance(app.screen, LineageScreen)
        table = app.screen.query_one(Table)
        assert table.rows.cursor == champion
        assert f"{champion} ★" in "".join(table.render_line(y).text for y in range(table.size.height))
        assert f"→ {champion}" in app.screen.query_one(Banner).text or champion in app.screen.query_one(Banner).text
        await pilot.press("slash", *champion, "enter", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)


def test_names_of_a_deep_tree_are_there_whatever_the_twigs_need():
    def text(depth, width, champion=False):
        twigs = twigs_of(list(range(depth + 1)))[-1]
        return lineage._text(Branch(SimpleNamespace(id=f"m{depth:03d}"), twigs, False, champion), width)

    assert text(1, 16) == "└─m001"
    assert text(20, 16).endswith("└─m020") and len(text(20, 16)) == 16 and text(20, 16)[0] == "…"
    assert text(20, 16, champion=True).endswith(f"m020 {lineage.CHAMPION}")
    assert text(20, 4) == "m020"
