// The HTTP API as promises. A refusal is a Problem with the master's own words.

export const PREFIX = "/api/v1";

class Problem extends Error {
  constructor({ error, field = null, hint = "" }, status) {
    super(error);
    this.field = field;
    this.hint = hint;
    this.status = status;
  }
}

export const mixes = () => get("/mixes");
export const workers = () => get("/workers");
export const runs = () => get("/runs");
export const run = (id) => get(`/runs/${encodeURIComponent(id)}`);
export const seconds = (id, className) =>
  get(`/runs/${encodeURIComponent(id)}/seconds?class=${encodeURIComponent(className)}`);
export const server = (id) => get(`/runs/${encodeURIComponent(id)}/server`);
export const start = (request) => post("/runs", request);
export const stop = (id) => post(`/runs/${encodeURIComponent(id)}/stop`);
export const changeLoad = (id, load) => post(`/runs/${encodeURIComponent(id)}/load`, load);
export const fileUrl = (id, name) => `${PREFIX}/runs/${encodeURIComponent(id)}/files/${name}`;

const tokenElement = () => document.querySelector("meta[name=csrf-token]");

function get(path) {
  return call(path, { method: "GET" });
}

async function post(path, body) {
  const send = () =>
    call(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRF": tokenElement().content },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  try {
    return await send();
  } catch (problem) {
    // A restarted master has forgotten this page's session: take its new token and try once more.
    if (problem.status !== 403 || problem.field !== "X-CSRF") throw problem;
    await renewToken();
    return send();
  }
}

async function renewToken() {
  const page = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
  tokenElement().content = page.querySelector("meta[name=csrf-token]").content;
}

async function call(path, options) {
  let answer;
  try {
    answer = await fetch(PREFIX + path, options);
  } catch {
    throw new Problem({ error: "the master does not answer", hint: "is it still running? Then try again" }, 0);
  }
  if (answer.ok) return answer.json();
  const text = await answer.text();
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = { error: `the master answered ${answer.status} ${answer.statusText}`, hint: "" };
  }
  throw new Problem(body, answer.status);
}
