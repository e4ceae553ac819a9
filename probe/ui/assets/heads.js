/* All heads at a glance, tables of heads that can be sorted, and the choice of the model. Every number comes from the
 * toolkit; here it is unpacked (ten bits a weight, the square root in 1022 steps), coloured and read out.
 */
(() => {
  "use strict";
  const {
    CodedMaps, FONT, LargeMap, WRONG, button, bytes, colour, colourTable, css, fit, headLine, isolate, make, moved, notice,
    numeric, ramp, scrolling, theme, watchTheme, written,
  } = window.attentionShared;
  const MAX_TILE = 112, MIN_TILE = 18, GAP = 3;
  let marked = null;     // the head that is chosen above
  let allHeads = null;   // the picture of all heads, once there is one

  /* ------------------------------------------------------------- all heads */

  class AllHeads {
    constructor(element, trigger) {
      this.element = element;
      this.trigger = trigger;
      new ResizeObserver(() => this.schedule()).observe(element);
      watchTheme(() => { if (this.maps) { this.paint(); this.draw(); } });
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
      for (const text of value.notices) box.append(notice(text));
      this.box = box;
      this.element.replaceChildren(box);
      if (!value.maps) { box.dataset.painted = value.stamp; return; }
      this.size = value.labels.length;
      this.maps = new CodedMaps(value.maps, this.size, this.size, value.triangle);
      this.masks = value.masked.map(bytes);   // one a layer, a bit a cell; none where every query sees every key
      this.readout = make("p", "hd-readout");
      this.readout.setAttribute("aria-live", "polite");
      this.all = this.canvas("All heads, a row for each layer. Arrow keys move the mark from head to head, Enter opens the head in Compare.");
      this.one = this.canvas("The marked head. Arrow keys move over the cells.");
      this.heading = make("h3", "");
      const open = button("pg-button", "Open in Compare", () => this.choose(this.marked, true));
      const bar = make("div", "pg-actions");
      bar.append(open);
      const left = make("div", "hd-all"), right = make("div", "hd-one"), both = make("div", "hd-both");
      this.left = left;
      this.right = right;
      const legend = make("div", "hd-legend");
      this.legend = legend;
      left.append(this.all, legend);
      right.append(this.heading, this.one, bar);
      both.append(left, right);
      box.append(this.readout, both);
      this.all.addEventListener("pointermove", (event) => this.point(event));
      this.all.addEventListener("pointerleave", () => this.say(this.marked, this.large.cell));
      this.all.addEventListener("click", (event) => {
        const found = this.find(event);
        if (found) this.choose(found.place, false);
      });
      this.all.addEventListener("keydown", (event) => this.walk(event));
      this.large = new LargeMap(this.one, () => Math.min(right.clientWidth - 2, 640), (cell) => this.say(this.marked, cell));
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

    masked(layer, row, col) {
      const bits = this.masks[layer], at = row * this.size + col;
      return Boolean(bits && (bits[at >> 3] >> (at & 7)) & 1);
    }

    /* Where no query may look nothing is painted. */
    paint() {
      const colours = colourTable(window.attentionPalette[theme()].weight);
      this.pictures = this.value.maps.map((_, index) => {
        const layer = Math.floor(index / this.value.heads);
        return this.maps.picture(index, colours, (row, col) => this.masked(layer, row, col));
      });
      const scale = make("i");
      scale.style.backgroundImage = ramp([0, 32, 64, 96, 128, 160, 192, 224, 255].map((i) => colours[i]));
      this.legend.replaceChildren(make("span", "", "weight 0"), scale,
        make("span", "", "1, by its square root: halfway is 0.25. A row for each query, a column for each key."));
      if (this.maps.broken.size) {
        const swatch = make("i", "hd-wrong");
        swatch.style.backgroundColor = css(WRONG);
        this.legend.append(swatch, "not a number");
      }
    }

    draw() {
      if (!this.maps || !this.left.clientWidth) return;
      this.drawAll();
      this.drawOne();
      this.box.dataset.painted = this.value.stamp;
    }

    drawAll() {
      const { layers, heads } = this.value;
      const left = 24, top = 20;
      const room = Math.floor((this.left.clientWidth - left - 2) / heads);
      const pitch = Math.max(MIN_TILE, Math.min(MAX_TILE, room));
      const tile = pitch - GAP;
      this.plan = { left, top, pitch, tile };
      const context = fit(this.all, left + pitch * heads + 2, top + pitch * layers + 2, `12px ${FONT}`);
      Object.assign(this.all.dataset, { left, top, pitch, tile });
      context.fillStyle = colour("faint");
      context.textBaseline = "middle";
      context.textAlign = "center";
      for (let head = 0; head < heads; head++) context.fillText(String(head), left + pitch * head + tile / 2, top / 2);
      context.textAlign = "right";
      for (let layer = 0; layer < layers; layer++) context.fillText(String(layer), left - 6, top + pitch * layer + tile / 2);
      context.strokeStyle = colour("line");
      context.imageSmoothingEnabled = tile < this.size;
      context.imageSmoothingQuality = "high";
      for (let layer = 0; layer < layers; layer++) {
        for (let head = 0; head < heads; head++) {
          const x = left + pitch * head, y = top + pitch * layer;
          context.drawImage(this.pictures[layer * heads + head], x, y, tile, tile);
          context.lineWidth = 1;
          context.strokeRect(x - 0.5, y - 0.5, tile + 1, tile + 1);
        }
      }
      context.strokeStyle = colour("mark");
      context.lineWidth = 3;
      context.strokeRect(left + pitch * this.marked.head - 1, top + pitch * this.marked.layer - 1, tile + 2, tile + 2);
    }

    drawOne() {
      const { layer, head } = this.marked, index = layer * this.value.heads + head;
      this.heading.textContent = `layer ${layer}, head ${head}`;
      this.large.show(this.maps, index, this.value.labels, this.value.labels, this.pictures[index]);
    }

    say(place, cell) {
      const weight = this.maps.said(place.layer * this.value.heads + place.head, cell.row, cell.col);
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

    walk(event) {
      const { layers, heads } = this.value;
      const to = moved(event.key, { row: this.marked.layer, col: this.marked.head }, layers, heads);
      if (!to && event.key !== "Enter") return;
      event.preventDefault();
      if (to) this.choose({ layer: to.row, head: to.col }, false);
      else this.choose(this.marked, true);
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
    const group = window.attentionParts.modelChoice("hd-models", value, trigger);
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

  /* Nothing to measure, words, or a number; what is no number comes in words where numbers are expected. */
  const cellText = (value, inWords) => {
    if (value === null) return "–";
    if (inWords) return isolate(value);
    return written(value, (number) =>
      (number !== 0 && Math.abs(number) < 5e-4 ? number.toExponential(1) : number.toFixed(3)).replace("-", "−"));
  };

  const order = (rows, column, down, inWords) => {
    const of = (row) => (column < 0 ? row.layer * 1e4 + row.head : inWords ? row.values[column] : numeric(row.values[column]));
    const last = (value) => Number(value === null || Number.isNaN(value));   // what could not be measured
    return [...rows].sort((one, other) => {
      const [a, b] = [of(one), of(other)];
      if (last(a) || last(b)) return last(a) - last(b);
      const difference = inWords ? a.localeCompare(b) : a === b ? 0 : a - b;
      return down ? -difference : difference;
    });
  };

  window.attentionKinds.ranking = (element, value, trigger) => {
    if (!value.columns) {
      element.replaceChildren();
      if (value.problem) {
        const problem = notice(value.problem);
        problem.dataset.painted = value.stamp;
        element.append(problem);
      }
      return;
    }
    const box = make("div", "hd-list");
    if (value.title) box.append(make("h2", "hd-heading", value.title));
    for (const line of value.lines) box.append(make("p", "af-remark", isolate(line)));
    const table = make("table", "hd-table"), body = make("tbody");
    const columns = [{ title: "head", about: "By layer, then by head." }, ...value.columns];
    let [column, down] = [value.sort, value.sort >= 0];
    const sorters = columns.map((described, i) => {
      const sorter = button("hd-sort", "", () => {
        if (column === i - 1) down = !down;
        else [column, down] = [i - 1, i > 0];
        fill();
      });
      sorter.title = described.about || "";
      return sorter;
    });
    const thead = headLine(...sorters);
    const fill = () => {
      sorters.forEach((sorter, i) => {
        const active = i - 1 === column, cell = sorter.parentElement;
        cell.classList.toggle("hd-words", Boolean(columns[i].words));
        sorter.textContent = isolate(columns[i].title) + (active ? (down ? " ↓" : " ↑") : "");
        if (active) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      body.replaceChildren(...order(value.rows, column, down, columns[column + 1].words).map((row) => {
        const here = make("tr", marked && marked.layer === row.layer && marked.head === row.head ? "hd-marked" : "");
        here.dataset.place = `${row.layer}.${row.head}`;
        const name = make("th", "");
        name.scope = "row";
        name.append(button("hd-head", `layer ${row.layer}, head ${row.head}`,
          () => trigger("select", { row: row.layer, col: row.head })));
        here.append(name, ...row.values.map((one, i) => {
          const inWords = Boolean(value.columns[i].words);
          return make("td", inWords ? "hd-words" : "pg-num", cellText(one, inWords));
        }));
        return here;
      }));
    };
    fill();
    table.append(thead, body);
    box.append(scrolling("pg-scroll", value.label, table));
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
