/* The bertviz view: for each model a title, what is drawn and why, and a frame that bertviz draws in.
 *
 * The frame is sandboxed without an origin: a script in it reaches neither this page nor the network. All that comes
 * out of it are messages about its height and that it has drawn.
 */
const { make, notice, theme, watchTheme } = window.attentionShared;
const cards = new Map();   // key of a drawing -> {card, frame}
const root = make("div");
let surroundings = null;
element.replaceChildren(root);

const build = (half, parts) => {
  const card = make("section", "af");
  const head = make("header", "af-head");
  head.append(make("h2", "af-title", half.title));
  if (half.subtitle) head.append(make("p", "af-subtitle", half.subtitle));
  card.append(head);
  const say = (text) => head.after(notice(text));
  if (half.notice) say(half.notice);
  if (!half.drawing) {
    card.dataset.painted = half.stamp;
    return { card };
  }
  const frame = make("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = half.label;
  Object.assign(frame.style, { display: "block", width: "100%", border: "0", height: "120px" });
  frame.srcdoc = `<!doctype html><html lang="en" class="${theme()}"><head>${parts.head}</head>` +
    `<body class="${half.kind}">${half.drawing}<script>finish("${half.kind}")</script></body></html>`;
  card.append(frame);
  return { card, frame, stamp: half.stamp, say };
};

const show = async () => {
  const value = props.value;
  if (!value) return;
  surroundings = surroundings || server.surroundings();
  const parts = await surroundings;
  if (value !== props.value) return;   // another value came while the libraries were on their way
  const old = new Map(cards);
  cards.clear();
  for (const half of value.halves) {
    cards.set(half.slot, old.get(half.slot)?.stamp === half.stamp ? old.get(half.slot) : build(half, parts));
  }
  root.className = "bz bz-" + value.kind;
  const wanted = [...cards.values()].map((entry) => entry.card);
  // A frame that is moved loads again, so what is kept stays where it is.
  for (const child of [...root.children]) if (!wanted.includes(child)) child.remove();
  wanted.forEach((card, i) => { if (root.children[i] !== card) root.insertBefore(card, root.children[i] || null); });
};

window.addEventListener("message", (event) => {
  const entry = [...cards.values()].find(({ frame }) => frame && frame.contentWindow === event.source);
  const said = event.data && event.data.bertviz;
  if (!entry || !said) return;
  if (Number.isFinite(said.height)) entry.frame.style.height = Math.min(Math.max(said.height, 60), 20000) + "px";
  if (said.drawn) entry.card.dataset.painted = entry.stamp;
  if (said.problem) entry.say("bertviz could not draw this: " + String(said.problem).slice(0, 200));
});
watchTheme(() => {
  for (const { frame } of cards.values()) if (frame) frame.contentWindow.postMessage({ dark: theme() === "dark" }, "*");
});
watch("value", show);
show();
