// The entry: which page this is, by its address.

import { Home } from "./home.js";
import { RunPage } from "./run_page.js";
import { themeButton } from "./theme.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");

for (const link of document.querySelectorAll("[data-optional]")) if (!link.getAttribute("href")) link.remove();

themeButton(document.getElementById("theme"));

function showConnection(connected) {
  connection.textContent = connected ? "live" : "connection lost, trying again";
  connection.classList.toggle("lost", !connected);
}

main.replaceChildren();
const run = /^\/runs\/([^/]+)$/.exec(location.pathname);
if (run) new RunPage(main, showConnection, decodeURIComponent(run[1]));
else new Home(main, showConnection);
