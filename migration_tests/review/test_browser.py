"""The report page in a browser: what a reviewer does with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from jsonschema import Draft202012Validator
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from codemods.engine import report
from codemods.engine.apply import apply
from codemods.review import page as pages
from migration_tests.review.test_page import HOSTILE
from migration_tests.review.trees import PIECES, Run, run, tree

pytestmark = pytest.mark.browser

MANY = {
    **PIECES,
    **{
        f"tools/m{n}.py": f"from MaxText import max_utils\n\nX{n} = max_utils.VALUE\n"
        for n in range(30)
    },
}


@dataclass
class Opened:
    """A page, what went wrong in it, and what it asked the network for."""

    page: Page
    errors: list[str]
    requests: list[str]

    def rows(self, text: str) -> Locator:
        """The rows that hold a text."""
        return self.page.locator("article.row", has_text=text)

    def choose(self, name: str, value: str) -> None:
        self.page.select_option(f"#{name}", value)

    def search(self, text: str) -> None:
        self.page.fill("#search", text)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def progress(self) -> str:
        return self.page.inner_text("#progress")

    @property
    def status(self) -> str:
        return self.page.inner_text("#status")

    def export(self, place: Path) -> Any:
        """Export the decisions and read them."""
        with self.page.expect_download() as waiting:
            self.page.click("#export")
        assert waiting.value.suggested_filename == "decisions.json"
        waiting.value.save_as(place)
        data = json.loads(place.read_bytes())
        assert not list(Draft202012Validator(report.schema("decisions")).iter_errors(data))
        return data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("made"), MANY)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    yield made
    made.close()


@pytest.fixture
def open_page(context: BrowserContext, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    opened: list[Opened] = []

    def open_(data: Any, most_inline: int = 8_000_000, folder: Path = tmp_path) -> Opened:
        pages.write(data, folder, most_inline)
        one = Opened(context.new_page(), [], [])
        one.page.set_default_timeout(10_000)
        one.page.on("pageerror", lambda error: one.errors.append(str(error)))
        one.page.on("console", lambda m: one.errors.append(m.text) if m.type == "error" else None)
        one.page.on("request", lambda request: one.requests.append(request.url))
        one.page.goto((folder / "report.html").as_uri())
        opened.append(one)
        return one

    yield open_
    for one in opened:
        assert one.errors == []
        assert all(u.startswith(("file:", "blob:")) for u in one.requests), one.requests


@pytest.fixture
def opened(open_page: Callable[..., Opened], made: Run) -> Opened:
    return open_page(made.data)


def test_sites_come_first_and_everything_is_counted(opened: Opened, made: Run) -> None:
    data = made.data
    headings = opened.page.locator("h2 > button").all_inner_texts()
    assert [h.split(" (")[0][2:] for h in headings][:2] == [
        "For a person",
        "Moved files, and files that stay out",
    ]
    total = len(data["hunks"]) + len(made.moves)
    assert opened.progress.startswith(f"0 accepted, 0 rejected, {total} open.")
    assert f"{total + len(data['sites'])} of {total + len(data['sites'])} shown" in opened.progress
    first = opened.page.locator("article.row").first
    site = next(s for s in data["sites"] if s["file"] in first.inner_text())
    assert site["reason"] in first.inner_text()
    assert f"→ {site['todo']}" in first.inner_text()
    rule = opened.page.locator("#rule option").all_inner_texts()
    counts = {h["rules"][0] for h in data["hunks"]}
    assert counts <= {text.split(" (")[0] for text in rule}


def test_search(opened: Opened) -> None:
    opened.search("X17 ")
    assert opened.page.locator("article.row").count() == 0
    opened.search("MAX_UTILS.value")
    expect(opened.page.locator("article.row").first).to_be_visible()
    assert "entries shown." in opened.status
    opened.search("no such text")
    assert "Nothing matches the filters." in opened.page.inner_text("#list")
    opened.page.click("#clear")
    assert opened.page.input_value("#search") == ""
    assert opened.page.locator("article.row").count() > 5


def test_filters(opened: Opened, made: Run) -> None:
    opened.choose("rule", "CFG001")
    rows = opened.page.locator("article.row")
    assert rows.count() == sum("CFG001" in h["rules"] for h in made.data["hunks"])
    assert "layer_group_size" in rows.first.inner_text()
    opened.page.click("#clear")
    opened.choose("type", ".sh")
    assert set(opened.page.locator("h4 > .plain").all_inner_texts()) == {"▾ run.sh (1)"}
    assert opened.page.locator("#tier option").all_inner_texts() == ["all tiers", "safe (1)"]
    opened.page.click("#clear")
    opened.choose("folder", "ALModel/")
    files = [
        i for i in (*made.data["hunks"], *made.data["sites"]) if i["file"].startswith("ALModel/")
    ]
    assert f"{len(files) + 1} of " in opened.progress  # and the move of the file
    opened.page.click("#clear")
    opened.choose("rule", "CFG001")
    opened.press("j", "a")
    opened.page.click("#clear")
    opened.choose("state", "accepted")
    assert opened.page.locator("article.row.accepted").count() == rows.count() == 2


def test_what_to_do_is_said(opened: Opened, made: Run, tmp_path: Path) -> None:
    guide = opened.page.locator("#how")
    assert f"Begin with the {len(made.data['sites'])} sites" in guide.inner_text()
    assert f"ling2-migrate apply {tmp_path} --decisions decisions.json" in guide.inner_text()
    total = len(made.ids)
    assert f"makes 0 changes and leaves out {total}; with --accept-open" in guide.inner_text()
    opened.page.click("#accept-shown")
    assert f"makes {total} changes and leaves out 0." in guide.inner_text()


def test_a_rule_or_a_file_at_once(opened: Opened, made: Run) -> None:
    """The buttons on a heading decide all below it; one key takes it back."""
    opened.choose("rule", "IMP001")
    heading = opened.page.locator("h3").first
    sets = {h["set"] for h in made.data["hunks"] if h["rules"][0] == "IMP001"}
    number = sum(h["rules"][0] == "IMP001" for h in made.data["hunks"])
    number += sum(
        h["rules"][0] != "IMP001" and h["set"] in sets - {None} for h in made.data["hunks"]
    )
    heading.get_by_role("button", name="Accept all of IMP001").click()
    assert opened.progress.startswith(f"{number} accepted, 0 rejected")
    assert "all decided" in heading.inner_text()
    file = opened.page.locator("h4").first
    file.get_by_role("button", name="Reject all of").click()
    assert ", 0 rejected" not in opened.progress
    opened.press("u")
    assert opened.progress.startswith(f"{number} accepted, 0 rejected")
    opened.page.click("#undo")
    assert opened.progress.startswith("0 accepted, 0 rejected")
    assert opened.page.locator("#undo").is_disabled()
    assert "all decided" not in heading.inner_text()


def test_the_current_row_is_not_behind_the_bar(opened: Opened) -> None:
    opened.choose("rule", "IMP001")
    opened.press(*"jjjjjjjj", *"kkkkkkkk")
    opened.page.set_viewport_size({"width": 1280, "height": 500})
    opened.press(*"jjjj", *"kkkk")
    row, bar = opened.page.locator("article.current"), opened.page.locator("#top")
    box, above = row.bounding_box(), bar.bounding_box()
    assert box is not None
    assert above is not None
    assert box["y"] >= above["y"] + above["height"]


def test_counts(opened: Opened, made: Run) -> None:
    opened.page.click("#counts summary")
    table = opened.page.locator("#tables")
    scripts = [i for i in (*made.data["hunks"], *made.data["sites"]) if i["file"].endswith(".sh")]
    assert table.locator("li", has_text=".sh").inner_text().split() == [".sh", str(len(scripts))]
    table.locator("button", has_text="CFG001").click()
    assert opened.page.locator("#rule").input_value() == "CFG001"
    assert opened.page.locator("article.row").count() == 1
    assert table.locator("li", has_text=".yml").inner_text().split() == [".yml", "1"]


def test_the_same_change_is_one_row(opened: Opened, made: Run) -> None:
    opened.choose("rule", "IMP001")
    row = opened.rows("×30 the same change").or_(opened.rows("×31 the same change")).first
    number = sum(h["old"] == "from MaxText import max_utils\n" for h in made.data["hunks"])
    assert f"×{number} the same change" in row.inner_text()
    row.locator("summary", has_text="all places").click()
    expect(row.locator(".places li")).to_have_count(number)
    row.locator(".head > .accept").click()
    assert opened.progress.startswith(f"{number} accepted, 0 rejected")
    row.locator(".places li", has_text="tools/m7.py").locator(".reject").click()
    assert opened.progress.startswith(f"{number - 1} accepted, 1 rejected")
    assert row.locator(".head > .accept").get_attribute("aria-pressed") == "false"
    assert "mixed" in (row.get_attribute("aria-label") or "")


def test_keys(opened: Opened) -> None:
    opened.choose("rule", "IMP001")
    opened.press("j")
    first = opened.page.locator("article.row").first
    expect(first).to_be_focused()
    opened.press("a")
    assert first.locator(".accept").get_attribute("aria-pressed") == "true"
    opened.press("r")
    assert first.locator(".reject").get_attribute("aria-pressed") == "true"
    assert ", rejected" in (first.get_attribute("aria-label") or "")
    opened.press("r")
    assert ", open" in (first.get_attribute("aria-label") or "")
    opened.press("/")
    expect(opened.page.locator("#search")).to_be_focused()
    opened.press("a")
    assert opened.page.input_value("#search") == "a"
    opened.press("Escape", "?")
    expect(opened.page.locator("#keys")).to_be_visible()
    opened.press("Escape")
    expect(opened.page.locator("#keys")).to_be_hidden()
    opened.page.click("#clear")
    opened.choose("rule", "IMP006")
    rows = opened.page.locator("article.row")
    opened.press("j", "j", "k")
    expect(rows.nth(0)).to_be_focused()
    opened.press("e")
    assert opened.page.locator("article.row details[open]").count() == 1
    opened.press("n")
    expect(rows.nth(0).locator("textarea")).to_be_focused()


def test_headings_fold(opened: Opened) -> None:
    opened.choose("rule", "CFG001")
    assert opened.page.locator("article.row").count() > 0
    heading = opened.page.locator("h3 > button.plain").first
    assert heading.get_attribute("aria-expanded") == "true"
    heading.click()
    assert opened.page.locator("article.row").count() == 0
    expect(opened.page.locator("h3 > button.plain").first).to_be_focused()
    assert opened.page.locator("h3 > button.plain").first.get_attribute("aria-expanded") == "false"


def test_what_stands_together_is_decided_together(opened: Opened, made: Run) -> None:
    opened.search("class algenericlayer")
    row = opened.rows("class Ling2DecoderLayer").first
    size = next(
        len(s["hunks"]) for s in made.data["sets"] if "the name `ALGenericLayer`" in s["why"]
    )
    assert f"Stands or falls with {size - 1} other hunk" in row.inner_text()
    row.locator(".head > .reject").click()
    assert f"Rejected 1 change and {size - 1} other" in opened.status
    assert "the name `ALGenericLayer`" in opened.status
    row.locator("summary", has_text="Stands or falls with").click()
    row.locator("button.link", has_text="tests/al_model_test.py:2").click()
    assert opened.page.input_value("#search") == ""
    expect(opened.page.locator("article.current")).to_be_focused()
    expect(opened.page.locator("article.current")).to_contain_text("tests/al_model_test.py:2")
    assert opened.progress.startswith(f"0 accepted, {size} rejected")


def test_decisions_are_kept_exported_and_applied(opened: Opened, made: Run, tmp_path: Path) -> None:
    opened.page.click("#accept-shown")
    opened.choose("type", ".sh")
    opened.page.click("#reject-shown")
    row = opened.page.locator("article.row").first
    row.locator(".note").click()
    row.locator("textarea").fill("not <this> one")
    opened.page.click("#clear")
    before = opened.progress
    opened.page.reload()
    assert opened.progress == before
    opened.search("not <this>")
    assert opened.page.locator("article.row").count() == 1
    assert opened.page.locator("textarea").input_value() == "not <this> one"
    decisions = opened.export(tmp_path / "decisions.json")
    assert decisions["report"] == made.data["id"]
    states = [d.get("decision") for d in decisions["decisions"].values()]
    assert (states.count("accepted"), states.count("rejected")) == (len(made.ids) - 1, 1)
    applied = apply(made.data, decisions)
    after, whole = tree(applied.migration), tree(made.migration)
    assert {p for p in whole if after[p] != whole[p]} == {"run.sh"}
    assert [row["note"] for row in applied.data["left"]] == ["not <this> one"]


def test_import(opened: Opened, made: Run, tmp_path: Path) -> None:
    """What a file says of an entry counts; the rest stays as it is, and a wrong file changes nothing."""
    first, second, third = made.ids[:3]
    path = tmp_path / "decisions.json"

    def load(decisions: Any) -> None:
        file = made.decisions(lambda name: None) | {"decisions": decisions}
        path.write_text(json.dumps(file), encoding="utf-8")
        opened.page.set_input_files("#import", path)

    status = opened.page.locator("#status")  # reading a file takes the browser a moment
    accepted, rejected = {"decision": "accepted"}, {"decision": "rejected"}
    load({first: accepted, second: rejected, "h0": accepted})
    expect(status).to_have_text("Imported 2 of 3 decisions; this report does not have the others.")
    load({first: {"note": "hm"}, third: accepted})
    expect(status).to_have_text("Imported 2 of 2 decisions.")
    assert opened.progress.startswith("2 accepted, 1 rejected")
    opened.press("u")
    assert opened.progress.startswith("1 accepted, 1 rejected")
    for wrong in ({first: rejected, second: None}, {first: rejected, second: {"decision": "no"}}):
        load(wrong)
        expect(status).to_contain_text("This file cannot be imported")
        assert opened.progress.startswith("1 accepted, 1 rejected")
        opened.page.click("#clear")
    path.write_text("{", encoding="utf-8")
    opened.page.set_input_files("#import", path)
    expect(status).to_contain_text("This file cannot be imported")


def test_two_tabs_share_decisions(opened: Opened, context: BrowserContext) -> None:
    other = context.new_page()
    other.goto(opened.page.url)
    opened.page.click("#accept-shown")
    expect(other.locator("#progress")).to_contain_text(", 0 rejected, 0 open")
    other.click("#reject-shown")
    expect(opened.page.locator("#progress")).to_contain_text("0 accepted, ")


def test_a_rejected_move_says_what_apply_does(opened: Opened) -> None:
    opened.choose("rule", "MAP001")
    opened.page.locator("h2 > button", has_text="Moved files").click()
    row = opened.rows("src/MaxText/max_utils.py → src/maxtext/utils/max_utils.py")
    row.locator(".reject").click()
    assert "stays in place, and apply keeps imports of it and paths to it right" in opened.status


def test_explain(opened: Opened) -> None:
    opened.choose("rule", "CFG001")
    opened.page.locator("h3 > .rule").first.click()
    dialog = opened.page.locator("#explain")
    expect(dialog).to_be_visible()
    text = dialog.inner_text()
    assert "CFG001 (safe)" in text
    assert "inhomogeneous_layer_cycle_interval: " in text
    assert "ling2-migrate run --explain CFG001" in text


def test_side_by_side_and_words(opened: Opened) -> None:
    opened.search("run.sh")
    row = opened.page.locator("article.row").first
    assert row.locator("tr.old").count() == row.locator("tr.new").count() == 1
    assert row.locator("tr.old .w").all_inner_texts()[0] == "MaxText"
    assert row.locator("tr.new .w").all_inner_texts()[0] == "maxtext.trainers.pre_train"
    opened.press("Tab")
    opened.page.click("#view")
    row = opened.page.locator("article.row").first
    assert row.locator("tr", has=opened.page.locator("td.old")).locator("td.new").count() == 3 - 1
    assert opened.page.locator("#view").get_attribute("aria-pressed") == "true"


def test_hostile_text_is_shown_as_it_is(open_page: Callable[..., Opened], tmp_path: Path) -> None:
    made = run(tmp_path / "tree", HOSTILE)
    opened = open_page(made.data)
    opened.search("window.broken")
    row = opened.page.locator("article.row").first
    assert "# </script><script>window.broken = 1</script> <!-- <img src=x>" in row.inner_text()
    assert opened.page.evaluate("window.broken") is None
    assert opened.page.locator("#list img").count() == 0
    opened.page.click("#clear")
    opened.choose("folder", "tools/")
    opened.page.locator("summary", has_text="all places").first.click()
    expect(opened.page.locator(".places")).to_have_count(1)
    opened.page.wait_for_selector(".places li")
    assert "tools/q'uo\"te\n<b>.py" in (opened.page.locator("#list").text_content() or "")
    opened.search("zzzz")
    assert opened.page.locator("article.row").count() == 1


def test_a_huge_report_is_loaded_as_needed(open_page: Callable[..., Opened], made: Run) -> None:
    opened = open_page(made.data, most_inline=2000)
    opened.choose("rule", "CFG001")
    expect(opened.rows("inhomogeneous_layer_cycle_interval").first).to_be_visible()
    opened.page.click("#clear")
    opened.search("model_name=ling2")
    expect(opened.rows("model_name=ling2").first).to_be_visible()
    loaded = [u for u in opened.requests if "report-data/" in u]
    assert len(loaded) == len(set(loaded)) > 3
    opened.page.click("#clear")
    opened.choose("rule", "IMP001")
    expect(opened.rows("the same change").first).to_be_visible()


def test_no_changes_at_all(open_page: Callable[..., Opened], tmp_path: Path) -> None:
    done = {"src/maxtext/__init__.py": "", "src/maxtext/utils/max_utils.py": "VALUE = 1\n"}
    opened = open_page(run(tmp_path / "tree", done).data)
    assert "Nothing was changed." in opened.page.inner_text("#list")
    opened.press("j", "k", "a", "r", "n", "e", "v")
    opened.search("x")


def test_a_second_review(open_page: Callable[..., Opened], made: Run, tmp_path: Path) -> None:
    """What `apply` left is shown with its reason and note, and can be accepted after all."""
    script = next(h["id"] for h in made.data["hunks"] if h["file"] == "run.sh")
    name = next(h["id"] for h in made.data["hunks"] if "class ALGenericLayer" in h["old"])
    decisions = made.decisions(lambda i: "rejected" if i in (script, name) else "accepted")
    decisions["decisions"][script]["note"] = "later"
    decisions["decisions"][made.data["sites"][0]["id"]] = {"decision": "accepted"}
    first = apply(made.data, decisions).data
    opened = open_page(first)
    row = opened.rows("run.sh:1").first
    assert "rejected" in row.inner_text()
    assert row.locator("textarea").input_value() == "later"
    assert "What you leave open stays as it is." in opened.page.inner_text("#how")
    assert f" 1 of {len(first['sites'])} sites dealt with" in opened.progress
    opened.rows("class Ling2DecoderLayer").first.locator(".head > .accept").click()
    assert "stand or fall with" in opened.status
    further = opened.export(tmp_path / "decisions.json")
    applied = apply(first, further)
    assert [row["id"] for row in applied.data["left"]] == [script]
    assert [row["note"] for row in applied.data["left"]] == ["later"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(opened: Opened, scheme: Any) -> None:
    """axe-core finds nothing: roles, names, contrast, focus order."""
    opened.page.emulate_media(color_scheme=scheme)
    assert not violations(opened.page)
    opened.search("from maxtext")
    opened.press("Escape", "j", "a", "j", "r", "n")
    opened.page.locator("details summary").first.click()
    assert not violations(opened.page)
    opened.page.click("#view")
    opened.page.click("#counts summary")
    assert not violations(opened.page)
    opened.page.click("#help")
    assert not violations(opened.page)


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['help']}: {[n['html'][:200] for n in v['nodes'][:2]]}" for v in found]


def test_a_narrow_window(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 360, "height": 700})
    opened.choose("rule", "IMP001")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened.page.locator("article.row").first.locator(".accept").is_visible()
    opened.page.click("#view")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
