// The form that starts a run: a mix by name or edited, the endpoint, the model.

import * as api from "./api.js";
import { fill, h } from "./dom.js";
import { problemBox } from "./problem_box.js";

export class StartForm {
  #mixes = [];
  #busy = false;
  #sending = false;
  #loaded = false;
  #touched = false;

  /** `onStart` gets the RunInfo of each run that was started. */
  constructor({ onStart }) {
    this.onStart = onStart;
    this.mix = h("select", { id: "mix", name: "mix", on: { change: () => this.#chooseByHand() } });
    this.description = h("p", { class: "help", id: "mix-about" });
    this.text = h("textarea", {
      id: "mix_yaml",
      name: "mix_yaml",
      rows: "18",
      spellcheck: "false",
      autocapitalize: "off",
      wrap: "off",
      "aria-describedby": "mix-edited",
      on: { input: () => this.#editByHand() },
    });
    this.editedNote = h("span", { id: "mix-edited", class: "help" });
    this.reset = h("button", { type: "button", class: "quiet", hidden: true, on: { click: () => this.#choose() } }, "Undo edits");
    this.editor = h(
      "details",
      {},
      h("summary", {}, "Edit the mix"),
      h("label", { for: "mix_yaml" }, "Mix as YAML"),
      this.text,
      h("div", { class: "line" }, this.editedNote, this.reset),
    );
    this.baseUrl = field("base_url", { type: "url", placeholder: "as the mix says" });
    this.model = field("model", { type: "text", placeholder: "as the mix says" });
    this.button = h("button", { type: "submit", class: "primary", disabled: true }, "Start");
    this.why = h("span", { class: "help" });
    this.answer = h("div", {});
    this.element = h(
      "form",
      { class: "start", novalidate: true, on: { submit: (event) => this.#submit(event) } },
      h("label", { for: "mix" }, "Traffic mix"),
      this.mix,
      this.description,
      this.editor,
      h("label", { for: "base_url" }, "Endpoint base URL"),
      this.baseUrl,
      h("p", { class: "help", id: "base_url-about" }, "Of an OpenAI-compatible API, up to and with /v1. Empty: the one in the mix."),
      h("label", { for: "model" }, "Model"),
      this.model,
      h("p", { class: "help", id: "model-about" }, "Empty: the one in the mix, else the first the endpoint lists."),
      this.answer,
      h("div", { class: "line" }, this.button, this.why),
    );
  }

  /** Whether the mixes have come. */
  get loaded() {
    return this.#loaded;
  }

  /** Fetch the mixes and offer them. */
  async load() {
    try {
      this.#mixes = await api.mixes();
    } catch (problem) {
      fill(this.answer, problemBox(problem));
      return;
    }
    this.#loaded = true;
    fill(this.answer);
    this.#setButton();
    if (this.#mixes.length === 0) {
      fill(this.mix, h("option", { value: "" }, "no mix found"));
      this.editor.open = true;
    } else {
      fill(this.mix, ...this.#mixes.map((mix) => h("option", { value: mix.name }, mix.name)));
    }
    this.#choose();
  }

  /** Choose this mix, unless the user has chosen already; for a page that knows what was run last. */
  prefer(name) {
    if (this.#touched || !this.#mixes.some((mix) => mix.name === name)) return;
    this.mix.value = name;
    this.#choose();
  }

  /** Whether a run is going on, so that none can start, and whether there are workers to carry it. */
  setFleet({ busy, workers }) {
    this.#busy = busy;
    this.#setButton();
    const noWorkers = workers === 0 ? "No worker is connected: a run cannot start yet." : "";
    fill(this.why, busy ? "A run is going on; one master drives one run at a time." : noWorkers);
  }

  #setButton() {
    this.button.disabled = this.#busy || this.#sending || !this.#loaded;
  }

  #chosen() {
    return this.#mixes.find((mix) => mix.name === this.mix.value) ?? null;
  }

  #chooseByHand() {
    this.#touched = true;
    this.#choose();
  }

  #choose() {
    const mix = this.#chosen();
    this.text.value = mix?.text ?? "";
    this.baseUrl.placeholder = mix?.base_url || "as the mix says";
    fill(this.description, mix?.description ?? "There is no mix to choose: write one here as YAML.");
    this.#edited();
  }

  #editByHand() {
    this.#touched = true;
    this.#edited();
  }

  #isEdited() {
    return this.text.value !== (this.#chosen()?.text ?? "");
  }

  #edited() {
    const edited = this.#isEdited();
    this.reset.hidden = !edited;
    fill(this.editedNote, edited ? "Edited: this run uses the text above; the file stays as it is." : "As in the file.");
  }

  #request() {
    const whole = this.#chosen() !== null && !this.#isEdited() ? { mix: this.mix.value } : { mix_yaml: this.text.value };
    if (this.baseUrl.value.trim()) whole.base_url = this.baseUrl.value.trim();
    if (this.model.value.trim()) whole.model = this.model.value.trim();
    return whole;
  }

  async #submit(event) {
    event.preventDefault();
    this.#sending = true;
    this.#setButton();
    fill(this.button, "Starting…");
    fill(this.answer);
    this.#blame(null);
    try {
      this.onStart(await api.start(this.#request()));
    } catch (problem) {
      fill(this.answer, problemBox(problem));
      this.#blame(problem.field);
    } finally {
      this.#sending = false;
      this.#setButton();
      fill(this.button, "Start");
    }
  }

  #blame(name) {
    for (const input of [this.mix, this.text, this.baseUrl, this.model]) {
      if (input.name === name) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
    if (name === "mix_yaml") this.editor.open = true;
  }
}

function field(name, attributes) {
  return h("input", { id: name, name, autocomplete: "off", spellcheck: "false", "aria-describedby": `${name}-about`, ...attributes });
}
