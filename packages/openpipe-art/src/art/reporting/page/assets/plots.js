// Which plots a run gets, from the page's data: those that it has numbers for.
"use strict";


function plots(data) {
  const columns = data.steps;
  const steps = columns.step;
  const domain = [steps[0] - 0.5, steps.at(-1) + 0.5];
  const remark = (index) => (columns.skipped?.[index] ? "no update" : columns.restored?.[index] ? "restored after a kill" : "");
  const shared = { steps, domain, remark };
  const series = (name, key, tone, more = {}) => ({ name, tone, kind: "line", xs: steps, ys: columns[key] ?? [], ...more });
  const found = [
    rewardPlot(data, shared, series),
    ...(data.shares ? [sharesPlot(data.shares, shared)] : []),
    new Plot({
      ...shared, title: "Tokens", unit: "tokens per step", zero: true,
      note: "Sampled ones are learned from. With their prompts they are the logical tokens; the trainer computes the physical ones: equal beginnings once.",
      series: [
        series("sampled, trained on", "loss_entries", 3, { shape: "diamond", format: whole.format }),
        series("logical", "logical_tokens", 1, { format: whole.format }),
        series("physical", "physical_tokens", 2, { shape: "square", format: whole.format }),
      ],
    }),
    new Plot({
      ...shared, title: "Time of a step", unit: "seconds", zero: true,
      note: "From the first prompt of a step until the server runs the policy that came of it.",
      series: timeSeries(columns).map((item) => ({ ...item, kind: "bars", xs: steps, format: duration })),
    }),
    new Plot({
      ...shared, title: "Trainer against sampler", unit: "nats", scale: "log",
      note: "Absolute difference of a token\u2019s log-prob as the trainer computes it and as the server sampled it. Steps without an update have none.",
      series: [
        series("mean", "sampler_difference_mean", 1),
        series("99th percentile", "sampler_difference_p99", 2, { shape: "square" }),
        series("largest", "sampler_difference_max", 3, { shape: "diamond", dash: "dashed" }),
      ],
    }),
    new Plot({
      ...shared, title: "Policy versions", unit: "version", integers: true,
      note: "A version is the number of the optimizer step that made it. Tokens of one step may come from several.",
      series: versionSeries(data, series),
    }),
    anyPlot(columns, shared, series),
    timeByPart(data),
  ].filter((plot) => plot.series.length);
  // They stand in two columns: of an odd number the last takes both.
  const narrow = found.filter((plot) => !plot.figure.classList.contains("wide"));
  if (narrow.length % 2) narrow.at(-1).figure.classList.add("wide");
  return found;
}

function rewardPlot(data, shared, series) {
  const { summaries, evaluations } = data;
  const evaluated = evaluations.map((item) => item.step);
  const { steps } = shared;
  const domain = [Math.min(steps[0], ...evaluated) - 0.5, Math.max(steps.at(-1), ...evaluated) + 0.5];
  const names = [...new Set(evaluations.map((item) => item.name))];
  const low = summaries.map((item) => item?.reward_low);
  const high = summaries.map((item) => item?.reward_high);
  const held = names.map((name, index) => {
    const items = evaluations.filter((item) => item.name === name);
    return {
      name, tone: 2 + index, shape: "diamond", dash: "dotted", kind: items.length > 1 ? "line" : "points",
      xs: items.map((item) => item.step), ys: items.map((item) => item.reward),
      at: (step) => {
        const seen = items.filter((item) => item.step <= step).at(-1);
        return seen ? `${short(seen.reward)} (step ${whole.format(seen.step)})` : NONE;
      },
    };
  });
  const smoothed = runningMean(shared.steps, data.steps.reward ?? []);
  const plot = new Plot({
    ...shared, domain, title: "Reward", unit: "reward",
    note: "Mean over the rollouts of a step. Hollow points are steps without an update: each group\u2019s rewards were equal.",
    series: [
      ...(data.shares ? [] : [{ name: "middle half of the rollouts", tone: 1, kind: "band", xs: shared.steps, ys: low, tops: high,
        at: (step) => { const index = shared.steps.indexOf(step); return isNumber(low[index]) ? `${short(low[index])} to ${short(high[index])}` : NONE; } }]),
      series("training", "reward", 1, { hollow: data.steps.skipped, dash: smoothed.length ? "faint" : "" }),
      ...smoothed,
      ...held,
    ],
  });
  plot.figure.classList.add("wide");
  return plot;
}

// Where a run knows few different rewards, how often there was each says more than their middle half.
function sharesPlot({ rewards, shares }, shared) {
  return new Plot({
    ...shared, title: "Answers by reward", unit: "share of the rollouts", zero: true,
    note: "How many of a step\u2019s rollouts got which reward.",
    series: rewards.map((reward, index) => (
      { name: `reward ${short(reward)}`, tone: index + 1, kind: "bars", xs: shared.steps, ys: shares[index], format: (value) => (isNumber(value) ? `${Math.round(100 * value)} %` : NONE) })).reverse(),
  });
}

// Of long runs: the mean of the last steps, beside what each step had.
function runningMean(steps, values) {
  if (steps.length <= 100) return [];
  const count = Math.round(steps.length / 40);
  const ys = values.map((_, index) => {
    const last = values.slice(Math.max(0, index - count + 1), index + 1).filter(isNumber);
    return last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null;
  });
  return [{ name: `mean of the last ${count} steps`, tone: 1, kind: "line", smooth: true, xs: steps, ys }];
}

// The parts of a step, one after the other. What is recorded beside them (durability) is no part of it.
function timeSeries(columns) {
  const count = columns.step.length;
  const column = (name) => columns[name] ?? Array(count).fill(null);
  const [rollout, train, forward, publish] = ["rollout_s", "train_s", "train_forward_backward_s", "publish_wait_s"].map(column);
  const rest = train.map((value, index) => (isNumber(value) ? Math.max(0, value - (forward[index] ?? 0) - (publish[index] ?? 0)) : null));
  const detailed = forward.some(isNumber);
  return [
    { name: "sampling", tone: 1, ys: rollout },
    { name: "forward and backward", tone: 2, ys: forward },
    { name: "publishing the policy", tone: 3, ys: publish },
    { name: detailed ? "packing, optimizer, hand-overs" : "training", tone: 4, ys: rest },
  ];
}

function versionSeries(data, series) {
  const { summaries } = data;
  const versions = (index) => {
    const item = summaries[index];
    if (!item || !isNumber(item.version_min)) return NONE;
    return item.version_min === item.version_max ? `v${item.version_min}` : `v${item.version_min} to v${item.version_max}`;
  };
  const steps = data.steps.step;
  const at = (step) => versions(steps.indexOf(step));
  const sampled = { tone: 2, shape: "square", xs: steps, at };
  const lowest = summaries.map((item) => item?.version_min);
  const highest = summaries.map((item) => item?.version_max);
  const mixed = lowest.some((value, index) => value !== highest[index]);
  return [
    series("after the step", "policy_version", 1, { kind: "steps", format: (value) => (isNumber(value) ? `v${value}` : NONE) }),
    ...(mixed ? [{ ...sampled, name: "oldest that sampled", kind: "points", ys: lowest }] : []),
    { ...sampled, name: mixed ? "newest that sampled" : "that sampled its tokens", kind: "points", ys: highest, tone: mixed ? 3 : 2 },
  ];
}

function timeByPart(data) {
  const sum = (values) => values.filter(isNumber).reduce((total, value) => total + value, 0);
  const grouped = (lines, tone) => [...Map.groupBy(lines, (item) => item.name)].map(([name, items]) => (
    { name: items.length > 1 ? `${name} (${items.length} times)` : name, tone, seconds: sum(items.map((item) => item.duration_s)) }));
  const parts = [
    ...grouped(data.phases, 5),
    ...grouped(data.evaluations, 1),
    ...timeSeries(data.steps).filter((item) => item.ys.some(isNumber)).map((item) => ({ name: `steps: ${item.name}`, tone: item.tone, seconds: sum(item.ys) })),
  ];
  const rest = (data.whole_s ?? 0) - sum(parts.map((item) => item.seconds));
  if (rest > 0) parts.push({ name: "between the parts, and what was taken again", tone: 5, seconds: rest });
  const total = sum(parts.map((item) => item.seconds));
  const longest = Math.max(...parts.map((item) => item.seconds ?? 0), 1e-9);
  const rows = parts.map((item) => element("tr", {},
    element("th", { scope: "row" }, ...visible(item.name)),
    element("td", { class: "bar" }, drawing("svg", { height: 14, width: "100%", "aria-hidden": "true" },
      drawing("rect", { class: `bars tone${item.tone}`, height: 14, width: `${(100 * (item.seconds ?? 0)) / longest}%`, rx: 2 }))),
    element("td", { class: "number" }, duration(item.seconds)),
    element("td", { class: "number" }, total ? `${((100 * (item.seconds ?? 0)) / total).toFixed(1)} %` : NONE)));
  const figure = element("figure", { class: "plot card wide" },
    element("figcaption", {},
      element("div", { class: "heading" }, element("h3", {}, "Time by part of the run"), element("p", { class: "where" }, duration(total))),
      element("p", { class: "note" }, "All of the run, also what came before it was resumed: start, evaluations, and the steps\u2019 parts summed up.")),
    element("table", { class: "parts" }, element("tbody", {}, ...rows)));
  return { figure, series: parts };
}

function anyPlot(columns, shared, series) {
  const names = Object.keys(columns).filter((name) => name !== "step");
  const chosen = ["entropy_mean", "loss", "reward"].find((name) => columns[name]?.some(isNumber)) ?? names[0];
  const choice = element("select", { "aria-label": "Number to plot" }, ...names.map((name) => element("option", { value: name, selected: name === chosen }, name)));
  const plot = new Plot({ ...shared, title: element("h3", {}, "Any number"), note: "Everything that the steps recorded; all of it is in the table at the end.", unit: unitOf(chosen), series: [series(chosen, chosen, 1)] });
  plot.heading.after(choice);
  choice.addEventListener("change", () => plot.show([series(choice.value, choice.value, 1)], unitOf(choice.value)));
  return plot;
}
