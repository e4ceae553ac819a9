/* What the view in sight offers as files, and the file that was asked for, as it arrives. */
(() => {
  "use strict";
  const { button, bytes, isolate, make, save } = window.attentionShared;

  /* A figure asks for its files here. */
  let ask = () => {};
  document.addEventListener("attention-download", (event) => ask(event.detail));

  window.attentionKinds.downloads = (element, value, trigger) => {
    ask = (file) => trigger("select", file);
    if (!value.offers.length) { element.replaceChildren(); return; }
    const details = make("details", "pg-code");
    details.open = Boolean(element.querySelector("details[open]"));
    details.append(make("summary", "", value.title));
    const list = make("ul", "dl-list");
    for (const offer of value.offers) {
      const line = make("li", "");
      line.append(make("span", "dl-label", isolate(offer.label)));
      const buttons = make("span", "dl-formats");
      for (const format of offer.formats) {
        const node = button("pg-button", format.toUpperCase(), () => trigger("select", { key: offer.key, format }));
        node.setAttribute("aria-label", `Download ${offer.label} as ${format.toUpperCase()}`);
        buttons.append(node);
      }
      line.append(buttons);
      list.append(line);
    }
    details.append(list);
    element.replaceChildren(details);
  };

  window.attentionKinds.file = (_element, value) => save(value.name, new Blob([bytes(value.content)]));
})();
