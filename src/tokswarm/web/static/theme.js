// Light, dark, or as the system says; kept in this browser.

const CHOICES = ["auto", "light", "dark"];
const KEY = "tokswarm-theme";

export function themeButton(button) {
  let place = Math.max(0, CHOICES.indexOf(localStorage.getItem(KEY)));
  const show = () => {
    document.documentElement.dataset.theme = CHOICES[place];
    button.textContent = `Theme: ${CHOICES[place]}`;
  };
  button.addEventListener("click", () => {
    place = (place + 1) % CHOICES.length;
    localStorage.setItem(KEY, CHOICES[place]);
    show();
  });
  show();
}
