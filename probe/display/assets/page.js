"use strict";
// Everything that comes from a text or a model goes into the page as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const kind of data.kinds) {
    for (const axis of ["rows", "columns"]) kind[axis] = kind[axis].map(window.attentionIsolate);
  }
  const STEPS = 1022;
  const NOT_A_NUMBER = 1023;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = { kind: data.kinds[0], index: 0 };
  let cell = { row: 0, column: 0 };

  function element(name, options = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(options)) {
      if (key === "class") made.className = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  // ---- numbers

  function bytesOf(text) {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length + 1); // one more, so that every code spans two bytes
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }

  for (const kind of data.kinds) kind.bytes = kind.maps.map(bytesOf);

  function codeAt(kind, index, row, column) {
    if (kind.triangle && column > row) return 0;
    const at = kind.triangle ? (row * (row + 1)) / 2 + column : row * kind.columns.length + column;
    const bytes = kind.bytes[index];
    const bit = at * 10;
    return ((bytes[bit >> 3] | (bytes[(bit >> 3) + 1] << 8)) >> (bit & 7)) & 1023;
  }

  function weightInWords(code) {
    if (code === NOT_A_NUMBER) return "not a number";
    return ((code / STEPS) ** 2).toFixed(5);
  }

  // ---- colours

  let colours;
  function chooseColours() {
    const table = dark.matches ? data.scales.dark : data.scales.light;
    colours = [];
    for (let i = 0; i < 256; i++) colours.push([0, 2, 4].map((k) => parseInt(table.slice(6 * i + k, 6 * i + k + 2), 16)));
  }
  const WRONG = [193, 18, 31];

  function colourOf(code) {
    return code === NOT_A_NUMBER ? WRONG : colours[Math.round((code / STEPS) * 255)];
  }

  /** A map with one pixel a cell; what no head may look at is left out. */
  function picture(kind, index) {
    const rows = kind.rows.length;
    const columns = kind.columns.length;
    const canvas = element("canvas", { width: columns, height: rows });
    const pixels = new ImageData(columns, rows);
    for (let row = 0, at = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, at += 4) {
        if (kind.triangle && column > row) continue;
        pixels.data.set(colourOf(codeAt(kind, index, row, column)), at);
        pixels.data[at + 3] = 255;
      }
    }
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    return canvas;
  }

  // ---- all heads

  const buttons = [];

  function grid(kind) {
    const heads = Math.max(...kind.places.map(([, head]) => head)) + 1;
    const layers = [...new Set(kind.places.map(([layer]) => layer))];
    const made = element("div", { class: "grid", role: "group", "aria-label": `${kind.kind} attention, all heads` });
    made.style.gridTemplateColumns = `auto repeat(${heads}, minmax(24px, 90px))`;
    made.append(element("span", { class: "name" }, "layer \\ head"));
    for (let head = 0; head < heads; head++) made.append(element("span", { class: "name" }, String(head)));
    for (const layer of layers) {
      made.append(element("span", { class: "name" }, String(layer)));
      for (let head = 0; head < heads; head++) {
        const index = kind.places.findIndex(([l, h]) => l === layer && h === head);
        if (index < 0) {
          made.append(element("span"));
          continue;
        }
        const button = element("button", {
          type: "button",
          "aria-label": `layer ${layer}, head ${head}`,
          "aria-pressed": "false",
          title: `layer ${layer}, head ${head}`,
          tabindex: buttons.length ? "-1" : "0",
          onclick: () => choose(kind, index),
          onkeydown: (event) => walk(event, button),
        });
        buttons.push({ button, kind, index, layer, head });
        made.append(button);
      }
    }
    return made;
  }

  /** Arrow keys go from head to head; only one of them is a stop of the Tab key. */
  function walk(event, button) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const here = buttons.find((one) => one.button === button);
    const there = buttons.find(
      (one) => one.kind === here.kind && one.layer === here.layer + step[0] && one.head === here.head + step[1],
    );
    if (there) focusOn(there.button);
  }

  function focusOn(button) {
    for (const one of buttons) one.button.tabIndex = one.button === button ? 0 : -1;
    button.focus();
  }

  // ---- one head, large

  const heading = element("h2");
  const readout = element("output", { "aria-live": "polite", id: "readout" });
  const large = element("canvas", {
    id: "map",
    tabindex: "0",
    role: "img",
    onpointermove: point,
    onpointerdown: point,
    onkeydown: move,
  });
  const frame = element("div", { class: "map" }, large);
  let layout;

  function measure() {
    const { kind } = chosen;
    const [rows, columns] = [kind.rows.length, kind.columns.length];
    const room = Math.max(260, Math.min(document.querySelector(".one").clientWidth - 4, 820));
    const context = large.getContext("2d");
    context.font = "12px system-ui, sans-serif";
    const longest = (labels) => Math.min(130, Math.max(...labels.map((label) => context.measureText(shortened(label)).width)));
    let [left, top] = [Math.ceil(longest(kind.rows)) + 10, Math.ceil(longest(kind.columns)) + 10];
    let size = Math.floor((room - left) / columns);
    const labelled = size >= 10;
    if (!labelled) {
      [left, top] = [6, 6];
      size = Math.max(1, Math.floor((room - left) / columns));
    }
    size = Math.min(size, 44);
    layout = { rows, columns, left, top, size, labelled, width: left + size * columns + 6, height: top + size * rows + 6 };
  }

  function shortened(label) {
    const characters = [...label];
    return characters.length > 16 ? `${characters.slice(0, 15).join("")}…` : label;
  }

  function drawLarge() {
    measure();
    const { kind, index } = chosen;
    const { rows, columns, left, top, size, labelled, width, height } = layout;
    const density = window.devicePixelRatio || 1;
    large.width = Math.round(width * density);
    large.height = Math.round(height * density);
    large.style.width = `${width}px`;
    large.style.height = `${height}px`;
    Object.assign(large.dataset, { left, top, cell: size });
    const context = large.getContext("2d");
    context.scale(density, density);
    const style = getComputedStyle(document.documentElement);
    const [ink, mark] = [style.getPropertyValue("--ink"), style.getPropertyValue("--mark")];
    context.imageSmoothingEnabled = false;
    context.drawImage(picture(kind, index), left, top, size * columns, size * rows);
    if (labelled) {
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      for (let row = 0; row < rows; row++) {
        context.fillStyle = row === cell.row ? mark : ink;
        context.textAlign = "right";
        context.fillText(shortened(kind.rows[row]), left - 5, top + size * (row + 0.5));
      }
      for (let column = 0; column < columns; column++) {
        context.save();
        context.translate(left + size * (column + 0.5), top - 5);
        context.rotate(-Math.PI / 2);
        context.fillStyle = column === cell.column ? mark : ink;
        context.textAlign = "left";
        context.fillText(shortened(kind.columns[column]), 0, 0);
        context.restore();
      }
    }
    context.strokeStyle = mark;
    context.lineWidth = 2;
    context.strokeRect(left + size * cell.column - 1, top + size * cell.row - 1, size + 2, size + 2);
    const [layer, head] = kind.places[index];
    heading.textContent = `${data.kinds.length > 1 ? `${kind.kind}, ` : ""}layer ${layer}, head ${head}`;
    large.setAttribute("aria-label", `${heading.textContent}: a row for each query, a column for each key`);
    readOut();
  }

  function readOut() {
    const { kind, index } = chosen;
    const code = codeAt(kind, index, cell.row, cell.column);
    const future = kind.triangle && cell.column > cell.row;
    readout.replaceChildren(
      `query ${kind.rows[cell.row]} → key ${kind.columns[cell.column]}: `,
      element("b", {}, weightInWords(code)),
      future ? " (a later token: no head here looks at it)" : "",
    );
  }

  function point(event) {
    const box = large.getBoundingClientRect();
    const { rows, columns, left, top, size } = layout;
    const column = Math.floor((event.clientX - box.left - left) / size);
    const row = Math.floor((event.clientY - box.top - top) / size);
    if (row < 0 || column < 0 || row >= rows || column >= columns) return;
    if (row !== cell.row || column !== cell.column) {
      cell = { row, column };
      drawLarge();
    }
  }

  function move(event) {
    const { rows, columns } = layout;
    const places = {
      ArrowLeft: [cell.row, cell.column - 1],
      ArrowRight: [cell.row, cell.column + 1],
      ArrowUp: [cell.row - 1, cell.column],
      ArrowDown: [cell.row + 1, cell.column],
      Home: [cell.row, 0],
      End: [cell.row, columns - 1],
      PageUp: [0, cell.column],
      PageDown: [rows - 1, cell.column],
    };
    const place = places[event.key];
    if (!place) return;
    event.preventDefault();
    cell = {
      row: Math.min(rows - 1, Math.max(0, place[0])),
      column: Math.min(columns - 1, Math.max(0, place[1])),
    };
    drawLarge();
  }

  function choose(kind, index) {
    if (kind !== chosen.kind) cell = { row: 0, column: 0 };
    chosen = { kind, index };
    for (const one of buttons) one.button.setAttribute("aria-pressed", String(one.kind === kind && one.index === index));
    drawLarge();
  }

  // ---- legend, and the page as a whole

  const bar = element("canvas", { width: 256, height: 1, "aria-hidden": "true" });

  function drawAll() {
    chooseColours();
    for (const one of buttons) one.button.replaceChildren(picture(one.kind, one.index));
    const pixels = new ImageData(256, 1);
    colours.forEach((colour, i) => pixels.data.set([...colour, 255], 4 * i));
    bar.getContext("2d").putImageData(pixels, 0, 0);
    choose(chosen.kind, chosen.index);
  }

  const texts = Array.isArray(data.text) ? data.text : [data.text];
  const about = data.manifest
    ? [element("details", {}, element("summary", {}, "Where these numbers come from"), element("pre", {}, JSON.stringify(data.manifest, null, 1)))]
    : [];
  document.getElementById("page").replaceChildren(
    element("h1", {}, data.model),
    element("p", {}, `${data.source}; ${data.tokens} tokens. A row for each query, a column for each key.`),
    ...texts.map((text) => element("p", { class: "text" }, text)),
    ...data.remarks.map((remark) => element("p", {}, window.attentionIsolate(remark))),
    element(
      "div",
      { class: "both" },
      element("div", { class: "all" }, ...data.kinds.map(grid)),
      element(
        "section",
        { class: "one", "aria-label": "The chosen head" },
        heading,
        frame,
        readout,
        element(
          "div",
          { class: "legend" },
          element("span", {}, "0"),
          bar,
          element("span", {}, "1, by the square root of the weight: halfway is 0.25"),
        ),
        element("p", {}, "Choose a head with a click, or with Tab, the arrow keys and Enter. In the map, point, or use the arrow keys."),
        ...about,
      ),
    ),
  );
  drawAll();
  dark.addEventListener("change", drawAll);
  window.addEventListener("resize", drawLarge);
  document.documentElement.dataset.painted = "yes";
})();
