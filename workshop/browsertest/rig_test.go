package browsertest_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/serve"
	"github.com/millrace/millrace/workshop/browsertest"
)

var pictures = flag.String("pictures", "", "write what the tests saw as PNG files to this directory")

func TestMain(m *testing.M) { os.Exit(surroundings.Run(m)) }

// folder is the output directory of a made-up run.
type folder struct {
	t   *testing.T
	dir string
}

// kind says which numbers a run has.
type kind struct {
	isPairs, hasExperts, hasSets bool
	isHigh                       bool // its losses are greater
}

// newRun makes an output directory with a run file and a plan.
func newRun(t *testing.T, parent, name, yaml string) folder {
	t.Helper()
	f := folder{t, filepath.Join(parent, name)}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := runfile.Parse([]byte("model: models/SmolLM2-135M\ndatasets: [{path: data/recipes.jsonl, type: text}]\n" +
		"output_dir: " + f.dir + "\n" + yaml))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	f.write("run.yaml", runfile.ResolvedHeader+string(doc))
	f.write("plan.json", `{"host_bytes": 6442450944, "device_bytes": 2147483648, "disk_bytes": 10737418240,
		"state": [{"purpose": "masters and moments", "bytes": 4294967296}],
		"host": [{"purpose": "gradients", "bytes": 1073741824}, {"purpose": "layer inputs", "bytes": 805306368}],
		"device": [{"purpose": "weights in slots", "bytes": 1288490188}, {"purpose": "activations", "bytes": 754974720}],
		"disk": [{"purpose": "checkpoints", "bytes": 10737418240}],
		"predicted": {"step_sec": 1.9, "lane_sec": {"fetch": 0.6, "compute": 1.7}},
		"wear": {"steps": 400, "rated_bytes": 600000000000000, "rated_is_assumed": true},
		"timeline": `+timelineText(1.9)+`}`)
	return f
}

func (f folder) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) add(name, text string) {
	f.t.Helper()
	file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		f.t.Fatal(err)
	}
}

// wave is a number from -1 to 1 that looks like noise.
func wave(step, seed int) float64 {
	x := math.Sin(float64(step)*12.9898+float64(seed)*78.233) * 43758.5453
	return 2*(x-math.Floor(x)) - 1
}

// train appends the records of steps.
func (f folder) train(from, to int, k kind) {
	f.t.Helper()
	var b strings.Builder
	seed := len(f.dir)
	for step := from; step <= to; step++ {
		f.record(&b, step, seed, k)
	}
	f.add("metrics.jsonl", b.String())
}

func (f folder) record(b *strings.Builder, step, seed int, k kind) {
	loss := 1.6 + 2*math.Exp(-float64(step)/80) + 0.12*wave(step, seed)
	if k.isHigh {
		loss += 0.4
	}
	norm := 0.9 + 0.5*math.Exp(-float64(step)/40) + 0.3*wave(step, seed+1)
	clip := min(1, 1/norm)
	m := map[string]any{"step": step, "loss": loss, "grad_norm": norm, "clip_scale": clip, "tokens": 8192,
		"target_tokens": 6000,
		"learning_rate": 1e-5 * min(1, float64(step)/20), "tokens_per_sec": 4200 + 200*wave(step, seed+2),
		"step_sec":     1.95 + 0.1*wave(step, seed+3),
		"model_tflops": 3.4 + 0.15*wave(step, seed+4), "device_peak_bytes": 2040109466,
		"host_peak_bytes": 6120328396 + step*1024,
		"disk_read_bytes": 0, "disk_written_bytes": 1 << 30, "time": "2026-03-01T12:00:00Z",
		"entropy": 1.4 + 0.1*wave(step, seed+5), "mean_token_accuracy": 0.55 + 0.02*wave(step, seed+6),
		"lanes": map[string]float64{"fetch": 0.7 + 0.05*wave(step, seed), "compute": 1.75, "drain": 0.5,
			"update": 0.9, "disk": 0.2}}
	if step%20 == 0 {
		m["eval_loss"] = loss + 0.15
		if k.hasSets {
			m["eval/task/loss"], m["eval/memory/loss"] = loss+0.05, 2.2+float64(step)/2000
		}
	}
	if k.isPairs {
		rise := 1 - math.Exp(-float64(step)/60)
		m["pairs"], m["rewards/chosen"], m["rewards/rejected"] = 16, 0.4*rise+0.1*wave(step, 1), -1.1*rise+0.1*wave(step, 2)
		m["rewards/margins"], m["rewards/accuracies"] = 1.5*rise+0.1*wave(step, 3), 0.5+0.4*rise
		m["logps/chosen"], m["logps/rejected"] = -80+10*rise, -95-20*rise
	}
	if k.hasExperts {
		var busiest, entropy []float64
		var unused []int
		for layer := range 12 {
			busiest = append(busiest, 0.2+0.02*float64(layer)+0.02*wave(step, layer))
			entropy, unused = append(entropy, 0.95-0.01*float64(layer)), append(unused, layer/6)
		}
		m["experts"] = map[string]any{"busiest": busiest, "entropy": entropy, "unused": unused}
	}
	text, err := json.Marshal(m)
	if err != nil {
		f.t.Fatal(err)
	}
	b.Write(text)
	b.WriteByte('\n')
}

// timelineText is a step with lanes as a document.
func timelineText(seconds float64) string {
	var fetch, compute, drain []string
	const layers = 12
	wide := seconds / (layers + 1)
	for i := range layers {
		at := float64(i) * wide
		fetch = append(fetch, fmt.Sprintf(`{"from": %g, "to": %g, "what": "weights of layer %d", "waits_for": `+
			`null}`, at, at+wide*0.6, i))
		compute = append(compute, fmt.Sprintf(`{"from": %g, "to": %g, "what": "forward layer %d", "waits_for": `+
			`"fetch"}`, at+wide*0.65, at+wide*1.55, i))
		drain = append(drain, fmt.Sprintf(`{"from": %g, "to": %g, "what": "gradients of layer %d", "waits_for": `+
			`"compute"}`, at+wide*1.1, at+wide*1.3, i))
	}
	lane := func(name string, spans []string, busy float64, waits string) string {
		return fmt.Sprintf(`{"name": %q, "spans": [%s], "busy": %g, "waiting": {%q: %g}}`, name,
			strings.Join(spans, ","), busy, waits, seconds*0.1)
	}
	return fmt.Sprintf(`{"step": 7, "simulated": true, "torn": false, "seconds": %g, "lanes": [%s, %s, %s]}`, seconds,
		lane("fetch", fetch, seconds*0.55, "disk"), lane("compute", compute, seconds*0.83, "fetch"), lane("drain",
			drain, seconds*0.2, "compute"))
}

// site is a server of runs at an address of its own. In between is a proxy, so that a test can end connections, and say
// what the server answers.
type site struct {
	*httptest.Server
	mu      sync.Mutex
	isDown  bool
	held    chan struct{}     // columns wait until it is closed; nil: they do not wait
	answers map[string]string // by path
}

// asked are the requests of users that reached the run of the server.
type asked struct {
	mu   sync.Mutex
	what []string
}

func (a *asked) note(what string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.what = append(a.what, what)
	return nil
}

func (a *asked) Save() error                   { return a.note("save") }
func (a *asked) Stop() error                   { return a.note("stop") }
func (a *asked) EvaluateEvery(steps int) error { return a.note(fmt.Sprint("evaluate ", steps)) }

const token = "a-token-of-a-test"

// serveRuns serves directories. own is the run of this process, nil: there is no such run.
func serveRuns(t *testing.T, own serve.Control, dirs ...string) *site {
	t.Helper()
	s := serve.New(serve.Options{Dirs: dirs, Version: "test", Own: own, Token: token})
	if err := s.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.Close)
	to, err := url.Parse(strings.Split(s.URL(), "#")[0])
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Del("Origin") // it names the proxy
	}}
	w := &site{answers: map[string]string{}}
	w.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, q *http.Request) {
		w.mu.Lock()
		text, isDown, held := w.answers[q.URL.Path], w.isDown, w.held
		w.mu.Unlock()
		if held != nil && strings.HasSuffix(q.URL.Path, "/columns") {
			<-held
		}
		switch {
		case isDown:
			panic(http.ErrAbortHandler)
		case text != "":
			out.Header().Set("Content-Type", "application/json")
			fmt.Fprint(out, text)
		default:
			proxy.ServeHTTP(out, q)
		}
	}))
	t.Cleanup(func() {
		w.CloseClientConnections()
		w.Close()
	})
	return w
}

// setDown makes the server unreachable, or reachable again.
func (w *site) setDown(is bool) {
	w.mu.Lock()
	w.isDown = is
	w.mu.Unlock()
	if is {
		w.CloseClientConnections()
	}
}

// hold keeps columns of numbers back until the returned function is called.
func (w *site) hold(t *testing.T) (release func()) {
	held := make(chan struct{})
	release = sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = held
	return release
}

// answer says what the server answers to a path.
func (w *site) answer(path, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[path] = text
}

// keep writes a picture where the flag says so.
func keep(t *testing.T, p *browsertest.Page, name string) {
	t.Helper()
	if *pictures == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), p.Picture(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// settled waits until all charts that the screen shows are drawn, with all of their lines.
const settled = `document.querySelectorAll(".chart canvas").length > 0 &&
	[...plots.living].every((p) => !p.isSeen || p.lines.every((l) => l.kind !== "awaited")) &&
	[...document.querySelectorAll(".plot .wait")].every((e) => {
		const box = e.closest(".chart").getBoundingClientRect();
		return e.hidden || box.top >= innerHeight + 300 || box.bottom <= -300;
	})`

// quiet fails where a page had an error, or asked for something of another place than the server.
func quiet(t *testing.T, p *browsertest.Page, from string) {
	t.Helper()
	p.Wait("true") // events until now are read
	for _, e := range p.Errors {
		t.Errorf("the console of the page: %s", e)
	}
	for _, address := range p.Requests {
		if !strings.HasPrefix(address, from) && !strings.HasPrefix(address, "data:") {
			t.Errorf("the page asked for %s", address)
		}
	}
}
