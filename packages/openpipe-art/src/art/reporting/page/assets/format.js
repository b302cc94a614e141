// Elements, numbers and characters as text. Whatever comes from the run reaches the page through `textContent`,
// text nodes and numbers; nothing in these scripts writes HTML.
"use strict";

const NONE = "\u2013";

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function drawing(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const isNumber = Number.isFinite;
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// A number for people: four digits that matter, powers of ten where zeros would not be read.
function short(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (value < 0) return `\u2212${short(size)}`;
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return scientific(value, 2);
  if (Number.isInteger(value) || size >= 1000) return whole.format(value);
  return size >= 100 ? value.toFixed(1) : size >= 10 ? value.toFixed(2) : value.toFixed(3);
}

function scientific(value, digits) {
  const [mantissa, exponent] = value.toExponential(digits).split("e");
  return `${mantissa}\u00d7${power(Number(exponent))}`;
}

function power(exponent) {
  const raised = [...String(exponent)].map((sign) => (sign === "-" ? "\u207b" : "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[sign]));
  return `10${raised.join("")}`;
}

function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 1) return `${whole.format(seconds * 1000)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${whole.format(Math.floor(seconds / 3600))} h ${Math.round((seconds % 3600) / 60)} min`;
}

function percent(share) {
  if (!isNumber(share)) return NONE;
  if (share > 0 && share < 0.0001) return `${scientific(100 * share, 1)} %`;
  return `${(100 * share).toFixed(share < 0.1 || share > 0.99 ? 2 : 1)} %`;
}

// How the axis of a metric is called: names that end in `_s` are seconds, in `_bytes` bytes.
function unitOf(name) {
  if (name.endsWith("_per_s")) return "per second";
  if (name.endsWith("_s")) return "seconds";
  return name.endsWith("_bytes") ? "bytes" : "";
}

// Characters that are not seen, or that turn the text around them: written as what they are. The joiners
// U+200C and U+200D stay, since scripts and emoji are built with them.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\u{e0000}-\u{e007f}]/gu;
const NAMED = { "\n": "\u21b5", "\r": "\u240d", "\t": "\u21e5" };

// A text as nodes that show each of its characters.
function visible(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > end) nodes.push(text.slice(end, match.index));
    const name = nameOf(match[0]);
    nodes.push(element("span", { class: name.startsWith("U+") ? "code named" : "code" }, name));
    if (match[0] === "\n") nodes.push("\n");
    end = match.index + match[0].length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

// What a chat template writes between turns.
const SPECIAL = /<\|[^|<>\s]{1,40}\|>|<\/?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>/g;

// As `visible`, with what the chat template wrote made pale.
function dimmed(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(SPECIAL)) {
    nodes.push(...visible(text.slice(end, match.index)), element("span", { class: "special" }, match[0]));
    end = match.index + match[0].length;
  }
  return [...nodes, ...visible(text.slice(end))];
}

function nameOf(character) {
  const code = character.codePointAt(0);
  if (NAMED[character]) return NAMED[character];
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}
