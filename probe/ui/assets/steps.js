/* The steps of one query of one head, from the layer's input to the head's share of the output. Every number comes
 * from the toolkit; here it is only written out, with seven significant digits.
 */
(() => {
  "use strict";
  const { button, headLine, isolate, make, notice, scrolling, written } = window.attentionShared;
  const { copyButton, modelChoice, saveButton } = window.attentionParts;

  const digits = (value, count = 7) =>
    written(value, (number) => (number === 0 ? "0" : number.toPrecision(count)).replace("-", "−"));

  const token = (trace, i) => {
    const span = make("span", "");
    span.append(make("b", "af-token", isolate(trace.tokens[i])), make("sub", "", String(i)));
    return span;
  };

  const step = (number, title, formula, ...content) => {
    const card = make("section", "st-step");
    const head = make("h2", "");
    head.append(make("span", "st-number", String(number)), make("span", "", title));
    card.append(head);
    if (formula) card.append(make("p", "st-formula", formula));
    card.append(...content);
    return card;
  };

  const vector = (values, name) => {
    const list = make("ol", "st-vector");
    list.start = 0;
    values.forEach((value, i) => {
      const item = make("li", "");
      item.append(make("span", "st-index", String(i)), make("span", "", digits(value)));
      list.append(item);
    });
    return scrolling("st-scroll", name, list);
  };

  const folded = (summary, build) => {
    const details = make("details", "st-more");
    details.append(make("summary", "", summary));
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(build());
    });
    return details;
  };

  const grid = (name, heads, rows, chosen, pick) => {
    const table = make("table", "st-table");
    const body = make("tbody");
    rows.forEach((cells, i) => {
      const row = make("tr", (chosen === i ? "st-chosen" : "") + (cells.off ? " st-off" : ""));
      cells.forEach((content, column) => {
        const cell = make(column ? "td" : "th");
        if (!column) cell.scope = "row";
        if (!column && pick) {
          const key = button("st-key", "", () => pick(i));
          key.setAttribute("aria-pressed", String(chosen === i));
          key.append(content);
          cell.append(key);
        } else {
          cell.append(content);
        }
        row.append(cell);
      });
      body.append(row);
    });
    table.append(headLine(...heads), body);
    return scrolling("pg-scroll", name, table);
  };

  const choices = (value, trigger) => {
    const bar = make("div", "st-choices");
    bar.append(modelChoice("st-models", value, trigger));
    if (!value.trace) return bar;
    const label = make("label", "st-query", "Query ");
    const select = make("select");
    value.trace.tokens.forEach((text, i) => {
      const option = make("option", "", `${i}  ${isolate(text)}`);
      option.value = String(i);
      option.selected = i === value.trace.query;
      select.append(option);
    });
    select.addEventListener("change", () => trigger("select", { query: Number(select.value) }));
    label.append(select);
    bar.append(label);
    return bar;
  };

  const pairs = (name, left, right, leftName, rightName) =>
    grid(name, ["", leftName, rightName], left.map((value, i) => [String(i), digits(value), digits(right[i])]));

  // A vector before and after it is turned by its position, a pair of numbers a line.
  const turning = (name, before, angles, after) => {
    const half = angles.length;
    return grid(name, ["pair", "angle", "a", "b", "a cos − b sin", "b cos + a sin"], angles.map((angle, i) => [
      `${i}, ${i + half}`, digits(angle, 9), digits(before[i]), digits(before[i + half]),
      digits(after[i]), digits(after[i + half]),
    ]));
  };

  window.attentionKinds.steps = (element, value, trigger) => {
    const box = make("div", "st");
    box.append(choices(value, trigger));
    element.replaceChildren(box);
    if (!value.trace) {
      box.append(notice(value.problem));
      box.dataset.painted = value.stamp;
      return;
    }
    const trace = value.trace;
    let key = value.key;

    const where = make("p", "st-where");
    where.append(`${trace.model}, layer ${trace.layer}, head ${trace.head}: the row of query `, token(trace, trace.query));
    box.append(where);
    if (trace.truncated) box.append(make("p", "af-notice", trace.truncated));

    const detail = make("div", "st-detail");
    const table = make("div", "st-left");
    const side = make("div", "st-side");
    side.append(table, detail);
    const showKey = () => {
      table.replaceChildren(grid(
        "The row, key by key",
        ["key", "dot product", "scaled", "after the mask", "exponential", "weight", "the model's own weight"],
        trace.tokens.map((_, i) => Object.assign([
          token(trace, i), digits(trace.dot_products[i]), digits(trace.scaled[i]), digits(trace.masked[i]),
          digits(trace.exponentials[i]), digits(trace.weights[i]), digits(trace.model_weights[i]),
        ], { off: !trace.allowed[i] })),
        key, (i) => { key = i; showKey(); table.querySelectorAll(".st-key")[i].focus(); },
      ));
      const line = make("p", "st-formula");
      line.append("dot product with ", token(trace, key), ` = ${trace.query_vector.length} products added up = ` +
        digits(trace.dot_products[key]));
      const open = [...detail.querySelectorAll("details")].map((details) => details.open);
      const more = [folded("The numbers that are multiplied", () =>
        pairs("Query vector and key vector", trace.query_vector, trace.keys[key], "query vector", "key vector"))];
      if (trace.angles) {
        more.push(folded("How the key vector was turned", () =>
          turning("The key vector, turned", trace.projected_keys[key], trace.angles[key], trace.keys[key])));
      }
      detail.replaceChildren(line, ...more);
      more.forEach((details, i) => { details.open = Boolean(open[i]); });
    };
    showKey();

    const size = trace.query_vector.length;
    let dimension = 0;
    const mixing = make("div");
    const mix = () => {
      const label = make("label", "st-query", "Entry ");
      const select = make("select");
      trace.context.forEach((_, i) => {
        const option = make("option", "", String(i));
        option.selected = i === dimension;
        select.append(option);
      });
      select.addEventListener("change", () => {
        dimension = select.selectedIndex;
        mix();
        mixing.querySelector("select").focus();
      });
      label.append(select);
      const line = make("p", "st-formula", `weight × value, added over the keys = ${digits(trace.context[dimension])}`);
      mixing.replaceChildren(label, line, grid(
        "Weights and one entry of the values", ["key", "weight", `value, entry ${dimension}`],
        trace.tokens.map((_, i) => Object.assign(
          [token(trace, i), digits(trace.weights[i]), digits(trace.values[i][dimension])], { off: !trace.allowed[i] })),
      ));
    };
    mix();

    box.append(
      step(1, "What enters the layer", `${trace.input.length} numbers for this token`,
        folded("Show the input", () => vector(trace.input, "Input"))),
      step(2, "Query, keys and values", `input × the head's weights + bias: ${size} numbers each` +
        (value.shared ? ` · keys and values${value.shared}` : "") +
        (trace.angles ? ` · query and keys are then turned by their positions: numbers i and i + ${size / 2} are a ` +
          "pair (a, b), and its angle = position × frequency" : ""),
        folded("Show the query vector", () => vector(trace.query_vector, "Query vector")),
        ...(trace.angles ? [folded("How it was turned", () => turning("The query vector, turned",
          trace.projected_query, trace.angles[trace.query], trace.query_vector))] : [])),
      step(3, "Scores and weights, key by key",
        `scaled = dot product × ${digits(trace.scale)} · the mask lets this query see ${value.mask} · exponential = exp(after the mask − ${digits(trace.maximum)}) · ` +
        `their sum = ${digits(trace.exponential_sum)} · weight = exponential ÷ sum`,
        side,
        make("p", "st-check", `These steps are computed in float64. Largest difference from the model's own row: ${written(trace.max_abs_error, (error) => error.toExponential(2))}`)),
      step(4, "Context vector", `the values, weighted and added up: ${size} numbers`, mixing,
        folded("Show the whole context vector", () => vector(trace.context, "Context vector"))),
      step(5, "This head's share of the output",
        `context × the head's columns of the output projection: ${trace.output_share.length} numbers; the other heads ` +
        "and the bias are added to them",
        folded("Show the share", () => vector(trace.output_share, "Share of the output"))),
    );
    const bar = make("div", "pg-actions");
    bar.append(copyButton("Copy as text", () => value.text),
      saveButton("Download (JSON)", value.file, () => JSON.stringify(trace, null, 2), "application/json"));
    box.append(bar);
    box.dataset.painted = value.stamp;
  };
  document.dispatchEvent(new Event("attention-page-ready"));
})();
