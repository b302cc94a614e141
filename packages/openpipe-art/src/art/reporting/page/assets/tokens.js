// Sampled tokens, coloured, and the tip that says all that is known of one.
//
// Each token carries the class of its log-prob and of its advantage; which of them gives the colour is a class
// of an element around all tokens, so that changing it draws nothing anew.
"use strict";

// A token is of the first level whose probability it reaches.
const LEVELS = [0.9, 0.5, 0.2, 0.05, 0.01, 0.001, 0];
const ADVANTAGE_LEVELS = [0.1, 0.35, 0.65];

function logprobClass(logprob) {
  if (!isNumber(logprob)) return "unknown";
  const share = Math.exp(logprob);
  return `l${LEVELS.findIndex((level) => share >= level)}`;
}

// `largest`: the largest absolute advantage in the page.
function advantageClass(advantage, largest) {
  if (!isNumber(advantage)) return "untrained";
  const size = largest ? Math.abs(advantage) / largest : 0;
  const level = ADVANTAGE_LEVELS.filter((least) => size >= least).length;
  return level ? `${advantage > 0 ? "up" : "down"}${level}` : "even";
}

// The tokens of one exchange as a text that can be walked with the arrow keys.
function tokenText(exchange, advantage, largest) {
  const versions = exchange.v.flatMap(([version, count]) => Array(count).fill(version));
  const ofAdvantage = advantageClass(advantage, largest);
  const tokens = exchange.t.map((text, index) => {
    const shown = text === "" ? [element("span", { class: "code" }, "\u2205")] : visible(text);
    const token = element("span", { class: `token ${logprobClass(exchange.l[index])} ${ofAdvantage}` }, ...shown);
    token.about = { text, logprob: exchange.l[index], version: versions[index], advantage, index, count: exchange.t.length + exchange.cut };
    return token;
  });
  const text = element("p", { class: "text answer", tabindex: "0", role: "group", "aria-label": `answer of ${tokens.length} tokens; arrow keys walk through them` }, ...tokens);
  text.tokens = tokens;
  if (exchange.cut) text.append(element("span", { class: "cut" }, ` ${whole.format(exchange.cut)} more tokens are in the run\u2019s folder`));
  return text;
}

// One tip for the whole page; follows the pointer and the arrow keys.
class Tip {
  constructor(root) {
    this.box = element("div", { class: "tip", role: "status" });
    this.token = null;
    document.body.append(this.box);
    root.addEventListener("pointerover", (event) => this.show(event.target.closest?.(".token")));
    root.addEventListener("pointerleave", () => this.show(null));
    root.addEventListener("click", (event) => this.show(event.target.closest?.(".token")));
    root.addEventListener("focusin", (event) => event.target.tokens && this.show(this.token ?? event.target.tokens[0]));
    root.addEventListener("focusout", () => this.show(null));
    root.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("scroll", () => this.token && this.place(), { passive: true, capture: true });
  }

  key(event) {
    const { tokens } = event.target;
    if (!tokens?.length) return;
    if (event.key === "Escape") this.show(null);
    const here = tokens.indexOf(this.token);
    const there = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (there === undefined) return;
    event.preventDefault();
    this.show(tokens[Math.min(tokens.length - 1, Math.max(0, there))]);
  }

  show(token) {
    if (token === this.token) return;
    this.token?.classList.remove("current");
    this.token = token;
    this.box.classList.toggle("shown", Boolean(token));
    if (!token) return;
    token.classList.add("current");
    const { text, logprob, version, advantage, index, count } = token.about;
    const rows = [
      ["token", `${whole.format(index + 1)} of ${whole.format(count)}`],
      ["log-prob", short(logprob)],
      ["probability", isNumber(logprob) ? percent(Math.exp(logprob)) : NONE],
      ["advantage", isNumber(advantage) ? signed(advantage) : "none: not trained on"],
      ["sampled by", isNumber(version) ? `version ${version}` : NONE],
    ];
    this.box.replaceChildren(
      element("p", { class: "text" }, ...(text === "" ? ["no text of its own"] : visible(text))),
      element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
    this.place();
  }

  place() {
    const at = this.token.getClientRects()[0] ?? this.token.getBoundingClientRect();
    const [width, height] = [this.box.offsetWidth, this.box.offsetHeight];
    const below = at.bottom + 6 + height <= window.innerHeight;
    this.box.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - width - 8))}px`;
    this.box.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - 6 - height)}px`;
  }
}

function signed(value) {
  return value > 0 ? `+${short(value)}` : short(value);
}

function legends(largest) {
  const key = (name, label) => element("span", { class: "key" }, element("span", { class: `token ${name}` }, "\u2002\u2002"), label);
  const [far, near] = [largest * ADVANTAGE_LEVELS[2], largest * ADVANTAGE_LEVELS[0]];
  return [
    element("p", { class: "keys for-logprob" }, element("span", {}, "probability when sampled (log-prob)"),
      ...LEVELS.map((least, index) => key(`l${index}`, least
        ? `\u2265 ${least * 100} % (${index ? Math.log(least).toFixed(1).replace("-", "\u2212") : "\u22120.1"})` : "< 0.1 %"))),
    element("p", { class: "keys for-advantage" }, element("span", {}, "advantage of the rollout in its group"),
      key("down3", `\u2264 ${signed(-far)}`), key("down2", ""), key("down1", ""), key("even", `within \u00b1${short(near)}`),
      key("up1", ""), key("up2", ""), key("up3", `\u2265 ${signed(far)}`), key("untrained", "not trained on")),
  ];
}
