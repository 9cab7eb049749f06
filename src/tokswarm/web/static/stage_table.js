// The curve of a reported run as a table: one row a stage, for all classes or for one.

import { fill, h } from "./dom.js";
import { ABSENT, count, ms, number, percent, words } from "./format.js";

const both = (quantiles) => (quantiles ? `${ms(quantiles.p50)} / ${ms(quantiles.p99)}` : ABSENT);

const COLUMNS = [
  ["Stage", (stage) => [stage.name, stage.warmup ? h("small", {}, "warm-up, not in the results") : null]],
  ["Load", (stage) => [load(stage)]],
  ["Output (tok/s)", (stage, figures) => [number(figures.output_tok_per_s)]],
  ["Per stream (tok/s)", (stage, figures) => [number(figures.tok_per_s_per_stream)]],
  ["Of linear scaling", (stage, figures) => [percent(figures.linear_ratio)]],
  ["TTFT p50 / p99", (stage, figures) => [both(figures.ttft_ms)]],
  ["ITL p50 / p99", (stage, figures) => [both(figures.itl_ms)]],
  ["E2E p50 / p99", (stage, figures) => [both(figures.e2e_ms)]],
  ["Queue wait p50 / p99", (stage, figures) => [both(figures.queue_wait_ms), source(figures.queue_wait_source)]],
  ["Cached share", (stage, figures) => [percent(figures.cached_ratio)]],
  ["Requests", (stage, figures) => requests(figures.requests ?? {})],
];

export class StageTable {
  constructor() {
    this.body = h("tbody", {});
    this.element = h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "stacked", id: "stages" },
        h("caption", { class: "hidden" }, "Stages of the run"),
        h("thead", {}, h("tr", {}, ...COLUMNS.map(([name]) => h("th", { scope: "col" }, name)))),
        this.body,
      ),
    );
  }

  /** `className` null: all classes together. */
  update(stages, className) {
    fill(this.body, ...stages.map((stage) => row(stage, className === null ? stage : stage.classes?.[className])));
  }
}

function row(stage, figures) {
  return h(
    "tr",
    {},
    ...COLUMNS.map(([name, cell], place) =>
      h("td", { class: place > 1 ? "number" : null, data: { label: name } }, ...cell(stage, figures ?? {}).filter(Boolean)),
    ),
  );
}

function load(stage) {
  if (stage.concurrency !== null) return `${count(stage.concurrency)} in flight`;
  if (stage.rate_per_s) return `${number(stage.rate_per_s)} req/s`;
  if (stage.offered_per_s === null) return ABSENT;
  return `${stage.load === "replay" ? "trace" : "changing rate"}, ${number(stage.offered_per_s)} req/s`;
}

function source(name) {
  return name === "estimated" ? h("small", {}, "estimated") : null;
}

function requests(byOutcome) {
  const total = Object.values(byOutcome).reduce((sum, n) => sum + n, 0);
  const failures = Object.entries(byOutcome).filter(([name, n]) => name !== "ok" && n > 0);
  return [count(total), ...failures.map(([name, n]) => h("small", { class: "bad" }, `${count(n)} ${words(name)}`))];
}
