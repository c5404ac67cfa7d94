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
from regard.visual.image_regions import attended_regions

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
STRIPES = Path(__file__).parents[1] / "stripes.png"


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
    sources = UISources.of({}, folder / "texts.jsonl", "kind")
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


FRAME = """() => ["header", "#views a", "h1", "button.save", ".question select[name=model]",
    ".question textarea", ".question > button"].map(name => {
        const box = document.querySelector(name)?.getBoundingClientRect();
        return box && [box.y, box.height];
    })"""
SHIFTS = """window.shifts = [];
    const note = list => window.shifts.push(...list.getEntries().map(one => one.value));
    new PerformanceObserver(note).observe({ type: "layout-shift", buffered: true });"""


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_moves_when_another_view_is_opened(page, address, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.add_init_script(SHIFTS)
    views = views_of(page, address)
    frames = []
    for view in views:
        page.click(f"#views a[href^='{view}']")
        page.wait_for_function("view => location.hash.startsWith(view)", arg=view)
        drawn(page)
        frames.append(page.evaluate(FRAME))
    for places in zip(*frames, strict=True):
        seen = [tuple(place) for place in places if place]
        assert seen and len({*seen}) == 1
    assert sum(page.evaluate("window.shifts")) < 0.01


def test_the_home_page_has_a_picture_of_what_the_models_show(page, address):
    open_view(page, address, "")
    cards = page.eval_on_selector_all(
        ".card",
        "all => all.map(one => [one.querySelector('h2').textContent, "
        "one.querySelectorAll('.preview :is(canvas, svg, .piece, .bar, .two, pre)').length])",
    )
    assert {"Attention", "Beam search", "Map", "Runs"} <= {name for name, _ in cards}
    assert [name for name, pictures in cards if not pictures] == ["Captions"]
    page.click(".card >> text=Beam search")
    page.wait_for_selector(".tree .node")


def test_a_page_that_is_opened_early_waits_for_the_models(browser, service, address):
    models, service.models = service.models, None
    opened = browser.new_page()
    try:
        with opened.expect_response(lambda response: response.status == 503):
            opened.goto(address)
    finally:
        service.models = models
    opened.wait_for_selector("p.served >> text=translation")
    assert "translation" in opened.inner_text("#main")
    opened.close()


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


def test_an_image_is_drawn_once_for_each_word_of_its_description(page, address, service):
    task = service.models.all["captioning"].task
    open_view(page, address, "#captions?model=captioning")
    page.set_input_files("input[type=file]", STRIPES)
    page.wait_for_selector(".view svg image")
    drawn(page)
    words = attended_regions(task, STRIPES).words
    assert len(page.query_selector_all(".view svg image")) == 1 + len(words)
    assert "stripes.png" in page.inner_text(".view h2") and "stripes" not in page.url


def test_long_words_fit_on_a_phone_in_every_view(page, address):
    page.set_viewport_size({"width": 400, "height": 900})
    word = "x" * 300
    for view in views_of(page, address):
        for model in ("translation", word):  # another model is shown, with a note that names this
            page.goto("about:blank")
            open_view(page, address, f"{view}?model={model}&text={word}&query={word}")
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (view, model)


ARABIC, HEBREW = "مرحبا", "שלום"
PLACES = """texts => texts.map(text => {
    const nodes = document.createTreeWalker(document.querySelector("#main"), NodeFilter.SHOW_TEXT);
    for (let node; node = nodes.nextNode(); ) {
        const start = node.data.indexOf(text);
        const line = node.parentElement.closest(".readout, .neighbours li:first-child");
        if (start < 0 || !line) continue;
        const range = document.createRange();
        range.setStart(node, start), range.setEnd(node, start + text.length);
        return range.getBoundingClientRect().left;
    }
})"""


def in_other_words(page, path, change):
    """Let a route answer with other words, as another model would."""

    def answer(route):
        response = route.fetch()
        content = response.json()
        change(content)
        route.fulfill(response=response, json=content)

    page.route(f"**/ui/{path}", answer)


def test_words_from_right_to_left_do_not_change_the_order_of_the_line(page, address):
    def tokens(content):
        content["result"]["queries"] = [ARABIC] * len(content["result"]["queries"])
        content["result"]["keys"] = [HEBREW] * len(content["result"]["keys"])

    in_other_words(page, "head", tokens)
    open_view(page, address, "#attention?model=translation&text=the+old+cat&kind=encoder")
    page.hover("canvas.heat")
    places = page.evaluate(PLACES, [ARABIC, "→", HEBREW, "0."])
    assert places == sorted(places)

    in_other_words(page, "map", lambda content: content.update(labels=[ARABIC, HEBREW]))
    open_view(page, address, "#map?point=1")
    page.wait_for_selector(".neighbours")
    text, label = page.evaluate(
        "() => { const parts = document.querySelector('.neighbours a').textContent.split(': ');"
        " return [parts[1], parts[0].replace(/[\\u2068\\u2069]/g, '')]; }"
    )
    figure = page.inner_text(".neighbours .figure >> nth=0").strip()
    places = page.evaluate(PLACES, [label, text, figure])
    assert places == sorted(places)


def test_every_choice_of_a_view_is_in_its_address(page, address):
    open_view(page, address, "#map")
    page.click(".label >> nth=0")
    open_again(page, ".map .point.off")
    assert page.url.endswith("#map?hidden=0")
    assert page.get_attribute(".label >> nth=0", "aria-pressed") == "false"
    page.click(".label >> nth=0")
    assert page.url.endswith("#map")

    open_view(page, address, "#side_by_side?model=translation&right=translation&text=the+old+cat")
    page.click("section.half >> nth=1 >> canvas.heat", position={"x": 5, "y": 100})
    said = page.inner_text("section.half >> nth=1 >> p.note")
    assert "attends most to" in said and "right_row=" in page.url
    open_again(page, "section.half >> nth=1 >> p.note >> text=attends most to")
    assert page.inner_text("section.half >> nth=1 >> p.note") == said


def open_again(page, selector):
    """Open the address of a page, and wait for what it shows."""
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(selector, state="attached")


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


def test_points_of_a_map_are_chosen_by_mouse_and_keyboard(page, address):
    open_view(page, address, "#map")
    assert len(page.query_selector_all(".map .point")) == 9
    assert [label.inner_text().strip() for label in page.query_selector_all(".legend .label")] == [
        f"{SCRIPT[:39]}… (4)",
        "cat (5)",
    ]
    page.click(".map", position={"x": 100, "y": 100})
    page.wait_for_selector(".neighbours")
    chosen = page.url
    assert SCRIPT in page.inner_text(".neighbours") and "point=" in chosen
    page.focus(".map")
    addresses = {chosen}
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
        addresses.add(page.url)
    assert len(addresses) > 1
    page.click(".label >> nth=0")
    assert len(page.query_selector_all(".map .point:not(.off)")) == 5


@pytest.mark.parametrize("number", ["-5", "0.5", "1e9", "x"])
def test_an_address_with_an_odd_number_is_drawn(page, address, number):
    given = "model=translation&text=the+old+cat+sat"
    for view in ("attention?token", "attention?layer", "attention?head", "beam?step"):
        open_view(page, address, f"#{view}={number}&{given}")
        assert page.query_selector_all("#main [role=alert]") == [], view
        assert page.query_selector(".followed h2, .tree .node"), view


def test_an_answer_that_another_one_has_overtaken_is_not_drawn(page, address):
    open_view(page, address, "#masked_heads?model=translation&text=the+old+cat+sat")
    held = []
    page.route("**/ui/masked_heads", lambda route: held.append(route))
    for head in range(2):
        page.click(f".head >> nth={head}")
    while len(held) < 2:
        page.wait_for_timeout(50)
    for late in reversed(held):
        late.continue_()
        page.wait_for_timeout(500)
    assert page.inner_text("section h2") == "Without head 1.1, head 1.2"


PRESSES = {
    "#attention?model=translation&text=the+cat": ("ui/head", ".head >> nth=1"),
    "#masked_heads?model=translation&text=the+cat": ("ui/masked_heads", ".head >> nth=1"),
    "#next?text=the+cat": ("ui/next", "text=Sample 10"),
}


@pytest.mark.parametrize("view", PRESSES)
def test_a_press_whose_answer_fails_says_so(page, address, view):
    path, button = PRESSES[view]
    open_view(page, address, view)
    answer = {"status": 503, "json": {"error": {"message": "The server stops."}}}
    page.evaluate(
        "answer => { window.fetch = async () => Response.json(answer.json, answer) }", answer
    )
    page.click(button)
    page.wait_for_selector("#main [role=alert]")
    assert page.inner_text("#main [role=alert]") == "The server stops."


def focus(page):
    return page.evaluate("document.activeElement.name || document.activeElement.textContent")


def test_a_pressed_button_keeps_the_focus_after_a_redraw(page, address):
    open_view(page, address, "#next?text=the+cat&temperature=1")
    page.focus("text=Most probable")
    for count in (1, 2):
        page.keyboard.press("Enter")
        page.wait_for_selector(f".piece.chosen >> nth={count - 1}")
        assert focus(page) == "Most probable"
    open_view(page, address, "#attention?model=translation&text=the+old+cat+sat")
    page.focus("select[name=kind]")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(".heads[aria-label='Heads of the decoder self-attention']")
    drawn(page)
    assert focus(page) == "kind"


def test_the_link_to_the_view_keeps_the_address_of_the_view(page, address):
    open_view(page, address, "#tokens?text=warm")
    shown = page.url
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url == shown and page.evaluate("document.activeElement.id") == "main"


def test_a_view_is_saved_after_the_server_has_stopped(page, address):
    open_view(page, address, "#tokens?text=warm")
    page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError()); }")
    with page.expect_download() as saved:
        page.click("text=Save as HTML")
    assert "--accent" in Path(saved.value.path()).read_text()


def test_a_view_that_a_stopped_server_has_not_drawn_can_be_asked_for_again(page, address):
    """Its link leads to the address that is shown already."""
    open_view(page, address, "#home")
    page.evaluate("() => { window.kept = window.fetch; }")
    page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError()); }")
    page.click("#views a[href^='#tokens']")
    page.click("text=Try again")
    page.wait_for_selector("[role=alert] >> text=The server does not answer")
    assert len(page.query_selector_all("text=Try again")) == 1
    page.evaluate("() => { window.fetch = window.kept; }")
    page.focus("text=Try again")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pieces")
    assert page.query_selector("[role=alert], :text('Try again')") is None
    answer = {"status": 400, "json": {"error": {"message": "Shorten it."}}}  # again, it would be
    page.evaluate("a => { window.fetch = async () => Response.json(a.json, a) }", answer)
    page.click("#views a[href^='#lessons']")
    page.wait_for_selector("[role=alert] >> text=Shorten it.")
    assert page.query_selector("text=Try again") is None
