"""The console in Chromium: live, by keyboard, on a phone, in the dark, without a script, and nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from console_client import PASSWORD, USER, add_user, published_state
from ledgered_stream import Stream
from plan_samples import plan_at
from playwright.sync_api import Browser, Page, expect, sync_playwright
from served_console import served_console

from include.ground.settings import CLONE, Settings
from include.observe.ledger_writer import open_writer, project_dataset
from include.plans.journal import load_plan
from include.plans.plan import Stage

CHROMIUM = "/usr/bin/chromium"
PLAN = "release-flights-1"
PAGES = [
    *("/", "/datasets/flights", "/datasets/flights/runs", "/datasets/flights/quality", "/datasets/flights/contract"),
    *(
        "/plans",
        f"/plans/{PLAN}",
        "/tables",
        "/tables/silver.sales",
        "/lineage",
        "/storage",
        "/sql?q=select+1",
        "/log-in",
    ),
]
# Contrast of each text with the first ground behind it, as WCAG computes it.
FAINT_TEXTS = """() => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = channels(getComputedStyle(node).backgroundColor);
      if (found.length === 3 || found[3] > .5) return found;
    }
    return [255, 255, 255];
  };
  const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  const shown = [...document.querySelectorAll("body *")].filter((node) =>
    !node.closest("svg") && node.offsetParent && hasText(node));
  return shown.map((node) => {
    const colours = [channels(getComputedStyle(node).color), ground(node)];
    const [a, b] = colours.map(light).sort((x, y) => y - x);
    return [node.textContent.trim().slice(0, 40), (a + .05) / (b + .05)];
  }).filter(([, contrast]) => contrast < 4.5);
}"""
UNNAMED = """() => {
  const all = document.querySelectorAll("a, button, input:not([type=hidden]), textarea, img, svg[role=img]");
  return [...all].filter((each) => !(each.textContent.trim() || each.getAttribute("aria-label") ||
    (each.tagName === "IMG" && each.getAttribute("alt") !== null) || each.labels?.length))
    .map((each) => each.outerHTML.slice(0, 80));
}"""
pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]


@dataclass
class Site:
    """A console that runs as a process, over a state folder of its own."""

    settings: Settings
    stream: Stream
    address: str
    problems: list[str] = field(default_factory=list)

    def publish(self, batch: int) -> None:
        """Publish one more run of flights."""
        self.stream.run(batch, batch)
        project_dataset(open_writer(self.settings), self.settings, "flights")

    def watch(self, page: Page) -> Page:
        """Note every error of the page, and every request to another address."""
        page.on("console", lambda message: self._note(message.type in ("error", "warning"), message.text))
        page.on("pageerror", lambda error: self._note(True, str(error)))
        page.on("request", lambda request: self._note(not request.url.startswith(self.address), request.url))
        return page

    def _note(self, is_problem: bool, text: str) -> None:
        if is_problem:
            self.problems.append(text)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("console ground")
    add_user(folder / "passwords", USER, PASSWORD)
    settings = Settings(state=folder / "state", console_passwords=folder / "passwords")
    stream = published_state(settings)
    plan_at(settings, Stage.BUILT, Stage.COMPARED)
    given = {"HEADRACE_STATE": str(settings.state), "HEADRACE_CONSOLE_PASSWORDS": str(settings.console_passwords)}
    with served_console(os.environ | given) as (address, _):
        found = Site(settings, stream, address)
        yield found
    assert found.problems == [], "errors of pages, or requests to other addresses"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def opened(site: Site, browser: Browser, path: str, *, dark: bool = False, width: int = 1280) -> Page:
    context = browser.new_context(
        color_scheme="dark" if dark else "light", viewport={"width": width, "height": 900}, base_url=site.address
    )
    page = site.watch(context.new_page())
    page.set_default_timeout(30_000)
    page.goto(path)
    return page


def test_overview_changes_without_reloading(site: Site, browser: Browser) -> None:
    page = opened(site, browser, "/")
    card = page.locator("section", has=page.get_by_role("heading", name="flights"))
    expect(card.get_by_text("51", exact=True)).to_be_visible()
    page.evaluate("window.sameDocument = true")
    site.publish(3)
    expect(card.get_by_text("68", exact=True)).to_be_visible()
    assert page.evaluate("window.sameDocument"), "the page was not loaded again"
    expect(page.get_by_role("status")).to_have_text("live")


def test_focus_and_opened_details_survive_a_live_change(site: Site, browser: Browser) -> None:
    page = opened(site, browser, "/datasets/flights")
    page.get_by_text("Figures of this chart").click()
    page.get_by_role("link", name="Rows of bronze.flights").focus()
    site.publish(4)
    expect(page.get_by_text("100", exact=True).first).to_be_visible()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Rows of bronze.flights"
    assert page.evaluate("document.querySelector('details').open")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("path", PAGES)
def test_page_is_readable_and_named(site: Site, browser: Browser, path: str, dark: bool) -> None:
    page = opened(site, browser, path, dark=dark)
    assert page.evaluate(FAINT_TEXTS) == []
    assert page.evaluate(UNNAMED) == []
    assert page.locator("main h1").count() == 1


@pytest.mark.parametrize("path", PAGES)
def test_page_fits_a_phone(site: Site, browser: Browser, path: str) -> None:
    page = opened(site, browser, path, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    tops = "[...document.querySelectorAll('.top nav li')].map(each => each.offsetTop)"
    assert len(set(page.evaluate(tops))) == 1, "the navigation is one line"


def test_console_is_used_by_keyboard(site: Site, browser: Browser) -> None:
    page = opened(site, browser, "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is visible"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.goto("/sql")
    page.get_by_label("One SELECT (DuckDB, UTC)").fill("select count(*) as n from silver.sales")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="1 rows")).to_be_visible()


def test_plan_is_rejected_with_a_confirmation(site: Site, browser: Browser) -> None:
    page = opened(site, browser, f"/plans/{PLAN}")
    page.get_by_role("main").get_by_role("link", name="Log in").click()
    page.get_by_label("User").fill(USER)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"**/plans/{PLAN}")
    questions: list[str] = []
    page.on(
        "dialog",
        lambda dialog: (questions.append(dialog.message), dialog.accept() if questions[1:] else dialog.dismiss()),
    )
    page.get_by_role("button", name="Reject").click()
    assert load_plan(site.settings, PLAN).stage is Stage.COMPARED, "the question was answered with no"
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_text("Reject by ann is done.")).to_be_visible()
    assert load_plan(site.settings, PLAN).stage is Stage.REJECTED
    assert questions[0].startswith(f"Reject {PLAN}")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)


def test_pages_work_without_a_script(site: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=site.address)
    page = site.watch(context.new_page())
    page.goto("/")
    page.get_by_role("link", name="flights").first.click()
    expect(page.get_by_role("heading", name="Journey of a record")).to_be_visible()
    page.goto("/sql?q=select+42+as+answer")
    expect(page.get_by_role("cell", name="42")).to_be_visible()


def test_screenshots_are_kept(site: Site, browser: Browser) -> None:
    folder = CLONE / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    for dark, width, name in ((False, 1280, "console"), (True, 1280, "console-dark"), (False, 390, "console-phone")):
        path = Path(folder, f"{name}.png")
        opened(site, browser, "/datasets/flights", dark=dark, width=width).screenshot(path=path)
        assert path.stat().st_size > 10_000
