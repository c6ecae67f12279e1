"use strict";
// machine is the tab with where the time and the memory of one run go: the lanes of a step, and each tier of memory with
// its parts by the plan, next to the peak that was measured.
const machine = (() => {
  let element = null;
  let chart = null;
  const parts = {};

  function show(parent) {
    if (!element) {
      chart = new lanes.Lanes();
      parts.time = dom.make("p", { class: "note" });
      parts.tiers = dom.make("div", { class: "tiers" });
      parts.life = dom.make("p", { class: "note" });
      element = dom.make("div", {},
        dom.make("section", { class: "chart wide" }, dom.make("header", {}, dom.make("h3", { text: "Where the time of a step goes" })), parts.time, chart.element),
        dom.make("section", { class: "chart wide" }, dom.make("header", {}, dom.make("h3", { text: "Memory and drive by tier" })), parts.tiers, parts.life));
    }
    parent.replaceChildren(element);
    update();
  }

  function update(what) {
    if (what === "colors") {
      chart?.draw();
    }
    const id = view.current();
    const run = store.run(id);
    if (!element?.isConnected || !run) {
      return;
    }
    const plan = store.documentOf(id, "plan");
    const timeline = store.documentOf(id, "timeline");
    if (plan === undefined || timeline === undefined) {
      dom.say(parts.time, "Loading");
      return;
    }
    updateTime(plan, timeline);
    updateTiers(plan, run);
  }

  let drawn = null;

  function updateTime(plan, timeline) {
    const predicted = timeline?.predicted ?? plan?.timeline ?? null;
    const measured = timeline?.measured ?? null;
    const texts = [];
    if (!predicted) {
      texts.push(plan?.step_sec > 0 ? `The plan predicts ${units.duration(plan.step_sec)} a step, and has no lanes over time.` : "The plan has no prediction of a step.");
    }
    if (!measured) {
      texts.push("No step is measured: start the run with --trace, and the lanes of its last step appear here.");
    }
    dom.say(parts.time, texts.join(" "));
    parts.time.hidden = !texts.length;
    if (drawn !== timeline) {
      drawn = timeline;
      chart.set(predicted, measured);
    }
  }

  // updateTiers draws a bar for each tier: its parts by the plan, and a mark at the measured peak.
  function updateTiers(plan, run) {
    const s = run.summary ?? {};
    const measured = { host: s.host_peak_bytes, device: s.device_peak_bytes };
    const tiers = plan?.tiers ?? [];
    dom.keyed(parts.tiers, tiers, (t) => t.name, () => dom.make("figure"), (e, t) => {
      const look = JSON.stringify([t, measured[t.name]]);
      if (e.dataset.look !== look) {
        e.dataset.look = look;
        e.replaceChildren(...tier(t, plan, measured[t.name]));
      }
    });
    const life = s.rated_bytes > 0 ? `The run has written ${units.written(s.disk_written_bytes)}${s.drive_part > 0 && s.drive_part < 1 ? `, about ${units.written(s.drive_part * s.disk_written_bytes)} of it to the drive that gets most` : ""}, ${units.percent(s.written_share || 0, 2)} of the drive's ${s.rated_is_assumed ? "assumed " : ""}life of ${units.written(s.rated_bytes)}.` : "";
    const ahead = life && run.planned_steps > run.last_step && run.last_step > 0 ? ` After all steps that is about ${units.percent((s.written_share || 0) * (run.planned_steps / run.last_step), 2)} (predicted from what was written so far).` : "";
    dom.say(parts.life, tiers.length ? life + ahead : "The plan of this run could not be read. " + life + ahead);
  }

  function tier(t, plan, measured) {
    const list = (t.parts ?? []).filter((p) => p.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    const planned = plan[t.name + "_bytes"] || list.reduce((sum, p) => sum + p.bytes, 0);
    const most = Math.max(planned, measured || 0, list.reduce((sum, p) => sum + p.bytes, 0), 1);
    const bar = dom.make("div", { class: "bar" });
    const keys = dom.make("ul", { class: "key" });
    list.forEach((p, i) => {
      const style = view.styleOf(i % 8);
      const piece = dom.make("span", { title: dom.clean(`${p.name}: ${units.bytes(p.bytes)}`, 200) });
      piece.style.width = (100 * p.bytes) / most + "%";
      piece.style.background = `var(--c${style.color})`;
      bar.append(piece);
      keys.append(dom.make("li", {}, dom.swatch({ color: style.color, dash: [] }), dom.make("span", { text: dom.clean(p.name, 80) }), dom.make("b", { text: units.bytes(p.bytes) })));
    });
    if (measured > 0) {
      const mark = dom.make("i", { title: "measured peak: " + units.bytes(measured) });
      mark.style.left = (100 * measured) / most + "%";
      bar.append(mark);
    }
    const said = `planned ${units.bytes(planned)}` + (measured > 0 ? `, measured peak ${units.bytes(measured)}` : "");
    return [dom.make("figcaption", {}, dom.make("strong", { text: t.name }), " " + said), bar, keys];
  }

  return { show, update };
})();
