// One plot over the steps: axes, series, a cursor that all plots share, and the values under it.
//
// A series is {name, tone, kind, xs, ys}, where `kind` is "line", "steps" (holds its value), "points", "bars"
// (stacked on the bars before it) or "band" (then `ys` are its lower and `tops` its upper edge). `format` writes
// its values, `at` finds the value that the legend shows for a step. Every point is drawn, however many there are.
"use strict";

const HEIGHT = 246;
const MARGIN = { top: 26, right: 20, bottom: 26 };
const DIGIT = 7.1; // pixels, of the axis' font

const cursor = {
  step: null,
  plots: [],
  move(step) {
    this.step = step;
    for (const plot of this.plots) plot.showCursor();
  },
};

class Plot {
  constructor({ title, note, unit, series, steps, domain, scale = "linear", zero = false, integers = false, remark }) {
    Object.assign(this, { title, unit, steps, domain, scale, zero, integers, remark });
    this.legend = element("ul", { class: "legend" });
    this.where = element("p", { class: "where" });
    this.surface = element("div", {
      class: "surface", tabindex: "0", role: "slider",
      "aria-valuemin": steps[0], "aria-valuemax": steps.at(-1),
    });
    this.heading = typeof title === "string" ? element("h3", {}, title) : title;
    this.figure = element("figure", { class: "plot card" },
      element("figcaption", {}, element("div", { class: "heading" }, this.heading, this.where), element("p", { class: "note" }, note)),
      this.legend, this.surface);
    this.show(series, unit);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.surface);
    cursor.plots.push(this);
  }

  show(series, unit) {
    this.series = series.filter((item) => item.ys.some(isNumber));
    this.unit = unit;
    // Without a cursor the values are those of the last step that has all of them.
    const complete = this.series.filter((item) => item.xs === this.steps);
    this.rest = this.steps.findLast((_, index) => complete.every((item) => isNumber(item.ys[index]))) ?? this.steps.at(-1);
    this.values = [];
    this.legend.replaceChildren(...this.series.map((item) => {
      const value = element("b");
      this.values.push(value);
      return element("li", {}, swatch(item), element("span", {}, item.name), value);
    }));
    this.draw();
  }

  draw() {
    const width = Math.floor(this.surface.clientWidth);
    if (!width) return;
    if (!this.series.length) {
      this.surface.replaceChildren(element("p", { class: "nothing" }, "No step has this number."));
      return;
    }
    const scale = this.scale === "log" ? logScale(this.extent()) : linearScale(this.extent(), this.zero, this.integers);
    const left = Math.max(4, ...scale.ticks.map((tick) => tick.text.length)) * DIGIT + 12;
    const [first, last] = this.domain;
    this.x = (step) => left + ((step - first) / (last - first)) * (width - left - MARGIN.right);
    this.y = (value) => MARGIN.top + (1 - scale.share(value)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    this.pitch = (width - left - MARGIN.right) / (last - first);
    const root = drawing("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, "aria-hidden": "true" });
    this.axes(root, scale, left, width);
    this.line = drawing("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
    root.append(this.line, ...this.shapes());
    this.dots = drawing("g", { class: "dots" });
    root.append(this.dots);
    this.surface.replaceChildren(root);
    this.showCursor();
  }

  extent() {
    const values = [];
    const tops = new Map();
    for (const item of this.series) {
      item.ys.forEach((value, index) => {
        if (!isNumber(value)) return;
        if (item.kind === "bars") {
          tops.set(item.xs[index], (tops.get(item.xs[index]) ?? 0) + value);
        } else {
          values.push(value);
          if (item.tops) values.push(item.tops[index]);
        }
      });
    }
    values.push(...tops.values());
    return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  }

  axes(root, scale, left, width) {
    for (const { value, text } of scale.ticks) {
      const y = Math.round(this.y(value)) + 0.5;
      root.append(
        drawing("line", { class: "grid", x1: left, x2: width - MARGIN.right, y1: y, y2: y }),
        drawing("text", { class: "tick", x: left - 8, y: y + 4, "text-anchor": "end" }, text));
    }
    for (const step of stepTicks(this.domain, Math.max(2, Math.floor((width - left) / 64)))) {
      const text = whole.format(step);
      if (this.x(step) - (text.length * DIGIT) / 2 < left - 4) continue;
      root.append(drawing("text", { class: "tick", x: this.x(step), y: HEIGHT - 8, "text-anchor": "middle" }, text));
    }
    root.append(
      drawing("text", { class: "tick unit", x: left - 8, y: HEIGHT - 8, "text-anchor": "end" }, "step"),
      drawing("text", { class: "tick unit", x: 0, y: 11 }, this.unit));
  }

  shapes() {
    const base = new Map();
    return this.series.flatMap((item) => {
      const tone = `tone${item.tone}`;
      if (item.kind === "band") return [drawing("path", { class: `band ${tone}`, d: this.bandPath(item) })];
      if (item.kind === "bars") return [drawing("path", { class: `bars ${tone}`, d: this.barPath(item, base) })];
      const marks = this.marks(item, tone);
      const dots = drawing("path", { class: `specks ${tone}`, d: this.specks(item) });
      if (item.kind === "points") return [dots, ...marks];
      return [drawing("path", { class: `stroke ${tone} ${item.dash ?? ""}`, d: this.linePath(item) }), dots, ...marks];
    });
  }

  linePath({ xs, ys, kind }) {
    let path = "";
    let open = false;
    ys.forEach((value, index) => {
      if (isNumber(value)) {
        const [x, y] = [this.x(xs[index]).toFixed(1), this.y(value).toFixed(1)];
        path += !open ? `M${x} ${y}` : kind === "steps" ? `H${x}V${y}` : `L${x} ${y}`;
      }
      open = isNumber(value);
    });
    return path;
  }

  bandPath({ xs, ys, tops }) {
    const there = xs.map((_, index) => index).filter((index) => isNumber(ys[index]) && isNumber(tops[index]));
    const point = (index, value) => `${this.x(xs[index]).toFixed(1)} ${this.y(value).toFixed(1)}`;
    const upper = there.map((index) => point(index, tops[index]));
    const lower = there.map((index) => point(index, ys[index])).reverse();
    return there.length ? `M${[...upper, ...lower].join("L")}Z` : "";
  }

  barPath({ xs, ys }, base) {
    const half = Math.max(0.5, Math.min(14, this.pitch * 0.38));
    let path = "";
    ys.forEach((value, index) => {
      if (!isNumber(value)) return;
      const from = base.get(xs[index]) ?? 0;
      base.set(xs[index], from + value);
      const x = this.x(xs[index]);
      path += `M${(x - half).toFixed(1)} ${this.y(from).toFixed(1)}V${this.y(from + value).toFixed(1)}H${(x + half).toFixed(1)}V${this.y(from).toFixed(1)}Z`;
    });
    return path;
  }

  // Points have marks where there is room for them.
  roomFor({ xs }) {
    return xs.length < 2 || ((this.x(xs.at(-1)) - this.x(xs[0])) / (xs.length - 1)) >= 12;
  }

  // Where there is no room, single points are specks: else a line of no length would not be seen.
  specks(item) {
    if (this.roomFor(item)) return "";
    const { xs, ys, kind } = item;
    return xs.map((x, index) => {
      const alone = !isNumber(ys[index - 1]) && !isNumber(ys[index + 1]);
      return isNumber(ys[index]) && (kind === "points" || alone) ? `M${this.x(x).toFixed(1)} ${this.y(ys[index]).toFixed(1)}h0` : "";
    }).join("");
  }

  marks(item, tone) {
    if (item.smooth || !this.roomFor(item)) return [];
    const { xs, ys, shape = "circle", hollow } = item;
    return xs.flatMap((x, index) => {
      if (!isNumber(ys[index])) return [];
      const empty = hollow?.[index] ? " hollow" : "";
      return [mark(shape, this.x(x), this.y(ys[index]), `mark ${tone}${empty}`)];
    });
  }

  listen() {
    const pointed = (event) => {
      if (!this.x) return;
      const at = event.clientX - this.surface.getBoundingClientRect().left;
      cursor.move(this.steps.reduce((best, step) => (Math.abs(this.x(step) - at) < Math.abs(this.x(best) - at) ? step : best)));
    };
    this.surface.addEventListener("pointermove", pointed);
    this.surface.addEventListener("pointerdown", pointed);
    this.surface.addEventListener("pointerleave", () => document.activeElement === this.surface || cursor.move(null));
    this.surface.addEventListener("blur", () => cursor.move(null));
    this.surface.addEventListener("focus", () => cursor.step ?? cursor.move(this.steps.at(-1)));
    this.surface.addEventListener("dblclick", () => this.opened());
    this.surface.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const last = this.steps.length - 1;
    const here = cursor.step === null ? last : this.steps.indexOf(cursor.step);
    const stride = Math.max(1, Math.round(last / 10));
    const there = {
      ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1,
      PageDown: here - stride, PageUp: here + stride, Home: 0, End: last,
    }[event.key];
    if (event.key === "Enter") this.opened();
    if (there === undefined) return;
    event.preventDefault();
    cursor.move(this.steps[Math.min(last, Math.max(0, there))]);
  }

  opened() {
    if (cursor.step !== null) this.surface.dispatchEvent(new CustomEvent("step", { bubbles: true, detail: cursor.step }));
  }

  showCursor() {
    const step = cursor.step ?? this.rest;
    const index = this.steps.indexOf(step);
    const earlier = cursor.step === null && step !== this.steps.at(-1);
    const remark = earlier ? "last with values" : this.remark?.(index);
    this.where.textContent = `step ${whole.format(step)}${remark ? ` \u00b7 ${remark}` : ""}`;
    const texts = this.series.map((item) => (item.at ? item.at(step) : (item.format ?? short)(item.ys[item.xs.indexOf(step)])));
    this.values.forEach((node, position) => { node.textContent = texts[position]; });
    this.surface.setAttribute("aria-label", `${this.heading.textContent.trim()}, by step`);
    this.surface.setAttribute("aria-valuenow", step);
    this.surface.setAttribute("aria-valuetext", [this.where.textContent, ...this.series.map((item, position) => `${item.name} ${texts[position]}`)].join(", "));
    if (!this.line || !this.series.length) return;
    this.line.classList.toggle("shown", cursor.step !== null);
    this.line.setAttribute("x1", this.x(step));
    this.line.setAttribute("x2", this.x(step));
    this.dots.replaceChildren(...(cursor.step === null ? [] : this.series).flatMap((item) => {
      const value = item.ys[item.xs.indexOf(step)];
      if (!isNumber(value) || item.kind === "bars" || item.kind === "band") return [];
      return [mark(item.shape ?? "circle", this.x(step), this.y(value), `mark big tone${item.tone}`)];
    }));
  }
}

function mark(shape, x, y, name) {
  const big = name.includes("big") ? 1.6 : 1;
  if (shape === "circle") return drawing("circle", { class: name, cx: x, cy: y, r: 3.5 * big });
  const r = (shape === "diamond" ? 6 : 3.5) * big;
  const corners = shape === "diamond" ? [[0, -r], [r, 0], [0, r], [-r, 0]] : [[-r, -r], [r, -r], [r, r], [-r, r]];
  return drawing("path", { class: name, d: `M${corners.map(([dx, dy]) => `${x + dx} ${y + dy}`).join("L")}Z` });
}

function swatch({ kind, tone, shape = "circle", dash = "", smooth }) {
  const root = drawing("svg", { width: 22, height: 12, viewBox: "0 0 22 12", "aria-hidden": "true" });
  if (kind === "bars" || kind === "band") {
    root.append(drawing("rect", { class: `${kind} tone${tone}`, x: 5, y: 0, width: 12, height: 12, rx: 2 }));
  } else {
    if (kind !== "points") root.append(drawing("path", { class: `stroke tone${tone} ${dash}`, d: "M0 6H22" }));
    if (!smooth) root.append(mark(shape, 11, 6, `mark tone${tone}`));
  }
  return root;
}

function linearScale([low, high], zero, integers) {
  if (zero && high > 0) low = Math.min(0, low);
  if (low === high) {
    const room = integers ? 1 : Math.abs(low) * 0.1 || 1;
    [low, high] = low === 0 ? [0, 1] : [low - room, high + room];
  }
  if (zero || (low > 0 && low <= high - low)) low = Math.min(0, low);
  let stride = niceStride((high - low) / 4);
  if (integers) stride = Math.max(1, Math.round(stride));
  low = Math.floor(low / stride + 1e-9) * stride;
  high = Math.ceil(high / stride - 1e-9) * stride;
  const digits = Math.max(0, -Math.floor(Math.log10(stride) + 1e-9));
  const large = Math.max(Math.abs(low), Math.abs(high)) >= 1e7;
  const written = (value) => (digits > 5 || large ? scientific(value, 1) : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  const ticks = [];
  for (let index = 0; low + index * stride <= high + stride / 2; index += 1) {
    const value = low + index * stride;
    ticks.push({ value, text: value < -stride / 2 ? `\u2212${written(-value)}` : written(Math.abs(value)) });
  }
  return { ticks, share: (value) => (value - low) / (high - low) };
}

// Whole decades; what is zero or less lies on the floor.
function logScale([low, high]) {
  const top = high > 0 ? Math.ceil(Math.log10(high) - 1e-9) : -6;
  let floor = low > 0 ? Math.floor(Math.log10(low) + 1e-9) : top - 3;
  if (floor >= top) floor = top - 1;
  const stride = Math.ceil((top - floor) / 6);
  const ticks = [];
  for (let exponent = top; exponent >= floor; exponent -= stride) ticks.push({ value: 10 ** exponent, text: power(exponent) });
  return { ticks, share: (value) => (value > 0 ? Math.max(0, (Math.log10(value) - floor) / (top - floor)) : 0) };
}

function niceStride(rough) {
  const size = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * size).find((stride) => stride >= rough * 0.999);
}

function stepTicks([first, last], most) {
  const stride = Math.max(1, niceStride((last - first) / most));
  const ticks = [];
  for (let step = Math.ceil(Math.max(0, first) / stride) * stride; step <= last; step += stride) ticks.push(step);
  return ticks;
}
