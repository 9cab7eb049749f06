// A line chart in SVG. Redrawn whole; long runs are drawn as the envelope of each two pixels, so no
// peak is lost. The pointer, or the arrow keys while it has the focus, read off values.

import { fill, h, svg } from "./dom.js";

const LEFT = 66;
const RIGHT = 12;
const TOP = 20;
const BOTTOM = 22;
const HEIGHT = 190;
const GAP_S = 2.5;

export class Chart {
  #points = [];
  #marks = [];
  #series = [];
  #cursor = null;
  #width = 0;
  #empty = "";

  /**
   * `series`: [{label, tone}]; `format` writes a y value with its unit, `formatX` an x value.
   * `breakAt`: a line ends where x jumps by more. `dots`: mark every point. `ticksX`: where x has ticks.
   */
  constructor({ title, about = "", series = [], format, formatX, ticksX, breakAt = GAP_S, dots = false, onCursor = null }) {
    Object.assign(this, { title, format, formatX, ticksX, breakAt, dots, onCursor });
    this.legend = h("ul", { class: "legend" });
    this.drawing = svg("svg", { height: HEIGHT, tabindex: "0", role: "img", class: "plot" });
    this.element = h(
      "figure",
      { class: "chart card" },
      h("figcaption", {}, h("strong", {}, title), about && h("span", { class: "about" }, about)),
      this.legend,
      this.drawing,
    );
    this.drawing.addEventListener("pointermove", (event) => this.#point(event));
    this.drawing.addEventListener("pointerleave", () => this.#moveCursor(null));
    this.drawing.addEventListener("blur", () => this.#moveCursor(null));
    this.drawing.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#resize()).observe(this.element);
    this.setSeries(series);
  }

  setSeries(series) {
    this.#series = series;
  }

  /** `points`: [{x, values}] sorted by x, one value (or null) per series; `empty`: what to say when there is none. */
  update(points, { marks = [], empty = "" } = {}) {
    this.#points = points;
    this.#marks = marks;
    this.#empty = empty;
    this.#draw();
  }

  /** Show the values at the point nearest to x; null: the newest. */
  showCursor(x) {
    this.#cursor = x;
    this.#draw();
  }

  #moveCursor(x) {
    if (this.onCursor) this.onCursor(x);
    else this.showCursor(x);
  }

  #resize() {
    const width = this.drawing.clientWidth;
    if (width !== this.#width) {
      this.#width = width;
      this.#draw();
    }
  }

  #point(event) {
    if (this.#points.length === 0) return;
    const box = this.drawing.getBoundingClientRect();
    this.#moveCursor(this.#points[this.#nearest(this.#scale().xAt(event.clientX - box.left))].x);
  }

  #key(event) {
    const last = this.#points.length - 1;
    if (last < 0) return;
    const here = this.#cursor === null ? last : this.#nearest(this.#cursor);
    const step = event.shiftKey ? 10 : 1;
    const next = { ArrowLeft: here - step, ArrowRight: here + step, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#moveCursor(null);
    if (next === undefined) return;
    event.preventDefault();
    this.#moveCursor(this.#points[Math.max(0, Math.min(last, next))].x);
  }

  #nearest(x) {
    let [low, high] = [0, this.#points.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#points[middle].x < x) low = middle + 1;
      else high = middle;
    }
    if (low > 0 && x - this.#points[low - 1].x < this.#points[low].x - x) low -= 1;
    return low;
  }

  #scale() {
    const first = this.#points[0].x;
    const span = Math.max(this.#points.at(-1).x - first, this.dots ? 1e-9 : 10);
    const wide = Math.max(this.#width - LEFT - RIGHT, 1);
    let top = 0;
    for (const point of this.#points) for (const value of point.values) if (value > top) top = value;
    const step = niceStep(top || 1, 4);
    const high = Math.max(Math.ceil((top || 1) / step - 1e-9) * step, step);
    return {
      first,
      span,
      step,
      high,
      x: (x) => LEFT + ((x - first) / span) * wide,
      xAt: (pixel) => first + ((pixel - LEFT) / wide) * span,
      y: (y) => TOP + (1 - y / high) * (HEIGHT - TOP - BOTTOM),
    };
  }

  #draw() {
    if (this.#width === 0) return;
    const drawn = this.#points.some((point) => point.values.some((value) => value !== null));
    if (!drawn) {
      fill(this.legend, ...this.#series.map((each) => this.#legendItem(each, null)));
      fill(this.drawing, svg("text", { x: this.#width / 2, y: HEIGHT / 2, class: "nothing" }, this.#empty));
      this.drawing.setAttribute("aria-label", `${this.title}: ${this.#empty}`);
      return;
    }
    const scale = this.#scale();
    const here = this.#points[this.#cursor === null ? this.#points.length - 1 : this.#nearest(this.#cursor)];
    fill(
      this.drawing,
      this.#grid(scale),
      this.#markLines(scale),
      this.#series.map((each, place) => this.#line(each, place, scale)),
      this.#cursor === null ? null : this.#cursorLine(here, scale),
    );
    const values = this.#series.map((each, place) => [each, here.values[place] ?? null]);
    fill(this.legend, ...values.map(([each, value]) => this.#legendItem(each, value)));
    const said = values.map(([each, value]) => `${each.label} ${this.format(value)}`).join(", ");
    this.drawing.setAttribute("aria-label", `${this.title} at ${this.formatX(here.x)}: ${said}`);
  }

  #legendItem(series, value) {
    return h("li", { class: `tone-${series.tone}` }, h("i", {}), series.label, h("b", {}, this.format(value)));
  }

  #grid(scale) {
    const parts = [];
    for (let y = 0; y <= scale.high + scale.step / 2; y += scale.step) {
      const at = scale.y(y);
      parts.push(svg("line", { x1: LEFT, x2: this.#width - RIGHT, y1: at, y2: at, class: y === 0 ? "axis" : "grid" }));
      parts.push(svg("text", { x: LEFT - 8, y: at + 4, class: "tick-y" }, this.format(rounded(y))));
    }
    for (const x of this.ticksX(scale.first, scale.first + scale.span, Math.max(2, Math.floor(this.#width / 90)))) {
      parts.push(svg("text", { x: scale.x(x), y: HEIGHT - 5, class: "tick-x" }, this.formatX(x)));
    }
    return parts;
  }

  #markLines(scale) {
    const parts = [];
    let free = 0;
    for (const { x, label } of this.#marks) {
      const at = scale.x(x);
      parts.push(svg("line", { x1: at, x2: at, y1: TOP - 6, y2: HEIGHT - BOTTOM, class: "mark" }));
      const wide = label.length * 5.8;
      if (at >= free && at + wide < this.#width) {
        parts.push(svg("text", { x: at + 3, y: TOP - 8, class: "mark-label" }, label));
        free = at + wide + 6;
      }
    }
    return parts;
  }

  #line(series, place, scale) {
    const path = [];
    const single = [];
    const breakAt = this.breakAt * this.#perBucket();
    let before = null;
    let alone = null;
    for (const [x, value] of this.#thinned(place)) {
      if (value === null) {
        before = null;
        continue;
      }
      const joined = before !== null && x - before <= breakAt;
      if (!joined && alone) single.push(alone);
      alone = joined ? null : [x, value];
      path.push(`${joined ? "L" : "M"}${scale.x(x).toFixed(1)} ${scale.y(value).toFixed(1)}`);
      before = x;
    }
    if (alone) single.push(alone);
    const dots = this.dots ? this.#points.map((p) => [p.x, p.values[place]]).filter(([, value]) => value !== null) : single;
    return svg(
      "g",
      { class: `tone-${series.tone}${series.faint ? " faint" : ""}` },
      svg("path", { d: path.join(""), class: "line" }),
      dots.map(([x, value]) => svg("circle", { cx: scale.x(x), cy: scale.y(value), r: this.dots ? 3.5 : 2, class: "dot" })),
    );
  }

  #perBucket() {
    return Math.ceil(this.#points.length / Math.max(this.#width / 2, 1));
  }

  #thinned(place) {
    const points = this.#points;
    const perBucket = this.#perBucket();
    if (perBucket <= 1) return points.map((point) => [point.x, point.values[place]]);
    const kept = [];
    for (let start = 0; start < points.length; start += perBucket) {
      const bucket = points.slice(start, start + perBucket).filter((point) => point.values[place] !== null);
      if (bucket.length === 0) {
        kept.push([points[start].x, null]);
        continue;
      }
      const lowest = bucket.reduce((a, b) => (b.values[place] < a.values[place] ? b : a));
      const highest = bucket.reduce((a, b) => (b.values[place] > a.values[place] ? b : a));
      const pair = lowest.x <= highest.x ? [lowest, highest] : [highest, lowest];
      // Both at the bucket's start, so that thinning never looks like a gap.
      for (const point of pair) kept.push([bucket[0].x, point.values[place]]);
    }
    return kept;
  }

  #cursorLine(point, scale) {
    const at = scale.x(point.x);
    return [
      svg("line", { x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor" }),
      svg("text", { x: Math.min(Math.max(at, LEFT + 20), this.#width - 30), y: TOP - 8, class: "cursor-label" }, this.formatX(point.x)),
      this.#series.map((each, place) =>
        point.values[place] === null || point.values[place] === undefined
          ? null
          : svg("g", { class: `tone-${each.tone}` }, svg("circle", { cx: at, cy: scale.y(point.values[place]), r: 3.5, class: "dot" })),
      ),
    ];
  }
}

/** A step of 1, 2, 2.5 or 5 times a power of ten that gives about `parts` steps up to `top`. */
function niceStep(top, parts) {
  const rough = top / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 2.5, 5, 10].find((factor) => power * factor >= rough * 0.999);
}

const rounded = (value) => Number(value.toPrecision(6));

const TIME_STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

/** Ticks of elapsed time: at most `most`. */
export function timeTicks(first, last, most) {
  const step = TIME_STEPS_S.find((each) => (last - first) / each <= most) ?? TIME_STEPS_S.at(-1);
  const ticks = [];
  for (let x = Math.ceil(first / step) * step; x <= last; x += step) ticks.push(x);
  return ticks;
}

/** Ticks at the points themselves, without those that would touch. */
export function ticksAt(values) {
  return (first, last, most) => {
    const ticks = [];
    for (const x of values) if (ticks.length === 0 || x - ticks.at(-1) >= (last - first) / (most * 2)) ticks.push(x);
    return ticks;
  };
}
