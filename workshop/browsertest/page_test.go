package browsertest_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/serve"
	"github.com/millrace/millrace/workshop/browsertest"
)

var (
	wide   = browsertest.View{Width: 1200, Height: 900}
	narrow = browsertest.View{Width: 400, Height: 800, IsTouched: true}
	dark   = browsertest.View{Width: 1200, Height: 900, IsDark: true}
)

const loss = `document.querySelector("[data-chart=loss] .plot")`

// The page of a running and of an ended run, as users do: look, compare, zoom, ask by keys, on a phone, in the dark.
func TestPage(t *testing.T) {
	b := browsertest.Start(t)
	parent := t.TempDir()
	first := newRun(t, parent, "gsm8k", "learning_rate: 1e-5\n")
	first.train(1, 120, kind{hasSets: true})
	second := newRun(t, parent, "gsm8k-lr2e-5", "learning_rate: 2e-5\n")
	second.train(1, 90, kind{isHigh: true})
	w := serveRuns(t, nil, parent)
	p := b.Open(t, w.URL, wide)
	p.Wait(settled)

	t.Run("two runs", func(t *testing.T) {
		if got := p.Text(`[...document.querySelectorAll("#run-list .name")].map((e) => ` +
			`e.textContent).join()`); got != "gsm8k,gsm8k-lr2e-5" {
			t.Errorf("runs: %s", got)
		}
		var n int
		p.Get(`document.querySelectorAll("[data-chart=loss] .key li").length`, &n)
		if n != 4 { // a curve and the evaluations of each
			t.Errorf("%d lines of the loss", n)
		}
		if got := p.Text(`document.querySelector("#summary .card dl").innerText`); !strings.Contains(got,
			"8.39 GB") && !strings.Contains(got, "129 GB") {
			t.Errorf("numbers of the first run: %s", got)
		}
		keep(t, p, "two-1200")
	})
	t.Run("curves grow while a run trains", func(t *testing.T) {
		p.Get("window.isOld = true; scrollTo(0, 200); "+
			"document.querySelector('[data-chart=grad_norm] .plot').focus({ preventScroll: true })", nil)
		p.Wait(settled)
		last := func() string {
			return p.Text(`[...document.querySelectorAll("#summary dd")].map((e) => e.textContent)[0]`)
		}
		before := len(p.Requests)
		first.train(121, 150, kind{hasSets: true})
		p.Wait(`document.querySelector("#summary dd").textContent.startsWith("150")`)
		p.Wait(`plots.living.size && [...plots.living].find((l) => l.chart.id === "loss").lines[0].x.at(-1) === 150`)
		if got := last(); !strings.HasPrefix(got, "150 of 400") {
			t.Errorf("steps: %s", got)
		}
		var state struct {
			IsOld  bool
			Scroll float64
			Focus  string
		}
		p.Get(`({ IsOld: window.isOld === true, Scroll: scrollY, Focus: `+
			`document.activeElement.closest("[data-chart]")?.dataset.chart ?? "" })`, &state)
		if !state.IsOld || state.Scroll != 200 || state.Focus != "grad_norm" {
			t.Errorf("the page lost its place: %+v", state)
		}
		for _, r := range p.Requests[before:] {
			if strings.Contains(r, "/columns") && !strings.Contains(r, "/r1/columns") || strings.Contains(r, "from=0") {
				t.Errorf("a request for what had not changed: %s", r)
			}
		}
		p.Get("scrollTo(0, 0)", nil)
	})
	t.Run("zoom", func(t *testing.T) {
		p.Drag(loss+`.querySelector(".u-over")`, 0.25, 0.75)
		p.Wait(`view.zoom() !== null`)
		p.Wait(`[...plots.living].filter((l) => l.isSeen).every((l) => Math.abs(l.u.scales.x.min - view.zoom().from) < 1e-9)`)
		var at struct{ From, To float64 }
		p.Get(`({ From: view.zoom().from, To: view.zoom().to })`, &at)
		if at.From < 30 || at.From > 50 || at.To < 100 || at.To > 120 {
			t.Errorf("zoomed to %+v", at)
		}
		first.train(151, 152, kind{hasSets: true})
		p.Wait(`document.querySelector("#summary dd").textContent.startsWith("152")`)
		var still struct{ From, To float64 }
		p.Get(`({ From: view.zoom().from, To: view.zoom().to })`, &still)
		if still != at {
			t.Errorf("new steps moved the zoom to %+v", still)
		}
		if got := p.Text(`document.getElementById("zoom-from").value`); got != fmt.Sprint(int(at.From)) {
			t.Errorf("the field has %s", got)
		}
		keep(t, p, "zoom-1200")
		p.Get("document.activeElement.blur()", nil)
		p.Press("r")
		p.Wait(`view.zoom() === null && [...plots.living].filter((l) => l.isSeen).every((l) => l.u.scales.x.max === 152)`)
	})
	t.Run("keys", func(t *testing.T) {
		p.Press("?")
		p.Wait(`document.querySelector("dialog.help").open`)
		keep(t, p, "help-1200")
		p.Press("Escape")
		p.Wait(`!document.querySelector("dialog.help").open`)
		p.Get(loss+".focus()", nil)
		p.Press("Home")
		p.Press("ArrowRight")
		p.Wait(`document.getElementById("announce").textContent.startsWith("step 2:")`)
		if got := p.Text(`document.getElementById("announce").textContent`); !strings.Contains(got, "gsm8k ") {
			t.Errorf("said: %s", got)
		}
		if got := p.Text(`getComputedStyle(` + loss + `).outlineStyle`); got != "solid" {
			t.Errorf("the focus is not visible: %s", got)
		}
		p.Press("l")
		p.Wait(`view.isLog({ id: "loss" })`)
		p.Press("l")
		p.Press("+")
		p.Wait(`view.zoom() !== null`)
		p.Press("0")
		p.Wait(`view.zoom() === null`)
		p.Get("document.activeElement.blur()", nil)
		p.Press("j")
		p.Press("j")
		p.Press("x")
		p.Wait(`view.drawn().length === 1`)
		p.Press("x")
		p.Wait(`view.drawn().length === 2`)
		p.Press("2")
		p.Wait(`document.querySelector("table.settings tbody tr")`)
	})
	t.Run("settings that differ", func(t *testing.T) {
		p.Wait(`document.querySelectorAll("table.settings tbody tr").length === 2`)
		got := p.Text(`document.querySelector("table.settings tbody").innerText.replace(/\s+/g, " ")`)
		if !strings.Contains(got, "learning_rate 1e-05 2e-05") && !strings.Contains(got, "learning_rate 1e-5 2e-5") {
			t.Errorf("differences: %s", got)
		}
		keep(t, p, "settings-1200")
		p.Click(`document.getElementById("settings-all")`)
		p.Wait(`document.querySelectorAll("table.settings tbody tr").length > 20`)
		p.Click(`document.getElementById("settings-all")`)
	})
	t.Run("time and memory", func(t *testing.T) {
		w.answer("/api/runs/r1/timeline", `{"predicted": `+timelineText(1.9)+`, "measured": `+timelineText(2.05)+`}`)
		p.Press("3")
		p.Wait(`document.querySelectorAll("table.busy tbody tr").length === 3`)
		got := p.Text(`document.querySelector("table.busy").innerText`)
		for _, want := range []string{"predicted 1.58 s (83%); measured 1.7 s (83%)", "waits for fetch"} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in %s", want, got)
			}
		}
		p.Point(`document.querySelector("canvas[role=img]")`, 0.5, 0.25)
		p.Wait(`/layer \d+|waits for/.test(document.querySelector(".told").textContent)`)
		if got := p.Text(`document.querySelector(".tiers").innerText`); !strings.Contains(got,
			"planned 6 GiB, measured peak 5.7 GiB") {
			t.Errorf("tiers: %s", got)
		}
		keep(t, p, "machine-1200")
		p.Show(dark)
		keep(t, p, "machine-dark")
		p.Show(wide)
	})
	t.Run("phone", func(t *testing.T) {
		p.Press("1")
		p.Show(narrow)
		p.Wait(settled)
		fits(t, p)
		keep(t, p, "two-400")
		p.Click(`document.getElementById("side-fold")`)
		p.Wait(`document.getElementById("run-list").getBoundingClientRect().height === 0`)
		keep(t, p, "folded-400")
		p.Swipe(loss+`.querySelector(".u-over")`, 0.2, 0.7)
		p.Wait(`view.zoom() !== null`)
		p.Click(`document.getElementById("zoom-reset")`)
		p.Wait(`view.zoom() === null`)
		for i, name := range []string{"curves", "settings", "machine", "samples", "controls"} {
			p.Click(fmt.Sprintf(`document.querySelectorAll("#tabs button:not([hidden])")[%d]`, i))
			p.Wait(fmt.Sprintf(`view.tab() === %q`, name))
			fits(t, p)
		}
		keep(t, p, "controls-400")
		p.Click(`document.getElementById("tab-curves")`)
		p.Show(wide)
	})
	t.Run("dark and light", func(t *testing.T) {
		contrast(t, p, "light")
		p.Show(dark)
		p.Wait(`getComputedStyle(document.body).backgroundColor !== "rgb(245, 246, 248)"`)
		contrast(t, p, "dark")
		keep(t, p, "two-dark")
		p.Get(`view.nextColors()`, nil) // light, whatever the system says
		p.Wait(`getComputedStyle(document.body).backgroundColor === "rgb(245, 246, 248)"`)
		p.Get(`view.nextColors(); view.nextColors()`, nil)
		p.Show(wide)
	})
	t.Run("reduced motion", func(t *testing.T) {
		p.Show(browsertest.View{Width: 1200, Height: 900, IsCalm: true})
		if got := p.Text(`[...document.querySelectorAll("*")].map((e) => ` +
			`getComputedStyle(e).animationName).filter((n) => n !== "none").join()`); got != "" {
			t.Errorf("animations: %s", got)
		}
		p.Show(wide)
	})
	t.Run("the address keeps the view", func(t *testing.T) {
		p.Get(`view.only("r2"); view.setZoom({ from: 10, to: 60 })`, nil)
		p.Wait(`location.hash.includes("runs=r2") && location.hash.includes("steps=10-60")`)
		p.Reload()
		p.Wait(`view.drawn().join() === "r2" && view.zoom()?.to === 60`)
		p.Wait(settled)
	})
	quiet(t, p, w.URL)
}

// fits fails where the page is wider than the screen, or a part of it scrolls by itself.
func fits(t *testing.T, p *browsertest.Page) {
	t.Helper()
	if got := p.Text(`document.documentElement.scrollWidth > innerWidth ? [...document.querySelectorAll("body *")]
		.filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map((e) =>
			e.tagName + "." + e.className).join() || "?" : ""`); got != "" {
		t.Errorf("wider than the screen: %s", got)
	}
	if got := p.Text(`[...document.querySelectorAll("body *")].filter((e) =>
		/auto|scroll/.test(getComputedStyle(e).overflowY) &&
		!e.matches("dialog, select, textarea") && e.scrollHeight > e.clientHeight + 1).map((e) =>
			e.tagName + "." + e.className).join()`); got != "" {
		t.Errorf("scrolls by itself: %s", got)
	}
}

// contrast fails where a text and its ground differ less than WCAG 2.2 asks for at level AA: 4.5 to 1, where disabled
// parts are left out. https://www.w3.org/TR/WCAG22/#contrast-minimum
func contrast(t *testing.T, p *browsertest.Page, scheme string) {
	t.Helper()
	if got := p.Text(`(() => {
		const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
		const parse = (color) => {
			probe.clearRect(0, 0, 1, 1);
			probe.fillStyle = color;
			probe.fillRect(0, 0, 1, 1);
			return [...probe.getImageData(0, 0, 1, 1).data];
		};
		const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
		const ground = (e) => {
			for (; e; e = e.parentElement) {
				const color = parse(getComputedStyle(e).backgroundColor);
				if (color[3] > 250) return color;
			}
			return [255, 255, 255];
		};
		const leftOut = "[hidden], .unseen, .skip, noscript, script, :disabled";
		const bad = new Set();
		for (const e of document.querySelectorAll("body *")) {
			const hasText = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
			if (!hasText || e.closest(leftOut) || !e.getClientRects().length) continue;
			const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
			const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
			if (ratio < 4.5) bad.add(e.tagName + "." + e.className + " " + ratio.toFixed(2));
		}
		return [...bad].join(", ");
	})()`); got != "" {
		t.Errorf("%s: too little contrast: %s", scheme, got)
	}
}

// What runs learn: pairs, experts, samples over time, the tokens of rows.
func TestPageOfLearning(t *testing.T) {
	b := browsertest.Start(t)
	parent := t.TempDir()
	run := newRun(t, parent, "dpo", "")
	run.train(1, 60, kind{isPairs: true, hasExperts: true})
	for step := 0; step <= 60; step += 20 {
		run.add("samples.jsonl", fmt.Sprintf(`{"step": %d, "number": 1, "prompt": "Write a line about rivers.", `+
			`"text": "After %d steps the river is wide.", "finish": "stop"}`+"\n", step, step))
	}
	w := serveRuns(t, nil, parent)
	w.answer("/api/runs/r1/rows", `{"rows": [{"index": 17, "source": "recipes.jsonl:18", "loss": 5.25, `+
		`"tokens": 4}, {"index": 2, "source": "recipes.jsonl:3", "loss": 1.5, "tokens": 9}]}`)
	w.answer("/api/runs/r1/rows/17", `{"sides": [
		{"name": "chosen", "tokens": [{"text": "Q:", "id": 5, "learned": false, "loss": null}, {"text": " wide\n",
			"id": 6, "learned": true, "loss": 0.2}, {"text": "river", "id": 7, "learned": true, "loss": 9.5}]},
		{"name": "rejected", "tokens": [{"text": "Q:", "id": 5, "learned": false, "loss": null}, {"text": " dry",
			"id": 8, "learned": true, "loss": 3.1}]}]}`)
	p := b.Open(t, w.URL, wide)
	p.Wait(settled)
	for _, chart := range []string{"rewards", "rewards/margins", "rewards/accuracies", "logps"} {
		p.Wait(fmt.Sprintf(`document.querySelector('[data-chart=%q]')`, chart))
	}
	p.Get(`document.querySelector("[data-chart=rewards]").scrollIntoView()`, nil)
	p.Wait(`document.querySelectorAll("[data-chart=rewards] .key li").length === 2 && ` +
		`document.querySelector("[data-chart=rewards] canvas")`)
	keep(t, p, "dpo-1200")

	p.Click(`[...document.querySelectorAll("summary")].find((e) => e.textContent === "Layers and experts")`)
	p.Wait(`[...document.querySelectorAll(".heat")].filter((e) => !e.hidden).length === 3`)
	p.Wait(`/20\.\d*% to|% to/.test(document.querySelector(".heat:not([hidden]) small").textContent)`)
	p.Get(`document.querySelector(".heat:not([hidden])").scrollIntoView({ block: "center" })`, nil)
	keep(t, p, "experts-1200")

	p.Press("4")
	p.Wait(`document.querySelectorAll(".samples li").length === 4`)
	if got := p.Text(`document.querySelector(".samples li").innerText`); !strings.Contains(got, "After 60 steps") {
		t.Errorf("the newest sample: %s", got)
	}
	run.add("samples.jsonl", `{"step": 61, "number": 1, "prompt": "Write a line about rivers.", "text": "New.", `+
		`"finish": "length"}`+"\n")
	run.train(61, 61, kind{isPairs: true, hasExperts: true})
	p.Wait(`document.querySelectorAll(".samples li").length === 5`)
	keep(t, p, "samples-1200")

	p.Press("5")
	p.Wait(`document.querySelectorAll("table.rows tbody tr").length === 2`)
	p.Click(`document.querySelector("table.rows button")`)
	p.Wait(`document.querySelectorAll(".tokens").length === 2`)
	got := p.Text(`[...document.querySelectorAll(".tokens .token")].map((e) => e.textContent + "|" + e.className).join()`)
	if want := "Q:|token masked, wide↵|token l0,river|token l7,Q:|token masked, dry|token l4"; got != want {
		t.Errorf("tokens: %s", got)
	}
	p.Get(`document.querySelector(".tokens").focus()`, nil)
	p.Press("ArrowRight")
	p.Press("ArrowRight")
	p.Press("ArrowRight")
	p.Wait(`document.querySelector(".row .told").textContent.includes("loss 9.5000")`)
	contrast(t, p, "light")
	keep(t, p, "tokens-1200")
	p.Show(dark)
	contrast(t, p, "dark")
	keep(t, p, "tokens-dark")
	quiet(t, p, w.URL)
}

// Nothing moves when numbers arrive: the charts have their height before, so that a click reaches what the user saw.
func TestPageStaysInPlace(t *testing.T) {
	b := browsertest.Start(t)
	parent := t.TempDir()
	newRun(t, parent, "first", "").train(1, 20, kind{hasSets: true})
	newRun(t, parent, "second", "").train(1, 20, kind{})
	w := serveRuns(t, nil, parent)
	release := w.hold(t)
	p := b.Open(t, w.URL, browsertest.View{Width: 1200, Height: 8000})
	p.Wait(`document.querySelectorAll(".key li").length > 20`)
	places := `[...document.querySelectorAll(".chart")].map((e) => e.dataset.chart + " " + ` +
		`Math.round(e.getBoundingClientRect().top)).join("\n")`
	before := p.Text(places)
	release()
	p.Wait(settled)
	if after := p.Text(places); after != before || !strings.Contains(after, "lanes") {
		t.Errorf("charts moved from\n%s\nto\n%s", before, after)
	}
	quiet(t, p, w.URL)
}

// Names, texts and tokens of a run are those of strangers: they are shown as they are, cut, and become no markup.
func TestPageOfHostileRuns(t *testing.T) {
	b := browsertest.Start(t)
	parent := t.TempDir()
	evil := `<img src=x onerror=alert(1)>`
	run := newRun(t, parent, evil, "")
	run.train(1, 5, kind{})
	long := strings.Repeat("long ", 100_000)
	run.add("samples.jsonl", `{"step": 1, "number": 1, "prompt": "<script>window.isTaken = true</script>", `+
		`"text": "`+evil+`\u202e\u0000 `+long+`", "finish": "stop"}`+"\n")
	run.add("metrics.jsonl", `{"step": 6, "loss": 2, "__proto__": 1, "constructor": 2, "<b>x</b>": 3, "time": "<i>"}`+"\n")
	w := serveRuns(t, nil, parent)
	w.answer("/api/runs/r1/rows", `{"rows": [{"index": 0, "source": "`+evil+`", "loss": 1, "tokens": 1}]}`)
	w.answer("/api/runs/r1/rows/0", `{"sides": [{"name": "<b>", "tokens": [{"text": `+
		`"</span><script>window.isTaken = true</script>\u202e", "id": 1, "learned": true, "loss": 1}]}]}`)
	p := b.Open(t, w.URL, wide)
	p.Wait(settled)
	p.Click(`[...document.querySelectorAll("summary")].find((e) => e.textContent === "Other numbers")`)
	p.Wait(`document.querySelectorAll("[data-chart^='other/']").length > 0`)
	p.Press("4")
	p.Wait(`document.querySelector(".samples li")`)
	var n int
	if p.Get(`document.querySelector(".samples .text").textContent.length`, &n); n > 3000 {
		t.Errorf("a sample is shown with %d characters", n)
	}
	p.Click(`document.querySelector(".samples button")`)
	p.Wait(`!document.querySelector(".samples button")`)
	if p.Get(`document.querySelector(".samples .text").textContent.length`, &n); n > 30_000 {
		t.Errorf("a sample is shown with %d characters", n)
	}
	p.Press("5")
	p.Wait(`document.querySelector("table.rows button")`)
	p.Click(`document.querySelector("table.rows button")`)
	p.Wait(`document.querySelector(".tokens .token")`)
	if got := p.Text(`document.querySelector(".tokens .token").textContent`); !strings.Contains(got,
		"</span><script>") || !strings.Contains(got, `\u202e`) {
		t.Errorf("a token is shown as %q", got)
	}
	var is bool
	if p.Get(`window.isTaken === true || document.querySelectorAll("main img, main script, #side img, main b `+
		`b").length > 0`, &is); is {
		t.Error("a text became markup")
	}
	quiet(t, p, w.URL)
}

// The page says when the server is gone, and is live again when it is back.
func TestPageWithoutServer(t *testing.T) {
	b := browsertest.Start(t)
	run := newRun(t, t.TempDir(), "run", "")
	run.train(1, 10, kind{})
	w := serveRuns(t, nil, run.dir)
	p := b.Open(t, w.URL, wide)
	p.Wait(settled)
	p.Wait(`document.getElementById("connection").textContent === "Live"`)
	w.setDown(true)
	p.Wait(`document.getElementById("connection").textContent.startsWith("Connection lost")`)
	run.train(11, 20, kind{})
	keep(t, p, "lost-1200")
	w.setDown(false)
	p.Wait(`document.getElementById("connection").textContent === "Live"`)
	p.Wait(`document.querySelector("#summary dd").textContent.startsWith("20")`)
	p.Wait(`[...plots.living].filter((l) => l.isSeen).every((l) => l.curves.every((c) => c.kind === "dots" || ` +
		`c.kind === "linked" || c.x.at(-1) === 20))`)
}

// Controls need the token, and the end of a run needs a yes.
func TestControls(t *testing.T) {
	b := browsertest.Start(t)
	run := newRun(t, t.TempDir(), "run", "")
	run.train(1, 10, kind{})
	own := &asked{}
	w := serveRuns(t, own, run.dir)
	p := b.Open(t, w.URL+"/#tab=controls", wide)
	p.Wait(`document.querySelector(".controls button")`)
	p.Wait(`[...document.querySelectorAll(".controls button")].find((e) => e.textContent === "Save now").disabled`)
	answer := func() string { return p.Text(`document.querySelector(".answer").textContent`) }
	give := func(text string) {
		p.Click(`document.getElementById("token")`)
		p.Type(text)
		p.Press("Enter")
	}
	press := func(text string) {
		p.Click(`[...document.querySelectorAll(".controls button")].find((e) => e.textContent === "` + text + `" ` +
			`&& e.offsetParent)`)
	}
	give("a-wrong-one")
	press("Save now")
	p.Wait(`document.querySelector(".answer").textContent.includes("token is missing or wrong")`)
	p.Wait(`document.getElementById("token").offsetParent`)
	p.Errors = nil // the console tells of the refusal
	give(token)
	press("Save now")
	p.Wait(`document.querySelector(".answer").textContent.startsWith("The run saves")`)
	p.Get(`document.getElementById("evaluate-every").value = "50"`, nil)
	press("Change")
	p.Wait(`document.querySelector(".answer").textContent.includes("every 50 steps")`)
	press("Stop after this step")
	p.Wait(`document.querySelector("dialog").open`)
	keep(t, p, "stop-1200")
	press("Let it run")
	p.Wait(`!document.querySelector("dialog").open`)
	press("Stop after this step")
	press("Stop it")
	p.Wait(`document.querySelector(".answer").textContent.startsWith("The run ends")`)
	own.mu.Lock()
	defer own.mu.Unlock()
	if got := strings.Join(own.what, ", "); got != "save, evaluate 50, stop" {
		t.Errorf("the run was asked for: %s; the page says: %s", got, answer())
	}
	quiet(t, p, w.URL)

	q := b.Open(t, w.URL+"/#token="+token+"&tab=controls", wide)
	q.Wait(`store.hasToken() && !location.href.includes("token")`)
	q.Wait(`!document.querySelector(".controls button:disabled")`)
}

// A saved page is one file that asks for nothing.
func TestSavedPage(t *testing.T) {
	b := browsertest.Start(t)
	parent := t.TempDir()
	first := newRun(t, parent, "a", "learning_rate: 1e-5\n")
	first.train(1, 3000, kind{hasSets: true})
	second := newRun(t, parent, "b", "learning_rate: 2e-5\n")
	second.train(1, 50, kind{})
	frozen, err := serve.Freeze([]string{first.dir, second.dir}, "test", false)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := frozen.WritePage(&text, 0); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "both.html")
	if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", text.Len())
	p := b.Open(t, "file://"+name, wide)
	p.Wait(settled)
	p.Wait(`document.getElementById("connection").textContent === "Saved page"`)
	p.Drag(loss+`.querySelector(".u-over")`, 0.25, 0.75)
	p.Wait(`view.zoom() !== null`)
	p.Get("document.activeElement.blur()", nil)
	p.Press("2")
	p.Wait(`document.querySelector("table.settings tbody tr")`)
	for i := range 5 {
		p.Press(fmt.Sprint(i + 1))
		fits(t, p)
	}
	keep(t, p, "saved-1200")
	quiet(t, p, "file://"+name)
}

// Ten runs of 100,000 steps: the page asks for no more than its curves need.
func TestTenLongRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("it writes 500 MB of records: make long runs it")
	}
	b := browsertest.Start(t)
	surroundings.OnDisk(t)
	parent := t.TempDir()
	first := newRun(t, parent, "run-0", "")
	first.train(1, 100_000, kind{})
	records, err := os.ReadFile(filepath.Join(first.dir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 10; i++ {
		newRun(t, parent, fmt.Sprintf("run-%d", i), "").write("metrics.jsonl", string(records))
	}
	w := serveRuns(t, nil, parent)
	p := b.Open(t, w.URL+"/#runs=r1,r2,r3,r4,r5,r6,r7,r8,r9,r10", wide)
	p.Wait(`store.runs().length === 10 && store.runs().every((r) => r.complete)`)
	var ms, bytes, requests float64
	for range 3 {
		p.Reload()
		p.Wait(settled + ` && [...plots.living].length && [...plots.living].filter((l) => l.isSeen).every((l) => ` +
			`l.curves.length >= 10)`)
		p.Get(`performance.now()`, &ms)
		p.Get(`performance.getEntriesByType("resource").reduce((sum, e) => sum + e.encodedBodySize, 0)`, &bytes)
		p.Get(`store.requests()`, &requests)
		t.Logf("drawn after %.0f ms, %.0f bytes, %.0f requests", ms, bytes, requests)
	}
	if bytes > 8<<20 {
		t.Errorf("the page took %.0f bytes", bytes)
	}
	keep(t, p, "ten-1200")
	quiet(t, p, w.URL)
}
