"use strict";
// Everything that comes from a text or a model goes into the page as text, never as markup.
(() => {
  const { CodedMaps, LargeMap, WRONG, button, colourTable, css, isolate, make, moved } = window.attentionShared;
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const kind of data.kinds) {
    for (const axis of ["rows", "columns"]) kind[axis] = kind[axis].map(isolate);
    kind.coded = new CodedMaps(kind.maps, kind.rows.length, kind.columns.length, kind.triangle);
    kind.later = (row, column) => kind.triangle && column > row;
  }
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colours = () => colourTable(data.scales[dark.matches ? "dark" : "light"]);
  let chosen = { kind: data.kinds[0], index: 0 };

  function element(tag, attributes, ...children) {
    const made = make(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // ---- all heads

  const tiles = [];

  function grid(kind) {
    const heads = Math.max(...kind.places.map(([, head]) => head)) + 1;
    const layers = [...new Set(kind.places.map(([layer]) => layer))];
    const made = element("div", { class: "grid", role: "group", "aria-label": `${kind.kind} attention, all heads` });
    made.style.gridTemplateColumns = `auto repeat(${heads}, minmax(24px, 90px))`;
    made.append(make("span", "name", "layer \\ head"));
    for (let head = 0; head < heads; head++) made.append(make("span", "name", String(head)));
    for (const layer of layers) {
      made.append(make("span", "name", String(layer)));
      for (let head = 0; head < heads; head++) {
        const index = kind.places.findIndex(([l, h]) => l === layer && h === head);
        if (index < 0) {
          made.append(make("span"));
          continue;
        }
        const tile = button("", "", () => choose(kind, index));
        tile.title = `layer ${layer}, head ${head}`;
        tile.setAttribute("aria-label", tile.title);
        tile.setAttribute("aria-pressed", "false");
        tile.tabIndex = tiles.length ? -1 : 0;
        tile.addEventListener("keydown", (event) => walk(event, kind, { row: layer, col: head }));
        tiles.push({ tile, kind, index, layer, head });
        made.append(tile);
      }
    }
    return made;
  }

  /** Arrow keys go from head to head; only one of them is a stop of the Tab key. */
  function walk(event, kind, from) {
    const place = moved(event.key, from, Infinity, Infinity);
    if (!place) return;
    event.preventDefault();
    const there = tiles.find((one) => one.kind === kind && one.layer === place.row && one.head === place.col);
    if (!there) return;
    for (const one of tiles) one.tile.tabIndex = one === there ? 0 : -1;
    there.tile.focus();
  }

  // ---- one head, large

  const heading = make("h2");
  const readout = element("output", { "aria-live": "polite", id: "readout" });
  const canvas = element("canvas", { id: "map", role: "img" });
  const room = () => Math.max(260, Math.min(document.querySelector(".one").clientWidth - 4, 820));
  const large = new LargeMap(canvas, room, readOut);

  function readOut(cell) {
    const { kind, index } = chosen;
    readout.replaceChildren(
      `query ${kind.rows[cell.row]} → key ${kind.columns[cell.col]}: `,
      make("b", "", kind.coded.said(index, cell.row, cell.col)),
      kind.later(cell.row, cell.col) ? " (a later token: no head here looks at it)" : "",
    );
  }

  function choose(kind, index) {
    chosen = { kind, index };
    for (const { tile, ...one } of tiles) tile.setAttribute("aria-pressed", String(one.kind === kind && one.index === index));
    const [layer, head] = kind.places[index];
    heading.textContent = `${data.kinds.length > 1 ? `${kind.kind}, ` : ""}layer ${layer}, head ${head}`;
    canvas.setAttribute("aria-label", `${heading.textContent}: a row for each query, a column for each key`);
    large.show(kind.coded, index, kind.rows, kind.columns, kind.coded.picture(index, colours(), kind.later));
  }

  // ---- legend, and the page as a whole

  const scale = element("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const broken = make("i", "wrong");
  broken.style.backgroundColor = css(WRONG);
  const legend = element("div", { class: "legend" }, make("span", "", "0"), scale,
    make("span", "", "1, by the square root of the weight: halfway is 0.25"));

  function drawAll() {
    document.documentElement.classList.toggle("dark", dark.matches);
    const shades = colours();
    for (const { tile, kind, index } of tiles) tile.replaceChildren(kind.coded.picture(index, shades, kind.later));
    const context = scale.getContext("2d");
    shades.forEach((shade, i) => {
      context.fillStyle = css(shade);
      context.fillRect(i, 0, 1, 1);
    });
    if (data.kinds.some((kind) => kind.coded.broken.size)) legend.append(broken, "not a number");
    choose(chosen.kind, chosen.index);
  }

  const texts = Array.isArray(data.text) ? data.text : [data.text];
  const about = data.manifest
    ? [element("details", {}, make("summary", "", "Where these numbers come from"), make("pre", "", JSON.stringify(data.manifest, null, 1)))]
    : [];
  document.getElementById("page").replaceChildren(
    make("h1", "", data.model),
    make("p", "", `${data.source}; ${data.tokens} tokens. A row for each query, a column for each key.`),
    ...texts.map((text) => make("p", "text", text)),
    ...data.remarks.map((remark) => make("p", "", isolate(remark))),
    element(
      "div",
      { class: "both" },
      element("div", { class: "all" }, ...data.kinds.map(grid)),
      element(
        "section",
        { class: "one", "aria-label": "The chosen head" },
        heading,
        element("div", { class: "map" }, canvas),
        readout,
        legend,
        make("p", "", "Choose a head with a click, or with Tab, the arrow keys and Enter. In the map, point, or use the arrow keys."),
        ...about,
      ),
    ),
  );
  drawAll();
  dark.addEventListener("change", drawAll);
  window.addEventListener("resize", () => large.draw());
  document.documentElement.dataset.painted = "yes";
})();
