package browsertest_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace/workshop/browsertest"
)

var openFor = flag.Int("open", 0, "leave a page open while a run writes n records, two a second")

// usage holds the counts of a server and its page.
type usage struct {
	goroutines int
	heapMiB    float64 // of the process of the test, which serves
	rss        string
	browsertest.Usage
}

func usageOf(p *browsertest.Page) usage {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := usage{goroutines: runtime.NumGoroutine(), heapMiB: float64(m.HeapAlloc) / (1 << 20), Usage: p.Usage()}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if rss, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			u.rss = strings.TrimSpace(rss)
		}
	}
	return u
}

// A page that stays open while its run grows by thousands of records holds no more goroutines, elements or memory of
// scripts than before. An hour has 7,200 records at two a second: they come at speed, and with -open=2400 the page then
// stays open for 20 minutes, at the pace of a run.
func TestOpenPage(t *testing.T) {
	const hour, piece = 7200, 200
	total := hour
	if testing.Short() {
		total = 1000 // make long writes all of an hour
	}
	b := browsertest.Start(t)
	parent := t.TempDir()
	run := newRun(t, parent, "long", "")
	run.train(1, 2000, kind{hasSets: true, hasExperts: true})
	w := serveRuns(t, nil, parent)
	p := b.Open(t, w.URL, wide)
	p.Wait(settled)
	follow := func(to int) {
		p.Wait(fmt.Sprintf(`store.runs()[0].last_step === %d && %s`, to, settled))
	}
	step := 2000
	grow := func(n int) {
		run.train(step+1, step+n, kind{hasSets: true, hasExperts: true})
		step += n
	}
	grow(piece)
	follow(step)
	before := usageOf(p)
	t.Logf("before: %+v", before)
	for step < 2000+total {
		grow(piece)
		follow(step)
	}
	after := usageOf(p)
	t.Logf("after %d records: %+v", step-2000, after)
	for n := range *openFor {
		p.Get(`new Promise((done) => setTimeout(done, 500))`, nil)
		grow(1)
		if (n+1)%600 == 0 || n+1 == *openFor {
			follow(step)
			after = usageOf(p)
			t.Logf("after %d more, two a second: %+v", n+1, after)
		}
	}
	if after.goroutines > before.goroutines+4 || after.Nodes > before.Nodes+200 ||
		after.Listeners > before.Listeners+20 || after.ScriptMiB > before.ScriptMiB+8 || after.heapMiB > before.heapMiB+24 {
		t.Errorf("the page and its server grow: %+v, and %+v before", after, before)
	}
	quiet(t, p, w.URL)
}
