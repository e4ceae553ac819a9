/* All heads at a glance, tables of heads that can be sorted, and the choice of the model. Every number comes from the
 * toolkit; here it is unpacked (ten bits a weight, the square root in 1022 steps), coloured and read out.
 */
(() => {
  "use strict";
  const { make } = window.attentionParts;
  const isolate = window.attentionIsolate;
  const STEPS = 1022;
  const NOT_A_NUMBER = 1023;
  const FONT = '12px ui-sans-serif, system-ui, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", "Noto Sans Arabic", ' +
    '"Noto Color Emoji", sans-serif';
  const WRONG = [193, 18, 31];
  let marked = null;     // the head that is chosen above
  let allHeads = null;   // the picture of all heads, once there is one
  const MAX_TILE = 112, MIN_TILE = 18, GAP = 3;

  const theme = () => (document.body.classList.contains("dark") ||
    document.documentElement.classList.contains("dark") ? "dark" : "light");
  const colour = (name) => getComputedStyle(document.body.classList.contains("dark") ? document.body : document.documentElement)
    .getPropertyValue(`--af-${name}`).trim();

  const coloursOf = (name) => {
    const hex = window.attentionPalette[name].weight;
    return Array.from({ length: hex.length / 6 }, (_, i) => [0, 2, 4].map((at) => parseInt(hex.substr(6 * i + at, 2), 16)));
  };

  const bytesOf = (base64) => {
    const raw = atob(base64);
    const bytes = new Uint8Array(raw.length + 1);   // one more, so that every code spans two bytes
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  };

  const shorten = (context, text, room) => {
    if (context.measureText(text).width <= room) return text;
    const points = Array.from(text);
    while (points.length > 1 && context.measureText(points.join("") + "…").width > room) points.pop();
    return points.join("") + "…";
  };

  const fit = (canvas, width, height) => {
    const density = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(height * density);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(density, density);
    context.font = FONT;
    return context;
  };

  /* ------------------------------------------------------------- all heads */

  class AllHeads {
    constructor(element, trigger) {
      this.element = element;
      this.trigger = trigger;
      new ResizeObserver(() => this.schedule()).observe(element);
      new MutationObserver(() => { if (this.painted !== theme()) { this.paint(); this.draw(); } })
        .observe(document.body, { attributes: true, attributeFilter: ["class"] });
    }

    schedule() {
      if (this.frame) return;
      this.frame = requestAnimationFrame(() => { this.frame = null; this.draw(); });
    }

    show(value) {
      this.value = { ...value, labels: (value.labels || []).map(isolate) };
      this.maps = null;
      const box = make("section", "hd");
      box.append(make("h2", "hd-title", value.title));
      if (value.subtitle) box.append(make("p", "hd-sub", value.subtitle));
      for (const text of value.notices) {
        const notice = make("p", "af-notice", isolate(text));
        notice.setAttribute("role", "status");
        box.append(notice);
      }
      this.box = box;
      this.element.replaceChildren(box);
      if (!value.maps) { box.dataset.painted = value.stamp; return; }
      this.maps = value.maps.map(bytesOf);
      this.masks = value.masked.map(bytesOf);   // one a layer, a bit a cell; none where every query sees every key
      this.size = value.labels.length;
      this.cell = { row: 0, col: 0 };
      this.readout = make("p", "hd-readout");
      this.readout.setAttribute("aria-live", "polite");
      this.all = this.canvas("All heads, a row for each layer. Arrow keys move the mark from head to head, Enter opens the head in Compare.");
      this.one = this.canvas("The marked head. Arrow keys move over the cells.");
      this.heading = make("h3", "");
      const open = make("button", "pg-button", "Open in Compare");
      open.type = "button";
      open.addEventListener("click", () => this.choose(this.marked, true));
      const bar = make("div", "pg-actions");
      bar.append(open);
      const left = make("div", "hd-all"), right = make("div", "hd-one"), both = make("div", "hd-both");
      this.left = left;
      this.right = right;
      const legend = make("div", "hd-legend");
      this.ramp = make("i", "");
      legend.append(make("span", "", "weight 0"), this.ramp,
        make("span", "", "1, by its square root: halfway is 0.25. A row for each query, a column for each key."));
      left.append(this.all, legend);
      right.append(this.heading, this.one, bar);
      both.append(left, right);
      box.append(this.readout, both);
      this.all.addEventListener("pointermove", (event) => this.point(event));
      this.all.addEventListener("pointerleave", () => this.say(this.marked, this.cell));
      this.all.addEventListener("click", (event) => {
        const found = this.find(event);
        if (found) this.choose(found.place, false);
      });
      this.all.addEventListener("keydown", (event) => this.walk(event));
      this.one.addEventListener("pointermove", (event) => this.pointOne(event));
      this.one.addEventListener("click", (event) => this.pointOne(event));
      this.one.addEventListener("keydown", (event) => this.step(event));
      this.marked = { layer: 0, head: 0 };
      this.paint();
      this.mark(marked || this.marked);
    }

    canvas(label) {
      const canvas = make("canvas", "");
      canvas.tabIndex = 0;
      canvas.setAttribute("role", "application");
      canvas.setAttribute("aria-label", label);
      return canvas;
    }

    codeAt(index, row, col) {
      if (this.value.triangle && col > row) return 0;
      const bit = 10 * (this.value.triangle ? (row * (row + 1)) / 2 + col : row * this.size + col);
      const bytes = this.maps[index];
      return ((bytes[bit >> 3] | (bytes[(bit >> 3) + 1] << 8)) >> (bit & 7)) & 1023;
    }

    masked(layer, row, col) {
      const bits = this.masks[layer], at = row * this.size + col;
      return Boolean(bits && (bits[at >> 3] >> (at & 7)) & 1);
    }

    /* One pixel a cell for each head; where no query may look nothing is painted. */
    paint() {
      if (!this.maps) return;
      this.painted = theme();
      const colours = coloursOf(this.painted);
      const shade = Array.from({ length: STEPS + 2 }, (_, code) =>
        (code === NOT_A_NUMBER ? WRONG : colours[Math.round((code / STEPS) * (colours.length - 1))]));
      this.ramp.style.backgroundImage = `linear-gradient(to right, ${[0, 32, 64, 96, 128, 160, 192, 224, 255]
        .map((i) => `rgb(${colours[i].join(",")})`).join(",")})`;
      this.pictures = this.maps.map((_, index) => {
        const layer = Math.floor(index / this.value.heads);
        const canvas = document.createElement("canvas");
        canvas.width = canvas.height = this.size;
        const pixels = new ImageData(this.size, this.size);
        for (let row = 0; row < this.size; row++) {
          for (let col = 0, at = 4 * row * this.size; col < this.size; col++, at += 4) {
            const code = this.codeAt(index, row, col);
            if (code === 0 && this.masked(layer, row, col)) continue;
            const rgb = shade[code];
            pixels.data[at] = rgb[0];
            pixels.data[at + 1] = rgb[1];
            pixels.data[at + 2] = rgb[2];
            pixels.data[at + 3] = 255;
          }
        }
        canvas.getContext("2d").putImageData(pixels, 0, 0);
        return canvas;
      });
    }

    draw() {
      if (!this.maps || !this.left.clientWidth) return;
      this.drawAll();
      this.drawOne();
      this.box.dataset.painted = this.value.stamp;
    }

    picture(context, index, left, top, size) {
      context.imageSmoothingEnabled = size < this.size;
      context.imageSmoothingQuality = "high";
      context.drawImage(this.pictures[index], left, top, size, size);
    }

    drawAll() {
      const { layers, heads } = this.value;
      const left = 24, top = 20;
      const room = Math.floor((this.left.clientWidth - left - 2) / heads);
      const pitch = Math.max(MIN_TILE, Math.min(MAX_TILE, room));
      const tile = pitch - GAP;
      this.plan = { left, top, pitch, tile };
      const context = fit(this.all, left + pitch * heads + 2, top + pitch * layers + 2);
      Object.assign(this.all.dataset, { left, top, pitch, tile });
      context.fillStyle = colour("faint");
      context.textBaseline = "middle";
      context.textAlign = "center";
      for (let head = 0; head < heads; head++) context.fillText(String(head), left + pitch * head + tile / 2, top / 2);
      context.textAlign = "right";
      for (let layer = 0; layer < layers; layer++) context.fillText(String(layer), left - 6, top + pitch * layer + tile / 2);
      context.strokeStyle = colour("line");
      for (let layer = 0; layer < layers; layer++) {
        for (let head = 0; head < heads; head++) {
          const x = left + pitch * head, y = top + pitch * layer;
          this.picture(context, layer * heads + head, x, y, tile);
          context.lineWidth = 1;
          context.strokeRect(x - 0.5, y - 0.5, tile + 1, tile + 1);
        }
      }
      context.strokeStyle = "#c2620a";
      context.lineWidth = 3;
      context.strokeRect(left + pitch * this.marked.head - 1, top + pitch * this.marked.layer - 1, tile + 2, tile + 2);
    }

    drawOne() {
      const context = this.one.getContext("2d");
      context.font = FONT;
      const labels = this.value.labels;
      const room = Math.min(this.right.clientWidth - 2, 640);
      const widest = Math.min(110, Math.max(...labels.map((label) => context.measureText(label).width)));
      let left = Math.ceil(widest) + 8, top = left;
      let size = Math.floor((room - left - 2) / this.size);
      const labelled = size >= 12;
      if (!labelled) {
        left = top = 2;
        size = Math.max(1, Math.floor((room - 4) / this.size));
      }
      size = Math.min(size, 36);
      this.large = { left, top, size };
      const drawn = fit(this.one, left + size * this.size + 2, top + size * this.size + 2);
      Object.assign(this.one.dataset, { left, top, cell: size });
      const { layer, head } = this.marked;
      this.heading.textContent = `layer ${layer}, head ${head}`;
      this.picture(drawn, layer * this.value.heads + head, left, top, size * this.size);
      drawn.strokeStyle = colour("line");
      drawn.strokeRect(left - 0.5, top - 0.5, size * this.size + 1, size * this.size + 1);
      if (labelled) {
        drawn.fillStyle = colour("ink");
        drawn.textBaseline = "middle";
        labels.forEach((label, i) => {
          const text = shorten(drawn, label, widest);
          drawn.textAlign = "right";
          drawn.fillText(text, left - 5, top + size * (i + 0.5));
          drawn.save();
          drawn.translate(left + size * (i + 0.5), top - 5);
          drawn.rotate(-Math.PI / 2);
          drawn.textAlign = "left";
          drawn.fillText(text, 0, 0);
          drawn.restore();
        });
      }
      drawn.strokeStyle = "#c2620a";
      drawn.lineWidth = 2;
      drawn.strokeRect(left + size * this.cell.col - 0.5, top + size * this.cell.row - 0.5, size + 1, size + 1);
      this.say(this.marked, this.cell);
    }

    say(place, cell) {
      const code = this.codeAt(place.layer * this.value.heads + place.head, cell.row, cell.col);
      const weight = code === NOT_A_NUMBER ? "not a number" : ((code / STEPS) ** 2).toFixed(5);
      const labels = this.value.labels;
      this.readout.replaceChildren(`layer ${place.layer}, head ${place.head} · query ${labels[cell.row]} → key ${labels[cell.col]}: `,
        make("b", "", weight), this.masked(place.layer, cell.row, cell.col) ? " (masked)" : "");
    }

    find(event) {
      const box = this.all.getBoundingClientRect();
      const { left, top, pitch, tile } = this.plan;
      const x = event.clientX - box.left - left, y = event.clientY - box.top - top;
      const head = Math.floor(x / pitch), layer = Math.floor(y / pitch);
      if (head < 0 || layer < 0 || head >= this.value.heads || layer >= this.value.layers) return null;
      const within = (offset) => Math.min(this.size - 1, Math.max(0, Math.floor((offset / tile) * this.size)));
      return { place: { layer, head }, cell: { row: within(y - layer * pitch), col: within(x - head * pitch) } };
    }

    point(event) {
      const found = this.find(event);
      if (found) this.say(found.place, found.cell);
    }

    pointOne(event) {
      const box = this.one.getBoundingClientRect();
      const { left, top, size } = this.large;
      const col = Math.floor((event.clientX - box.left - left) / size), row = Math.floor((event.clientY - box.top - top) / size);
      if (row < 0 || col < 0 || row >= this.size || col >= this.size) return;
      if (row === this.cell.row && col === this.cell.col) return;
      this.cell = { row, col };
      this.drawOne();
    }

    walk(event) {
      if (event.key === "Enter") { event.preventDefault(); this.choose(this.marked, true); return; }
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      const layer = Math.max(0, Math.min(this.value.layers - 1, this.marked.layer + step[0]));
      const head = Math.max(0, Math.min(this.value.heads - 1, this.marked.head + step[1]));
      this.choose({ layer, head }, false);
    }

    step(event) {
      const last = this.size - 1, { row, col } = this.cell;
      const place = {
        ArrowLeft: [row, col - 1], ArrowRight: [row, col + 1], ArrowUp: [row - 1, col], ArrowDown: [row + 1, col],
        Home: [row, 0], End: [row, last], PageUp: [0, col], PageDown: [last, col],
      }[event.key];
      if (!place) return;
      event.preventDefault();
      this.cell = { row: Math.max(0, Math.min(last, place[0])), col: Math.max(0, Math.min(last, place[1])) };
      this.drawOne();
    }

    choose(place, open) {
      this.mark(place);
      this.trigger("select", { row: place.layer, col: place.head, open });
    }

    /* Marks a head, if these maps have it: those of another model may be on their way. */
    mark(place) {
      if (!this.maps || place.layer >= this.value.layers || place.head >= this.value.heads) return;
      this.marked = { layer: place.layer, head: place.head };
      this.draw();
    }
  }

  window.attentionKinds.heads = (element, value, trigger) => {
    if (!allHeads || allHeads.element !== element) allHeads = new AllHeads(element, trigger);
    allHeads.show(value);
  };

  /* ------------------------------------------------------------- one of the two models, and its chosen head */

  const markHead = (layer, head) => {
    marked = { layer, head };
    if (allHeads) allHeads.mark(marked);
    for (const row of document.querySelectorAll(".hd-table tbody tr")) {
      row.classList.toggle("hd-marked", row.dataset.place === `${layer}.${head}`);
    }
  };

  window.attentionKinds.models = (element, value, trigger) => {
    const group = make("div", "hd-models");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Model");
    value.names.forEach((name, slot) => {
      const button = make("button", "pg-button", name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(slot === value.slot));
      button.addEventListener("click", () => trigger("select", { slot }));
      group.append(button);
    });
    const focused = element.contains(document.activeElement);
    element.replaceChildren(group);
    if (focused) group.children[value.slot].focus();
    markHead(value.layer, value.head);
  };

  window.attentionKinds.progress = (element, value) => {
    const line = make("p", "hd-progress", isolate(value.text));
    line.setAttribute("role", "status");
    line.dataset.painted = value.stamp;
    element.replaceChildren(line);
  };

  /* ------------------------------------------------------------- tables of heads */

  const written = (value) => {
    if (value === null) return "–";
    if (typeof value === "string") return isolate(value);
    return (value !== 0 && Math.abs(value) < 5e-4 ? value.toExponential(1) : value.toFixed(3)).replace("-", "−");
  };

  const order = (rows, column, down) => {
    const of = (row) => (column < 0 ? row.layer * 1e4 + row.head : row.values[column]);
    return [...rows].sort((one, other) => {
      const [a, b] = [of(one), of(other)];
      if (a === null || b === null) return (a === null) - (b === null);   // what could not be measured comes last
      const difference = typeof a === "string" ? a.localeCompare(b) : a - b;
      return down ? -difference : difference;
    });
  };

  window.attentionKinds.ranking = (element, value, trigger) => {
    if (!value.columns) {
      element.replaceChildren();
      if (value.problem) {
        const notice = make("p", "af-notice", isolate(value.problem));
        notice.setAttribute("role", "status");
        notice.dataset.painted = value.stamp;
        element.append(notice);
      }
      return;
    }
    const box = make("div", "hd-list");
    if (value.title) box.append(make("h2", "hd-heading", value.title));
    for (const line of value.lines) box.append(make("p", "af-remark", isolate(line)));
    const scroll = make("div", "pg-scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", value.label);
    const table = make("table", "hd-table");
    const line = make("tr"), thead = make("thead"), body = make("tbody");
    const columns = [{ title: "head", about: "By layer, then by head." }, ...value.columns];
    let [column, down] = [value.sort, value.sort >= 0];
    const cells = columns.map((described, i) => {
      const cell = make("th", described.words ? "hd-words" : "");
      cell.scope = "col";
      const button = make("button", "hd-sort");
      button.type = "button";
      button.title = described.about || "";
      button.addEventListener("click", () => {
        if (column === i - 1) down = !down;
        else [column, down] = [i - 1, i > 0];
        fill();
      });
      cell.append(button);
      line.append(cell);
      return { cell, button, title: isolate(described.title) };
    });
    const fill = () => {
      cells.forEach(({ cell, button, title }, i) => {
        const active = i - 1 === column;
        button.textContent = title + (active ? (down ? " ↓" : " ↑") : "");
        if (active) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      body.replaceChildren(...order(value.rows, column, down).map((row) => {
        const here = make("tr", marked && marked.layer === row.layer && marked.head === row.head ? "hd-marked" : "");
        here.dataset.place = `${row.layer}.${row.head}`;
        const name = make("th", ""), button = make("button", "hd-head", `layer ${row.layer}, head ${row.head}`);
        name.scope = "row";
        button.type = "button";
        button.addEventListener("click", () => trigger("select", { row: row.layer, col: row.head }));
        name.append(button);
        here.append(name, ...row.values.map((number, i) =>
          make("td", value.columns[i].words ? "hd-words" : "pg-num", written(number))));
        return here;
      }));
    };
    fill();
    thead.append(line);
    table.append(thead, body);
    scroll.append(table);
    box.append(scroll);
    if (value.columns.some((described) => described.source)) {
      const details = make("details", "");
      details.append(make("summary", "", "What the columns mean, and where they come from"));
      const list = make("dl", "hd-about");
      for (const described of value.columns) {
        list.append(make("dt", "", described.title), make("dd", "", described.about), make("dd", "hd-source", described.source));
      }
      details.append(list);
      box.append(details);
    }
    element.replaceChildren(box);
    box.dataset.painted = value.stamp;
  };
})();
