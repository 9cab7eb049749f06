// What went wrong, in the master's words, and what to do.

import { h } from "./dom.js";

export function problemBox(problem) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("strong", {}, problem.message),
    problem.hint ? h("span", {}, problem.hint) : null,
  );
}
