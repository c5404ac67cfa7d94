"""The web UI in a real browser: every view draws, fits, saves, and runs nothing that a text says.

Needs a Chromium of the system and playwright (`pip install --group browser`). The pictures of all
views are written into the folder that REGARD_SCREENSHOTS names, if it is set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from served import listening, running, service_of

from regard.serving.ui.lessons import LESSONS
from regard.serving.ui.sources import UISources

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("uvicorn")

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium on this machine")

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
TEXT = f"the old cat sat {SCRIPT}"
NAMED = {
    "translation": "translation",
    SCRIPT.replace("/", "|"): "language-modeling",
    "captioning": "captioning",
}


@pytest.fixture(scope="module")
def service(folders, tmp_path_factory):
    """A web UI where models and labels have a script for a name."""
    folder = tmp_path_factory.mktemp("ui")
    words = "the old cat sat on a warm mat sleeping".split()
    rows = [
        {"text": f"{word} {words[n - 3]} {SCRIPT}", "kind": SCRIPT if n % 2 else "cat"}
        for n, word in enumerate(words)
    ]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sources = UISources({}, folder / "texts.jsonl", "kind")
    named = {name: folders[task] for name, task in NAMED.items()}
    service = service_of(named, ui=sources)
    sources.prepare(service.models, lambda message: None)
    return service


@pytest.fixture(scope="module")
def address(service):
    """The address of the running web UI."""
    with running(service), listening(service) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as one:
        launched = one.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser, address):
    """A page that fails the test at an error, at a dialog and at a request to another address."""
    context = browser.new_context(accept_downloads=True)
    opened, problems = context.new_page(), []
    note = problems.append
    opened.on("console", lambda m: note(f"{m.type}: {m.text}") if m.type != "log" else None)
    opened.on("pageerror", lambda error: note(f"error: {error}"))
    opened.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
    ours = (address, "data:", "blob:", "file:")
    opened.on("request", lambda r: None if r.url.startswith(ours) else note(f"asks {r.url}"))
    yield opened
    context.close()
    assert not problems


def open_view(page, address, view):
    page.goto(address + view)
    drawn(page)


def drawn(page):
    page.wait_for_selector("#main h1")
    page.wait_for_selector("#main:not([aria-busy])", timeout=20_000)


def views_of(page, address):
    open_view(page, address, "")
    return page.eval_on_selector_all("#views a", "all => all.map(one => one.getAttribute('href'))")


def test_every_view_draws_and_fits_at_both_widths_in_light_and_dark(page, address, tmp_path):
    folder = Path(os.environ.get("REGARD_SCREENSHOTS", tmp_path))
    looks = [(1280, "light"), (400, "dark")]
    if folder != tmp_path:  # all of them, to be looked at
        looks += [(1280, "dark"), (400, "light")]
    views = views_of(page, address)
    assert {"#attention", "#masked_heads", "#next", "#beam", "#tokens"} <= {*views}
    for view in views:
        open_view(page, address, f"{view}?model=translation&text=the+old+cat+sat")
        assert page.query_selector_all("#main [role=alert]") == [], view
        assert len(page.inner_text("#main")) > 60, view
        for width, scheme in looks:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            drawn(page)
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (view, width)
            path = folder / f"{view[1:]}-{width}-{scheme}.png"
            assert page.screenshot(full_page=True, path=path)


def test_scripts_in_texts_tokens_and_names_stay_text(page, address):
    for view in views_of(page, address):
        model = next(name for name in NAMED if name.startswith("<"))
        if view == "#lessons":  # which says nothing of a model or a text
            continue
        page.goto(f"{address}{view}")
        page.evaluate(
            "([view, text, model]) => { location.hash = view + '?' + "
            "new URLSearchParams({ text, model }) }",
            [view, TEXT, model],
        )
        drawn(page)
        assert page.query_selector_all("#main script, #main img") == []
        assert "<script>" in page.inner_text("body") or "<script>" in page.evaluate(
            "[...document.querySelectorAll('textarea')].map(one => one.value).join()"
        )


def test_every_view_has_names_for_its_controls_and_works_by_keyboard(page, address):
    unnamed = """() => [...document.querySelectorAll('input, select, textarea, button, a[href]')]
        .filter(one => !(one.labels?.length || one.textContent.trim() || one.ariaLabel))
        .map(one => one.outerHTML)"""
    for view in views_of(page, address):
        open_view(page, address, f"{view}?model=translation&text=the+old+cat+sat")
        assert page.evaluate(unnamed) == [], view
        assert page.query_selector_all("canvas:not([aria-label]):not([aria-hidden])") == [], view
    open_view(page, address, "#attention?model=translation&text=the+old+cat&kind=encoder")
    page.focus(".head[aria-pressed=true]")
    before = page.get_attribute(".head[aria-pressed=true]", "aria-label")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector('.head[aria-label="layer 1, head 2"][aria-pressed=true]')
    assert before == "layer 1, head 1" and "layer=1&head=2" in page.url


def test_every_view_saves_as_one_file_that_needs_no_script(page, browser, address, tmp_path):
    context = browser.new_context(java_script_enabled=False, offline=True)
    for view in views_of(page, address):
        open_view(page, address, f"{view}?model=translation&text=the+old+cat+sat")
        with page.expect_download() as waiting:
            page.click("text=Save as HTML")
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        text = file.read_text()
        assert file.name == f"{view[1:]}.html"
        assert set(re.findall(r"https?://[\w./-]+", text)) <= {"http://www.w3.org/2000/svg"}
        saved, asked = context.new_page(), []
        saved.on("request", lambda request, asked=asked: asked.append(request.url))
        saved.goto(file.as_uri())
        live, still = page.inner_text("#main h1"), saved.inner_text("body")
        assert live in still and len(still) > 60
        live_only = "script, button, input, textarea, select, canvas, form, [onerror], [onclick]"
        assert saved.query_selector_all(live_only) == []
        assert text.count("<style>") == 1
        kept = "svg, table, .heads, .pieces, p"
        assert len(saved.query_selector_all(kept)) >= 1
        assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}
    context.close()


def test_every_lesson_is_drawn_and_its_numbers_change_the_picture_and_the_address(page, address):
    for name in LESSONS:
        open_view(page, address, f"#lessons?lesson={name}")
        assert page.query_selector_all("#main [role=alert]") == [], name
        assert page.inner_text("#main h2") == LESSONS[name].title
        assert page.query_selector("#main .pictures svg, #main .pictures table, #main .cells"), name
    open_view(page, address, "#lessons?lesson=masks")
    assert "The text has 6 tokens" in page.inner_text(".pictures")
    page.fill("input[name=length]", "5")
    page.wait_for_selector("text=The text has 3 tokens")
    assert page.url.endswith("length=5")
    open_view(page, address, "#lessons?lesson=masks&length=5")
    assert page.input_value("input[name=length]") == "5"
    assert "The text has 3 tokens" in page.inner_text(".pictures")
