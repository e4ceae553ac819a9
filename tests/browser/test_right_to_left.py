"""Texts from right to left: what we add to a token, its piece or position, stays behind it in pictures."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from pathlib import Path

import pytest
from browser.conftest import Visitor
from playwright.sync_api import Browser, Locator

import probe
from probe.display.page import page_html

HEBREW = "שלום עולם"
ARABIC = "القطة تنام"
START, END = "\u2068", "\u2069"

# Every text that is drawn on a canvas, as it is handed over.
RECORD = """
window.drawn = new Set();
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.drawn.add(text);
  return draw.call(this, text, ...rest);
};
"""
# Where the first character of each of two texts inside an element is seen.
SEEN = """
(element, wanted) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const found = {};
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const one of wanted) {
      const at = node.data.indexOf(one);
      if (at < 0 || one in found) continue;
      const range = document.createRange();
      range.setStart(node, at);
      range.setEnd(node, at + 1);
      found[one] = range.getBoundingClientRect().left;
    }
  }
  return wanted.map((one) => found[one]);
}
"""


def seen(element: Locator, *wanted: str) -> list[float]:
    places: list[float] = element.evaluate(SEEN, list(wanted))
    assert all(place is not None for place in places), element.text_content()
    return places


def split_token(tokens: tuple[str, ...]) -> tuple[int, str]:
    """The first token that is a piece of a character: its position, and the character."""
    position = next(i for i, token in enumerate(tokens) if re.search(r" \d/\d$", token))
    return position, tokens[position].split()[0]


@pytest.mark.parametrize("text", [HEBREW, ARABIC])
@pytest.mark.own_page
def test_a_piece_is_read_behind_its_letter(visitor: Visitor, text: str) -> None:
    tokens = probe.attend("gpt2", text).tokens
    position, letter = split_token(tokens)
    visitor.page.add_init_script(RECORD)
    visitor.open(text=text, bq=str(position))
    chip = visitor.page.locator("#compare-b .af-chip").nth(position)
    first, piece = seen(chip, letter, "1/")
    assert first < piece
    # the numbers of a row, and the canvas's labels
    where = visitor.page.locator("#compare-b .af-where").first
    first, piece = seen(where, letter, "1/")
    assert first < piece
    drawn = visitor.page.evaluate("[...window.drawn]")
    for token in set(tokens):
        assert re.sub(r"^(\S+) (\d/\d)$", rf"{START}\1{END} \2", token) in [
            one if one == token or START in one else "" for one in drawn
        ]


def test_steps(visitor: Visitor) -> None:
    position, letter = split_token(probe.attend("gpt2", HEBREW).tokens)
    visitor.open("steps", text=HEBREW, on="b", bq=str(position))
    first, piece = seen(visitor.page.locator(".st-where"), letter, "1/")
    assert first < piece


@pytest.mark.own_page
def test_all_heads(visitor: Visitor) -> None:
    position, letter = split_token(probe.attend("gpt2", HEBREW).tokens)
    visitor.page.add_init_script(RECORD)
    visitor.open("heads", text=HEBREW, on="b")
    visitor.page.locator("#heads-measures [data-painted]").wait_for()
    label = f"{position} {START}{letter}{END} 1/2"
    visitor.page.wait_for_function("label => window.drawn.has(label)", arg=label)


def test_verify(visitor: Visitor) -> None:
    visitor.open("verify", text=HEBREW)
    subtitle = visitor.page.locator("#verify-b .af-subtitle")
    query = re.search(r"query \u2068(\S+)\u2069 (\d/\d) \((\d+)\)", subtitle.text_content() or "")
    assert query, subtitle.text_content()
    places = seen(subtitle, query[1], f"{query[2]} ({query[3]})", "key ")
    assert places == sorted(places)


def test_bertviz(visitor: Visitor) -> None:
    tokens = probe.attend("gpt2", HEBREW).tokens
    position, letter = split_token(tokens)
    visitor.open("bertviz", text=HEBREW)
    visitor.page.locator("#bertviz-frames section[data-painted]").nth(1).wait_for()
    element = visitor.page.locator("#bertviz-frames iframe").nth(1).element_handle()
    inside = element.content_frame()
    assert inside is not None
    label = inside.locator("#left text").nth(position)
    first, piece = label.evaluate(
        "(text, letter) => [letter, '1/'].map((one) =>"
        " text.getExtentOfChar(text.textContent.indexOf(one)).x)",
        letter,
    )
    assert first < piece


def test_the_page_of_all_heads(browser: Browser, tmp_path: Path) -> None:
    run = probe.attend("gpt2", HEBREW)
    position, letter = split_token(run.tokens)
    path = tmp_path / "page.html"
    path.write_bytes(page_html(run))
    page = browser.new_context().new_page()
    page.add_init_script(RECORD)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-painted]")
    assert f"{position} {START}{letter}{END} 1/2" in page.evaluate("[...window.drawn]")
    page.context.close()


def test_files_hold_the_tokens_as_they_are(visitor: Visitor, tmp_path: Path) -> None:
    visitor.open(text=HEBREW)
    with visitor.page.expect_download() as download:
        visitor.page.locator("#compare-b").get_by_role("button", name="as CSV").click()
    download.value.save_as(tmp_path / "map.zip")
    with zipfile.ZipFile(tmp_path / "map.zip") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".csv"))
        rows = list(csv.DictReader(io.StringIO(archive.read(name).decode("utf-8-sig"), newline="")))
    tokens = probe.attend("gpt2", HEBREW).tokens
    names = [f"[{position}] {token}" for position, token in enumerate(tokens)]
    assert (
        [row["query"] for row in rows[:: len(tokens)]] == [row["key"] for row in rows[: len(tokens)]] == names
    )
    assert len(rows) == len(tokens) ** 2


def test_a_box_takes_the_direction_of_what_is_typed(visitor: Visitor) -> None:
    visitor.open(text=HEBREW)
    assert (
        visitor.page.locator("#sentence textarea").evaluate("box => getComputedStyle(box).unicodeBidi")
        == "plaintext"
    )
