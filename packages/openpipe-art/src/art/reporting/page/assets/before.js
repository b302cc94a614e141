// What the policy answered before and after: some prompts of an evaluation, at its first and at its last policy.
"use strict";

const PAIRS = 6;

// The question alone: what stands in the last turn but for the name of who speaks.
function question(row, texts) {
  if (Array.isArray(row.d?.prompt)) return texts[row.d.prompt[0]];
  const prompt = row.x?.[0] ? texts[row.x[0].p[0]] : "";
  const turns = prompt.split(SPECIAL).map((turn) => turn.trim()).filter((turn) => turn && !["assistant", "model"].includes(turn));
  return (turns.at(-1) ?? "").replace(/^user\n/, "");
}

function reply(row, texts) {
  if (Array.isArray(row.d?.answer)) return texts[row.d.answer[0]];
  return (row.x?.at(-1)?.t ?? []).join("").replaceAll(SPECIAL, "");
}

// Of the first evaluation that was made with two policies or more; nothing where there is none.
function beforeAndAfter(data) {
  const sources = [...Map.groupBy(data.sets.filter((set) => !set.training), (set) => set.name)];
  const found = sources.find(([, sets]) => sets.length > 1);
  if (!found) return [];
  const [name, sets] = found;
  const [first, last] = [sets[0], sets.at(-1)];
  const after = new Map(last.rows.map((row) => [question(row, data.texts), row]));
  const pairs = [...new Map(first.rows.map((row) => [question(row, data.texts), row]))].filter(([asked]) => asked && after.has(asked));
  if (!pairs.length) return [];
  const stride = Math.max(1, Math.floor(pairs.length / PAIRS));
  const chosen = pairs.filter((_, index) => index % stride === 0).slice(0, PAIRS);
  const said = (label, row) => element("td", { "data-label": label }, element("span", { class: "text" }, ...visible(reply(row, data.texts))), " ", element("b", { class: "reward" }, short(row.r)));
  const rows = chosen.map(([asked, row]) => element("tr", {},
    element("th", { scope: "row", class: "text" }, ...visible(asked)), said("before", row), said("after", after.get(asked))));
  return [element("section", { "aria-labelledby": "before" },
    element("h2", { id: "before" }, "Before and after"),
    element("p", { class: "intro" }, ...visible(`${whole.format(chosen.length)} of ${whole.format(pairs.length)} prompts of ${name}, which are not trained on, with an answer of the first policy that was asked and one of the last, and their rewards.`)),
    element("div", { class: "card" }, element("table", { class: "pairs" },
      element("thead", {}, element("tr", {}, ...["Prompt", `Policy v${first.number}`, `Policy v${last.number}`].map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, ...rows))))];
}
