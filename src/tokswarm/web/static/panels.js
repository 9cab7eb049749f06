// The live charts of a run, one for each question, all with one cursor.

import { Chart, timeTicks } from "./chart.js";
import { h } from "./dom.js";
import { compact, elapsed, ms, percent, perSecond, words } from "./format.js";

const field = (name) => (second) => second[name];

const PANELS = [
  {
    title: "Output tokens",
    about: "all workers together",
    format: perSecond("tok"),
    lines: [["tok/s", 1, field("output_tok_per_s")]],
  },
  {
    title: "In flight",
    about: "sent and not done, and in the servers",
    format: (value) => compact(value),
    lines: [
      ["sent", 1, field("in_flight")],
      ["server batch", 3, field("server_running")],
      ["server queue", 2, field("server_waiting")],
    ],
  },
  {
    title: "Request rate",
    about: "due, and really sent",
    format: perSecond("req"),
    lines: [
      ["offered", 6, field("offered_per_s")],
      ["sent", 1, field("started_per_s")],
    ],
  },
  {
    title: "TTFT",
    about: "sent to first token",
    format: ms,
    lines: [
      ["p50", 1, field("ttft_p50_ms")],
      ["p99", 2, field("ttft_p99_ms")],
    ],
  },
  {
    title: "ITL",
    about: "gap between tokens",
    format: ms,
    lines: [
      ["p50", 1, field("itl_p50_ms")],
      ["p99", 2, field("itl_p99_ms")],
    ],
  },
  {
    title: "Queue wait",
    about: "by the answers, and by the server's histogram",
    format: ms,
    lines: [
      ["p50", 1, field("queue_wait_p50_ms")],
      ["p99", 2, field("queue_wait_p99_ms")],
      ["server mean", 3, field("server_queue_wait_mean_ms")],
      ["server p99", 4, field("server_queue_wait_p99_ms")],
    ],
    empty: "This server reports queue waits neither per request nor in its metrics.",
  },
  {
    title: "Cached share",
    about: "of prompt tokens",
    format: percent,
    lines: [
      ["observed", 3, field("cached_ratio")],
      ["ideal cache", 6, field("ideal_cached_ratio")],
    ],
    empty: "This server does not say how many prompt tokens were cached.",
  },
  {
    title: "KV cache",
    about: "in use, of the fullest server",
    format: percent,
    lines: [["in use", 3, field("server_kv_use_ratio")]],
    empty: "No server metrics were read, or they do not say it.",
  },
];

const WAITING = "No second is measured yet.";

export class Panels {
  #charts;
  #errors;

  constructor() {
    const common = { formatX: elapsed, ticksX: timeTicks, onCursor: (x) => this.#showCursor(x) };
    this.#charts = PANELS.map(({ title, about, format, lines }) => {
      const series = lines.map(([label, tone]) => ({ label, tone, faint: tone === 6 }));
      return new Chart({ title, about, format, series, ...common });
    });
    this.#errors = new Chart({ title: "Errors", about: "requests that did not end ok", format: perSecond("req"), ...common });
    this.element = h("div", { class: "charts" }, ...this.#all().map((chart) => chart.element));
  }

  /** Draw the seconds of a series. */
  update(series) {
    const seconds = series.points();
    const first = seconds[0]?.second_unix ?? 0;
    const marks = series.marks();
    PANELS.forEach(({ lines, empty }, place) => {
      const points = seconds.map((second) => ({
        x: second.second_unix - first,
        values: lines.map(([, , value]) => value(second)),
      }));
      this.#charts[place].update(points, { marks, empty: seconds.length > 0 ? (empty ?? "None in these seconds.") : WAITING });
    });
    this.#updateErrors(series, seconds, first, marks);
  }

  #updateErrors(series, seconds, first, marks) {
    const outcomes = series.failures();
    this.#errors.setSeries(outcomes.map((outcome, place) => ({ label: words(outcome), tone: [2, 4, 5, 3, 1, 6][place % 6] })));
    const points = seconds.map((second) => ({
      x: second.second_unix - first,
      values: outcomes.map((outcome) => second.finished[outcome] ?? 0),
    }));
    this.#errors.update(points, { marks, empty: seconds.length > 0 ? "None: every request ended ok." : WAITING });
  }

  #showCursor(x) {
    for (const chart of this.#all()) chart.showCursor(x);
  }

  #all() {
    return [...this.#charts, this.#errors];
  }
}
