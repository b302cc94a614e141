// The table of trajectories: which step, which group, in which order, coloured by what.
"use strict";

const PAGE_ROWS = 100;

const ORDERS = {
  "as sampled": null,
  "reward, highest first": (row) => isNumber(row.r) ? -row.r : Infinity,
  "reward, lowest first": (row) => isNumber(row.r) ? row.r : Infinity,
  "advantage, highest first": (row) => -row.a,
  "advantage, lowest first": (row) => row.a,
  "least likely tokens first": (row) => meanLogprob(row),
};

function meanLogprob(row) {
  const values = (row.x ?? []).flatMap((part) => part.l).filter(isNumber);
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
}

class Trajectories {
  constructor(data) {
    this.data = data;
    this.sources = Map.groupBy(data.sets, (set) => set.name);
    this.largest = data.sets.flatMap((set) => set.rows).reduce((most, row) => Math.max(most, Math.abs(row.a ?? 0)), 0);
    this.root = element("section", { class: "trajectories by-logprob", "aria-labelledby": "trajectories" },
      element("h2", { id: "trajectories" }, "Trajectories"), element("p", { class: "intro" }, this.account()));
    if (!data.sets.length) return;
    this.controls();
    this.tip = new Tip(this.body);
    this.choose(this.sources.keys().next().value, 0);
  }

  // What of the run is in the page.
  account() {
    const { total, shown, tokens_kept: kept, tokens_shown: withTokens, files } = this.data.counts;
    if (!total) return "The run kept no trajectories.";
    const parts = [shown === total ? `All ${whole.format(total)} trajectories of the run are here` : `${whole.format(shown)} of the run\u2019s ${whole.format(total)} trajectories are here, taken from each group in turn; ${whole.format(total - shown)} are left out, to keep the page small`];
    if (this.data.sets.length < files) parts.push(`of ${whole.format(this.data.sets.length)} of ${whole.format(files)} steps and evaluations`);
    if (!kept) parts.push("the run kept no tokens");
    else if (withTokens < kept) parts.push(`${whole.format(withTokens)} of them with tokens, which the run kept of ${whole.format(kept)}`);
    else if (kept < total) parts.push(`the run kept the tokens of ${whole.format(kept)}`);
    return `${parts.join("; ")}. Everything that was kept is in the folder trajectories/.`;
  }

  controls() {
    const select = (label, options, changed) => {
      const node = element("select", {}, ...options.map((text) => element("option", { value: text }, text)));
      node.addEventListener("change", changed);
      return [node, element("label", {}, element("span", {}, label), node)];
    };
    const sources = [...this.sources.keys()];
    const [source, sourceLabel] = select("Of", [], () => this.choose(source.value, 0));
    source.append(...sources.map((name) => element("option", { value: name }, name === "step" ? "training steps" : name)));
    this.slider = element("input", { type: "range", min: 0, step: 1, "aria-label": "Step" });
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    const turn = (label, sign, by) => {
      const button = element("button", { type: "button", "aria-label": label }, sign);
      button.addEventListener("click", () => this.show(this.position + by));
      return button;
    };
    this.back = turn("Previous", "\u2039", -1);
    this.on = turn("Next", "\u203a", 1);
    this.now = element("output", {});
    const [group, groupLabel] = select("Group", [], () => this.list());
    const [order, orderLabel] = select("Order", Object.keys(ORDERS), () => this.list());
    const colour = (name, label) => {
      const radio = element("input", { type: "radio", name: "colour", checked: name === "logprob" });
      radio.addEventListener("change", () => this.root.classList.replace(...(name === "logprob" ? ["by-advantage", "by-logprob"] : ["by-logprob", "by-advantage"])));
      return element("label", {}, radio, label);
    };
    const { tokens_shown: withTokens } = this.data.counts;
    this.kept = element("input", { type: "checkbox", checked: withTokens > 0 });
    this.kept.addEventListener("change", () => this.list());
    Object.assign(this, { source, group, order });
    this.status = element("p", { class: "status", role: "status" });
    this.body = element("tbody");
    this.more = element("button", { type: "button", class: "more" });
    this.more.addEventListener("click", () => this.extend());
    this.root.append(
      element("div", { class: "controls card" },
        element("div", { class: "stepper" }, ...(sources.length > 1 ? [sourceLabel] : []), element("div", { class: "walk" }, this.back, this.slider, this.on, this.now)),
        element("div", { class: "choices" }, groupLabel, orderLabel,
          element("fieldset", {}, element("legend", {}, "Colour"), colour("logprob", "log-prob"), colour("advantage", "advantage")),
          ...(withTokens && withTokens < this.data.counts.shown ? [element("label", {}, this.kept, "only with tokens")] : [])),
        ...legends(this.largest)),
      this.status,
      element("table", { class: "rollouts" },
        element("thead", {}, element("tr", {}, ...["Group", "Reward", "Advantage", "Prompt and answer"].map((name) => element("th", { scope: "col" }, name)))),
        this.body),
      this.more);
  }

  // Shows the set of `name` that is nearest to `number`, a step or version.
  choose(name, number) {
    this.sets = this.sources.get(name);
    this.source.value = name;
    this.slider.max = this.sets.length - 1;
    let best = 0;
    this.sets.forEach((set, index) => { if (Math.abs(set.number - number) < Math.abs(this.sets[best].number - number)) best = index; });
    this.show(best);
  }

  // From a plot: the step's trajectories, in view.
  open(step) {
    if (!this.sources.has("step")) return;
    this.choose("step", step);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.root.scrollIntoView({ behavior: still ? "auto" : "smooth" });
    this.slider.focus({ preventScroll: true });
  }

  show(position) {
    this.position = Math.min(this.sets.length - 1, Math.max(0, position));
    this.set = this.sets[this.position];
    this.slider.value = this.position;
    this.back.disabled = this.position === 0;
    this.on.disabled = this.position === this.sets.length - 1;
    const number = whole.format(this.set.number);
    this.now.textContent = this.set.training ? `step ${number} of ${whole.format(this.sets.at(-1).number)}` : `policy version ${number}`;
    this.slider.setAttribute("aria-valuetext", this.now.textContent);
    const chosen = this.group.value;
    const groups = Map.groupBy(this.set.rows, (row) => row.g);
    this.group.replaceChildren(element("option", { value: "" }, `all ${whole.format(groups.size)}`),
      ...[...groups].map(([name, rows]) => element("option", { value: name }, `${whole.format(name + 1)} (${whole.format(rows.length)})`)));
    this.group.value = groups.has(Number(chosen)) ? chosen : "";
    this.list();
  }

  list() {
    const by = ORDERS[this.order.value];
    const group = this.set.rows.filter((row) => !this.group.value || row.g === Number(this.group.value));
    this.rows = group.filter((row) => row.x || !this.kept.checked);
    if (by) {
      const rank = new Map(this.rows.map((row) => [row, by(row)]));
      const last = (row) => (isNumber(rank.get(row)) ? rank.get(row) : Infinity);
      this.rows = this.rows.toSorted((one, other) => (last(one) === last(other) ? 0 : last(one) - last(other)));
    }
    const rewards = group.map((row) => row.r).filter(isNumber);
    const mean = rewards.reduce((sum, value) => sum + value, 0) / rewards.length;
    const of = this.set.rows.length < this.set.total ? ` of the ${whole.format(this.set.total)} that were made` : "";
    const hidden = group.length - this.rows.length;
    this.status.textContent = `${whole.format(group.length)} ${group.length === 1 ? "trajectory" : "trajectories"}${of}, mean reward ${short(mean)}`
      + (hidden ? `; ${whole.format(hidden)} without tokens ${hidden === 1 ? "is" : "are"} hidden` : "");
    this.tip.show(null);
    this.body.replaceChildren();
    this.before = null;
    this.extend();
  }

  extend() {
    const from = this.body.children.length;
    this.body.append(...this.rows.slice(from, from + PAGE_ROWS).map((row) => this.row(row)));
    const left = this.rows.length - this.body.children.length;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show ${whole.format(Math.min(left, PAGE_ROWS))} more of ${whole.format(left)}`;
  }

  row(row) {
    const cell = (label, ...children) => element("td", { "data-label": label }, ...children);
    return element("tr", {},
      cell("group", whole.format(row.g + 1)), cell("reward", short(row.r)),
      cell("advantage", ...(isNumber(row.a) ? [signed(row.a)] : this.noAdvantage())),
      element("td", { class: "exchanges" }, element("div", {}, ...this.exchanges(row)), ...this.facts(row)));
  }

  // Why there is none: the step's trainer gives none to a group without spread.
  noAdvantage() {
    const why = this.set.training ? "equal rewards in its group" : "not trained on";
    return [NONE, element("span", { class: "cut" }, ` ${why}`)];
  }

  exchanges(row) {
    const first = row.x?.[0]?.p[0];
    const same = first !== undefined && first === this.before;
    this.before = first;
    return (row.x ?? []).flatMap((part, index) => [
      ...(index === 0 && same ? [] : [this.prompt(part.p, index)]),
      tokenText(part, row.a, this.largest),
    ]);
  }

  // A long prompt is folded to its end; a later one is what came after the answer before it.
  prompt([index, cut], turn) {
    const text = this.data.texts[index];
    const full = element("p", { class: "text" }, ...dimmed(text), ...(cut ? [element("span", { class: "cut" }, ` ${whole.format(cut)} more characters are in the run\u2019s folder`)] : []));
    const name = turn ? "then" : "prompt";
    if (text.length < 200 && text.split("\n").length < 5) return element("div", { class: "prompt" }, element("span", { class: "turn" }, name), full);
    const line = text.replaceAll(/\s+/g, " ");
    const end = line.length > 240 ? `\u2026${[...line].slice(-200).join("")}` : line;
    return element("details", { class: "prompt" },
      element("summary", {}, element("span", { class: "turn" }, name), ...dimmed(end), element("span", { class: "cut" }, ` ${whole.format(text.length + (cut ?? 0))} characters`)), full);
  }

  // Metadata and metrics; where tokens were not kept they are all there is, so they are open.
  facts(row) {
    const values = Object.entries(row.d ?? {}).map(([name, value]) => [name, Array.isArray(value) ? this.data.texts[value[0]] + (value[1] ? "\u2026" : "") : String(value)]);
    const numbers = Object.entries(row.m ?? {}).map(([name, value]) => [name, short(value)]);
    const list = element("dl", {}, ...[...values, ...numbers].map(([name, value]) => element("div", {}, element("dt", {}, ...visible(name)), element("dd", {}, ...visible(value)))));
    if (!row.x) return [list, element("p", { class: "cut" }, "tokens not kept")];
    return list.children.length ? [element("details", { class: "facts" }, element("summary", {}, "metadata"), list)] : [];
  }
}
