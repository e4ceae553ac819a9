/* What the view in sight offers as files, and the file that was asked for, as it arrives. */
(() => {
  "use strict";
  const { make } = window.attentionParts;

  window.attentionKinds.downloads = (element, value, trigger) => {
    if (!value.offers.length) { element.replaceChildren(); return; }
    const details = make("details", "pg-code");
    details.open = Boolean(element.querySelector("details[open]"));
    details.append(make("summary", "", value.title));
    const list = make("ul", "dl-list");
    for (const offer of value.offers) {
      const line = make("li", "");
      line.append(make("span", "dl-label", window.attentionIsolate(offer.label)));
      const buttons = make("span", "dl-formats");
      for (const format of offer.formats) {
        const button = make("button", "pg-button", format.toUpperCase());
        button.type = "button";
        button.setAttribute("aria-label", `Download ${offer.label} as ${format.toUpperCase()}`);
        button.addEventListener("click", () => trigger("select", { key: offer.key, format }));
        buttons.append(button);
      }
      line.append(buttons);
      list.append(line);
    }
    details.append(list);
    element.replaceChildren(details);
  };

  window.attentionKinds.file = (_element, value) => {
    const bytes = Uint8Array.from(atob(value.content), (char) => char.charCodeAt(0));
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([bytes]));
    link.download = value.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);   // a slow disk may still be reading
  };
})();
