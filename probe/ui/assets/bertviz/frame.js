/* Runs inside bertviz's frame: `prepare` before bertviz, `finish` after it. The frame has no origin and no network. */
(() => {
  "use strict";

  const WIDTH = { head: 335, model: 970 };   // what bertviz lays its drawings out for
  const ROOM = { head: 101, model: 76 };     // for a token, in the same units
  const MORE_COLOURS = ["#a6761d", "#1b3a8c", "#f781bf", "#66a61e", "#fdae61", "#6a3d9a"];

  const say = (what) => parent.postMessage({ bertviz: what }, "*");
  addEventListener("error", (event) => say({ problem: event.message }));
  addEventListener("message", (event) => {
    if (event.source === parent && event.data && "dark" in event.data) {
      document.documentElement.classList.toggle("dark", Boolean(event.data.dark));
    }
  });

  // bertviz asks require.js for its two libraries; both are already here.
  window.require = { config() {} };
  window.requirejs = (_, then) => then(jQuery, d3);
  // Ten colours would give heads 10 and 11 those of 0 and 1.
  d3.schemeCategory10 = d3.schemeCategory10.concat(MORE_COLOURS);

  const shorten = (text, room) => {
    const points = Array.from(text.textContent);
    if (!points.length || text.dataset.fits || text.getComputedTextLength() <= room) return;
    text.dataset.fits = "yes";
    const title = document.createElementNS(text.namespaceURI, "title");
    title.textContent = text.textContent;
    while (points.length > 1 && text.getComputedTextLength() > room) {
      points.pop();
      text.textContent = points.join("") + "…";
    }
    text.append(title);
  };

  const fit = (kind) => {
    const svg = document.querySelector("#vis svg");
    const boxes = kind === "head" ? svg.querySelectorAll(":scope > g:last-of-type > rect") : [];
    boxes.forEach((box, head) => {
      if (box.firstChild) return;
      const title = document.createElementNS(box.namespaceURI, "title");
      title.textContent = "Head " + head;
      box.append(title);
    });
    for (const text of svg.querySelectorAll(kind === "head" ? "g g text" : "text.token")) {
      const isolated = attentionShared.isolate(text.textContent);
      if (isolated !== text.textContent) text.textContent = isolated;
      shorten(text, ROOM[kind]);
    }
    if (!svg.hasAttribute("viewBox")) {
      const width = Math.max(WIDTH[kind], boxes.length * 20);
      svg.setAttribute("viewBox", `0 0 ${width} ${Math.ceil(parseFloat(svg.getAttribute("height"))) + 2}`);
      svg.removeAttribute("width");
      svg.removeAttribute("height");
    }
  };

  // The filter that frame.css gives to lines on black: brighter, and the fainter a line, the more it gains.
  const denser = () => {
    const box = document.createElement("div");
    box.style.cssText = "position: absolute; width: 0; height: 0; padding: 0; overflow: hidden;";
    const more = ["R", "G", "B"].map((channel) => `<feFunc${channel} type="linear" slope="0.75" intercept="0.3"/>`).join("");
    box.innerHTML = `<svg width="0" height="0" aria-hidden="true"><filter id="denser" color-interpolation-filters="sRGB">` +
      `<feComponentTransfer>${more}<feFuncA type="gamma" exponent="0.5"/></feComponentTransfer></filter></svg>`;
    document.body.append(box);
  };

  window.finish = (kind) => {
    denser();
    fit(kind);
    const again = new MutationObserver(() => fit(kind));
    again.observe(document.querySelector("#vis"), { childList: true, subtree: kind === "model" });
    const size = () => ({ height: document.body.offsetHeight });
    new ResizeObserver(() => say(size())).observe(document.body);
    // At once, as observers and animation frames sleep while the frame is out of sight.
    say({ ...size(), drawn: true });
  };
})();
