"""The page in a real browser: it draws without complaint, asks nobody for anything, and can be worked with."""

import json
import threading

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import ndtri
from torch import nn

import personafl as pf
from personafl.report import page, report_data
from personafl.report.serve import make_server
from tests.report.browser import Browser, chromium
from tests.report.folders import IDS, N, compared, predicted, written

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here: scripts/chromium.sh installs it")


@pytest.fixture(scope="module")
def browser():
    made = Browser()
    yield made
    made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Addresses of a page with everything on it, a regression's, an unfinished run's, and a thousand clients'."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    full = compared(folder / "full")
    labels = rng.integers(0, 2, 60)
    table = predicted(labels, labels + rng.normal(size=60), rng.integers(0, 3, 60))
    groups = ["x", "y", "x", "y"]
    run = written(full / "a", "fedamp", predictions=table, groups=groups)
    (run.path / "evaluations").mkdir()
    save_file({"weights": np.full((4, 4), 0.25, np.float32)}, run.path / "evaluations" / "round-000001.safetensors")
    known = {"sigma2": [1.0, 2, 3, np.nan], "gain": [np.nan, 2, 3, 1]}
    written(full / "b", "selffl", columns=known, correct=[(4, 8, 3, 0), (9, 11, 4, 0)])
    chosen = {"teacher_round": [1.0, 1, 1, 0], "imitation": [0.0, 0.5, 0.5, 0], "temperature": [1.0, 5, 5, 1]}
    written(full / "p", "persfl", columns=chosen)
    for k, method in enumerate(("apfl", "pfedme", "fedprox", "scaffold")):
        written(full / method, method, 0, [(5 + k, 9, 3, 0)])
    regression = written(folder / "regression", correct=[(0.1, 0.2, 0.3, 0)], regression=True).path
    unfinished = written(folder / "unfinished", finished=False, rounds=9).path
    waiting = written(folder / "waiting", finished=False)
    (waiting.path / "rounds.jsonl").unlink()
    ids = [f"client-{m}" for m in range(1000)]
    many = written(folder / "many", ids=ids, correct=[np.resize([9, 12, 4, 0], 1000)]).path
    found = {"folder": folder}
    clear = folder / "clear"  # ditto is better for each of 20 clients; it also computed twice as many gradients
    for method, right in (("ditto", (9, 18, 9, 9)), ("fedavg", (6, 12, 6, 6))):
        gradients = {"gradients": [80 if method == "ditto" else 40] * 20}
        written(clear / method, method, 0, [np.resize(right, 20) * (np.resize(N, 20) > 0)],
                np.resize((5, 10, 5, 0), 20), ids=[f"c{m}" for m in range(20)], columns=gradients)  # fmt: skip
    digits = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    fitted = pf.fit(
        digits, nn.Linear(64, 10), methods=["ditto"], trials=5, rounds=3, engine="stacked", out=folder / "fitted",
        progress=False,
    )  # fmt: skip
    for name, path in {"full": full, "regression": regression, "unfinished": unfinished, "waiting": waiting.path,
                       "many": many, "clear": clear, "fitted": fitted.path}.items():  # fmt: skip
        (folder / f"{name}.html").write_text(page(report_data([path])), encoding="utf-8")
        found[name] = (folder / f"{name}.html").as_uri()
    return found


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [("full", 1280, False), ("full", 360, True), ("regression", 360, False), ("unfinished", 1280, True),
     ("waiting", 1280, False), ("many", 360, False), ("clear", 360, False),
     ("fitted", 1280, True), ("fitted", 360, False)],
)  # fmt: skip
def test_it_draws_without_complaint_and_asks_for_nothing(browser, pages, name, width, dark):
    shown = browser.open(pages[name], width=width, dark=dark)
    assert shown.errors() == []
    assert shown.requests() == []
    assert shown.run("document.documentElement.scrollWidth") <= width
    paper = shown.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
    assert shown.run("[...document.querySelectorAll('.plot')].every((p) => !p.offsetParent || p.children.length)")
    assert "NaN" not in shown.run("document.body.innerHTML.replace(/<script[^]*?<\\/script>/g, '')")
    shown.close()


@pytest.fixture(scope="module")
def full(browser, pages):
    shown = browser.open(pages["full"])
    yield shown
    shown.close()


def test_every_section_is_there_when_there_is_something_to_show(full, browser, pages):
    there = full.run("[...document.querySelectorAll('section:not([hidden])')].map((s) => s.id)")
    assert {"answer", "numbers", "learning", "spread", "pairs", "uncertainty", "collaboration", "distillation",
            "detection", "clients", "origin"} <= set(there)  # fmt: skip
    waiting = browser.open(pages["waiting"])
    assert waiting.run("[...document.querySelectorAll('section:not([hidden])')].map((s) => s.id)") == ["origin"]
    assert "no evaluation yet" in waiting.run("document.getElementById('notes').innerText")
    waiting.close()


def test_a_fit_says_what_everybody_got_why_and_what_was_tried(browser, pages):
    fitted = pf.load_fit(pages["folder"] / "fitted", module=nn.Linear(64, 10))
    shown = browser.open(pages["fitted"])
    cards = shown.run("[...document.querySelectorAll('#verdicts h3')].map((c) => c.textContent)")
    assert cards[0] == "Accuracy on test data, which no choice has seen" and "Over training alone" in cards
    assert not shown.run("document.getElementById('searched').hidden")
    assert "ditto" in shown.run("document.getElementById('tried').innerText")
    head, first = (
        shown.run(f"[...document.querySelectorAll('#client-table {row} :is(th, td)')].map((c) => c.textContent)")
        for row in ("thead tr", "tbody tr:first-child")
    )
    row = dict(zip(head, first, strict=True))
    table = fitted.table().to_pylist()[0]
    assert (row["client"], row["why"], row["validation"]) == (table["client"], table["why"], str(table["n_val"]))
    assert row["model"].replace(" %", "%") == table["model"]
    correct = fitted.clients().column("personal_val_correct")[0].as_py()
    assert row["validation %, with it"] == f"{100 * correct / table['n_val']:.1f}"
    assert "validation %, alone" in row and table["why"].lower() in shown.run(
        "document.getElementById('choice-tables').innerText.toLowerCase()"
    )
    shown.close()


def test_an_id_that_is_a_script_is_shown_as_text(full):
    cells = full.run("[...document.querySelectorAll('#client-table tbody th')].map((c) => c.textContent)")
    assert set(IDS) == set(cells)
    assert full.run("document.querySelectorAll('script').length") == 2


def test_the_headline_table_has_the_judgements_numbers(full):
    rows = full.run("[...document.querySelectorAll('#tables table')][0].innerText").splitlines()
    ditto = next(row for row in rows if row.startswith("ditto"))
    assert "63.75" in ditto and "± 1.25" in ditto  # 25 and 26 of 40


def test_no_winner_is_named_where_nothing_is_shown(full):
    cards = full.run("[...document.querySelectorAll('#verdicts .who')].map((c) => c.textContent)")
    assert cards == ["no winner"] * 3
    said = full.run("document.getElementById('verdicts').innerText")
    assert "cannot be told apart on these 3 clients and 2 seeds" in said and "Best by test accuracy" in said
    assert "shown to be worse than" in full.run("document.getElementById('differences').innerText")


def test_a_winner_is_named_where_one_is_shown_and_unequal_work_before(browser, pages):
    shown = browser.open(pages["clear"])
    assert shown.run("document.querySelector('#verdicts .who').textContent") == "ditto"
    said = shown.run("document.getElementById('answer').innerText")
    unequal, better = (
        said.index("did unequal work"),
        said.index("is shown to be better than each of the 2 other models"),
    )
    assert unequal < better
    names = shown.run("[...document.querySelectorAll('#tables table')][0].innerText")
    assert "fedavg, global model" in names and "fedavg, after local training" in names
    assert "gradients" in shown.run("document.getElementById('tables').innerText")
    assert "fedavg, after local training" in shown.run("document.querySelector('#learning .legend').innerText")
    shown.close()


def test_the_table_sorts_by_buttons_and_says_so(full):
    heads = "[...document.querySelectorAll('#client-table thead button')]"

    def column(key):
        k = full.run(f"{heads}.findIndex((b) => b.textContent.startsWith({json.dumps(key)}))")
        sorted_ = full.run(f"{heads}[{k}].parentElement.getAttribute('aria-sort')")
        rows = "[...document.querySelectorAll('#client-table tbody tr')]"
        return [sorted_, full.run(f"{rows}.map((row) => row.children[{k}].textContent)")]

    def press(key):
        full.run(f"{heads}.find((b) => b.textContent.startsWith({json.dumps(key)})).click()")

    press("train")
    assert column("train") == ["descending", ["50", "40", "30", "20"]]
    press("train")
    assert column("train") == ["ascending", ["20", "30", "40", "50"]]
    press("ditto")
    assert column("ditto") == ["descending", ["90.0", "60.0", "40.0", "–"]]
    press("GAIN")
    assert column("GAIN") == ["descending", ["3", "2", "1", "–"]]
    press("GAIN")
    assert column("GAIN") == ["ascending", ["1", "2", "3", "–"]]  # what is not known stays last
    assert full.run("document.querySelectorAll('[aria-sort]').length") == 1


def test_searching_a_thousand_clients_shows_those_that_match(browser, pages):
    shown = browser.open(pages["many"])
    assert shown.run("document.querySelectorAll('#client-table tbody tr').length") == 100
    box = "document.getElementById('search')"
    shown.run(f"{box}.value = 'client-99'; {box}.dispatchEvent(new Event('input'))")
    ids = shown.run("[...document.querySelectorAll('#client-table tbody th')].map((c) => c.textContent)")
    assert ids == ["client-99", *(f"client-{m}" for m in range(990, 1000))]
    assert "11 of 1,000 clients" in shown.run("document.getElementById('clients-count').textContent")
    shown.close()


def test_pointing_at_a_curve_shows_its_values(full):
    full.scroll_to("#curves")
    box = json.loads(full.run("JSON.stringify(document.querySelector('#curves svg').getBoundingClientRect())"))
    full.point(box["left"] + box["width"] - 125, box["top"] + box["height"] / 2)
    full.wait("!document.getElementById('tip').hidden")
    said = full.run("document.getElementById('tip').innerText")
    assert "round 2" in said and "ditto" in said and "(62.5–65.0)" in said
    full.point(5, 5)
    full.wait("document.getElementById('tip').hidden")


def test_the_keyboard_reaches_the_figures_and_is_told_the_values(full):
    full.run("document.querySelector('#curves svg').focus()")
    assert full.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    full.key("End", number=35)
    full.key("ArrowLeft", number=37)
    assert full.run("document.getElementById('spoken').textContent").startswith("round 1: ")
    full.key("Escape", number=27)
    assert full.run("document.getElementById('tip').hidden")


def test_arrow_keys_walk_through_the_cells_of_a_matrix_and_stop_at_its_edges(full):
    full.run("document.querySelector('#matrix svg').focus()")
    spoken = []
    for key, number in [("ArrowRight", 39), ("ArrowRight", 39), *[("ArrowDown", 40)] * 4, ("ArrowUp", 38)]:
        full.key(key, number=number)
        spoken.append(full.run("document.getElementById('spoken').textContent"))
    by_group = ["anna", IDS[2], "bert", "=1+1"]  # groups x, x, y, y
    assert spoken[0] == "anna: its own model 0.25"
    assert spoken[1] == f"anna: takes from {IDS[2]}, weight 0.25, of its own 0.25"
    assert [said.split(":")[0] for said in spoken[1:]] == [*by_group, "=1+1", "bert"]
    full.key("Escape", number=27)


def test_pointing_at_a_cell_of_a_matrix_shows_it_and_leaving_hides_it(full):
    full.scroll_to("#matrix")
    box = json.loads(full.run("JSON.stringify(document.querySelector('#matrix image').getBoundingClientRect())"))
    full.point(box["left"] + box["width"] * 0.9, box["top"] + box["height"] * 0.1)
    full.wait("!document.getElementById('tip').hidden")
    said = full.run("document.getElementById('tip').innerText").split("\n")
    assert said == ["anna", "takes from", "=1+1", "weight", "0.25", "of its own", "0.25"]
    full.point(box["left"] - 15, box["top"] + 5)
    full.wait("document.getElementById('tip').hidden")


def test_tab_begins_with_the_link_past_the_navigation(browser, pages):
    shown = browser.open(pages["regression"])
    reached = []
    for _ in range(60):
        shown.key("Tab", number=9)
        reached.append(shown.run("((e) => e.id || e.textContent || e.tagName)(document.activeElement)"))
    assert reached[0] == "Skip to the results" and reached[1] == "theme"
    assert "search" in reached and "client" in reached
    shown.close()


def test_the_legend_takes_methods_away_and_brings_them_back(full):
    button = "document.querySelector('#learning .legend button')"
    lines = full.run("document.querySelectorAll('#curves .line').length")
    full.run(f"{button}.click()")
    assert full.run(f"{button}.getAttribute('aria-pressed')") == "false"
    assert full.run("document.querySelectorAll('#curves .line').length") < lines
    full.run(f"{button}.click()")
    assert full.run("document.querySelectorAll('#curves .line').length") == lines


def test_two_methods_are_compared_client_by_client(full):
    choose = (
        "((id, v) => { const s = document.getElementById(id); s.value = v; s.dispatchEvent(new Event('change')); })"
    )
    full.run(f"{choose}('pair-x', 'personal separate'), {choose}('pair-y', 'personal ditto')")
    # .9 .6 .4 and .9 .65 .4 against .5 .5 .5, twice
    assert full.run("document.getElementById('pair-says').textContent") == (
        "Of 6 clients over all seeds, 4 (67 %) do better with ditto than with separate, 2 (33 %) do worse, "
        "0 (0 %) do as well."
    )


def test_the_theme_can_be_changed(full):
    before = full.run("getComputedStyle(document.body).backgroundColor")
    full.run("document.getElementById('theme').click()")
    assert full.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)" != before
    assert full.run("document.getElementById('theme').textContent") == "Light"
    full.run("document.getElementById('theme').click()")
    assert full.run("getComputedStyle(document.body).backgroundColor") == before


def test_csv_keeps_commas_apart_and_formulas_harmless(full):
    lines = full.run("csvText()").splitlines()
    assert lines[0].startswith("client,")
    assert any(line.startswith("'=1+1,") for line in lines)


def test_normal_deviates_are_scipys(full):
    rates = [0.0005, 0.02, 0.0243, 0.3, 0.5, 0.9, 0.99]
    assert full.run(f"{rates}.map(probit)") == pytest.approx(ndtri(rates).tolist(), abs=1e-7)


def test_the_page_of_a_run_that_goes_on_refreshes_itself(browser, tmp_path):
    run = written(tmp_path / "run", correct=[(5, 9, 3, 0)], finished=False, rounds=2)
    with make_server([run.path]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            shown = browser.open(f"http://127.0.0.1:{server.server_port}/")
            assert "is not finished" in shown.run("document.getElementById('notes').innerText")
            shown.wait("document.getElementById('live').textContent === 'live'")
            run.folder.merge_clients()
            run.folder.write_models("personal", {}, {})
            shown.wait("document.getElementById('notes').hidden")
            assert shown.errors() == []
            shown.close()
        finally:
            server.shutdown()
            thread.join()
