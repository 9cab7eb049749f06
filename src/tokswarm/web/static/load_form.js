// Another load for the rest of the stage under way, for those who want to see what more or less of it does.

import * as api from "./api.js";
import { fill, h } from "./dom.js";
import { problemBox } from "./problem_box.js";

const KINDS = {
  concurrency: { label: "in flight", placeholder: "64", request: (text) => ({ concurrency: Number(text) }) },
  rate: { label: "a rate", placeholder: "12/s", request: (text) => ({ rate: text }) },
};

export class LoadForm {
  constructor(runId) {
    this.runId = runId;
    this.kind = h(
      "select",
      { id: "load-kind", on: { change: () => this.#chooseKind() } },
      ...Object.entries(KINDS).map(([name, kind]) => h("option", { value: name }, kind.label)),
    );
    this.value = h("input", { "aria-label": "How much", required: true, size: "8", autocomplete: "off" });
    this.button = h("button", { type: "submit" }, "Change");
    this.answer = h("div", { "aria-live": "polite" });
    this.element = h(
      "form",
      { class: "load", hidden: true, on: { submit: (event) => this.#submit(event) } },
      h(
        "div",
        { class: "line" },
        h("label", { for: "load-kind" }, "Go on with"),
        this.kind,
        this.value,
        this.button,
      ),
      this.answer,
    );
    this.#chooseKind();
  }

  /** Shown while a stage is sending. */
  update(run) {
    this.element.hidden = run.state !== "running" || run.stage === "";
  }

  #chooseKind() {
    this.value.placeholder = KINDS[this.kind.value].placeholder;
    this.value.inputMode = this.kind.value === "concurrency" ? "numeric" : "text";
  }

  async #submit(event) {
    event.preventDefault();
    this.button.disabled = true;
    fill(this.answer);
    try {
      await api.changeLoad(this.runId, KINDS[this.kind.value].request(this.value.value.trim()));
      fill(this.answer, h("p", { class: "facts" }, "The stage drains; the rest of its time is a stage of its own."));
      this.value.value = "";
    } catch (problem) {
      fill(this.answer, problemBox(problem));
    }
    this.button.disabled = false;
  }
}
