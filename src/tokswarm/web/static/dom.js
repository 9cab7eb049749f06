// Elements from data. Text is always set as text: nothing that came from a server is read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `on` holds listeners, `data` dataset entries, everything else is an attribute; null and false leave it out. */
export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

/** Put these children in place of those an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

function build(element, { on = {}, data = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  Object.assign(element.dataset, data);
  element.append(...present(children));
  return element;
}

function present(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}
