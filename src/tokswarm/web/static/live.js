// The event stream of the master: one tick a second. Closed while the tab is hidden, since a browser
// opens few connections to one host.

import { PREFIX } from "./api.js";

export class LiveFeed {
  #source = null;
  #lastId = null;

  /** `onTick` gets each tick; `onGap` is called when seconds may be missing; `onStatus` with true while connected. */
  constructor({ onTick, onGap, onStatus }) {
    this.onTick = onTick;
    this.onGap = onGap;
    this.onStatus = onStatus;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#open()));
    if (!document.hidden) this.#open();
  }

  #open() {
    if (this.#source !== null) return;
    this.#lastId = null;
    const source = new EventSource(`${PREFIX}/live`);
    source.onopen = () => {
      this.#lastId = null;
      this.onStatus(true);
      this.onGap();
    };
    source.onerror = () => {
      this.onStatus(false);
      if (source.readyState === EventSource.CLOSED) {
        // Refused rather than lost: the browser gives up, we do not.
        this.#close();
        setTimeout(() => document.hidden || this.#open(), 3000);
      }
    };
    source.onmessage = (message) => {
      const id = Number(message.lastEventId);
      if (this.#lastId !== null && id !== this.#lastId + 1) this.onGap();
      this.#lastId = id;
      this.onTick(JSON.parse(message.data));
    };
    this.#source = source;
  }

  #close() {
    this.#source?.close();
    this.#source = null;
  }
}
