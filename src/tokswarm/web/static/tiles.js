// The newest second in large figures.

import { fill, h } from "./dom.js";
import { ABSENT, compact, ms, percent } from "./format.js";

const newest = (points, name) => points.at(-1)?.[name] ?? null;

/** The last value that was not absent, of the last ten seconds: a percentile of a second without answers is none. */
function recent(points, name) {
  for (const point of points.slice(-10).reverse()) if (point[name] !== null) return point[name];
  return null;
}

function failedRatio(points) {
  let [failed, all] = [0, 0];
  for (const { finished } of points.slice(-10)) {
    for (const [outcome, n] of Object.entries(finished)) {
      all += n;
      if (outcome !== "ok") failed += n;
    }
  }
  return all === 0 ? null : failed / all;
}

const TILES = [
  ["tok-per-s", "Output", "tok/s", (points) => compact(newest(points, "output_tok_per_s"))],
  ["in-flight", "In flight", "requests", (points) => compact(newest(points, "in_flight"))],
  ["sent-per-s", "Request rate", "req/s sent", (points) => compact(newest(points, "started_per_s"))],
  ["failed", "Not ok", "of requests, 10 s", (points) => percent(failedRatio(points))],
  ["ttft", "TTFT p99", "sent to first token", (points) => ms(recent(points, "ttft_p99_ms"))],
  ["itl", "ITL p99", "gap between tokens", (points) => ms(recent(points, "itl_p99_ms"))],
  ["queue-wait", "Queue wait p99", "as the server says", (points) => ms(recent(points, "queue_wait_p99_ms"))],
  ["cached", "Cached share", "of prompt tokens", (points) => percent(recent(points, "cached_ratio"))],
];

export class Tiles {
  #values;

  constructor() {
    this.#values = TILES.map(([name]) => h("b", { data: { tile: name } }, ABSENT));
    this.element = h(
      "ul",
      { class: "tiles" },
      ...TILES.map(([, title, unit], place) => h("li", {}, h("span", {}, title), this.#values[place], h("small", {}, unit))),
    );
  }

  update(series) {
    const points = series === null ? [] : series.points();
    TILES.forEach(([, , , value], place) => fill(this.#values[place], points.length === 0 ? ABSENT : value(points)));
  }
}
