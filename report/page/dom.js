"use strict";
// dom makes and changes elements. Every text goes through textContent, so no name, sample or token of a run can become
// markup, and texts are cut before they are shown.
const dom = (() => {
  const mostCharacters = 20000; // of one text

  // Characters that move or hide others: controls, and marks of writing direction.
  const unseen = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

  // clean shows unseen characters by their code points, and cuts a text.
  function clean(text, most = mostCharacters) {
    text = String(text ?? "");
    const left = text.length - most;
    if (left > 0) {
      text = text.slice(0, most);
    }
    text = text.replace(unseen, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
    return left > 0 ? `${text}… (${left.toLocaleString("en")} more characters)` : text;
  }

  // make returns an element. Keys of options: class, text, hidden and value are properties, a function is a listener of
  // the event that its key names after "on", and all others are attributes.
  function make(tag, options = {}, ...children) {
    const e = document.createElement(tag);
    for (const [key, value] of Object.entries(options)) {
      set(e, key, value);
    }
    e.append(...children.filter((c) => c !== null && c !== undefined));
    return e;
  }

  function set(e, key, value) {
    if (value === undefined || value === null) {
      return;
    }
    if (key === "class") {
      e.className = value;
    } else if (key === "text") {
      say(e, value);
    } else if (typeof value === "function") {
      e.addEventListener(key.slice(2), value);
    } else if (typeof value === "boolean" && !key.startsWith("aria-")) {
      e[key] = value;
    } else if (key === "value") {
      e.value = value;
    } else {
      e.setAttribute(key, value);
    }
  }

  // say sets the text of an element. Nothing happens where it has it already, so that a selection stays.
  function say(e, text) {
    text = clean(text);
    if (e.textContent !== text) {
      e.textContent = text;
    }
  }

  // keyed makes the children of parent those of items, in their order. An item that was there keeps its element, and so
  // its focus and its place on the screen. create and change get the item.
  function keyed(parent, items, keyOf, create, change) {
    const old = new Map();
    for (const e of parent.children) {
      old.set(e.dataset.key, e);
    }
    let before = parent.firstElementChild;
    for (const item of items) {
      const key = String(keyOf(item));
      let e = old.get(key);
      old.delete(key);
      if (!e) {
        e = create(item);
        e.dataset.key = key;
      }
      change?.(e, item);
      if (e === before) {
        before = before.nextElementSibling;
      } else {
        parent.insertBefore(e, before);
      }
    }
    for (const e of old.values()) {
      e.remove();
    }
  }

  // swatch is a short line with the color and the dashes of a curve.
  function swatch(style) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "swatch");
    svg.setAttribute("viewBox", "0 0 26 8");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    line.setAttribute("d", "M1 4H25");
    line.setAttribute("stroke", `var(--c${style.color})`);
    line.setAttribute("stroke-width", "3");
    line.setAttribute("stroke-dasharray", style.dash.map((d) => d * 0.8).join(" "));
    svg.append(line);
    return svg;
  }

  let later = 0;

  // announce tells users of screen readers. Texts that follow each other at once are told as the last one.
  function announce(text) {
    clearTimeout(later);
    later = setTimeout(() => say(document.getElementById("announce"), text), 150);
  }

  const byId = (id) => document.getElementById(id);

  return { make, say, clean, keyed, swatch, announce, byId };
})();
