package browsertest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Page is an open page in a tab of its own. Its methods end the test where the browser refuses something.
type Page struct {
	t        testing.TB
	b        *Browser
	session  string
	Errors   []string // of the console and of scripts, and what the Content-Security-Policy refused
	Requests []string // the addresses that the page asked for
}

// View says how a page is shown.
type View struct {
	Width, Height int
	IsDark        bool // the system prefers dark pages
	IsCalm        bool // the system prefers reduced motion
	IsTouched     bool // with fingers
}

type fields = map[string]any

// Open opens an address.
func (b *Browser) Open(t testing.TB, address string, v View) *Page {
	t.Helper()
	p := &Page{t: t, b: b}
	var target struct {
		TargetID string `json:"targetId"`
	}
	if err := b.ask("", "Target.createTarget", fields{"url": "about:blank"}, &target); err != nil {
		t.Fatal(err)
	}
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	if err := b.ask("", "Target.attachToTarget", fields{"targetId": target.TargetID, "flatten": true},
		&attached); err != nil {
		t.Fatal(err)
	}
	p.session = attached.SessionID
	b.pages[p.session] = p
	t.Cleanup(func() {
		b.ask("", "Target.closeTarget", fields{"targetId": target.TargetID}, nil)
		delete(b.pages, p.session)
	})
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.ask(domain+".enable", nil, nil)
	}
	p.Show(v)
	p.ask("Page.navigate", fields{"url": address}, nil)
	p.Wait("document.readyState === 'complete'")
	return p
}

// Show changes how the page is shown.
func (p *Page) Show(v View) {
	p.t.Helper()
	colors, motion := "light", "no-preference"
	if v.IsDark {
		colors = "dark"
	}
	if v.IsCalm {
		motion = "reduce"
	}
	p.ask("Emulation.setDeviceMetricsOverride", fields{"width": v.Width, "height": v.Height, "deviceScaleFactor": 1,
		"mobile": v.IsTouched}, nil)
	p.ask("Emulation.setTouchEmulationEnabled", fields{"enabled": v.IsTouched}, nil)
	p.ask("Emulation.setEmulatedMedia", fields{"features": []fields{{"name": "prefers-color-scheme", "value": colors},
		{"name": "prefers-reduced-motion", "value": motion}}}, nil)
}

func (p *Page) ask(method string, params, result any) {
	p.t.Helper()
	if err := p.b.ask(p.session, method, params, result); err != nil {
		p.t.Fatal(err)
	}
}

// note keeps what a page did.
func (p *Page) note(method string, params json.RawMessage) {
	var e struct {
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
		Type string `json:"type"`
		Args []struct {
			Value       any    `json:"value"`
			Description string `json:"description"`
		} `json:"args"`
		Entry struct {
			Level string `json:"level"`
			Text  string `json:"text"`
			URL   string `json:"url"`
		} `json:"entry"`
		Details struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if json.Unmarshal(params, &e) != nil {
		return
	}
	switch method {
	case "Network.requestWillBeSent":
		p.Requests = append(p.Requests, e.Request.URL)
	case "Runtime.exceptionThrown":
		p.Errors = append(p.Errors, e.Details.Text+" "+e.Details.Exception.Description)
	case "Runtime.consoleAPICalled":
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			var said []string
			for _, a := range e.Args {
				said = append(said, fmt.Sprint(a.Value, a.Description))
			}
			p.Errors = append(p.Errors, strings.Join(said, " "))
		}
	case "Log.entryAdded":
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			p.Errors = append(p.Errors, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// evaluate computes an expression, or the value of a promise.
func (p *Page) evaluate(expression string, result any) error {
	var answer struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Details *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
				Value       any    `json:"value"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := p.b.ask(p.session, "Runtime.evaluate", fields{"expression": expression, "awaitPromise": true,
		"returnByValue": true}, &answer)
	if err != nil {
		return err
	}
	if d := answer.Details; d != nil {
		return fmt.Errorf("%s %s %v: %s", d.Text, d.Exception.Description, d.Exception.Value, expression)
	}
	if result == nil || len(answer.Result.Value) == 0 {
		return nil
	}
	return json.Unmarshal(answer.Result.Value, result)
}

// Get computes an expression of JavaScript into result, as JSON.
func (p *Page) Get(expression string, result any) {
	p.t.Helper()
	if err := p.evaluate(expression, result); err != nil {
		p.t.Fatal(err)
	}
}

// Text is the value of an expression that is a text.
func (p *Page) Text(expression string) (s string) {
	p.t.Helper()
	p.Get(expression, &s)
	return s
}

// Wait waits until an expression is true. It looks 2,000 times, some 20 ms apart, and then ends the test.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	err := p.evaluate(`new Promise((done, refuse) => {
		let left = 2000;
		const look = () => {
			let is = false;
			try { is = Boolean(`+expression+`) } catch (e) { if (left < 2) { refuse(String(e)); return } }
			if (is) { done(true) } else if (--left) { setTimeout(look, 20) } else { refuse("it never became true") }
		};
		look();
	})`, nil)
	if err != nil {
		p.t.Fatalf("%v\nerrors of the page: %q\ntext: %.2000s", err, p.Errors, p.body())
	}
}

func (p *Page) body() (text string) {
	p.evaluate("document.body.innerText", &text)
	return text
}

// Press presses a key by its name, such as "a", "?" or "ArrowLeft".
func (p *Page) Press(key string) {
	p.t.Helper()
	codes := map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
		"ArrowDown": 40, "Home": 36, "End": 35}
	press := fields{"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes[key]}
	switch {
	case len(key) == 1:
		press["text"] = key
	case key == "Enter":
		press["text"] = "\r"
	}
	p.ask("Input.dispatchKeyEvent", press, nil)
	p.ask("Input.dispatchKeyEvent", fields{"type": "keyUp", "key": key, "windowsVirtualKeyCode": codes[key]}, nil)
}

// Type types a text into what has the focus.
func (p *Page) Type(text string) {
	p.t.Helper()
	p.ask("Input.insertText", fields{"text": text}, nil)
}

// box is a place on the screen.
type box struct{ X, Y, Width, Height float64 }

// boxOf scrolls to the element that an expression gives, and returns its place.
func (p *Page) boxOf(expression string) (b box) {
	p.t.Helper()
	p.Get(`(async () => {
		const e = `+expression+`;
		if (!e) throw new Error("there is no such element");
		e.scrollIntoView({ block: "center", behavior: "instant" });
		await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
		const b = e.getBoundingClientRect();
		return { X: b.x, Y: b.y, Width: b.width, Height: b.height };
	})()`, &b)
	return b
}

func (p *Page) mouse(kind string, x, y float64, buttons int) {
	p.t.Helper()
	event := fields{"type": kind, "x": x, "y": y, "buttons": buttons, "clickCount": 1}
	if kind != "mouseMoved" {
		event["button"] = "left"
	}
	p.ask("Input.dispatchMouseEvent", event, nil)
}

// Click clicks the element that an expression gives, in its middle. Where the page moved between the look and the
// click, so that another element got it, it looks and clicks again, as a user does.
func (p *Page) Click(expression string) {
	p.t.Helper()
	for range 10 {
		b := p.boxOf(expression)
		p.Get(`window.isHit = false; (`+expression+`).addEventListener("click", () => window.isHit = true, `+
			`{ capture: true, once: true })`, nil)
		x, y := b.X+b.Width/2, b.Y+b.Height/2
		p.mouse("mouseMoved", x, y, 0)
		p.mouse("mousePressed", x, y, 1)
		p.mouse("mouseReleased", x, y, 0)
		var isHit bool
		if p.Get("window.isHit === true", &isHit); isHit {
			return
		}
	}
	p.t.Fatalf("a click on %s reached something else ten times", expression)
}

// Point moves the pointer to a place in an element, in parts of its width and of its height.
func (p *Page) Point(expression string, x, y float64) {
	p.t.Helper()
	b := p.boxOf(expression)
	p.mouse("mouseMoved", b.X+x*b.Width, b.Y+y*b.Height, 0)
}

// Drag drags over an element from one place to another, in parts of its width.
func (p *Page) Drag(expression string, from, to float64) {
	p.t.Helper()
	b := p.boxOf(expression)
	y := b.Y + b.Height/2
	p.mouse("mouseMoved", b.X+from*b.Width, y, 0)
	p.mouse("mousePressed", b.X+from*b.Width, y, 1)
	for i := 1; i <= 4; i++ {
		p.mouse("mouseMoved", b.X+(from+(to-from)*float64(i)/4)*b.Width, y, 1)
	}
	p.mouse("mouseReleased", b.X+to*b.Width, y, 0)
}

// Swipe moves a finger over an element from one place to another, in parts of its width.
func (p *Page) Swipe(expression string, from, to float64) {
	p.t.Helper()
	b := p.boxOf(expression)
	y := b.Y + b.Height/2
	touch := func(kind string, points ...fields) {
		if points == nil {
			points = []fields{}
		}
		p.ask("Input.dispatchTouchEvent", fields{"type": kind, "touchPoints": points}, nil)
	}
	touch("touchStart", fields{"x": b.X + from*b.Width, "y": y})
	for i := 1; i <= 4; i++ {
		touch("touchMove", fields{"x": b.X + (from+(to-from)*float64(i)/4)*b.Width, "y": y})
	}
	touch("touchEnd")
}

// Picture returns what the user sees, as PNG.
func (p *Page) Picture() []byte {
	p.t.Helper()
	var shot struct {
		Data string `json:"data"`
	}
	p.ask("Page.captureScreenshot", fields{"format": "png"}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	return png
}

// Usage holds the counts of a page.
type Usage struct {
	ScriptMiB        float64 // memory of its scripts
	Nodes, Listeners int     // of its document
}

// Usage returns what the page holds after a collection of garbage.
func (p *Page) Usage() Usage {
	p.t.Helper()
	var heap struct {
		Bytes float64 `json:"usedSize"`
	}
	var counts struct {
		Nodes     int `json:"nodes"`
		Listeners int `json:"jsEventListeners"`
	}
	p.ask("HeapProfiler.collectGarbage", nil, nil)
	p.ask("Runtime.getHeapUsage", nil, &heap)
	p.ask("Memory.getDOMCounters", nil, &counts)
	return Usage{heap.Bytes / (1 << 20), counts.Nodes, counts.Listeners}
}

// Reload loads the page again.
func (p *Page) Reload() {
	p.t.Helper()
	p.Get("window.isOld = true", nil)
	p.ask("Page.reload", nil, nil)
	p.Wait("!window.isOld && document.readyState === 'complete'")
}
