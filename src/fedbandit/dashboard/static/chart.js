// Line charts as SVG: nodes are reused, lines are labelled directly, values are read by pointer or arrow keys.
import { ticks, timeTicks, shortNumber, clock } from "./scale.js";
import { span, zoomTo, zoomBy, resetZoom } from "./time_range.js";

const SVG = "http://www.w3.org/2000/svg";
const MAX_POINTS = 1500; // of a line; when there are more, every second one of the older half goes
const WIDE = 560; // from here on there is room for names beside the lines
const ROWS = 24; // of the table behind a chart

/** Add what the server sent to a line: all of it anew, or more at its end. */
export function addPoints(series, name, { how, x, y }) {
  const line = how === "more" ? series.get(name) : null;
  if (!line) {
    series.set(name, { x, y });
    return;
  }
  line.x.push(...x);
  line.y.push(...y);
  if (line.x.length > MAX_POINTS) {
    const kept = (_, i) => i >= MAX_POINTS / 2 || i % 2 === 1;
    line.x = line.x.filter(kept);
    line.y = line.y.filter(kept);
  }
}

/** `n` children of this kind: existing ones are used again, others made or removed. */
function pool(parent, kind, n) {
  while (parent.childNodes.length > n) parent.lastChild.remove();
  while (parent.childNodes.length < n) parent.appendChild(document.createElementNS(SVG, kind));
  return parent.childNodes;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function element(kind, attributes, ...children) {
  const node = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The part of a line between two times; its value at the first time stands for everything before. */
export function clip({ x, y }, [from, to], isStep) {
  const first = x.findIndex((at) => at >= from);
  const begin = first < 0 ? x.length : first;
  const end = x.findLastIndex((at) => at <= to) + 1;
  const cut = { x: x.slice(begin, Math.max(end, begin)), y: y.slice(begin, Math.max(end, begin)) };
  if (begin > 0 && y[begin - 1] !== null && (isStep || end > begin) && (cut.x[0] ?? Infinity) > from) {
    const [x0, y0, x1, y1] = [x[begin - 1], y[begin - 1], x[begin], y[begin]];
    const share = isStep || y1 === null || y1 === undefined ? 0 : (from - x0) / (x1 - x0);
    cut.x.unshift(from);
    cut.y.unshift(y0 + share * ((y1 ?? y0) - y0));
  }
  return cut;
}

export class Chart {
  constructor(host) {
    this.host = host;
    this.spec = JSON.parse(host.dataset.chart);
    this.cursor = null;
    this.svg = null;
  }

  draw(series, now) {
    this.series = series;
    this.now = now;
    this.redraw();
  }

  redraw() {
    if (!this.series) return;
    const known = this.spec.lines
      .map((line, i) => ({ ...line, ...this.series.get(line.series), colour: line.style === "thin" ? "thin" : i }))
      .filter((line) => line.x?.length);
    const times = known.flatMap((line) => [line.x[0], line.x.at(-1)]);
    this.window = span(Math.min(...times), Math.max(this.now, ...times));
    const lines = known.map((line) => ({ ...line, ...clip(line, this.window, line.style === "step") })).filter((line) => line.x.length);
    this.lines = lines;
    if (this.svg) this.nothing.hidden = lines.length > 0;
    if (!lines.some((line) => line.y.some((y) => y !== null))) {
      if (this.spec.lines.some((line) => this.series.has(line.series))) this.showEmpty();
      if (this.svg) Object.values(this.groups).forEach((group) => group.replaceChildren());
      return;
    }
    if (!this.svg) this.build();
    this.scale(lines);
    this.drawAxes();
    this.drawLines(lines);
    this.drawLabels(lines);
    this.drawCursor();
    if (this.table.open) this.fillTable();
    const last = lines.map((line) => `${line.name} ${shortNumber(line.y.findLast((y) => y !== null))}`);
    set(this.svg, { "aria-label": `${this.spec.label}. Now: ${last.join(", ")}.` });
  }

  showEmpty() {
    if (!this.svg) write(this.host.firstElementChild, "No data yet.");
  }

  build() {
    this.svg = document.createElementNS(SVG, "svg");
    set(this.svg, { role: "img", tabindex: 0 });
    const group = (name) => {
      const node = document.createElementNS(SVG, "g");
      set(node, { class: name });
      return this.svg.appendChild(node);
    };
    this.groups = Object.fromEntries(
      ["lattice", "y-axis", "x-axis", "rules", "rule-names", "marks", "lines", "ends", "names", "selection", "cursor"].map((n) => [n, group(n)]),
    );
    this.unit = this.svg.appendChild(document.createElementNS(SVG, "text"));
    this.legend = element("ul", { class: "legend" });
    this.readout = element("div", { class: "readout", hidden: "" });
    this.table = element("details", { class: "as-table" }, element("summary", {}, "Show as a table"));
    this.table.addEventListener("toggle", () => this.table.open && this.fillTable());
    this.nothing = element("p", { class: "loading", hidden: "" }, "Nothing in this time range.");
    this.host.replaceChildren(this.legend, this.svg, this.nothing, this.readout, this.table);
    this.svg.addEventListener("pointermove", (event) => this.pointAt(event));
    this.svg.addEventListener("pointerdown", (event) => this.beginDrag(event));
    this.svg.addEventListener("pointerup", (event) => this.endDrag(event));
    this.svg.addEventListener("pointercancel", () => this.select(null));
    this.svg.addEventListener("dblclick", resetZoom);
    this.svg.addEventListener("pointerleave", () => this.moveCursor(null));
    this.svg.addEventListener("blur", () => this.moveCursor(null));
    this.svg.addEventListener("keydown", (event) => this.step(event));
  }

  // -- scales

  scale(lines) {
    this.width = Math.max(this.host.clientWidth, 200);
    this.isWide = this.width >= WIDE;
    this.height = this.isWide ? 260 : 200;
    const named = lines.length > 1;
    const rules = this.spec.rules ?? [];
    const ys = [...lines.flatMap((line) => line.y.filter((y) => y !== null)), ...rules.map((rule) => rule.y)];
    let [low, high] = [ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))];
    if (this.spec.zero) low = Math.min(low, 0);
    if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.5, high + Math.abs(high || 1) * 0.5];
    this.yTicks = ticks(low, high, this.isWide ? 5 : 4);
    [this.low, this.high] = [Math.min(low, this.yTicks[0]), Math.max(high, this.yTicks.at(-1))];
    [this.first, this.last] = this.window;
    const widest = Math.max(...this.yTicks.map((y) => shortNumber(y).length));
    const longest = Math.max(...lines.map((line) => line.name.length));
    this.left = 14 + 7 * widest;
    this.right = named && this.isWide ? Math.min(24 + 6.6 * longest, this.width * 0.3) : 14;
    [this.top, this.bottom] = [26, 24];
    set(this.svg, { viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height });
  }

  x(value) {
    const inner = this.width - this.left - this.right;
    return this.left + (inner * (value - this.first)) / (this.last - this.first);
  }

  y(value) {
    const inner = this.height - this.top - this.bottom;
    return this.top + inner * (1 - (value - this.low) / (this.high - this.low));
  }

  // -- drawing

  drawAxes() {
    const end = this.width - this.right;
    const grid = pool(this.groups.lattice, "line", this.yTicks.length);
    const yNames = pool(this.groups["y-axis"], "text", this.yTicks.length);
    this.yTicks.forEach((value, i) => {
      const y = Math.round(this.y(value)) + 0.5;
      set(grid[i], { x1: this.left, x2: end, y1: y, y2: y, class: value === 0 ? "base" : "" });
      set(yNames[i], { x: this.left - 8, y: y + 4, "text-anchor": "end" });
      write(yNames[i], shortNumber(value));
    });
    const room = Math.max(2, Math.floor((end - this.left) / 90));
    const found = timeTicks(this.first, this.last, room);
    const xNames = pool(this.groups["x-axis"], "text", found.length);
    found.forEach(({ value, name }, i) => {
      const x = this.x(value);
      const anchor = x > end - 18 ? "end" : x < this.left + 14 ? "start" : "middle";
      set(xNames[i], { x: x.toFixed(1), y: this.height - this.bottom + 18, "text-anchor": anchor });
      write(xNames[i], name);
    });
    set(this.unit, { x: 2, y: 12, class: "unit" });
    write(this.unit, this.spec.unit ?? "");
    this.drawRules(end);
    this.drawMarks();
  }

  /** Events as lines from top to bottom; the readout names the one at the cursor. */
  drawMarks() {
    const text = document.querySelector("#marks [data-marks]")?.dataset.marks ?? "[]";
    this.marks = JSON.parse(text).filter(([at]) => at >= this.first && at <= this.last);
    const drawn = pool(this.groups.marks, "line", this.marks.length);
    this.marks.forEach(([at], i) => {
      const x = this.x(at).toFixed(1);
      set(drawn[i], { x1: x, x2: x, y1: this.top - 6, y2: this.height - this.bottom });
    });
  }

  drawRules(end) {
    const rules = this.spec.rules ?? [];
    const drawn = pool(this.groups.rules, "line", rules.length);
    const names = pool(this.groups["rule-names"], "text", rules.length);
    rules.forEach((rule, i) => {
      const y = this.y(rule.y);
      set(drawn[i], { x1: this.left, x2: end, y1: y, y2: y });
      set(names[i], { x: end, y: y - 5, "text-anchor": "end" });
      write(names[i], rule.name);
    });
  }

  drawLines(lines) {
    const paths = pool(this.groups.lines, "path", lines.length);
    lines.forEach((line, i) => set(paths[i], { d: this.path(line), class: `line line-${line.colour}` }));
    const dots = pool(this.groups.ends, "circle", lines.length);
    lines.forEach((line, i) => {
      const at = line.y.findLastIndex((y) => y !== null);
      const place = at < 0 ? { cx: -9, cy: -9 } : { cx: this.x(line.x[at]).toFixed(1), cy: this.y(line.y[at]).toFixed(1) };
      set(dots[i], { ...place, r: line.style === "thin" ? 2 : 3, class: `end line-${line.colour}` });
    });
  }

  path(line) {
    const steps = line.style === "step";
    let text = "";
    let isPenDown = false;
    line.y.forEach((value, i) => {
      if (value === null) {
        isPenDown = false;
        return;
      }
      const [x, y] = [this.x(line.x[i]).toFixed(1), this.y(value).toFixed(1)];
      text += !isPenDown ? `M${x},${y}` : steps ? `H${x}V${y}` : `L${x},${y}`;
      isPenDown = true;
    });
    return steps && isPenDown ? `${text}H${this.x(this.last).toFixed(1)}` : text;
  }

  drawLabels(lines) {
    const named = lines.length > 1;
    const beside = named && this.isWide ? this.placed(lines) : [];
    const names = pool(this.groups.names, "text", beside.length);
    beside.forEach(({ line, x, y }, i) => {
      set(names[i], { x: x.toFixed(1), y: (y + 4).toFixed(1), class: `line-${line.colour}` });
      write(names[i], line.name);
    });
    const inList = named && !this.isWide ? lines : [];
    if (this.legend.children.length !== inList.length) {
      this.legend.replaceChildren(...inList.map(() => element("li", {})));
    }
    inList.forEach((line, i) => {
      this.legend.children[i].className = `line-${line.colour}`;
      write(this.legend.children[i], line.name);
    });
  }

  /** Names at the ends of their lines; those that would overlap stand above each other, the lowest at its place. */
  placed(lines) {
    const found = lines.map((line) => {
      const at = line.y.findLastIndex((y) => y !== null);
      // In the margin: lines end at different times, and no name may cover another line.
      return { line, x: this.width - this.right + 8, y: this.y(line.y[at] ?? this.low) };
    });
    found.sort((a, b) => b.y - a.y);
    found.forEach((name, i) => {
      for (const lower of found.slice(0, i)) {
        const overlaps = Math.abs(lower.x - name.x) < 7 * Math.max(lower.line.name.length, name.line.name.length);
        if (overlaps) name.y = Math.min(name.y, lower.y - 14);
      }
    });
    return found;
  }

  // -- reading values

  get stops() {
    return this.lines.reduce((most, line) => (line.x.length > most.length ? line.x : most), []);
  }

  place(event) {
    const box = this.svg.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * this.width;
  }

  timeAt(x) {
    const inner = this.width - this.left - this.right;
    const share = Math.min(Math.max((x - this.left) / inner, 0), 1);
    return this.first + share * (this.last - this.first);
  }

  beginDrag(event) {
    if (event.button) return;
    this.dragged = this.place(event);
    if (event.pointerType === "mouse") this.svg.setPointerCapture(event.pointerId);
  }

  endDrag(event) {
    const [a, b] = [this.dragged, this.place(event)];
    this.select(null);
    if (a !== null && a !== undefined && Math.abs(a - b) > 8) zoomTo(...[this.timeAt(a), this.timeAt(b)].sort((p, q) => p - q));
  }

  select(x) {
    const [box] = pool(this.groups.selection, "rect", x === null ? 0 : 1);
    if (x === null) this.dragged = null;
    else set(box, { x: Math.min(x, this.dragged), y: this.top, width: Math.abs(x - this.dragged), height: this.height - this.top - this.bottom });
  }

  pointAt(event) {
    const x = this.place(event);
    if (this.dragged !== null && this.dragged !== undefined) this.select(x);
    const stops = this.stops;
    let best = 0;
    for (let i = 1; i < stops.length; i++) {
      if (Math.abs(this.x(stops[i]) - x) < Math.abs(this.x(stops[best]) - x)) best = i;
    }
    this.moveCursor(stops[best]);
  }

  step(event) {
    const stops = this.stops;
    const zooms = { "+": 0.5, "=": 0.5, "-": 2, "−": 2 };
    if (event.key in zooms) zoomBy(zooms[event.key], this.cursor ?? (this.first + this.last) / 2, this.window);
    if (event.key === "Escape" || event.key === "0") resetZoom();
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -stops.length, End: stops.length };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const at = this.cursor === null ? stops.length - 1 : stops.indexOf(this.cursor);
    this.moveCursor(stops[Math.min(Math.max(at + moves[event.key], 0), stops.length - 1)]);
  }

  moveCursor(value) {
    this.cursor = value ?? null;
    this.drawCursor();
  }

  valueAt(line, x) {
    const at = line.x.findLastIndex((stop) => stop <= x);
    return at < 0 ? null : line.y[at];
  }

  drawCursor() {
    const isOn = this.cursor !== null && this.lines?.length > 0;
    const [mark] = pool(this.groups.cursor, "line", isOn ? 1 : 0);
    this.readout.hidden = !isOn;
    if (!isOn) return;
    const x = this.x(this.cursor);
    set(mark, { x1: x, x2: x, y1: this.top, y2: this.height - this.bottom });
    const shown = this.lines.map((line) => [line, this.valueAt(line, this.cursor)]).filter(([, y]) => y !== null && y !== undefined);
    const near = this.marks.filter(([at]) => Math.abs(this.x(at) - x) < 6).slice(0, 3);
    this.readout.replaceChildren(
      element("strong", {}, clock(this.cursor, true, this.last - this.first > 86400)),
      ...near.map(([, text]) => element("em", {}, text)),
      ...shown.map(([line, y]) => element("span", { class: `line-${line.colour}` }, `${line.name} ${shortNumber(y, 4)}`)),
    );
    const room = this.width - this.readout.offsetWidth;
    // SVG elements have no offsetTop: the distance is that of the two boxes.
    const down = this.svg.getBoundingClientRect().top - this.host.getBoundingClientRect().top;
    this.readout.style.transform = `translate(${Math.max(0, Math.min(x + 10, room))}px, ${down + this.top}px)`;
  }

  fillTable() {
    const stops = this.stops;
    const step = Math.max(1, Math.ceil(stops.length / ROWS));
    const rows = stops.filter((_, i) => (stops.length - 1 - i) % step === 0);
    const head = element("tr", {}, element("th", { scope: "col" }, "Time"));
    this.lines.forEach((line) => head.append(element("th", { scope: "col" }, line.name)));
    const body = rows.map((x) => {
      const row = element("tr", {}, element("th", { scope: "row" }, clock(x, true, this.last - this.first > 86400)));
      this.lines.forEach((line) => row.append(element("td", {}, shortNumber(this.valueAt(line, x), 4))));
      return row;
    });
    const caption = element("caption", { class: "hidden" }, this.spec.label);
    const table = element("table", {}, caption, element("thead", {}, head), element("tbody", {}, ...body));
    const around = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.spec.label }, table);
    this.table.replaceChildren(this.table.firstElementChild, around);
  }
}
