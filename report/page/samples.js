"use strict";
// samples is the tab with the texts that one run's model wrote as it learned: those of a prompt under each other, the
// newest first.
const samples = (() => {
  const shortText = 1500; // characters that are shown before "all of it"
  const mostTexts = 100;
  let element = null;
  let picker = null;
  let note = null;
  let list = null;
  let of = ""; // the run that the texts are of
  let known = -1; // the revision that the texts are of
  let texts = [];
  let number = null; // of the prompt that is shown
  let isLoading = false;

  function show(parent) {
    if (!element) {
      picker = dom.make("select", { id: "sample-prompt", onchange: (e) => { number = Number(e.target.value); draw(); } });
      note = dom.make("p", { class: "note" });
      list = dom.make("ol", { class: "samples" });
      element = dom.make("div", {}, dom.make("div", { class: "toolbar" }, dom.make("label", { for: "sample-prompt", text: "Prompt" }), picker), note, list);
    }
    parent.replaceChildren(element);
    update();
  }

  // update fetches the texts after the newest that is known.
  async function update(what) {
    const id = view.current();
    if (!element?.isConnected || !store.run(id) || isLoading) {
      return;
    }
    const { revision } = store.run(id);
    if (of === id && revision === known && what === "list") {
      return;
    }
    known = revision;
    if (of !== id) {
      of = id;
      texts = [];
      number = null;
      list.replaceChildren();
    }
    isLoading = true;
    let isGood = true;
    try {
      const last = texts.length ? Math.max(...texts.map((t) => t.step)) : -1;
      const doc = await store.get(`${store.urlOf(id)}/samples?after=${last}`);
      if (of === id) {
        const had = new Set(texts.map((t) => `${t.step} ${t.number}`));
        texts.push(...(doc.samples ?? []).filter((t) => !had.has(`${t.step} ${t.number}`)));
      }
    } catch (error) {
      isGood = false;
      dom.say(note, `The samples did not arrive: ${error.message}`);
    }
    isLoading = false;
    if (of !== view.current()) {
      update();
    } else if (isGood) {
      draw();
    }
  }

  const promptText = (p) => (Array.isArray(p) ? p.map((m) => `${m.role}: ${contentOf(m)}`).join("\n") : String(p ?? ""));
  const contentOf = (m) => (typeof m.content === "string" ? m.content : JSON.stringify(m.content ?? ""));

  function draw() {
    const numbers = [...new Set(texts.map((t) => t.number))].sort((a, b) => a - b);
    picker.disabled = !numbers.length;
    if (!numbers.length) {
      picker.replaceChildren();
      dom.say(note, "This run has no samples. Prompts under samples.prompts in run.yaml make it write some as it learns.");
      return;
    }
    if (!numbers.includes(number)) {
      number = numbers[0];
    }
    dom.keyed(picker, numbers, (n) => n, (n) => dom.make("option", { value: n, text: dom.clean(`${n}: ${promptText(texts.find((t) => t.number === n).prompt)}`, 80) }));
    picker.value = number;
    const shown = texts.filter((t) => t.number === number).sort((a, b) => b.step - a.step);
    const prompt = promptText(shown[0].prompt);
    dom.say(note, dom.clean(prompt, 2000));
    note.className = "prompt";
    dom.keyed(list, shown.slice(0, mostTexts), (t) => `${number} ${t.step}`, itemOf);
  }

  function itemOf(t) {
    const text = dom.make("p", { class: "text", dir: "auto", text: dom.clean(t.text, shortText) });
    const head = dom.make("header", {}, dom.make("strong", { text: t.step === 0 ? "before training" : `step ${units.whole(t.step)}` }), dom.make("small", { text: t.finish === "length" ? "cut at its greatest length" : "" }));
    const item = dom.make("li", {}, head, text);
    if (t.text.length > shortText) {
      const more = dom.make("button", { type: "button", class: "small", text: "All of it", onclick: () => { dom.say(text, t.text); more.remove(); } });
      item.append(more);
    }
    return item;
  }

  return { show, update };
})();
