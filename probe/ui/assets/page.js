/* The small parts of the page beside the figures: the verdict, the report's table, the link and the code to copy.
 * Text from outside reaches the page through textContent only.
 */
(() => {
  "use strict";

  const { button, copyText, headLine, isolate, make, save, scrolling, written } = window.attentionShared;

  const copyButton = (label, text) => {
    const node = button("pg-button", label, async () => {
      try {
        await copyText(text());
        node.textContent = "Copied";
      } catch {
        node.textContent = "Copying is blocked here";
      }
      node.addEventListener("pointerleave", () => { node.textContent = label; }, { once: true });
      node.addEventListener("blur", () => { node.textContent = label; }, { once: true });
    });
    return node;
  };

  const saveButton = (label, file, content, type) =>
    button("pg-button", label, () => save(file, new Blob([content()], { type })));

  /* The choice of one of the two models. */
  const modelChoice = (className, value, trigger) => {
    const group = make("div", className);
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Model");
    value.names.forEach((name, slot) => {
      const node = button("pg-button", name, () => trigger("select", { slot }));
      node.setAttribute("aria-pressed", String(slot === value.slot));
      group.append(node);
    });
    return group;
  };

  const verdict = (element, value) => {
    if (!value.lines.length) { element.replaceChildren(); return; }
    const box = make("div", "pg-verdict");
    box.setAttribute("role", "status");
    const lines = make("div", "pg-lines");
    for (const line of value.lines) {
      const row = make("p", "pg-line pg-" + line.kind);
      row.append(make("span", "pg-mark", { good: "✓", bad: "✗", none: "–" }[line.kind]), make("span", "", isolate(line.text)));
      lines.append(row);
    }
    box.append(lines, copyButton("Copy verdict", () => value.lines.map((line) => line.text).join("\n")));
    element.replaceChildren(box);
    box.dataset.painted = value.stamp;
  };

  const cellText = (cell) => (["nan", "inf", "-inf", null].includes(cell) ? written(cell) : isolate(String(cell)));

  const table = (element, value) => {
    if (!value.columns) { element.replaceChildren(); return; }
    const details = make("details", "pg-table");
    details.open = Boolean(element.querySelector("details[open]"));
    details.append(make("summary", "", value.title));
    const grid = make("table");
    const body = make("tbody");
    for (const row of value.rows) {
      const line = make("tr", row.failed ? "pg-failed" : "");
      for (const cell of row.cells) line.append(make("td", typeof cell === "number" ? "pg-num" : "", cellText(cell)));
      body.append(line);
    }
    grid.append(headLine(...value.columns), body);
    details.append(scrolling("pg-scroll", value.title, grid));
    const bar = make("div", "pg-actions");
    bar.append(saveButton("Download the report (JSON)", value.file, () => value.report, "application/json"), copyButton("Copy the table", () => value.text));
    element.replaceChildren(bar, details);
  };

  /* Lines of Python, to copy or to read, after other buttons. */
  const code = (element, value, trigger, ...buttons) => {
    const open = Boolean(element.querySelector("details[open]"));
    if (!value.code && !buttons.length) { element.replaceChildren(); return; }
    const box = make("div", "pg-share");
    const bar = make("div", "pg-actions");
    bar.append(...buttons);
    box.append(bar);
    if (value.code) {
      bar.append(copyButton("Copy as Python", () => value.code));
      const details = make("details", "pg-code");
      details.open = open;
      details.append(make("summary", "", value.title));
      const lines = make("pre", "", value.code);
      lines.tabIndex = 0;
      details.append(lines);
      box.append(details);
    }
    element.replaceChildren(box);
  };

  /* Another view is a step in the browser's history; anything else changes the step it is on. An answer that comes
   * late, about a view that was left meanwhile by a tab or by Back or Forward, changes nothing here.
   */
  const viewOf = (query) => new URLSearchParams(query).get("view");
  const tabInSight = (otherwise) =>
    document.querySelector("#views [role=tab][aria-selected=true]")?.dataset.tabId ?? otherwise;
  let inSight = null, awaited = null, goTo = () => {};
  const share = (element, value, trigger) => {
    goTo = (address) => trigger("select", { address });
    // The tab that the answer opens is open in a moment.
    setTimeout(() => {
      const view = viewOf(value.query);
      if (view !== tabInSight(view) || (awaited !== null && awaited !== value.at)) return;
      const moves = awaited === null && inSight !== null && inSight !== view;
      inSight = view;
      awaited = null;
      history[moves ? "pushState" : "replaceState"](history.state, "", location.pathname + value.query + location.hash);
      const note = value.left_out ? [make("span", "pg-note", value.left_out)] : [];
      code(element, value, trigger, copyButton("Copy link", () => location.href), ...note);
      element.firstElementChild.dataset.at = value.at;
    });
  };

  /* Back and Forward: the server shows what the address asks for, as it does when the page is opened. */
  window.addEventListener("popstate", () => {
    awaited = location.search;
    goTo(awaited);
  });

  /* Tells the server the first time that it is filled. (Two answers at once can both say that a state has changed.) */
  const told = new Set();
  const once = (element, value, trigger) => {
    if (told.has(value.name)) return;
    told.add(value.name);
    trigger("select", {});
  };

  window.attentionParts = { copyButton, modelChoice, saveButton };
  window.attentionKinds = { verdict, table, code, share, once };
  window.attentionWidget = (element, props, trigger, watch) => {
    const show = () => {
      const value = props.value;
      if (value) window.attentionKinds[value.widget](element, value, trigger);
    };
    watch("value", show);
    show();
  };

  /* A number that is being typed is empty or out of range for a moment. Only whole numbers within the range go to the
   * server; what is left otherwise goes back to where the slider is. */
  const isWhole = (box) => {
    const value = Number(box.value);
    return box.value.trim() !== "" && Number.isInteger(value) && value >= Number(box.min) && value <= Number(box.max);
  };
  const isNumberBox = (node) => node instanceof HTMLInputElement && node.type === "number" && node.max !== "";
  document.addEventListener("input", (event) => {
    if (isNumberBox(event.target) && !isWhole(event.target)) event.stopImmediatePropagation();
  }, true);
  document.addEventListener("focusout", (event) => {
    const box = event.target;
    if (!isNumberBox(box) || isWhole(box)) return;
    event.stopImmediatePropagation();
    const slider = box.closest(".block")?.querySelector("input[type=range]");
    if (slider) box.value = slider.value;
  }, true);
})();
