/* What the page, the stand-alone page of all heads and the frames of bertviz have in common. Nothing here computes
 * attention. Text from outside reaches a document through textContent and fillText only.
 */
window.attentionShared = (() => {
  "use strict";

  const FONT = 'ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", ' +
    '"Noto Sans CJK SC", "Noto Sans Arabic", "Noto Color Emoji", sans-serif';

  /* ---------------------------------------------------------------- elements */

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const button = (className, label, action) => {
    const node = make("button", className, label);
    node.type = "button";
    if (action) node.addEventListener("click", action);
    return node;
  };

  /* Something wide or long that scrolls by itself, so that the keyboard must reach it. */
  const scrolling = (className, name, ...content) => {
    const node = make("div", className);
    node.tabIndex = 0;
    node.setAttribute("role", "region");
    node.setAttribute("aria-label", name);
    node.append(...content);
    return node;
  };

  const notice = (text) => {
    const node = make("p", "af-notice", isolate(text));
    node.setAttribute("role", "status");
    return node;
  };

  const headLine = (...cells) => {
    const line = make("tr"), head = make("thead");
    for (const content of cells) {
      const cell = make("th");
      cell.scope = "col";
      cell.append(content);
      line.append(cell);
    }
    head.append(line);
    return head;
  };

  /* Words that are written from right to left, within lines of ours that are written from left to right.
   *
   * What stands behind such a word in a label, the "1/2" of a piece or a position, would be drawn before it: numbers
   * and signs follow the letters next to them. An isolate keeps the order to the word itself (Unicode Standard Annex
   * 9, section 2.4). Not for a reader's own text, which is shown by itself and in its own direction.
   */
  const letters = "[\\u0590-\\u08ff\\ufb1d-\\ufdff\\ufe70-\\ufefc\\u{10800}-\\u{10fff}\\u{1e800}-\\u{1efff}]";
  const words = new RegExp(`${letters}+(?: +${letters}+)*`, "gu");
  const [start, end] = ["\u2068", "\u2069"];   // FIRST STRONG ISOLATE, POP DIRECTIONAL ISOLATE
  const isolate = (text) => (text.includes(start) ? text : text.replace(words, `${start}$&${end}`));

  /* ---------------------------------------------------------------- out of the page */

  const save = (name, blob) => {
    const link = make("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);   // a slow disk may still be reading
  };

  const copyText = async (text) => {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const area = make("textarea", "af-hidden", text);   // an http page on another machine has no clipboard object
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };

  /* ---------------------------------------------------------------- theme and colours */

  const WRONG = [194, 24, 143];   // what is no number: in none of the scales, which have no such hue
  const dressed = () => [document.body, document.documentElement].find((node) => node.classList.contains("dark"));
  const theme = () => (dressed() ? "dark" : "light");
  const colour = (name) => getComputedStyle(dressed() || document.documentElement).getPropertyValue(`--af-${name}`).trim();
  const watchTheme = (action) => {
    let last = theme();
    new MutationObserver(() => { if (last !== theme()) { last = theme(); action(); } })
      .observe(document.body, { attributes: true, attributeFilter: ["class"] });
  };
  const triple = (hex, at = 0) => [0, 2, 4].map((i) => parseInt(hex.slice(at + i, at + i + 2), 16));
  const colourTable = (hex) => Array.from({ length: hex.length / 6 }, (_, i) => triple(hex, 6 * i));
  const css = (rgb) => `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
  const ramp = (colours) => `linear-gradient(to right, ${colours.map(css).join(",")})`;
  const at = (colours, share) =>
    colours[Math.max(0, Math.min(colours.length - 1, Math.round(share * (colours.length - 1))))];

  /* ---------------------------------------------------------------- numbers */

  const bytes = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const floats = (base64) => new Float32Array(bytes(base64).buffer);

  /* JSON has no NaN and no infinity: they come as null or in words. */
  const numeric = (value) => (typeof value === "number" ? value : { inf: Infinity, "-inf": -Infinity }[value] ?? NaN);
  const written = (value, write) => {
    const number = numeric(value);
    if (Number.isNaN(number)) return "not a number";
    return Number.isFinite(number) ? write(number) : number > 0 ? "∞" : "−∞";
  };

  /* Maps of weights, ten bits each, the lowest first: the square root in 1022 steps, 1023 for what is no number. */
  const STEPS = 1022, NOT_A_NUMBER = 1023;
  class CodedMaps {
    constructor(packed, rows, columns, triangle) {
      this.maps = packed.map(bytes);
      this.broken = new Set();   // the maps in which a picture met what is no number
      Object.assign(this, { rows, columns, triangle });
    }

    code(index, row, col) {
      if (this.triangle && col > row) return 0;
      const bit = 10 * (this.triangle ? (row * (row + 1)) / 2 + col : row * this.columns + col);
      const map = this.maps[index];
      return ((map[bit >> 3] | (map[(bit >> 3) + 1] << 8)) >> (bit & 7)) & 1023;   // the last may end with its byte
    }

    isNumber(index, row, col) { return this.code(index, row, col) !== NOT_A_NUMBER; }

    said(index, row, col) {
      const code = this.code(index, row, col);
      return code === NOT_A_NUMBER ? "not a number" : ((code / STEPS) ** 2).toFixed(5);
    }

    /* A canvas with one pixel a cell; a cell that `leftOut(row, col)` names stays empty. */
    picture(index, colours, leftOut) {
      const canvas = make("canvas");
      canvas.width = this.columns;
      canvas.height = this.rows;
      const pixels = new ImageData(this.columns, this.rows);
      for (let row = 0, place = 0; row < this.rows; row++) {
        for (let col = 0; col < this.columns; col++, place += 4) {
          const code = this.code(index, row, col);
          if (code === 0 && leftOut(row, col)) continue;
          if (code === NOT_A_NUMBER) this.broken.add(index);
          const rgb = code === NOT_A_NUMBER ? WRONG : at(colours, code / STEPS);
          pixels.data[place] = rgb[0];
          pixels.data[place + 1] = rgb[1];
          pixels.data[place + 2] = rgb[2];
          pixels.data[place + 3] = 255;
        }
      }
      canvas.getContext("2d").putImageData(pixels, 0, 0);
      return canvas;
    }
  }

  /* ---------------------------------------------------------------- drawing */

  /* Sets a canvas to a size in CSS pixels, sharp on every screen, and empty. */
  const fit = (canvas, width, height, font) => {
    const density = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(height * density);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(density, density);
    context.font = font;
    return context;
  };

  const shorten = (context, text, room) => {
    if (context.measureText(text).width <= room) return text;
    const points = Array.from(text);
    while (points.length > 1 && context.measureText(points.join("") + "…").width > room) points.pop();
    return points.join("") + "…";
  };

  const widest = (context, labels, limit) => {
    let width = 0;
    for (const label of labels) {
      width = Math.max(width, context.measureText(label).width);
      if (width >= limit) return limit;
    }
    return width;
  };

  /* A cross in each of the cells [left, top] whose value is no number, so that colour isn't all that says so. */
  const cross = (context, cells, size) => {
    if (size < 6 || !cells.length) return;
    context.strokeStyle = "#ffffff";
    context.lineWidth = 1;
    context.beginPath();
    for (const [left, top] of cells) {
      context.moveTo(left + 2, top + 2);
      context.lineTo(left + size - 2, top + size - 2);
      context.moveTo(left + size - 2, top + 2);
      context.lineTo(left + 2, top + size - 2);
    }
    context.stroke();
  };

  /* Where a key leads from a cell, or nothing if it leads nowhere. */
  const moved = (key, { row, col }, rows, cols) => {
    const place = {
      ArrowLeft: [row, col - 1], ArrowRight: [row, col + 1], ArrowUp: [row - 1, col], ArrowDown: [row + 1, col],
      Home: [row, 0], End: [row, cols - 1], PageUp: [0, col], PageDown: [rows - 1, col],
    }[key];
    return place && {
      row: Math.max(0, Math.min(rows - 1, place[0])), col: Math.max(0, Math.min(cols - 1, place[1])),
    };
  };

  /* One map, large, with labels where there is room; a cell is chosen by pointing or with the keys. */
  class LargeMap {
    constructor(canvas, room, chosen) {
      Object.assign(this, { canvas, room, chosen });
      canvas.tabIndex = 0;
      canvas.addEventListener("pointermove", (event) => this.point(event));
      canvas.addEventListener("pointerdown", (event) => this.point(event));
      canvas.addEventListener("keydown", (event) => {
        const cell = moved(event.key, this.cell, this.maps.rows, this.maps.columns);
        if (!cell) return;
        event.preventDefault();
        this.move(cell);
      });
    }

    /* `rows` and `columns` are labels, `picture` is drawn as it is. */
    show(maps, index, rows, columns, picture) {
      if (this.rows !== rows) this.cell = { row: 0, col: 0 };
      Object.assign(this, { maps, index, rows, columns, picture });
      this.draw();
    }

    plan() {
      const context = this.canvas.getContext("2d");
      context.font = `12px ${FONT}`;
      const room = this.room();
      const widths = [this.rows, this.columns].map((labels) => Math.ceil(widest(context, labels, 120)));
      const [left, top] = widths.map((width) => width + 9);
      const size = Math.min(44, Math.floor((room - left - 2) / this.columns.length));
      if (size >= 12) return { left, top, size, widths };
      return { left: 2, top: 2, size: Math.max(1, Math.floor((room - 4) / this.columns.length)), widths: null };
    }

    draw() {
      if (!this.maps) return;
      const { left, top, size, widths } = this.layout = this.plan();
      const { rows, columns, cell } = this;
      const [width, height] = [size * columns.length, size * rows.length];
      const context = fit(this.canvas, left + width + 4, top + height + 4, `12px ${FONT}`);
      Object.assign(this.canvas.dataset, { left, top, cell: size });
      context.imageSmoothingEnabled = false;
      context.drawImage(this.picture, left, top, width, height);
      if (this.maps.broken.has(this.index)) {
        const wrong = rows.flatMap((_, row) => columns.map((_, col) => [row, col]))
          .filter(([row, col]) => !this.maps.isNumber(this.index, row, col));
        cross(context, wrong.map(([row, col]) => [left + size * col, top + size * row]), size);
      }
      context.lineWidth = 1;
      context.strokeStyle = colour("line");
      context.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
      if (widths) {
        const ink = (here) => colour(here ? "mark" : "ink");
        context.textBaseline = "middle";
        context.textAlign = "right";
        rows.forEach((label, row) => {
          context.fillStyle = ink(row === cell.row);
          context.fillText(shorten(context, label, widths[0]), left - 5, top + size * (row + 0.5));
        });
        context.textAlign = "left";
        columns.forEach((label, col) => {
          context.save();
          context.translate(left + size * (col + 0.5), top - 5);
          context.rotate(-Math.PI / 2);
          context.fillStyle = ink(col === cell.col);
          context.fillText(shorten(context, label, widths[1]), 0, 0);
          context.restore();
        });
      }
      context.strokeStyle = colour("mark");
      context.lineWidth = 2;
      context.strokeRect(left + size * cell.col - 0.5, top + size * cell.row - 0.5, size + 1, size + 1);
      this.chosen(cell);
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      const { left, top, size } = this.layout;
      const col = Math.floor((event.clientX - box.left - left) / size);
      const row = Math.floor((event.clientY - box.top - top) / size);
      if (row >= 0 && col >= 0 && row < this.maps.rows && col < this.maps.columns) this.move({ row, col });
    }

    move(cell) {
      if (cell.row === this.cell.row && cell.col === this.cell.col) return;
      this.cell = cell;
      this.draw();
    }
  }

  return {
    FONT, WRONG, CodedMaps, LargeMap, at, button, bytes, colour, colourTable, copyText, cross, css, fit, floats, headLine,
    isolate, make, moved, notice, numeric, ramp, save, scrolling, shorten, theme, triple, watchTheme, widest, written,
  };
})();
