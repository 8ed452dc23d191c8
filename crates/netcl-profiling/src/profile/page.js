"use strict";
// Draws the page from the data that stands in it.
const data = JSON.parse(document.getElementById("profile").textContent);
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const time = (s) => s >= 1 ? `${s.toFixed(2)} s` : s >= 1e-3 ? `${(s * 1e3).toFixed(2)} ms` : `${(s * 1e6).toFixed(1)} us`;
const percent = (x) => x == null ? "–" : `${(100 * x).toFixed(1)} %`;
const mebibytes = (b) => `${(b / 1048576).toFixed(1)} MiB`;
const rate = (x) => x >= 1e12 ? `${(x / 1e12).toFixed(1)} T` : x >= 1e9 ? `${(x / 1e9).toFixed(1)} G` : x >= 1e6 ? `${(x / 1e6).toFixed(1)} M` : `${x.toFixed(0)} `;

const tip = $("tip");
function show(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}
const hide = () => { tip.hidden = true; };

function openSource(kernel) {
  $("source-name").textContent = kernel.name;
  const native = kernel.kind === "kernel" ? "This kernel is native CPU code of netcl: it has no OpenCL source." : "A copy has no source.";
  $("source-text").textContent = kernel.source ?? native;
  $("source").showModal();
}

$("about").textContent = `${data.commands.length + data.left_out} launches and copies in ${time(data.span * 1e-9)}, ${time(data.busy)} of device time on ${data.devices.map((d) => d.name).join(", ") || "no device"}; netcl ${data.version}` + (data.left_out ? `. The timeline shows the first ${data.commands.length}.` : "");

// ---- flame graph ----------------------------------------------------------------------------------------------------------------------
function tree() {
  const root = { name: "all", path: null, total: 0, forward: 0, backward: 0, calls: 0, children: [] };
  const nodes = new Map();
  for (const row of data.modules) {
    const at = row.path.lastIndexOf(".");
    const parent = at < 0 ? root : nodes.get(row.path.slice(0, at));
    const node = { ...row, name: row.path ? row.path.slice(at + 1) : "(no module)", children: [], parent };
    nodes.set(row.path, node);
    parent.children.push(node);
    if (parent === root) {
      root.total += row.total; root.forward += row.forward; root.backward += row.backward; root.calls += row.calls;
    }
  }
  return root;
}
function flame() {
  const root = tree(), host = $("flame"), HEIGHT = 26;
  let focus = root;
  const depthOf = (node) => 1 + Math.max(0, ...node.children.map(depthOf));
  function draw() {
    host.replaceChildren();
    const chain = [];
    for (let node = focus; node; node = node.parent) chain.unshift(node);
    host.style.height = `${(chain.length - 1 + depthOf(focus)) * HEIGHT + 8}px`;
    const width = host.clientWidth - 8;
    const put = (node, x, w, depth) => {
      if (w < 1) return;
      const box = document.createElement("button");
      const back = node.total ? node.backward / node.total : 0;
      Object.assign(box.style, { left: `${4 + x}px`, width: `${Math.max(w - 1, 1)}px`, top: `${4 + depth * HEIGHT}px` });
      box.style.background = `linear-gradient(90deg, ${css("--forward")} ${100 * (1 - back)}%, ${css("--backward")} 0)`;
      box.textContent = w > 40 ? `${node.name} ${time(node.total)}` : "";
      box.setAttribute("aria-label", node.name);
      box.onmousemove = (e) => show(e, `${node.path || node.name}\nforward ${time(node.forward)}, backward ${time(node.backward)}\n${node.calls} commands, ${percent(node.total / (root.total || 1))} of all`);
      box.onmouseleave = hide;
      box.onclick = () => { hide(); focus = node === focus && node.parent ? node.parent : node; draw(); };
      host.append(box);
    };
    chain.slice(0, -1).forEach((node, depth) => put(node, 0, width, depth));
    const fill = (node, x, w, depth) => {
      put(node, x, w, depth);
      let at = x;
      for (const child of node.children) {
        const part = node.total ? w * child.total / node.total : 0;
        fill(child, at, part, depth + 1);
        at += part;
      }
    };
    fill(focus, 0, width, chain.length - 1);
  }
  draw();
  addEventListener("resize", draw);
}

// ---- timeline -------------------------------------------------------------------------------------------------------------------------
function timeline() {
  const canvas = $("timeline"), context = canvas.getContext("2d");
  const rows = [];
  const row = (name) => { let at = rows.indexOf(name); if (at < 0) at = rows.push(name) - 1; return at; };
  const slices = [];
  for (const thread of new Set(data.commands.map((c) => c[7]))) row(`calls, thread ${thread}`);
  data.commands.forEach((c, i) => {
    const kernel = data.kernels[c[0]], device = data.devices[kernel.device].name;
    const copy = kernel.kind !== "kernel";
    slices.push({ row: row(`calls, thread ${c[7]}`), from: c[1], to: c[2], i, color: "--call" });
    slices.push({ row: row(`${copy ? "copies" : "kernels"}, ${device}`), from: c[3], to: c[4], i, color: copy ? "--copy" : c[6] ? "--backward" : "--forward" });
  });
  const ROW = 34, TOP = 24, LEFT = 4;
  canvas.height = TOP + rows.length * ROW + 8;
  canvas.style.height = `${canvas.height}px`;
  const end = Math.max(data.span, 1);
  let from = 0, to = end, chosen = -1;
  const x = (t) => LEFT + (t - from) / (to - from) * (canvas.clientWidth - 2 * LEFT);
  function draw() {
    const scale = devicePixelRatio || 1, width = canvas.clientWidth, height = TOP + rows.length * ROW + 8;
    canvas.width = width * scale; canvas.height = height * scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    const raw = (to - from) / 8, unit = 10 ** Math.floor(Math.log10(raw)), step = unit * (raw / unit > 5 ? 10 : raw / unit > 2 ? 5 : 2);
    for (let t = Math.ceil(from / step) * step; t < to; t += step) {
      context.fillStyle = css("--line"); context.fillRect(x(t), 0, 1, height);
      context.fillStyle = css("--soft"); context.fillText(time(t * 1e-9), x(t) + 3, 12);
    }
    rows.forEach((name, i) => { context.fillStyle = css("--soft"); context.fillText(name, LEFT + 2, TOP + i * ROW + 9); });
    for (const s of slices) {
      const a = x(s.from), b = x(s.to);
      if (b < 0 || a > width) continue;
      context.globalAlpha = s.i === chosen ? 1 : .8;
      context.fillStyle = css(s.color);
      const y = TOP + s.row * ROW + 12, w = Math.max(b - a, .6);
      context.fillRect(a, y, w, ROW - 16);
      if (s.i === chosen) { context.strokeStyle = css("--ink"); context.strokeRect(a, y, w, ROW - 16); }
      if (w > 46) { context.fillStyle = "#10141c"; context.save(); context.beginPath(); context.rect(a, y, w, ROW); context.clip(); context.fillText(data.kernels[data.commands[s.i][0]].name, a + 3, y + 13); context.restore(); }
    }
    context.globalAlpha = 1;
    if (chosen >= 0) {
      const c = data.commands[chosen], [call, ran] = slices.slice(2 * chosen, 2 * chosen + 2);
      context.strokeStyle = css("--ink"); context.beginPath();
      context.moveTo(x(c[1]), TOP + call.row * ROW + ROW - 6); context.lineTo(x(c[3]), TOP + ran.row * ROW + 12); context.stroke();
    }
  }
  function at(event) {
    const box = canvas.getBoundingClientRect(), t = from + (event.clientX - box.left - LEFT) / (canvas.clientWidth - 2 * LEFT) * (to - from);
    const line = Math.floor((event.clientY - box.top - TOP) / ROW), slack = (to - from) / canvas.clientWidth * 2;
    return [t, slices.find((s) => s.row === line && t >= s.from - slack && t <= s.to + slack)];
  }
  const text = (i) => { const c = data.commands[i]; return `${data.kernels[c[0]].name}: ${time((c[4] - c[3]) * 1e-9)} on the device, ${time((c[2] - c[1]) * 1e-9)} in the call` + (c[5] ? `; ${c[5]}${c[6] ? ", backward" : ""}` : ""); };
  let drag = null;
  canvas.onwheel = (e) => {
    e.preventDefault();
    const [t] = at(e), f = Math.exp(e.deltaY * .0015), width = Math.min(Math.max((to - from) * f, 100), end);
    from = Math.max(0, Math.min(t - (t - from) * width / (to - from), end - width)); to = from + width; draw();
  };
  canvas.onpointerdown = (e) => { drag = { x: e.clientX, from, moved: false }; canvas.setPointerCapture(e.pointerId); };
  canvas.onpointermove = (e) => {
    if (drag) {
      const width = to - from, moved = (drag.x - e.clientX) / canvas.clientWidth * width;
      drag.moved ||= Math.abs(drag.x - e.clientX) > 3;
      from = Math.max(0, Math.min(drag.from + moved, end - width)); to = from + width; draw();
      return;
    }
    const [, slice] = at(e);
    if (slice) show(e, text(slice.i)); else hide();
  };
  canvas.onpointerup = (e) => {
    if (drag && !drag.moved) { const [, slice] = at(e); chosen = slice ? slice.i : -1; $("chosen").textContent = slice ? text(slice.i) : " "; draw(); }
    drag = null;
  };
  canvas.onpointerleave = hide;
  canvas.ondblclick = () => { from = 0; to = end; draw(); };
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { draw(); });
  draw();
}

// ---- roofline and memory --------------------------------------------------------------------------------------------------------------
const SVG = "http://www.w3.org/2000/svg";
function element(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text != null) made.textContent = text;
  parent.append(made);
  return made;
}
function rooflines() {
  data.devices.forEach((device, number) => {
    const kernels = data.kernels.filter((k) => k.device === number && k.kind === "kernel" && k.flops > 0 && k.bytes > 0 && k.total > 0);
    if (!kernels.length) return;
    const W = 1200, H = 380, L = 70, R = 20, T = 30, B = 40;
    const points = kernels.map((k) => ({ k, x: k.flops / k.bytes, y: k.flops / k.total }));
    const peak = device.ceilings ? Math.max(device.ceilings.fma, ...device.ceilings.matrix.map((m) => m[1])) : 0;
    const xs = points.map((p) => p.x).concat(peak ? [peak / device.ceilings.bytes] : []), ys = points.map((p) => p.y).concat(peak ? [peak] : []);
    const low = (v) => Math.floor(Math.log10(Math.min(...v))), high = (v) => Math.ceil(Math.log10(Math.max(...v)) + .05);
    const [x0, x1, y0, y1] = [low(xs), Math.max(high(xs), low(xs) + 1), low(ys), Math.max(high(ys), low(ys) + 1)];
    const X = (v) => L + (Math.log10(v) - x0) / (x1 - x0) * (W - L - R), Y = (v) => H - B - (Math.log10(v) - y0) / (y1 - y0) * (H - T - B);
    const box = document.createElement("div"), svg = element(box, "svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `roofline of ${device.name}` });
    element(svg, "text", { x: L, y: 18 }, `${device.name}: operations per second over operations per byte`);
    for (let e = x0; e <= x1; e++) { element(svg, "line", { class: "grid", x1: X(10 ** e), x2: X(10 ** e), y1: T, y2: H - B }); element(svg, "text", { x: X(10 ** e), y: H - B + 18, "text-anchor": "middle" }, `${+(10 ** e).toPrecision(3)}`); }
    for (let e = y0; e <= y1; e++) { element(svg, "line", { class: "grid", x1: L, x2: W - R, y1: Y(10 ** e), y2: Y(10 ** e) }); element(svg, "text", { x: L - 8, y: Y(10 ** e) + 4, "text-anchor": "end" }, rate(10 ** e)); }
    if (device.ceilings) {
      const roofs = [["multiply-adds", device.ceilings.fma], ...device.ceilings.matrix];
      for (const [name, flops] of roofs) {
        const bend = flops / device.ceilings.bytes, left = Math.max(10 ** x0, 10 ** y0 / device.ceilings.bytes);
        element(svg, "path", { class: "roof", d: `M${X(left)} ${Y(Math.min(left * device.ceilings.bytes, flops))}L${X(Math.max(bend, left))} ${Y(flops)}L${W - R} ${Y(flops)}` });
        element(svg, "text", { x: W - R, y: Y(flops) - 6, "text-anchor": "end" }, `${name}: ${rate(flops)}FLOP/s`);
      }
    }
    for (const { k, x, y } of points.sort((a, b) => b.k.share - a.k.share)) {
      const dot = element(svg, "circle", { class: "dot", cx: X(x), cy: Y(y), r: 4 + 22 * Math.sqrt(k.share), tabindex: 0, role: "button", "aria-label": k.name });
      dot.onmousemove = (e) => show(e, `${k.name}\n${rate(y)}FLOP/s, ${k.gbps.toFixed(1)} GB/s, ${percent(k.ceiling)} of the ceiling\n${k.calls} calls, ${time(k.total)}, ${percent(k.share)} of all\n${k.source ? "click for its source" : "native CPU"}`);
      dot.onmouseleave = hide;
      dot.onclick = () => { hide(); openSource(k); };
      dot.onkeydown = (e) => { if (e.key === "Enter") openSource(k); };
    }
    $("rooflines").append(box);
  });
  if (!$("rooflines").children.length) $("rooflines").textContent = "No kernel counts operations and bytes.";
}
function memories() {
  for (const memory of data.memory.filter((m) => m.points.length)) {
    const W = 1200, H = 220, L = 80, R = 20, T = 30, B = 30;
    const box = document.createElement("div"), svg = element(box, "svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `memory of ${memory.device}` });
    const top = Math.max(memory.peak * 1.05, 1), X = (t) => L + t / Math.max(data.span, 1) * (W - L - R), Y = (b) => H - B - b / top * (H - T - B);
    element(svg, "text", { x: L, y: 18 }, `${memory.device}: peak ${mebibytes(memory.peak)} after ${time(memory.peak_time * 1e-9)}, ${mebibytes(memory.before)} held before, ${memory.allocations} allocations`);
    for (let i = 0; i <= 4; i++) { const b = top * i / 4; element(svg, "line", { class: "grid", x1: L, x2: W - R, y1: Y(b), y2: Y(b) }); element(svg, "text", { x: L - 8, y: Y(b) + 4, "text-anchor": "end" }, mebibytes(b)); }
    let d = `M${X(0)} ${Y(0)}V${Y(memory.points[0][1])}`;
    for (const [t, b] of memory.points) d += `H${X(t).toFixed(1)}V${Y(b).toFixed(1)}`;
    element(svg, "path", { class: "curve", d: `${d}H${X(data.span)}V${Y(0)}Z` });
    const table = document.createElement("table");
    fill(table, [["at the peak", "module", (h) => h.module || "(no module)"], ["for", "label", (h) => h.label], ["blocks", "blocks"], ["bytes", "bytes", (h) => mebibytes(h.bytes)]], memory.holders);
    $("memory").append(box, table);
  }
  if (!$("memory").children.length) $("memory").textContent = "Nothing was allocated.";
}

// ---- tables ---------------------------------------------------------------------------------------------------------------------------
function fill(table, columns, rows, click) {
  let by = null, down = true;
  function draw() {
    const sorted = by == null ? rows : [...rows].sort((a, b) => { const [p, q] = [a[by] ?? -1, b[by] ?? -1]; return (typeof p === "string" ? p.localeCompare(q) : p - q) * (down ? -1 : 1); });
    const head = document.createElement("tr");
    for (const [title, key] of columns) {
      const cell = document.createElement("th");
      cell.textContent = title + (by === key ? (down ? " ↓" : " ↑") : "");
      cell.onclick = () => { down = by === key ? !down : true; by = key; draw(); };
      head.append(cell);
    }
    const thead = document.createElement("thead"), body = document.createElement("tbody");
    thead.append(head);
    for (const row of sorted) {
      const line = document.createElement("tr");
      for (const [, key, text] of columns) { const cell = document.createElement("td"); cell.textContent = text ? text(row) : row[key]; line.append(cell); }
      if (click) { line.className = "has-source"; line.onclick = () => click(row); }
      body.append(line);
    }
    table.replaceChildren(thead, body);
  }
  draw();
}
fill($("kernels"), [
  ["kernel", "name"], ["calls", "calls"], ["total", "total", (k) => time(k.total)], ["mean", "mean", (k) => time(k.mean)],
  ["GFLOP/s", "gflops", (k) => k.gflops.toFixed(1)], ["GB/s", "gbps", (k) => k.gbps.toFixed(1)],
  ["of ceiling", "ceiling", (k) => percent(k.ceiling)], ["of all", "share", (k) => percent(k.share)],
], data.kernels, openSource);
if (data.lines.length) fill($("lines"), [["line", "line"], ["calls", "calls"], ["total", "total", (l) => time(l.total)], ["of all", "share", (l) => percent(l.share)]], data.lines);
else $("lines-section").remove();
flame();
timeline();
rooflines();
memories();
