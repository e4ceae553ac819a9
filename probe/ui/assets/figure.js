/* Draws the figures of the page: a strip of tokens and one or more heatmaps that share their rows and columns.
 *
 * A figure is described by plain data (see probe/ui/figure.py). Nothing here computes attention: it decodes numbers,
 * colours them and reads them out. Text from outside reaches the page through textContent and fillText only.
 */
(() => {
  "use strict";

  const {
    FONT, WRONG, at, button, bytes, colourTable, cross, css, fit, floats, isolate, make, moved, notice, ramp,
    shorten, theme, triple, watchTheme, widest, written,
  } = window.attentionShared;
  const MAX_CELL = 44;
  const MAX_LABEL = 104;
  const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

  const power = (exponent) => {
    const digits = String(Math.abs(exponent)).split("").map((digit) => SUPERSCRIPT[Number(digit)]).join("");
    return "10" + (exponent < 0 ? "⁻" : "") + digits;
  };

  const number = (kind, given) => written(given, (value) => {
    if (kind === "mask") return value ? "may attend" : "may not attend";
    if (kind === "difference") return value === 0 ? "exactly 0" : value.toExponential(3);
    if (value === 0) return "0";
    if (kind === "change") return (value > 0 ? "+" : "−") + number("weight", Math.abs(value));
    return Math.abs(value) < 1e-3 ? value.toExponential(4) : value.toFixed(6);
  });

  /* ---------------------------------------------------------------- colours */

  const tables = {};
  const table = (name, scale) => tables[`${name}/${scale}`] ??= colourTable(window.attentionPalette[name][scale]);
  const flat = (name, which) => triple(window.attentionPalette[name][which], 1);

  const colourOf = (panel, value, name) => {
    if (!Number.isFinite(value)) return WRONG;
    if (panel.kind === "mask") return flat(name, value ? "allowed" : "forbidden");
    if (panel.kind === "change") return at(table(name, value < 0 ? "lost" : "gained"), Math.abs(value));
    if (panel.kind === "difference") {
      if (value === 0) return flat(name, "zero");
      const low = Math.log10(panel.lo), high = Math.log10(panel.hi);
      return at(table(name, "difference"), (Math.log10(value) - low) / (high - low));
    }
    return at(table(name, "weight"), (value - panel.lo) / (panel.hi - panel.lo));
  };

  const readable = (rgb) => {
    const [r, g, b] = rgb.map((channel) => {
      const c = channel / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#10151a" : "#ffffff";
  };

  /* A figure's texts for showing: words from right to left keep to themselves. */
  const forShowing = (value) => {
    if (!value || !value.panels || !value.panels.length) return value;
    const axis = (described) => ({ ...described, labels: described.labels.map(isolate) });
    return {
      ...value, row: axis(value.row), col: axis(value.col), label: isolate(value.label),
      subtitle: isolate(value.subtitle), remarks: value.remarks.map(isolate),
    };
  };

  /* ------------------------------------------------------------------ figure */

  class Figure {
    constructor(element, props, trigger) {
      this.element = element;
      this.props = props;
      this.trigger = trigger;
      this.current = null;   // {row, col} under the pointer or the keyboard, as shown
      this.pinned = null;    // {row, col} chosen by click or Enter, as shown; col may be null
      this.root = make("section", "af");
      element.replaceChildren(this.root);
      this.observer = new ResizeObserver(() => this.schedule());
      this.observer.observe(this.root);
      watchTheme(() => this.recolour());
      this.show();
    }

    schedule() {
      if (this.frame) return;
      this.frame = requestAnimationFrame(() => { this.frame = null; this.draw(); });
    }

    recolour() {
      for (const panel of this.panels || []) this.buildBar(panel);
      this.shadeStrip();
      this.schedule();
    }

    /* ---- structure, rebuilt for each new value */

    show() {
      const value = forShowing(this.props.value);
      this.root.replaceChildren();
      this.panels = [];
      this.chips = null;
      this.value = value;
      delete this.root.dataset.painted;
      if (!value || !value.title) { this.root.hidden = true; return; }
      this.root.hidden = false;
      this.current = null;
      this.pinned = null;
      const head = make("header", "af-head");
      head.append(make("h2", "af-title", value.title));
      if (value.badge) head.append(make("span", "af-badge af-" + value.badge.kind, value.badge.text));
      if (value.panels.length) head.append(this.saving(value));
      if (value.subtitle) head.append(make("p", "af-subtitle", value.subtitle));
      this.root.append(head);
      if (value.notice) {
        this.root.append(notice(value.notice));
        this.root.dataset.painted = value.stamp;
        if (!value.panels.length) return;
      }
      this.rows = value.row.labels.length;
      this.cols = value.col.labels.length;
      if (value.selected) {
        const row = value.row.index.indexOf(value.selected.row);
        const col = value.col.index.indexOf(value.selected.col);
        if (row >= 0) this.pinned = { row, col: col >= 0 ? col : null };
      }
      if (value.strip) this.buildStrip(value);
      for (const remark of value.remarks) this.root.append(make("p", "af-remark", remark));
      this.readout = make("p", "af-readout");
      this.root.append(this.readout);
      this.field = make("div", "af-panels");
      this.field.tabIndex = 0;
      this.field.setAttribute("role", "application");
      this.field.setAttribute("aria-roledescription", "heatmap");
      this.field.setAttribute("aria-label", value.label +
        " Arrow keys move over the cells, Enter chooses one, Escape goes back.");
      this.field.addEventListener("keydown", (event) => this.key(event));
      this.field.addEventListener("blur", () => this.move(null));
      this.root.append(this.field);
      for (const described of value.panels) this.panels.push(this.buildPanel(described));
      this.live = make("p", "af-hidden");
      this.live.setAttribute("aria-live", "polite");
      this.tip = make("div", "af-tip");
      this.tip.setAttribute("aria-hidden", "true");
      this.root.append(this.live, this.tip);
      this.readOut();
      this.shadeStrip();
      this.schedule();
    }

    /* The files that this figure can be had as: the list of downloads asks for them. */
    saving(value) {
      const box = make("span", "af-save");
      box.append(make("span", "", "Download"));
      for (const format of value.download.formats) {
        const detail = { key: value.download.key, format };
        const chosen = button("pg-button", format.toUpperCase(), () =>
          document.dispatchEvent(new CustomEvent("attention-download", { detail })));
        chosen.setAttribute("aria-label", `Download ${value.title} as ${format.toUpperCase()}`);
        box.append(chosen);
      }
      return box;
    }

    buildPanel(described) {
      const panel = { ...described, values: floats(described.data) };
      panel.masked = described.masked ? bytes(described.masked) : null;
      panel.cols = panel.kind === "bars" ? 1 : this.cols;
      panel.node = make("figure", "af-panel af-kind-" + panel.kind);
      const caption = make("figcaption");
      caption.append(make("span", "af-panel-title", panel.title));
      if (panel.note) caption.append(make("span", "af-panel-note", panel.note));
      panel.stage = make("div", "af-stage");
      panel.base = make("canvas", "af-base");
      panel.over = make("canvas", "af-over");
      panel.stage.append(panel.base, panel.over);
      panel.bar = make("div", "af-bar");
      panel.node.append(caption, panel.stage, panel.bar);
      this.field.append(panel.node);
      this.buildBar(panel);
      panel.over.addEventListener("pointermove", (event) => {
        if (event.pointerType === "mouse" || event.pointerType === "pen") this.move(this.cell(panel, event), event);
      });
      panel.over.addEventListener("pointerleave", () => this.move(null));
      panel.over.addEventListener("click", (event) => {
        const cell = this.cell(panel, event);
        if (cell) { this.move(cell, event); this.choose(cell); }
      });
      return panel;
    }

    buildBar(panel) {
      const name = theme();
      panel.bar.replaceChildren();
      const swatch = (colour, text, kind = "") => {
        const item = make("span", "af-swatch");
        const box = make("i", kind);
        box.style.backgroundColor = css(colour);
        item.append(box, make("span", "", text));
        panel.bar.append(item);
      };
      if (panel.kind === "mask") {
        swatch(flat(name, "allowed"), "may attend");
        swatch(flat(name, "forbidden"), "may not");
      } else if (panel.kind !== "bars") {
        if (panel.kind === "difference") swatch(flat(name, "zero"), "exactly 0");
        const scale = make("span", "af-scale");
        const colours = make("i");
        colours.style.backgroundImage = ramp(Array.from({ length: 17 }, (_, i) => this.rampColour(panel, i / 16, name)));
        const ticks = make("span", "af-ticks");
        for (const label of this.barLabels(panel)) ticks.append(make("span", "", label));
        scale.append(colours, ticks);
        panel.bar.append(scale);
        if (panel.masked) swatch(flat(name, "masked"), "masked", "af-hatched");
      }
      if (panel.values.some(Number.isNaN)) swatch(WRONG, "not a number", "af-crossed");
      else if (!panel.values.every(Number.isFinite)) swatch(WRONG, "infinite", "af-crossed");
    }

    rampColour(panel, share, name) {
      return panel.kind === "change" ? colourOf(panel, 2 * share - 1, name) : at(table(name, panel.kind), share);
    }

    barLabels(panel) {
      if (panel.kind === "change") return ["−1", "0", "+1"];
      if (panel.kind === "weight") {
        const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => panel.lo + share * (panel.hi - panel.lo));
        return marks.map((mark) => String(Number(mark.toPrecision(3))));
      }
      const low = Math.round(Math.log10(panel.lo)), high = Math.round(Math.log10(panel.hi));
      const step = Math.max(1, Math.ceil((high - low) / 5));
      const labels = [];
      for (let exponent = low; exponent <= high; exponent += step) labels.push(power(exponent));
      return labels;
    }

    /* ---- the sentence: the text itself, and its tokens as a choice of the query */

    buildStrip(value) {
      const strip = make("div", "af-strip");
      this.letters = [];
      if (value.strip.text) {
        const points = Array.from(value.strip.text);   // spans count code points; JavaScript strings count UTF-16 units
        const cuts = new Set([0, points.length]);
        for (const [start, end] of value.strip.spans) { cuts.add(start); cuts.add(end); }
        const edges = [...cuts].filter((cut) => cut >= 0 && cut <= points.length).sort((a, b) => a - b);
        const line = make("p", "af-text");
        line.setAttribute("dir", "auto");
        for (let i = 0; i + 1 < edges.length; i++) {
          const [start, end] = [edges[i], edges[i + 1]];
          const piece = make("span", "", points.slice(start, end).join(""));
          const owner = value.strip.spans.findIndex((span) => span[0] <= start && end <= span[1]);
          if (owner >= 0) {
            piece.addEventListener("pointerenter", () => this.move({ row: owner, col: null }));
            piece.addEventListener("pointerleave", () => this.move(null));
            piece.addEventListener("click", () => this.choose({ row: owner, col: null }));
          }
          this.letters.push({ start, end, node: piece });
          line.append(piece);
        }
        strip.append(line);
      }
      const group = make("div", "af-chips");
      group.setAttribute("role", "radiogroup");
      group.setAttribute("aria-label", "Query token");
      this.chips = value.row.labels.map((label, i) => {
        const chip = button("af-chip" + (value.strip.special[i] ? " af-special" : ""));
        chip.setAttribute("role", "radio");
        chip.append(make("span", "", label), make("sub", "", String(value.row.index[i])));
        chip.addEventListener("pointerenter", () => this.move({ row: i, col: null }));
        chip.addEventListener("pointerleave", () => this.move(null));
        chip.addEventListener("click", () => this.choose({ row: i, col: null }));
        chip.addEventListener("keydown", (event) => {
          const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
          if (!step) return;
          event.preventDefault();
          const next = (i + step + this.rows) % this.rows;
          this.choose({ row: next, col: null });
          this.chips[next].focus();
        });
        group.append(chip);
        return chip;
      });
      this.keyChips = this.chips;
      strip.append(group);
      if (value.strip.keys) {
        // The keys are other tokens: a line of their own, shaded by the weights of the chosen query.
        const keys = make("div", "af-chips");
        this.keyChips = value.col.labels.map((label, i) => {
          const chip = make("span", "af-chip af-read" + (value.strip.keys.special[i] ? " af-special" : ""));
          chip.append(make("span", "", label), make("sub", "", String(value.col.index[i])));
          keys.append(chip);
          return chip;
        });
        strip.append(make("p", "af-faint", "looks at"), keys);
      }
      this.root.append(strip);
    }

    /* A long text scrolls in its own box: the keyboard must reach it, and the chosen token be in sight. */
    reveal() {
      if (!this.chips) return;
      const line = this.root.querySelector(".af-text");
      if (line) {
        if (line.scrollHeight > line.clientHeight) line.tabIndex = 0;
        else line.removeAttribute("tabindex");
      }
      const chip = this.pinned ? this.chips[this.pinned.row] : null;
      if (!chip) return;
      const box = chip.parentElement;
      const top = chip.offsetTop - box.offsetTop;
      if (top < box.scrollTop || top + chip.offsetHeight > box.scrollTop + box.clientHeight) {
        box.scrollTop = top - box.clientHeight / 2;
      }
    }

    shadeStrip() {
      if (!this.value || !this.value.strip || !this.panels.length) return;
      const active = this.current || this.pinned;
      const shades = this.panels.find((panel) => panel.kind === "weight");
      const name = theme();
      this.chips.forEach((chip, i) => {
        const chosen = this.pinned ? this.pinned.row === i : false;
        chip.setAttribute("aria-checked", String(chosen));
        chip.tabIndex = chosen || (!this.pinned && i === 0) ? 0 : -1;
        chip.classList.toggle("af-query", Boolean(active) && active.row === i);
      });
      this.keyChips.forEach((chip, i) => {
        chip.classList.toggle("af-key", Boolean(active) && active.col === i);
        if (active && shades) {
          const colour = colourOf(shades, shades.values[active.row * this.cols + i], name);
          chip.style.backgroundColor = css(colour);
          chip.style.color = readable(colour);
        } else {
          chip.style.backgroundColor = chip.style.color = "";
        }
      });
      const span = active ? this.value.strip.spans[active.row] : null;
      const keySpan = active && active.col !== null ? this.value.strip.spans[active.col] : null;
      const inside = (letter, range) => Boolean(range) && range[0] <= letter.start && letter.end <= range[1] &&
        letter.end > letter.start;
      for (const letter of this.letters) {
        letter.node.classList.toggle("af-query", inside(letter, span));
        letter.node.classList.toggle("af-key", inside(letter, keySpan));
      }
    }

    /* ---- reading out */

    words(parent, name, label, index) {
      parent.append(name + " ", make("b", "af-token", label));
      if (label !== String(index) || this.value.strip) parent.append(make("sub", "", String(index)));
    }

    readOut() {
      const value = this.value;
      const active = this.current || this.pinned;
      this.readout.replaceChildren();
      if (!active) {
        this.readout.append(make("span", "af-faint", "Point at a cell to read its number."));
        return;
      }
      const where = make("span", "af-where");
      this.words(where, value.row.name, value.row.labels[active.row], value.row.index[active.row]);
      if (active.col !== null) {
        where.append(value.row.name === "query" ? " → " : ", ");
        this.words(where, value.col.name, value.col.labels[active.col], value.col.index[active.col]);
      }
      this.readout.append(where);
      if (active.col !== null) {
        for (const panel of this.panels) {
          const place = panel.cols === 1 ? active.row : active.row * this.cols + active.col;
          const item = make("span", "af-number");
          item.append(panel.short + " ", make("b", "", number(panel.kind, panel.values[place])));
          this.readout.append(item);
        }
      } else {
        const panel = this.panels.find((candidate) => candidate.kind === "weight");
        if (panel) {
          const row = Array.from(panel.values.subarray(active.row * this.cols, (active.row + 1) * this.cols));
          const order = row.map((_, i) => i).filter((i) => row[i] > 0).sort((a, b) => row[b] - row[a]).slice(0, 3);
          if (row.some(Number.isNaN)) this.readout.append(make("span", "af-number", "not a number"));
          if (order.length) this.readout.append(make("span", "af-faint", "looks most at"));
          for (const i of order) {
            const item = make("span", "af-number");
            item.append(make("b", "af-token", value.col.labels[i]), make("sub", "", String(value.col.index[i])),
              " " + number("weight", row[i]));
            this.readout.append(item);
          }
        }
      }
      if (value.hidden) {
        this.readout.append(make("span", "af-faint",
          "hidden special tokens hold " + number("weight", floats(value.hidden)[active.row])));
      }
    }

    move(cell, event) {
      const same = this.current && cell && this.current.row === cell.row && this.current.col === cell.col;
      this.current = cell;
      if (!same) {
        this.readOut();
        this.shadeStrip();
        for (const panel of this.panels) this.drawOver(panel);
      }
      if (!this.tip) return;
      if (!cell || cell.col === null || !event || event.pointerType !== "mouse") {
        this.tip.classList.remove("af-on");
        return;
      }
      this.tip.replaceChildren(...Array.from(this.readout.childNodes, (node) => node.cloneNode(true)));
      this.tip.classList.add("af-on");
      const frame = this.root.getBoundingClientRect();
      const size = this.tip.getBoundingClientRect();
      const left = Math.min(event.clientX - frame.left + 16, frame.width - size.width - 4);
      const above = event.clientY - frame.top - size.height - 14;
      this.tip.style.left = Math.max(4, left) + "px";
      this.tip.style.top = (above > 0 ? above : event.clientY - frame.top + 20) + "px";
    }

    choose(cell) {
      this.pinned = cell;
      this.current = null;
      this.readOut();
      this.shadeStrip();
      for (const panel of this.panels) this.drawOver(panel);
      this.trigger("select", {
        row: this.value.row.index[cell.row],
        col: cell.col === null ? null : this.value.col.index[cell.col],
      });
    }

    key(event) {
      if (event.target !== this.field) return;
      const start = this.current || this.pinned || { row: 0, col: 0 };
      const place = { row: start.row, col: start.col === null ? 0 : start.col };
      const next = moved(event.key, place, this.rows, this.cols);
      if (next) {
        const first = !this.current && !(this.pinned && this.pinned.col !== null);
        this.move(first ? place : next);
      } else if (event.key === "Enter" || event.key === " ") {
        this.choose(place);
      } else if (event.key === "Escape") {
        this.move(null);
      } else {
        return;
      }
      event.preventDefault();
      this.live.textContent = Array.from(this.readout.children, (node) => node.textContent).join(", ");
    }

    cell(panel, event) {
      if (!panel.plan) return null;
      const box = panel.over.getBoundingClientRect();
      const { left, top, cell, wide } = panel.plan;
      const row = Math.floor((event.clientY - box.top - top) / cell);
      const col = panel.cols === 1 ? 0 : Math.floor((event.clientX - box.left - left) / wide);
      if (row < 0 || row >= this.rows || col < 0 || col >= panel.cols || event.clientX < box.left + left) return null;
      return { row, col: panel.cols === 1 && this.cols !== 1 ? null : col };
    }

    /* ---- drawing */

    plan(panel) {
      const width = Math.floor(panel.stage.clientWidth);
      const context = panel.base.getContext("2d");
      const size = width < 300 ? 11 : 12;
      context.font = `${size}px ${FONT}`;
      const { row, col } = this.value;
      const limit = Math.min(MAX_LABEL, width * 0.27);
      const rowLabel = widest(context, row.labels, limit);
      const left = Math.ceil(rowLabel + 8 + size + 8);
      const bars = panel.kind === "bars";
      const room = width - left - (bars ? 4 : 10);
      const shown = bars ? this.cols : panel.cols;
      let cell = Math.min(MAX_CELL, room / Math.max(shown, 1), 900 / Math.max(this.rows, 1));
      if (cell >= 4) cell = Math.floor(cell);
      const colLimit = Math.min(MAX_LABEL, limit + 8);
      const colLabel = bars ? 0 : widest(context, col.labels, colLimit);
      const upright = colLabel + 4 <= cell;
      const drop = bars ? 0 : upright ? size + 6 : Math.ceil(colLabel * Math.SQRT1_2 + size * 0.7 + 6);
      const top = 8;
      const bottom = top + cell * this.rows;
      return {
        width, size, left, top, cell, wide: bars ? room : cell, rowLabel, colLabel, upright, bottom,
        height: Math.ceil(bottom + drop + (bars ? 4 : size + 8)), drop,
      };
    }

    prepare(canvas, plan) {
      return fit(canvas, plan.width, plan.height, `${plan.size}px ${FONT}`);
    }

    draw() {
      if (!this.panels.length || !this.root.clientWidth) return;
      const style = getComputedStyle(this.root);
      this.ink = style.getPropertyValue("--af-ink").trim() || style.color;
      this.faint = style.getPropertyValue("--af-faint").trim() || style.color;
      this.surface = style.getPropertyValue("--af-surface").trim() || "#fff";
      this.accent = style.getPropertyValue("--af-accent").trim() || "#06c";
      this.onAccent = style.getPropertyValue("--af-on-accent").trim() || "#fff";
      this.reveal();
      for (const panel of this.panels) this.drawBase(panel);
      for (const panel of this.panels) this.drawOver(panel);
      this.root.dataset.painted = this.value.stamp;
    }

    drawBase(panel) {
      const plan = panel.plan = this.plan(panel);
      const context = this.prepare(panel.base, plan);
      Object.assign(panel.over.dataset, {
        left: plan.left, top: plan.top, cell: plan.cell, rows: this.rows, cols: panel.cols,
      });
      if (panel.kind === "bars") this.drawBars(context, panel, plan);
      else this.drawCells(context, panel, plan);
      this.drawLabels(context, panel, plan);
    }

    drawCells(context, panel, plan) {
      const name = theme();
      const { left, top, cell } = plan;
      const picture = new ImageData(this.cols, this.rows);
      const masked = flat(name, "masked");
      const wrong = [];
      const hatch = new Path2D();
      let hatched = false;
      for (let i = 0; i < panel.values.length; i++) {
        const forbidden = panel.kind === "weight" && panel.masked && panel.masked[i] && panel.values[i] === 0;
        const colour = forbidden ? masked : colourOf(panel, panel.values[i], name);
        picture.data.set([...colour, 255], i * 4);
        if (colour === WRONG) wrong.push([left + (i % this.cols) * cell, top + Math.floor(i / this.cols) * cell]);
        if (forbidden && cell >= 6) {
          hatched = true;
          hatch.rect(left + (i % this.cols) * cell, top + Math.floor(i / this.cols) * cell, cell, cell);
        }
      }
      const small = document.createElement("canvas");
      small.width = this.cols;
      small.height = this.rows;
      small.getContext("2d").putImageData(picture, 0, 0);
      context.imageSmoothingEnabled = cell * (window.devicePixelRatio || 1) < 1;
      context.drawImage(small, left, top, cell * this.cols, cell * this.rows);
      if (hatched) {
        context.save();
        context.clip(hatch);
        context.strokeStyle = window.attentionPalette[name].hatch;
        context.lineWidth = 1;
        context.beginPath();
        const extent = cell * Math.max(this.rows, this.cols);
        for (let offset = -extent; offset <= extent; offset += 6) {
          context.moveTo(left + offset, top + extent);
          context.lineTo(left + offset + extent, top);
        }
        context.stroke();
        context.restore();
      }
      cross(context, wrong, cell);
      if (cell >= 12) {
        context.strokeStyle = this.surface;
        context.lineWidth = 1;
        context.beginPath();
        for (let i = 1; i < this.cols; i++) {
          context.moveTo(left + i * cell, top);
          context.lineTo(left + i * cell, top + cell * this.rows);
        }
        for (let i = 1; i < this.rows; i++) {
          context.moveTo(left, top + i * cell);
          context.lineTo(left + cell * this.cols, top + i * cell);
        }
        context.stroke();
      }
      context.strokeStyle = this.faint;
      context.globalAlpha = 0.45;
      context.strokeRect(left - 0.5, top - 0.5, cell * this.cols + 1, cell * this.rows + 1);
      context.globalAlpha = 1;
    }

    drawBars(context, panel, plan) {
      const { left, top, cell, size } = plan;
      const numbers = cell >= size;
      const space = plan.wide - (numbers ? 64 : 0);
      const longest = Math.max(1, ...panel.values.filter(Number.isFinite));
      for (let row = 0; row < this.rows; row++) {
        const value = panel.values[row], known = Number.isFinite(value);
        const inset = Math.min(3, cell * 0.15), high = Math.max(1, cell - 2 * inset);
        const length = known ? Math.max(0, value / longest) * space : Math.min(high, space);
        context.fillStyle = known ? this.accent : css(WRONG);
        context.fillRect(left, top + row * cell + inset, length, high);
        if (!known) cross(context, [[left, top + row * cell + inset]], length);
        if (numbers) {
          context.fillStyle = this.ink;
          context.textAlign = "left";
          context.textBaseline = "middle";
          const said = written(value, (share) => (share === 0 ? "0" : share.toFixed(4)));
          context.fillText(said, left + length + 6, top + (row + 0.5) * cell);
        }
      }
      context.strokeStyle = this.faint;
      context.globalAlpha = 0.6;
      context.beginPath();
      context.moveTo(left - 0.5, top);
      context.lineTo(left - 0.5, top + cell * this.rows);
      context.stroke();
      context.globalAlpha = 1;
    }

    drawLabels(context, panel, plan) {
      const { left, top, cell, size } = plan;
      const every = Math.max(1, Math.ceil((size + 2) / cell));
      context.fillStyle = this.ink;
      context.textBaseline = "middle";
      context.textAlign = "right";
      for (let i = 0; i < this.rows; i += every) {
        context.fillText(shorten(context, this.value.row.labels[i], plan.rowLabel + 1), left - 6, top + (i + 0.5) * cell);
      }
      if (panel.cols !== 1 || this.cols === 1) {
        if (panel.kind !== "bars") {
          for (let i = 0; i < this.cols; i += every) this.columnLabel(context, plan, i);
        }
      }
      context.fillStyle = this.faint;
      context.textAlign = "center";
      context.save();
      context.translate(size * 0.6, (top + plan.bottom) / 2);
      context.rotate(-Math.PI / 2);
      context.fillText(this.value.row.name, 0, 0);
      context.restore();
      if (panel.kind !== "bars") {
        context.fillText(this.value.col.name, left + (cell * this.cols) / 2, plan.height - size * 0.6);
      }
    }

    columnLabel(context, plan, i, background) {
      const { left, cell, size, bottom } = plan;
      const text = shorten(context, this.value.col.labels[i], plan.colLabel + 1);
      context.save();
      context.translate(left + (i + 0.5) * cell, bottom + 6);
      if (plan.upright) {
        context.textAlign = "center";
        context.textBaseline = "top";
      } else {
        context.rotate(-Math.PI / 4);
        context.textAlign = "right";
        context.textBaseline = "middle";
        context.translate(2, 4);
      }
      if (background) {
        const width = context.measureText(text).width;
        context.fillStyle = background;
        if (plan.upright) context.fillRect(-width / 2 - 4, -3, width + 8, size + 6);
        else context.fillRect(-width - 4, -size / 2 - 3, width + 8, size + 6);
        context.fillStyle = this.onAccent;
      }
      context.fillText(text, 0, 0);
      context.restore();
    }

    drawOver(panel) {
      const plan = panel.plan;
      if (!plan || !this.root.clientWidth) return;
      const context = this.prepare(panel.over, plan);
      const active = this.current || this.pinned;
      if (!active) return;
      const { left, top, cell, size } = plan;
      const width = panel.kind === "bars" ? plan.wide : cell * this.cols;
      const frame = (x, y, w, h, weight) => {
        context.strokeStyle = this.surface;
        context.lineWidth = weight + 2;
        context.strokeRect(x, y, w, h);
        context.strokeStyle = this.accent;
        context.lineWidth = weight;
        context.strokeRect(x, y, w, h);
      };
      frame(left - 1, top + active.row * cell - 1, width + 2, cell + 2, 1.5);
      const label = shorten(context, this.value.row.labels[active.row], Math.max(plan.rowLabel + 1, left - 12));
      const labelWidth = context.measureText(label).width;
      const middle = top + (active.row + 0.5) * cell;
      context.fillStyle = this.accent;
      context.fillRect(left - 6 - labelWidth - 4, middle - size / 2 - 3, labelWidth + 8, size + 6);
      context.fillStyle = this.onAccent;
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(label, left - 6, middle);
      if (active.col === null || panel.kind === "bars") return;
      frame(left + active.col * cell, top + active.row * cell, cell, cell, 2.5);
      this.columnLabel(context, plan, active.col, this.accent);
    }
  }

  window.attentionFigure = (element, props, trigger, watch) => {
    const figure = new Figure(element, props, trigger);
    watch("value", () => figure.show());
  };
  document.dispatchEvent(new Event("attention-ready"));
})();
