// The page: plots, trajectories and the table of all numbers, under the header that is there without scripts.
"use strict";

function numbersTable(columns) {
  const names = ["step", ...Object.keys(columns).filter((name) => name !== "step")];
  const place = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All numbers of each step" });
  const details = element("details", { class: "numbers card" }, element("summary", {}, `All ${whole.format(names.length)} numbers of each step`), place);
  details.addEventListener("toggle", () => {
    if (!details.open || place.firstChild) return;
    const rows = columns.step.map((_, index) => element("tr", {}, ...names.map((name) => {
      const value = columns[name][index];
      return element(name === "step" ? "th" : "td", {}, value === null ? NONE : String(value));
    })));
    place.append(element("table", {}, element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, ...visible(name))))), element("tbody", {}, ...rows)));
  });
  return details;
}

function build() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.querySelector("main");
  const trajectories = new Trajectories(data);
  main.append(...beforeAndAfter(data));
  if (data.steps.step?.length) {
    const grid = element("div", { class: "plots" }, ...plots(data).map((plot) => plot.figure));
    grid.addEventListener("step", (event) => trajectories.open(event.detail));
    main.append(element("section", { "aria-labelledby": "plots" },
      element("h2", { id: "plots" }, "Training"),
      element("p", { class: "intro" }, "Point at a plot, or walk through it with the arrow keys: all of them show the same step. Double-click or Enter opens its trajectories."),
      grid));
  } else {
    main.append(element("p", { class: "notice" }, "No step of this run is finished."), ...(data.phases.length ? [element("div", { class: "plots" }, timeByPart({ ...data, steps: { step: [] } }).figure)] : []));
  }
  if (data.sets.length || data.steps.step?.length) main.append(trajectories.root);
  if (data.steps.step?.length) main.append(numbersTable(data.steps));
}

build();
