// The state of one run: what it does, how far it is, how it ended, and its Stop button.

import * as api from "./api.js";
import { fill, h } from "./dom.js";
import { compact, count, dateTime, duration, percent } from "./format.js";
import { problemBox } from "./problem_box.js";

export const isOver = (run) => run.state === "finished" || run.state === "failed";

/** A badge with the state, or once there is one with the verdict. */
export function badge(run) {
  if (run.verdict !== null) return h("span", { class: `badge ${run.verdict}` }, run.verdict);
  return h("span", { class: `badge ${run.state}` }, run.state);
}

export class RunState {
  #asked = null;
  #shown = null;

  constructor() {
    this.badge = h("span", { data: { part: "badge" } });
    this.title = h("span", {});
    this.facts = h("p", { class: "facts" });
    this.progress = h("progress", { max: "1", value: "0", "aria-label": "Stages done" });
    this.stage = h("p", { class: "stage", "aria-live": "polite" });
    this.message = h("div", {});
    this.failure = h("div", {});
    this.stopButton = h("button", { type: "button", class: "danger", on: { click: () => this.#stop() } }, "Stop");
    this.element = h(
      "div",
      { class: "run-state" },
      h("div", { class: "line" }, h("h3", {}, this.title), this.badge, this.stopButton),
      this.facts,
      this.progress,
      this.stage,
      this.failure,
      this.message,
    );
    this.update(null);
  }

  /** Show a run; null: there was none yet. */
  update(run, { link = true } = {}) {
    this.#shown = run;
    const over = run === null || isOver(run);
    this.progress.hidden = over;
    this.stopButton.hidden = over;
    if (run === null) {
      fill(this.title, "No run yet");
      fill(this.badge);
      fill(this.facts, "Choose a mix, say which endpoint it is for, and press Start. What happens then is shown here, second by second.");
      fill(this.stage);
      fill(this.message);
      return;
    }
    if (this.#asked !== run.run_id) {
      this.#asked = null;
      fill(this.failure);
    }
    fill(this.title, link ? h("a", { href: `/runs/${run.run_id}` }, run.mix_name) : run.mix_name);
    fill(this.badge, badge(run));
    fill(this.facts, facts(run));
    const stopping = run.state !== "running" && run.state !== "preparing";
    this.stopButton.disabled = this.#asked !== null || stopping;
    fill(this.stopButton, this.stopButton.disabled ? "Stopping…" : "Stop");
    if (run.state === "reporting") this.stopButton.hidden = true;
    this.progress.value = share(run);
    fill(this.stage, over ? "" : stageLine(run));
    fill(this.message, ...outcome(run));
  }

  async #stop() {
    this.#asked = this.#shown.run_id;
    this.stopButton.disabled = true;
    fill(this.stopButton, "Stopping…");
    try {
      await api.stop(this.#asked);
    } catch (problem) {
      this.#asked = null;
      this.stopButton.disabled = false;
      fill(this.stopButton, "Stop");
      fill(this.failure, problemBox(problem));
    }
  }
}

function facts(run) {
  const parts = [run.base_url, run.model, `${count(run.workers)} ${run.workers === 1 ? "worker" : "workers"}`];
  const started = `started ${dateTime(run.started_unix_ns)}`;
  const took = run.ended_unix_ns === null ? null : `took ${duration((run.ended_unix_ns - run.started_unix_ns) / 1e9)}`;
  return [...parts, started, took].filter(Boolean).join(" · ");
}

function share(run) {
  if (run.stages_total === 0) return 0;
  const elapsed_s = Date.now() / 1000 - run.started_unix_ns / 1e9;
  const inStage = run.planned_s > 0 ? Math.min(elapsed_s / run.planned_s, 1) : 0;
  const low = run.stages_done / run.stages_total;
  return Math.max(low, Math.min(inStage, (run.stages_done + 1) / run.stages_total));
}

function stageLine(run) {
  if (run.state === "preparing") return "Preparing: checking the endpoint and handing out the plan.";
  if (run.state === "stopping") return "Stopping: waiting for the requests that are open.";
  if (run.state === "reporting") return "Reporting: collecting the records of all workers.";
  const place = `stage ${Math.min(run.stages_done + 1, run.stages_total)} of ${run.stages_total}`;
  return `${run.stage || "between stages"} · ${place} · planned ${duration(run.planned_s)} without drains`;
}

function totals(run) {
  const requests = Object.values(run.requests).reduce((sum, n) => sum + n, 0);
  const failed = requests - (run.requests.ok ?? 0);
  const parts = [`${compact(run.output_tokens)} output tokens`, `${count(requests)} requests`];
  if (run.peak_tok_per_s !== null) parts.unshift(`${compact(run.peak_tok_per_s)} tok/s in the best second`);
  if (requests > 0) parts.push(`${percent(failed / requests)} not ok`);
  return parts.join(" · ");
}

function outcome(run) {
  return [
    isOver(run) && h("p", { class: "totals" }, totals(run)),
    run.error && h("p", { class: "problem" }, h("strong", {}, run.error)),
    run.bend && h("p", { class: "bend" }, run.bend),
    run.notes.length > 0 && h("ul", { class: "notes" }, ...run.notes.map((note) => h("li", {}, note))),
  ];
}
