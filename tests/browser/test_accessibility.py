"""What axe-core, a checker of web pages for people with disabilities, finds in each view."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser.conftest import Visitor
from playwright.sync_api import Page

PAINTED = {
    "Compare": "#compare-b [data-painted]",
    "Masks": "#masks-b [data-painted]",
    "Steps": "#steps-trace [data-painted]",
    "Verify": "#verify-b [data-painted]",
    "Heads": "#heads-measures [data-painted]",
    "Two sentences": "#sentences-both [data-painted]",
    "Effect": "#effect-figure [data-painted]",
    "bertviz": "#bertviz-frames iframe",
    "Source and target": "#tab-source-target button",
    "Learn": "#tab-learn .ln",
}
"""Each view, and what is there when it is filled."""


# Of long tables and lists: they are like those before.
ALIKE = [["tbody tr:nth-child(n + 6)"], ["tr > :nth-child(n + 9)"], ["option:nth-child(n + 6)"]]
# What another width or other colours can make a fault of; the elements and their names are the same.
OF_SIGHT = ("color-contrast", "link-in-text-block", "scrollable-region-focusable")


def faults(page: Page, within: str = "html", only: tuple[str, ...] = ()) -> list[str]:
    """The serious and critical ones: which rule, on which element, and why."""
    options = {"resultTypes": ["violations"], **({"runOnly": list(only)} if only else {})}
    found = Axe().run(page, {"include": [[within]], "exclude": ALIKE}, options).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width", "only"), [("light", 1440, ()), ("dark", 390, OF_SIGHT)])
def test_no_serious_fault_in_any_view(
    visit: Callable[..., Visitor], scheme: str, width: int, only: tuple[str, ...]
) -> None:
    visitor = visit(width=width, height=900, color_scheme=scheme)
    page = visitor.page
    visitor.open(text="draw a map")
    found: dict[str, list[str]] = {}
    for view, painted in PAINTED.items():
        page.get_by_role("tab", name=view, exact=True).click()
        page.locator(painted).first.wait_for()
        # What is folded is looked at as well.
        page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        for folded in page.locator(".tabitem:visible button.label-wrap:not(.open)").all():
            folded.click()
        visitor.settle()
        # What stands around the views is the same with each of them.
        name = page.locator("#views [role=tab][aria-selected=true]").get_attribute("data-tab-id")
        if wrong := faults(page, "html" if view == "Compare" else f"#tab-{name}", only):
            found[view] = wrong
    assert found == {}


@pytest.mark.own_page
def test_a_fault_is_found(visitor: Visitor) -> None:
    visitor.open()
    assert faults(visitor.page) == []
    visitor.page.locator("h1").evaluate("h1 => { h1.style.color = '#ddd'; }")
    visitor.page.locator("#sentence textarea").evaluate("box => { box.closest('label').before(box); }")
    assert {fault.split(":")[0] for fault in faults(visitor.page)} == {"color-contrast", "label"}
