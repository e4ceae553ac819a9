/* Draws the figures of the page: a strip of tokens and one or more heatmaps that share their rows and columns.
 *
 * A figure is described by plain data (see probe/ui/figure.py). Nothing here computes attention: it decodes numbers,
 * colours them and reads them out. Text from outside reaches the page through textContent and fillText only.
 */
(() => {
  "use strict";

  const FONT = 'ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", ' +
    '"Noto Sans CJK SC", "Noto Sans Arabic", "Noto Color Emoji", sans-serif';
  const MAX_CELL = 44;
  const MAX_LABEL = 104;
  const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

  const theme = () => (document.body.classList.contains("dark") ||
    document.documentElement.classList.contains("dark") ? "dark" : "light");

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const bytes = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const floats = (base64) => new Float32Array(bytes(base64).buffer);

  const power = (exponent) => {
    const digits = String(Math.abs(exponent)).split("").map((digit) => SUPERSCRIPT[Number(digit)]).join("");
    return "10" + (exponent < 0 ? "⁻" : "") + digits;
  };

  const number = (kind, value) => {
    if (Number.isNaN(value)) return "not a number";
    if (kind === "mask") return value ? "may attend" : "may not attend";
    if (kind === "difference") return value === 0 ? "exactly 0" : value.toExponential(3);
    if (value === 0) return "0";
    if (kind === "change") return (value > 0 ? "+" : "−") + number("weight", Math.abs(value));
    return Math.abs(value) < 1e-3 ? value.toExponential(4) : value.toFixed(6);
  };

  /* ---------------------------------------------------------------- colours */

  const tables = {};
  const table = (name, scale) => {
    const key = name + "/" + scale;
    if (!tables[key]) {
      const hex = window.attentionPalette[name][scale];
      tables[key] = Array.from({ length: hex.length / 6 }, (_, i) =>
        [0, 2, 4].map((at) => parseInt(hex.substr(i * 6 + at, 2), 16)));
    }
    return tables[key];
  };
  const triple = (hex) => [1, 3, 5].map((at) => parseInt(hex.substr(at, 2), 16));
  const css = (rgb) => `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
  const at = (colours, share) =>
    colours[Math.max(0, Math.min(colours.length - 1, Math.round(share * (colours.length - 1))))];

  const colourOf = (panel, value, name) => {
    const flat = window.attentionPalette[name];
    if (panel.kind === "mask") return triple(value ? flat.allowed : flat.forbidden);
    if (panel.kind === "change") return at(table(name, value < 0 ? "lost" : "gained"), Math.abs(value));
    if (panel.kind === "difference") {
      if (value === 0) return triple(flat.zero);
      const low = Math.log10(panel.lo), high = Math.log10(panel.hi);
      return at(table(name, "difference"), (Math.log10(value) - low) / (high - low));
    }
    return at(table(name, "weight"), value);
  };

  const readable = (rgb) => {
    const [r, g, b] = rgb.map((channel) => {
      const c = channel / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#10151a" : "#ffffff";
  };

  /* ------------------------------------------------------------------ labels */

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

  /* A figure's texts for showing: words from right to left keep to themselves. */
  const isolate = window.attentionIsolate;
  const forShowing = (value) => {
    if (!value || !value.panels || !value.panels.length) return value && { ...value, notice: isolate(value.notice || "") };
    const axis = (described) => ({ ...described, labels: described.labels.map(isolate) });
    return {
      ...value, row: axis(value.row), col: axis(value.col), label: isolate(value.label), notice: isolate(value.notice),
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
      new MutationObserver(() => this.recolour())
        .observe(document.body, { attributes: true, attributeFilter: ["class"] });
      this.show();
    }

    schedule() {
      if (this.frame) return;
      this.frame = requestAnimationFrame(() => { this.frame = null; this.draw(); });
    }

    recolour() {
      if (this.themeDrawn === theme()) return;
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
        const notice = make("p", "af-notice", value.notice);
        notice.setAttribute("role", "status");
        this.root.append(notice);
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

    saving(value) {
      const box = make("span", "af-save");
      box.append(make("span", "", "Save as"));
      const name = value.stamp.replace(/[^A-Za-z0-9.]+/g, "-");
      for (const [kind, write] of Object.entries(window.attentionExport)) {
        const button = make("button", "pg-button", kind);
        button.type = "button";
        button.setAttribute("aria-label", `Save ${value.title} as ${kind}`);
        button.addEventListener("click", () => write(this, name));
        box.append(button);
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
      const flat = window.attentionPalette[name];
      panel.bar.replaceChildren();
      const swatch = (colour, text, hatched) => {
        const item = make("span", "af-swatch");
        const box = make("i", hatched ? "af-hatched" : "");
        box.style.backgroundColor = colour;
        item.append(box, make("span", "", text));
        return item;
      };
      if (panel.kind === "mask") {
        panel.bar.append(swatch(flat.allowed, "may attend"), swatch(flat.forbidden, "may not"));
        return;
      }
      if (panel.kind === "bars") return;
      const scale = make("span", "af-scale");
      const ramp = make("i");
      const stops = Array.from({ length: 17 }, (_, i) => css(this.rampColour(panel, i / 16, name)));
      ramp.style.backgroundImage = `linear-gradient(to right, ${stops.join(",")})`;
      const ticks = make("span", "af-ticks");
      for (const label of this.barLabels(panel)) ticks.append(make("span", "", label));
      scale.append(ramp, ticks);
      if (panel.kind === "difference") panel.bar.append(swatch(flat.zero, "exactly 0"));
      panel.bar.append(scale);
      if (panel.masked) panel.bar.append(swatch(flat.masked, "masked", true));
    }

    rampColour(panel, share, name) {
      return panel.kind === "change" ? colourOf(panel, 2 * share - 1, name) : at(table(name, panel.kind), share);
    }

    barLabels(panel) {
      if (panel.kind === "change") return ["−1", "0", "+1"];
      if (panel.kind === "weight") return ["0", "0.25", "0.5", "0.75", "1"];
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
        const chip = make("button", "af-chip" + (value.strip.special[i] ? " af-special" : ""));
        chip.type = "button";
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
          const order = row.map((_, i) => i).sort((a, b) => row[b] - row[a]).slice(0, 3).filter((i) => row[i] > 0);
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
      const steps = {
        ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
        Home: [0, -this.cols], End: [0, this.cols], PageUp: [-this.rows, 0], PageDown: [this.rows, 0],
      };
      if (steps[event.key]) {
        const first = !this.current && !(this.pinned && this.pinned.col !== null);
        if (!first) {
          place.row = Math.max(0, Math.min(this.rows - 1, place.row + steps[event.key][0]));
          place.col = Math.max(0, Math.min(this.cols - 1, place.col + steps[event.key][1]));
        }
        this.move(place);
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

    prepare(canvas, plan, density) {
      canvas.width = Math.round(plan.width * density);
      canvas.height = Math.round(plan.height * density);
      canvas.style.width = plan.width + "px";
      canvas.style.height = plan.height + "px";
      const context = canvas.getContext("2d");
      context.setTransform(density, 0, 0, density, 0, 0);
      context.clearRect(0, 0, plan.width, plan.height);
      context.font = `${plan.size}px ${FONT}`;
      return context;
    }

    draw() {
      if (!this.panels.length || !this.root.clientWidth) return;
      const style = getComputedStyle(this.root);
      this.ink = style.getPropertyValue("--af-ink").trim() || style.color;
      this.faint = style.getPropertyValue("--af-faint").trim() || style.color;
      this.surface = style.getPropertyValue("--af-surface").trim() || "#fff";
      this.accent = style.getPropertyValue("--af-accent").trim() || "#06c";
      this.onAccent = style.getPropertyValue("--af-on-accent").trim() || "#fff";
      this.themeDrawn = theme();
      this.reveal();
      for (const panel of this.panels) this.drawBase(panel);
      for (const panel of this.panels) this.drawOver(panel);
      this.root.dataset.painted = this.value.stamp;
    }

    drawBase(panel) {
      const plan = panel.plan = this.plan(panel);
      const density = window.devicePixelRatio || 1;
      const context = this.prepare(panel.base, plan, density);
      Object.assign(panel.over.dataset, {
        left: plan.left, top: plan.top, cell: plan.cell, rows: this.rows, cols: panel.cols,
      });
      if (panel.kind === "bars") this.drawBars(context, panel, plan);
      else this.drawCells(context, panel, plan, density);
      this.drawLabels(context, panel, plan);
    }

    drawCells(context, panel, plan, density) {
      const name = theme();
      const { left, top, cell } = plan;
      const picture = new ImageData(this.cols, this.rows);
      const masked = triple(window.attentionPalette[name].masked);
      const hatch = new Path2D();
      let hatched = false;
      for (let i = 0; i < panel.values.length; i++) {
        const forbidden = panel.kind === "weight" && panel.masked && panel.masked[i] && panel.values[i] === 0;
        const colour = forbidden ? masked : colourOf(panel, panel.values[i], name);
        picture.data.set([...colour, 255], i * 4);
        if (forbidden && cell >= 6) {
          hatched = true;
          hatch.rect(left + (i % this.cols) * cell, top + Math.floor(i / this.cols) * cell, cell, cell);
        }
      }
      const small = document.createElement("canvas");
      small.width = this.cols;
      small.height = this.rows;
      small.getContext("2d").putImageData(picture, 0, 0);
      context.imageSmoothingEnabled = cell * density < 1;
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
      for (let row = 0; row < this.rows; row++) {
        const value = panel.values[row];
        const length = Math.max(0, Math.min(1, value)) * space;
        context.fillStyle = this.accent;
        context.fillRect(left, top + row * cell + Math.min(3, cell * 0.15), length, Math.max(1, cell - Math.min(6, cell * 0.3)));
        if (numbers) {
          context.fillStyle = this.ink;
          context.textAlign = "left";
          context.textBaseline = "middle";
          context.fillText(value === 0 ? "0" : value.toFixed(4), left + length + 6, top + (row + 0.5) * cell);
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
      const context = this.prepare(panel.over, plan, window.devicePixelRatio || 1);
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

  window.attentionDraw = { FONT, theme, css, colourOf };
  window.attentionFigure = (element, props, trigger, watch) => {
    const figure = new Figure(element, props, trigger);
    watch("value", () => figure.show());
  };
  document.dispatchEvent(new Event("attention-ready"));
})();
