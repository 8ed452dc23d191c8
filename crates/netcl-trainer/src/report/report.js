// Draws the report from the block of JSON. All texts of users go through textContent: nothing of them becomes HTML.
"use strict";
(() => {
  const { runs, version } = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  const single = runs.length === 1;

  // ---- Elements ----

  const build = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };
  const el = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const section = (title, ...children) => page.append(el("section", {}, el("h2", {}, title), ...children));
  const colour = (index) => `var(--run-${index % 8})`;
  const swatch = (stroke, dashed) =>
    el("i", { class: dashed ? "swatch dashed" : "swatch", style: `border-color:${stroke}`, "aria-hidden": "true" });

  // ---- Numbers as text ----

  const known = (value) => typeof value === "number" && Number.isFinite(value);
  const grouped = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
  const plain = (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e7 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
    if (size >= 1000) return grouped(value);
    return String(Number(value.toPrecision(4)));
  };
  const scaled = (units, base) => (value) => {
    let unit = 0;
    while (Math.abs(value) >= base && unit + 1 < units.length) [value, unit] = [value / base, unit + 1];
    return `${Number(value.toPrecision(value >= 1000 ? 4 : 3))}${units[unit]}`;
  };
  const bytes = scaled([" B", " KiB", " MiB", " GiB", " TiB"], 1024);
  const counted = scaled(["", " k", " M", " G", " T", " P"], 1000);
  const percent = (value) => `${(value * 100).toFixed(2)} %`;
  const shortPercent = (value) => `${Number((value * 100).toFixed(2))} %`;
  const duration = (seconds) => {
    if (!known(seconds)) return "";
    if (seconds === 0) return "0";
    if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
    if (seconds < 60) return `${seconds.toFixed(1)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  };

  // ---- What the values of epochs are ----

  const SPEED = "samples_per_second";
  const MEMORY = { memory_bytes: "in use", memory_peak_bytes: "peak so far" };
  const base = (name) => name.replace(/^val_/, "");
  const isShare = (name) => /accuracy|precision|recall|f1|auroc|top_?\d/i.test(name);
  const lowerIsBetter = (name) => /loss|perplexity|error|mse|mae/i.test(name);
  const format = (name) => (isShare(name) ? percent : plain);
  const label = (name) => {
    const words = base(name).replaceAll("_", " ");
    return words.charAt(0).toUpperCase() + words.slice(1);
  };
  const names = new Set(runs.flatMap((run) => run.history.epochs.flatMap((epoch) => Object.keys(epoch.values))));
  const metrics = [...new Set([...names].filter((name) => name !== SPEED && name !== "lr" && !(name in MEMORY)).map(base))].sort();
  const last = (run, name) => {
    const values = run.history.epochs.map((epoch) => epoch.values[name]).filter(known);
    return values.length ? values[values.length - 1] : undefined;
  };
  const best = (run, name) => {
    const values = run.history.epochs.map((epoch) => epoch.values[name]).filter(known);
    return values.length ? (lowerIsBetter(name) ? Math.min : Math.max)(...values) : undefined;
  };
  const seconds = (run) => run.history.epochs.reduce((sum, epoch) => sum + (epoch.seconds || 0), 0);
  const speedOf = (epoch) => epoch.values[SPEED] ?? (epoch.seconds > 0 && epoch.samples ? epoch.samples / epoch.seconds : null);
  const speed = (run) => {
    const values = run.history.epochs.map(speedOf).filter(known).sort((a, b) => a - b);
    return values.length ? values[values.length >> 1] : undefined;
  };
  const parameters = (run) => run.layers.length ? run.layers[0].parameters : undefined;

  // Where an update lies on the axis: knots at the ends of epochs, straight lines between them.
  for (const run of runs) {
    const { epochs, steps } = run.history;
    const knots = [{ step: 0, epoch: 0, time: 0 }];
    for (const epoch of epochs) {
      const before = knots[knots.length - 1];
      knots.push({ step: Math.max(epoch.steps, before.step + 1), epoch: epoch.epoch, time: before.time + (epoch.seconds || 0) });
    }
    if (knots.length === 1) knots.push({ step: steps.step.length ? steps.step[steps.step.length - 1] : 1, epoch: 1, time: NaN });
    let at = 1;
    run.place = (step, unit) => {
      if (unit === "step") return step;
      while (at > 1 && step <= knots[at - 1].step) at -= 1;
      while (at + 1 < knots.length && step > knots[at].step) at += 1;
      const [a, b] = [knots[at - 1], knots[at]];
      return a[unit] + ((step - a.step) / (b.step - a.step)) * (b[unit] - a[unit]);
    };
    run.placeEpoch = (index, unit) => knots[Math.min(index + 1, knots.length - 1)][unit];
  }

  // ---- State that all charts share ----

  const longest = runs.reduce((most, run) => Math.max(most, run.history.steps.step.length), 0);
  const state = { hidden: new Set(), unit: "epoch", zoom: null, smooth: longest > 200 ? 0.9 : longest > 40 ? 0.6 : 0, log: false, end: 1 };
  const charts = [];
  const redraw = () => {
    state.end = charts.reduce((end, chart) => Math.max(end, chart.end()), 0) || 1;
    charts.forEach((chart) => chart.draw());
  };
  const hiddenSeries = (series) => state.hidden.has(`run ${series.run}`) || state.hidden.has(series.role);

  const smoothed = (points, weight) => {
    if (!weight) return points;
    let [mean, mass] = [0, 0];
    return points.map(([x, y]) => {
      mean = mean * weight + y * (1 - weight);
      mass = mass * weight + (1 - weight);
      return [x, mean / mass];
    });
  };
  const stepPoints = (run, column) =>
    run.history.steps.step.map((step, i) => [run.place(step, state.unit), run.history.steps[column][i]]).filter(([x, y]) => known(x) && known(y));
  const epochPoints = (run, value) =>
    run.history.epochs.map((epoch, i) => [run.placeEpoch(i, state.unit), value(epoch)]).filter(([x, y]) => known(x) && known(y));

  // With one run colours tell training and validation apart, with several they tell runs apart and training is dashed.
  const line = (run, role, points, more = {}) => ({
    run, role, points, raw: null, dots: true,
    name: single ? role : `${runs[run].title} (${role})`,
    stroke: single ? colour(role === "validation" || role === "peak so far" ? 1 : 0) : colour(run),
    dashed: role === "peak so far" || (!single && role === "training"),
    ...more,
  });
  const lossLines = () => runs.flatMap((run, index) => {
    const steps = stepPoints(run, "loss");
    const training = steps.length
      ? line(index, "training", smoothed(steps, state.smooth), { raw: state.smooth ? steps : null, dots: false })
      : line(index, "training", epochPoints(run, (epoch) => epoch.values.loss));
    return [training, line(index, "validation", epochPoints(run, (epoch) => epoch.values.val_loss))];
  });
  const metricLines = (name) => () => runs.flatMap((run, index) => [
    line(index, "training", epochPoints(run, (epoch) => epoch.values[name])),
    line(index, "validation", epochPoints(run, (epoch) => epoch.values[`val_${name}`])),
  ]);
  const alone = (index, points, more) => line(index, "", points, { name: runs[index].title, stroke: colour(index), ...more });

  // ---- A chart: hover, keys, zoom by dragging ----

  const ticks = (low, high, count) => {
    const rough = Math.max((high - low) / count, 1e-12);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
    const found = [];
    for (let tick = Math.ceil(low / step - 1e-6); tick * step <= high + step * 1e-6; tick += 1) found.push(Number((tick * step).toPrecision(12)));
    return found;
  };
  // Round steps in KiB, MiB, ... instead of in bytes.
  const ticksOf = (text, low, high) => {
    const unit = text === bytes ? 1024 ** Math.min(4, Math.floor(Math.log2(Math.max(high, 1)) / 10)) : 1;
    const write = text === percent ? shortPercent : text;
    return ticks(low / unit, high / unit, 5).map((tick) => [tick * unit, write(tick * unit)]);
  };
  const xText = (value) => state.unit === "time" ? duration(value) : `${state.unit} ${Number(value.toFixed(state.unit === "step" ? 0 : 2))}`;
  // Of the points in one column of pixels the first, smallest, largest and last: what a line through all would cover.
  const thinned = (points, x) => {
    const kept = [];
    for (let start = 0; start < points.length; ) {
      const column = Math.round(x(points[start][0]));
      let [end, low, high] = [start, start, start];
      while (end < points.length && Math.round(x(points[end][0])) === column) {
        if (points[end][1] < points[low][1]) low = end;
        if (points[end][1] > points[high][1]) high = end;
        end += 1;
      }
      for (const at of [...new Set([start, low, high, end - 1])].sort((a, b) => a - b)) kept.push(points[at]);
      start = end;
    }
    return kept;
  };
  const nearest = (points, x) => {
    let [low, high] = [0, points.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle; else high = middle;
    }
    return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
  };

  class Chart {
    constructor({ title, lines, text, fromZero = false, canLog = false, legend = [] }) {
      Object.assign(this, { title, lines, text, fromZero, canLog, at: null, drag: null });
      this.id = `chart-${charts.length}`;
      this.canvas = svg("svg", { class: "chart", tabindex: "0", role: "img", "aria-label": `${title}: arrow keys move the cursor, plus and minus zoom, 0 shows everything` });
      this.tip = el("div", { class: "tip", hidden: true, "aria-live": "polite" });
      this.node = el("figure", { id: this.id }, el("figcaption", {}, title, legend.length ? el("span", { class: "legend" }, ...legend) : null), this.canvas, this.tip);
      this.canvas.addEventListener("pointermove", (event) => this.move(event));
      this.canvas.addEventListener("pointerleave", () => { if (!this.drag) this.point(null); });
      this.canvas.addEventListener("pointerdown", (event) => {
        if (event.button !== 0 || event.pointerType === "touch") return;
        this.canvas.setPointerCapture(event.pointerId);
        this.drag = { from: this.toX(event), to: this.toX(event) };
      });
      this.canvas.addEventListener("pointerup", () => this.release());
      this.canvas.addEventListener("pointercancel", () => { this.drag = null; this.overlay(); });
      this.canvas.addEventListener("dblclick", () => zoom(null));
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      this.canvas.addEventListener("blur", () => this.point(null));
      new ResizeObserver(() => this.draw()).observe(this.node);
      charts.push(this);
    }

    end() {
      return this.lines().reduce((end, { points }) => (points.length ? Math.max(end, points[points.length - 1][0]) : end), 0);
    }

    draw() {
      const width = Math.max(this.node.clientWidth - 24, 200);
      const height = width < 420 ? 210 : 250;
      const [left, right, top, bottom] = [58, width - 10, 8, height - 34];
      const [low, high] = state.zoom ?? [0, state.end];
      this.series = this.lines().filter((series) => series.points.length && !hiddenSeries(series));
      const within = (points) => points.filter(([x]) => x >= low && x <= high);
      let values = this.series.flatMap((series) => within(series.points).map(([, y]) => y));
      const log = this.canLog && state.log && values.every((y) => y > 0) && values.length > 0;
      const scale = log ? Math.log10 : (y) => y;
      values = values.map(scale);
      // Not Math.min(...values): a call has fewer arguments than many runs have points.
      let [floor, ceiling] = values.length ? values.reduce(([least, most], y) => [Math.min(least, y), Math.max(most, y)], [values[0], values[0]]) : [0, 1];
      if (this.fromZero && !log) floor = Math.min(0, floor);
      const margin = (ceiling - floor) * 0.06 || Math.abs(ceiling) * 0.1 || 1;
      [floor, ceiling] = [this.fromZero && !log && floor === 0 ? 0 : floor - margin, ceiling + margin];
      const x = (value) => left + ((value - low) / (high - low)) * (right - left);
      const y = (value) => bottom - ((scale(value) - floor) / (ceiling - floor)) * (bottom - top);
      Object.assign(this, { x, y, low, high, left, right, top, bottom });

      const parts = [svg("title", {}, this.title)];
      const clip = `${this.id}-clip`;
      parts.push(svg("clipPath", { id: clip }, svg("rect", { x: left - 5, y: top - 5, width: right - left + 10, height: bottom - top + 10 })));
      const logTicks = () => {
        const decades = ticks(floor, ceiling, 5).map((tick) => 10 ** tick);
        return decades.map((tick) => [Number(tick.toPrecision(2)), plain(Number(tick.toPrecision(2)))]);
      };
      const yTicks = log ? logTicks() : ticksOf(this.text, floor, ceiling);
      for (const [tick, text] of yTicks.filter(([tick]) => y(tick) >= top - 1 && y(tick) <= bottom + 1)) {
        parts.push(svg("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }));
        parts.push(svg("text", { x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, text));
      }
      for (const tick of ticks(low, high, Math.max(3, Math.floor(width / 75)))) {
        if (state.unit !== "time" && high - low > 3 && !Number.isInteger(tick)) continue;
        const text = state.unit === "time" ? duration(tick) : plain(tick);
        parts.push(svg("text", { x: x(tick), y: bottom + 17, "text-anchor": "middle" }, text));
      }
      parts.push(svg("text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, state.unit));
      const inside = svg("g", { "clip-path": `url(#${clip})` });
      const path = (points, attributes) => {
        const shown = thinned(points.filter(([at], i) => (points[i + 1]?.[0] ?? at) >= low && (points[i - 1]?.[0] ?? at) <= high), x);
        inside.append(svg("path", { d: shown.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join(""), ...attributes }));
      };
      for (const { raw, stroke } of this.series) if (raw) path(raw, { class: "raw", style: `stroke:${stroke}` });
      for (const { points, stroke, dashed, dots } of this.series) {
        path(points, { class: dashed ? "dashed" : null, style: `stroke:${stroke}` });
        const shown = within(points);
        if (dots && shown.length <= 60) for (const [a, b] of shown) inside.append(svg("circle", { cx: x(a), cy: y(b), r: 3, style: `fill:${stroke}` }));
      }
      this.marks = svg("g", {});
      if (!this.series.length) parts.push(svg("text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, "nothing to show"));
      this.canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.canvas.replaceChildren(...parts, inside, this.marks);
      this.overlay();
    }

    toX(event) {
      const box = this.canvas.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * this.canvas.viewBox.baseVal.width;
      return Math.min(this.high, Math.max(this.low, this.low + ((at - this.left) / (this.right - this.left)) * (this.high - this.low)));
    }

    move(event) {
      if (this.drag) this.drag.to = this.toX(event);
      this.point(this.toX(event));
    }

    release() {
      const { drag } = this;
      this.drag = null;
      if (drag && Math.abs(this.x(drag.to) - this.x(drag.from)) > 6) zoom([Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)]);
      else this.overlay();
    }

    key(event) {
      const span = this.high - this.low;
      const at = this.at ?? (this.low + this.high) / 2;
      const around = (half) => zoom([Math.max(0, at - half), at + half]);
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") this.point(Math.min(this.high, Math.max(this.low, at + (event.key === "ArrowRight" ? span : -span) / 50)));
      else if (event.key === "+" || event.key === "=") around(span / 4);
      else if (event.key === "-") (state.zoom ? around(span) : zoom(null));
      else if (event.key === "0" || event.key === "Escape") { zoom(null); this.point(null); }
      else return;
      event.preventDefault();
    }

    point(at) {
      this.at = at;
      this.overlay();
    }

    overlay() {
      if (!this.marks) return;
      this.marks.replaceChildren();
      if (this.drag) {
        const [a, b] = [this.drag.from, this.drag.to].map(this.x).sort((one, other) => one - other);
        this.marks.append(svg("rect", { class: "range", x: a, y: this.top, width: b - a, height: this.bottom - this.top }));
      }
      // A run that ended before the cursor has nothing to say there.
      const reached = ({ points }) => points[points.length - 1][0] >= this.at - (this.high - this.low) / 50;
      const hits = this.at === null ? [] : this.series.filter(reached).map((series) => ({ series, hit: nearest(series.points, this.at) }));
      this.tip.hidden = !hits.length;
      if (!hits.length) return;
      hits.sort((a, b) => b.hit[1] - a.hit[1]);
      const at = hits.reduce((found, { hit }) => (Math.abs(hit[0] - this.at) < Math.abs(found - this.at) ? hit[0] : found), hits[0].hit[0]);
      this.marks.append(svg("line", { class: "cursor", x1: this.x(at), x2: this.x(at), y1: this.top, y2: this.bottom }));
      for (const { series, hit } of hits) this.marks.append(svg("circle", { cx: this.x(hit[0]), cy: this.y(hit[1]), r: 4.5, style: `fill:${series.stroke}` }));
      const rows = hits.slice(0, 12).map(({ series, hit }) => el("div", {}, swatch(series.stroke, series.dashed), el("span", {}, series.name || this.title), el("b", {}, this.text(hit[1]))));
      this.tip.replaceChildren(el("strong", {}, xText(at)), ...rows);
      const box = this.canvas.getBoundingClientRect();
      const place = (this.x(at) / this.canvas.viewBox.baseVal.width) * box.width + 12;
      const onRight = place + this.tip.offsetWidth + 14 < this.node.clientWidth;
      this.tip.style.left = `${onRight ? place + 12 : Math.max(4, place - this.tip.offsetWidth - 12)}px`;
      this.tip.style.top = `${box.top - this.node.getBoundingClientRect().top + 12}px`;
    }
  }

  const reset = el("button", { type: "button", disabled: true, onclick: () => zoom(null) }, "Show everything");
  const zoom = (range) => {
    state.zoom = range;
    reset.disabled = !range;
    redraw();
  };

  const toggle = (key, mark, text) => {
    const button = el("button", { type: "button", class: "toggle", "aria-pressed": "true", title: `show or hide ${text}` }, mark, el("span", {}, text));
    button.addEventListener("click", () => {
      const hide = !state.hidden.has(key);
      if (hide) state.hidden.add(key); else state.hidden.delete(key);
      button.setAttribute("aria-pressed", String(!hide));
      redraw();
    });
    return button;
  };

  const controls = () => {
    const hasTime = runs.some((run) => seconds(run) > 0);
    const hasValidation = [...names].some((name) => name.startsWith("val_"));
    const toggles = single ? [] : runs.map((run, index) => toggle(`run ${index}`, swatch(colour(index)), run.title));
    if (hasValidation) {
      toggles.push(toggle("training", swatch(single ? colour(0) : "var(--soft)", !single), "training"));
      toggles.push(toggle("validation", swatch(single ? colour(1) : "var(--soft)"), "validation"));
    }
    const unit = el("select", { onchange: (event) => { state.unit = event.target.value; zoom(null); } },
      ...["epoch", "step", ...(hasTime ? ["time"] : [])].map((name) => el("option", { value: name }, name)));
    const smooth = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smooth, oninput: (event) => { state.smooth = Number(event.target.value); redraw(); } });
    const log = el("input", { type: "checkbox", onchange: (event) => { state.log = event.target.checked; redraw(); } });
    return el("div", { class: "bar" }, el("div", { class: "toggles", role: "group", "aria-label": "Legend" }, ...toggles),
      el("label", {}, "over", unit), longest > 1 ? el("label", {}, "smoothing", smooth) : null, el("label", {}, log, "logarithmic"), reset);
  };

  // ---- Tables ----

  const table = (head, rows, attributes = {}) => el("div", { class: "card", ...attributes }, el("table", { class: "grid-table" },
    el("thead", {}, el("tr", {}, ...head.map((cell, i) => el("th", { scope: "col", class: i && cell !== "module" ? null : "left" }, cell)))), el("tbody", {}, ...rows)));
  const cell = (text, attributes = {}) => el("td", attributes, text ?? "");

  // A table whose rows are sorted by the column whose head is pressed. A row is its cells: [text, number or text to sort by].
  const sortable = (head, rows, attributes) => {
    let order = { column: -1, sign: 1 };
    const node = table(head.map(() => ""), [], attributes);
    const body = node.querySelector("tbody");
    const draw = () => {
      const by = ([, a], [, b]) => (typeof a === "string" ? a.localeCompare(b) : a - b) * order.sign;
      const sorted = order.column < 0 ? rows : [...rows].sort((a, b) => by(a[order.column], b[order.column]));
      body.replaceChildren(...sorted.map((cells) => el("tr", {}, ...cells.map(([text], i) => (i ? cell(text) : el("th", { scope: "row" }, text))))));
      node.querySelectorAll("thead th").forEach((th, column) => th.setAttribute("aria-sort", column !== order.column ? "none" : order.sign > 0 ? "ascending" : "descending"));
    };
    node.querySelectorAll("thead th").forEach((th, column) => th.append(el("button", { type: "button", onclick: () => {
      order = { column, sign: order.column === column ? -order.sign : 1 };
      draw();
    } }, head[column])));
    draw();
    return node;
  };

  const results = metrics.flatMap((name) => [`val_${name}`, name].filter((key) => names.has(key)).slice(0, 1));

  const tiles = (run) => {
    const found = results.map((name) => [format(name)(last(run, name) ?? NaN), `${name.startsWith("val_") ? "validation " : ""}${base(name).replaceAll("_", " ")}`, last(run, name)]);
    found.push([duration(seconds(run)), "training time", seconds(run) || undefined], [plain(speed(run) ?? NaN), "samples per second", speed(run)]);
    found.push([grouped(parameters(run) ?? 0), "parameters", parameters(run)], [bytes(last(run, "memory_peak_bytes") ?? 0), "peak device memory", last(run, "memory_peak_bytes")]);
    return el("div", { class: "tiles" }, ...found.filter(([, , value]) => value !== undefined).map(([value, name]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name))));
  };

  const comparison = () => {
    const columns = results.map((name) => ({ head: `${name.startsWith("val_") ? "validation " : ""}${base(name).replaceAll("_", " ")} (best)`, of: (run) => best(run, name), text: format(name), low: lowerIsBetter(name) }));
    columns.push({ head: "epochs", of: (run) => run.history.epochs.length, text: String }, { head: "time", of: (run) => seconds(run) || undefined, text: duration },
      { head: "samples/s", of: speed, text: plain, low: false }, { head: "parameters", of: parameters, text: grouped }, { head: "peak memory", of: (run) => last(run, "memory_peak_bytes"), text: bytes });
    const used = columns.filter((column) => runs.some((run) => known(column.of(run))));
    const winner = (column) => {
      const values = runs.map(column.of).filter(known);
      return column.low === undefined || values.length < 2 ? undefined : column.low ? Math.min(...values) : Math.max(...values);
    };
    const rows = runs.map((run, index) => el("tr", {}, el("th", { scope: "row" }, swatch(colour(index)), ` ${run.title}`),
      ...used.map((column) => cell(known(column.of(run)) ? column.text(column.of(run)) : "", { class: column.of(run) === winner(column) ? "best" : null }))));
    return table(["run", ...used.map((column) => column.head)], rows);
  };

  const settingsTable = () => {
    const all = runs.map((run) => new Map([...run.settings, ...(run.device ? [["device", run.device]] : [])]));
    const keys = [...new Set(all.flatMap((one) => [...one.keys()]))];
    if (!keys.length) return null;
    if (single) return el("div", { class: "card" }, el("table", { class: "rows" }, ...keys.map((key) => el("tr", {}, el("th", { scope: "row" }, key), cell(all[0].get(key))))));
    const differs = (key) => new Set(all.filter((one) => one.has(key)).map((one) => one.get(key))).size > 1;
    const rows = keys.map((key) => el("tr", { class: differs(key) ? "differs" : null }, el("th", { scope: "row" }, key), ...all.map((one) => cell(one.get(key), { class: "wrap" }))));
    const only = el("input", { type: "checkbox", onchange: (event) => rows.forEach((row) => { row.hidden = event.target.checked && !row.classList.contains("differs"); }) });
    return el("div", {}, el("div", { class: "bar", style: "position:static" }, el("label", {}, only, "only what differs")), table(["setting", ...runs.map((run) => run.title)], rows));
  };

  // ---- What a classifier takes for what ----

  const confusion = ({ classes, confusion: counts }) => {
    const sums = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
    const said = el("p", { class: "said", "aria-live": "polite" }, "Rows: what it is. Columns: what it was taken for.");
    const cells = [];
    const dense = classes.length > 40;
    const heads = { row: [], column: [] };
    const head = (kind, name) => { const th = el("th", { scope: kind === "row" ? "row" : "col", title: name }, dense ? "" : name); heads[kind].push(th); return th; };
    const box = el("table", { class: dense ? "confusion dense" : "confusion" });
    box.append(el("thead", {}, el("tr", {}, el("td", {}), ...classes.map((name) => head("column", name)))));
    const body = el("tbody");
    counts.forEach((row, is) => body.append(el("tr", {}, head("row", classes[is]), ...row.map((count, guess) => {
      const share = sums[is] ? count / sums[is] : 0;
      // Rare mistakes must be seen as well: the root lifts them.
      const strength = Math.sqrt(share) * (guess === is ? 0.5 : 0.75);
      const td = el("td", { style: `background:rgba(var(--${guess === is ? "good" : "bad"}),${strength.toFixed(2)})`, "data-is": is, "data-guess": guess });
      cells.push({ td, count, share });
      return td;
    }))));
    box.append(body);
    const show = (shares) => cells.forEach(({ td, count, share }) => { td.textContent = dense || !count ? "" : shares ? (share * 100).toFixed(share < 0.0995 ? 1 : 0) : count; });
    show(false);
    box.addEventListener("pointerover", (event) => {
      const { is, guess } = event.target.dataset ?? {};
      if (is === undefined) return;
      heads.row.forEach((th, i) => th.classList.toggle("on", i === Number(is)));
      heads.column.forEach((th, i) => th.classList.toggle("on", i === Number(guess)));
      const [count, sum] = [counts[is][guess], sums[is]];
      said.textContent = `${classes[is]} ${is === guess ? "recognised" : `taken for ${classes[guess]}`}: ${count} of ${sum} (${sum ? percent(count / sum) : "none"})`;
    });
    const mode = (text, shares) => el("button", { type: "button", class: "mode", "aria-pressed": String(!shares), onclick: (event) => {
      show(shares);
      event.target.parentNode.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", String(button === event.target)));
    } }, text);
    const modes = dense ? null : el("div", { class: "toggles modes", style: "margin-bottom:8px" }, mode("counts", false), mode("% of the row", true));
    return el("div", { class: "card" }, modes, box, said);
  };

  const classTable = ({ classes, confusion: counts }) => {
    const rows = classes.map((name, at) => {
      const sum = counts[at].reduce((total, count) => total + count, 0);
      const taken = counts.reduce((total, row) => total + row[at], 0);
      const [recall, precision] = [sum ? counts[at][at] / sum : NaN, taken ? counts[at][at] / taken : NaN];
      const f1 = sum + taken ? (2 * counts[at][at]) / (sum + taken) : NaN;
      let other = -1;
      counts[at].forEach((count, guess) => { if (guess !== at && count > (other < 0 ? 0 : counts[at][other])) other = guess; });
      const share = (value) => [known(value) ? percent(value) : "", known(value) ? value : -1];
      const missed = other < 0 ? ["", 0] : [`${classes[other]} (${counts[at][other]})`, counts[at][other]];
      return [[name, name], [String(sum), sum], share(precision), share(recall), share(f1), missed];
    });
    return sortable(["class", "samples", "precision", "recall", "F1", "mostly taken for"], rows, { class: "card tall", tabindex: "0", role: "region", "aria-label": "Classes" });
  };

  const mistakes = ({ classes, mistakes: wrong }) => el("div", { class: "wrong" }, ...wrong.map((one) => el("div", {},
    one.image ? el("img", { src: one.image, alt: one.name, title: one.name }) : el("span", {}, `${one.name}: `),
    el("b", {}, classes[one.label]), `, not ${classes[one.guess]} (${Math.round(one.probability * 100)} %)`)));

  const samples = (run) => el("div", { class: "samples" }, ...run.samples.map((one) => el("div", { class: "card" }, el("pre", {}, el("b", {}, one.prompt), one.text))));

  const layerTable = (run) => {
    const timed = run.layers.some((layer) => known(layer.seconds));
    const total = run.layers[0]?.seconds ?? 0;
    const parents = new Set(run.layers.map((layer) => layer.name.split(".").slice(0, -1).join(".")));
    const rows = run.layers.map((layer, index) => {
      const depth = layer.name ? layer.name.split(".").length : 0;
      const share = total ? (layer.seconds ?? 0) / total : 0;
      const bar = el("span", { class: "share", title: percent(share) }, el("i", { style: `width:${(share * 100).toFixed(1)}%` }));
      const figures = timed ? [cell(known(layer.flops) ? counted(layer.flops / (run.layer_batch || 1)) : ""), cell(known(layer.seconds) ? duration(layer.seconds) : ""), cell(share ? bar : "")] : [];
      return el("tr", { class: index === 0 || parents.has(layer.name) ? "group" : null }, el("th", { scope: "row", style: `padding-left:${10 + depth * 14}px` }, layer.name || "model"),
        cell(layer.kind, { class: "left kind wrap" }), cell(layer.shape.join(" x ")), cell(layer.parameters ? grouped(layer.parameters) : ""), ...figures);
    });
    const head = ["layer", "module", "output", "parameters", ...(timed ? ["FLOPs per sample", "time", "share of time"] : [])];
    const note = timed ? el("p", { class: "said" }, `A forward pass of ${run.layer_batch || 1} samples, the best of up to three; the host waits for each launch, so short layers take longer here than in training. Work without weights counts to the layer before it where layers call each other directly.`) : null;
    return el("div", {}, table(head, rows, { class: "card tall", tabindex: "0", role: "region", "aria-label": "Layers" }), note);
  };

  // ---- The page ----

  const device = [...new Set(runs.map((run) => run.device).filter(Boolean))];
  page.append(el("h1", {}, document.title), el("p", { class: "lead" }, `Trained by netcl ${version}${device.length === 1 ? ` on ${device[0]}` : ""}.`));
  const notes = runs.flatMap((run) => run.notes.map((note) => (single ? note : `${run.title}: ${note}`)));
  if (notes.length) page.append(el("ul", { class: "notes", "aria-label": "Notes" }, ...notes.map((note) => el("li", {}, note))));
  if (single) page.append(tiles(runs[0]));
  else if (runs.length) section("Comparison", comparison());

  const hasSteps = runs.some((run) => run.history.steps.step.length);
  const curves = [];
  if (hasSteps || metrics.includes("loss")) curves.push(new Chart({ title: "Loss", lines: lossLines, text: plain, fromZero: true, canLog: true }));
  for (const name of metrics.filter((name) => name !== "loss")) curves.push(new Chart({ title: label(name), lines: metricLines(name), text: format(name), canLog: /perplexity/.test(name) }));
  if (runs.some((run) => run.history.steps.lr.some(known))) curves.push(new Chart({ title: "Learning rate", lines: () => runs.map((run, index) => alone(index, stepPoints(run, "lr"), { dots: false })), text: plain, fromZero: true }));
  if (curves.length) section("Curves", controls(), el("div", { class: "charts" }, ...curves.map((chart) => chart.node)));

  const gauges = [];
  if (runs.some((run) => run.history.epochs.some((epoch) => known(speedOf(epoch))))) gauges.push(new Chart({ title: "Throughput (samples per second)", lines: () => runs.map((run, index) => alone(index, epochPoints(run, speedOf))), text: plain, fromZero: true }));
  const memory = Object.entries(MEMORY).filter(([name]) => names.has(name));
  if (memory.length) gauges.push(new Chart({ title: "Device memory", lines: () => runs.flatMap((run, index) => memory.map(([name, role]) => line(index, role, epochPoints(run, (epoch) => epoch.values[name])))), text: bytes, fromZero: true,
    legend: memory.map(([, role]) => el("span", {}, swatch(single ? colour(role === MEMORY.memory_bytes ? 0 : 1) : "var(--soft)", role !== MEMORY.memory_bytes), ` ${role}`)) }));
  if (gauges.length) section("Device over time", el("div", { class: "charts" }, ...gauges.map((chart) => chart.node)));

  const settings = settingsTable();
  if (settings) section("Settings", settings);

  runs.forEach((run, index) => {
    const parts = [];
    const found = run.classification;
    if (found?.classes.length) {
      const named = (title, ...children) => el("section", {}, el(single ? "h2" : "h3", {}, title), ...children);
      if (found.classes.length <= 150) parts.push(named("Confusion", confusion(found)));
      parts.push(named("Classes", classTable(found)));
      if (found.mistakes.length) parts.push(named("Mistakes it was surest of", mistakes(found)));
    }
    if (run.samples.length) parts.push(el("section", {}, el(single ? "h2" : "h3", {}, "Samples of text"), samples(run)));
    if (run.layers.length) parts.push(el("section", {}, el(single ? "h2" : "h3", {}, "Layers"), layerTable(run)));
    if (!parts.length) return;
    if (single) page.append(...parts);
    else page.append(el("details", { open: index === 0 }, el("summary", {}, swatch(colour(index)), ` ${run.title}`), ...parts));
  });

  const sources = [...new Set(runs.map((run) => run.attribution).filter(Boolean))];
  if (sources.length) page.append(el("footer", {}, `Data: ${sources.join(" ")}`));
  redraw();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();
