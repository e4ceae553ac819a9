/* A figure as a file: SVG, drawn from the same numbers as the page; PNG, the same picture in dots; CSV, the numbers. */
(() => {
  "use strict";

  const { FONT, css, save, theme } = window.attentionShared;
  const SPACE = "http://www.w3.org/2000/svg";
  const SIZE = 12;
  const GAP = 28;

  const element = (parent, name, attributes, text) => {
    const node = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };

  const widest = (labels) => {
    const context = document.createElement("canvas").getContext("2d");
    context.font = `${SIZE}px ${FONT}`;
    return Math.ceil(Math.max(0, ...labels.map((label) => context.measureText(label).width)));
  };

  const drawPanel = (svg, panel, figure, x, y, colours, plan) => {
    const { row, col } = figure.value;
    const { cell, left, drop } = plan;
    const { colourOf } = window.attentionDraw;
    const group = element(svg, "g", { transform: `translate(${x},${y})` });
    element(group, "text", { x: 0, y: 0, "font-weight": 600, fill: colours.ink }, panel.title);
    const top = 12;
    const width = panel.kind === "bars" ? 150 : cell * col.labels.length;
    for (let i = 0; i < row.labels.length; i++) {
      element(group, "text", {
        x: left - 6, y: top + (i + 0.5) * cell, "text-anchor": "end", "dominant-baseline": "central", fill: colours.ink,
      }, row.labels[i]);
      if (panel.kind === "bars") {
        const value = panel.values[i];
        element(group, "rect", { x: left, y: top + i * cell + 2, width: value * 100, height: cell - 4, fill: colours.accent });
        element(group, "text", {
          x: left + value * 100 + 5, y: top + (i + 0.5) * cell, "dominant-baseline": "central", fill: colours.ink,
        }, value.toFixed(4));
        continue;
      }
      for (let j = 0; j < col.labels.length; j++) {
        const place = i * col.labels.length + j;
        const masked = panel.masked && panel.masked[place] && panel.values[place] === 0;
        element(group, "rect", {
          x: left + j * cell, y: top + i * cell, width: cell - 0.5, height: cell - 0.5,
          fill: masked ? colours.masked : css(colourOf(panel, panel.values[place], colours.theme)),
        });
      }
    }
    const bottom = top + cell * row.labels.length;
    if (panel.kind !== "bars") {
      col.labels.forEach((label, j) => element(group, "text", {
        transform: `translate(${left + (j + 0.5) * cell + 4},${bottom + 10}) rotate(-45)`, "text-anchor": "end", fill: colours.ink,
      }, label));
      element(group, "text", { x: left + width / 2, y: bottom + drop + 12, "text-anchor": "middle", fill: colours.faint }, col.name);
    }
    element(group, "text", {
      transform: `translate(10,${top + (bottom - top) / 2}) rotate(-90)`, "text-anchor": "middle", fill: colours.faint,
    }, row.name);
    if (panel.kind === "mask" || panel.kind === "bars") return;
    const steps = 50;
    for (let i = 0; i < steps; i++) {
      element(group, "rect", {
        x: left + i * 3, y: bottom + drop + 24, width: 3.2, height: 9,
        fill: css(figure.rampColour(panel, i / (steps - 1), colours.theme)),
      });
    }
    if (panel.masked) {
      const at = { x: left + steps * 3 + 24, y: bottom + drop + 23 };
      element(group, "rect", { ...at, width: 11, height: 11, fill: colours.masked, stroke: colours.faint });
      element(group, "text", { x: at.x + 17, y: at.y + 10, fill: colours.faint }, "masked");
    }
    const ends = figure.barLabels(panel);
    element(group, "text", { x: left, y: bottom + drop + 46, "text-anchor": "middle", fill: colours.faint }, ends[0]);
    element(group, "text", {
      x: left + steps * 3, y: bottom + drop + 46, "text-anchor": "middle", fill: colours.faint,
    }, ends[ends.length - 1]);
  };

  const svg = (figure) => {
    const style = getComputedStyle(figure.root);
    const read = (name) => style.getPropertyValue(name).trim();
    const colours = {
      theme: theme(), ink: read("--af-ink"), faint: read("--af-faint"), accent: read("--af-accent"), surface: read("--af-surface"),
      masked: window.attentionPalette[theme()].masked,
    };
    const { row, col, title, subtitle } = figure.value;
    const cell = Math.max(SIZE + 2, Math.min(22, 420 / row.labels.length));
    const plan = { cell, left: widest(row.labels) + 30, drop: Math.ceil(widest(col.labels) * Math.SQRT1_2) + 16 };
    const widths = figure.panels.map((panel) => plan.left + (panel.kind === "bars" ? 160 : cell * col.labels.length));
    const across = figure.panels.length > 3 ? 3 : figure.panels.length;
    const column = Math.max(...widths) + GAP;
    const high = 12 + cell * row.labels.length + plan.drop + 76;
    const lines = Math.ceil(figure.panels.length / across);
    const picture = document.createElementNS(SPACE, "svg");
    const size = { width: Math.max(column * across + GAP, 480), height: 70 + high * lines };
    for (const [key, value] of Object.entries({ xmlns: SPACE, ...size, viewBox: `0 0 ${size.width} ${size.height}` })) {
      picture.setAttribute(key, String(value));
    }
    picture.setAttribute("font-family", FONT);
    picture.setAttribute("font-size", String(SIZE));
    element(picture, "rect", { ...size, fill: colours.surface });
    element(picture, "text", { x: GAP, y: 26, "font-size": 15, "font-weight": 600, fill: colours.ink }, title);
    element(picture, "text", { x: GAP, y: 44, fill: colours.faint }, subtitle);
    figure.panels.forEach((panel, i) => drawPanel(
      picture, panel, figure, GAP + column * (i % across), 76 + high * Math.floor(i / across), colours, plan));
    return { text: new XMLSerializer().serializeToString(picture), ...size };
  };

  const png = async (figure) => {
    const { text, width, height } = svg(figure);
    const image = new Image();
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
    await image.decode();
    const canvas = document.createElement("canvas");
    const scale = Math.min(2, 8000 / Math.max(width, height));
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  };

  const csv = (figure) => {
    const { row, col } = figure.props.value;
    const quote = (text) => '"' + String(text).replaceAll('"', '""') + '"';
    const maps = figure.panels.filter((panel) => panel.kind !== "bars");
    const bars = figure.panels.filter((panel) => panel.kind === "bars");
    const heads = [`${row.name}`, `${row.name} label`, `${col.name}`, `${col.name} label`, ...[...maps, ...bars].map((p) => p.short)];
    const lines = [heads.map(quote).join(",")];
    for (let i = 0; i < row.labels.length; i++) {
      for (let j = 0; j < col.labels.length; j++) {
        lines.push([
          row.index[i], quote(row.labels[i]), col.index[j], quote(col.labels[j]),
          ...maps.map((panel) => panel.values[i * col.labels.length + j]), ...bars.map((panel) => panel.values[i]),
        ].join(","));
      }
    }
    return lines.join("\r\n") + "\r\n";
  };

  window.attentionExport = {
    SVG: (figure, name) => save(name + ".svg", new Blob([svg(figure).text], { type: "image/svg+xml" })),
    PNG: async (figure, name) => save(name + ".png", await png(figure)),
    CSV: (figure, name) => save(name + ".csv", new Blob(["\ufeff" + csv(figure)], { type: "text/csv;charset=utf-8" })),
  };
})();
