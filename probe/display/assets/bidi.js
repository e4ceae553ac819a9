/* Words that are written from right to left, within lines of ours that are written from left to right.
 *
 * What stands behind such a word in a label, the "1/2" of a piece or a position, would be drawn before it: numbers and
 * signs follow the letters next to them. An isolate keeps the order to the word itself (Unicode Standard Annex 9,
 * section 2.4). Not for a reader's own text, which is shown by itself and in its own direction.
 */
window.attentionIsolate = (() => {
  "use strict";
  const letters = "[\\u0590-\\u08ff\\ufb1d-\\ufdff\\ufe70-\\ufefc\\u{10800}-\\u{10fff}\\u{1e800}-\\u{1efff}]";
  const words = new RegExp(`${letters}+(?: +${letters}+)*`, "gu");
  const [start, end] = ["\u2068", "\u2069"];   // FIRST STRONG ISOLATE, POP DIRECTIONAL ISOLATE
  return (text) => (text.includes(start) ? text : text.replace(words, `${start}$&${end}`));
})();
