// Past runs with their numbers.

import { fill, h } from "./dom.js";
import { compact, count, dateTime, duration, percent, words } from "./format.js";
import { badge } from "./run_state.js";

const COLUMNS = ["Run", "State", "Endpoint", "Best second (tok/s)", "Output (tokens)", "Requests", "Not ok", "Length", "Where it bends"];

export class RunTable {
  #runs = new Map();

  constructor() {
    this.body = h("tbody", {});
    this.table = h(
      "table",
      { class: "runs stacked" },
      h("caption", { class: "hidden" }, "Runs, newest first"),
      h("thead", {}, h("tr", {}, ...COLUMNS.map((name) => h("th", { scope: "col" }, name)))),
      this.body,
    );
    this.empty = h("p", { class: "empty" }, "No runs yet. Start one above: each is kept here with its numbers, its curve and its records.");
    this.element = h("div", { class: "scroll" }, this.empty, this.table);
    this.#draw();
  }

  /** All runs, newest first. */
  setAll(runs) {
    this.#runs = new Map(runs.map((run) => [run.run_id, run]));
    this.#draw();
  }

  /** The newest state of one run. */
  set(run) {
    if (this.#runs.has(run.run_id)) this.#runs.set(run.run_id, run);
    else this.#runs = new Map([[run.run_id, run], ...this.#runs]);
    this.#draw();
  }

  #draw() {
    this.empty.hidden = this.#runs.size > 0;
    this.table.hidden = this.#runs.size === 0;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    fill(this.body, ...[...this.#runs.values()].map(row));
    if (focused) this.body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

function row(run) {
  const total = Object.values(run.requests).reduce((sum, n) => sum + n, 0);
  const failed = total - (run.requests.ok ?? 0);
  const kinds = Object.entries(run.requests).filter(([name, n]) => name !== "ok" && n > 0);
  const length_s = run.ended_unix_ns === null ? null : (run.ended_unix_ns - run.started_unix_ns) / 1e9;
  const cells = [
    [h("a", { href: `/runs/${run.run_id}` }, run.mix_name), h("small", {}, dateTime(run.started_unix_ns))],
    [badge(run)],
    [h("span", { class: "url" }, run.base_url), h("small", {}, run.model)],
    [compact(run.peak_tok_per_s)],
    [compact(run.output_tokens)],
    [count(total)],
    [total === 0 ? "–" : percent(failed / total), ...kinds.map(([name, n]) => h("small", {}, `${count(n)} ${words(name)}`))],
    [duration(length_s)],
    [run.error || run.bend || "–"],
  ];
  const numeric = [3, 4, 5, 6, 7];
  return h(
    "tr",
    { data: { run: run.run_id } },
    ...cells.map((cell, place) =>
      h("td", { class: numeric.includes(place) ? "number" : place === 8 ? "prose" : null, data: { label: COLUMNS[place] } }, ...cell),
    ),
  );
}
