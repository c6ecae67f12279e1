package timeline

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/trace"
)

var update = flag.Bool("update", false, "write the golden files of this package")

// pictured is a step of a model of three layers, with one block of each tint or more.
func pictured() *trace.Trace {
	t := &trace.Trace{About: trace.About{Model: "models/three-layers", Device: "CPU (2 workers)", Tokens: 4096}}
	at := map[trace.Lane]int{}
	add := func(lane trace.Lane, name string, start, length int) {
		at[lane] = max(at[lane], start)
		t.Spans = append(t.Spans, trace.Span{Worker: trace.Worker{Lane: lane}, Name: name, Step: 7, Start: ms(at[lane]),
			End: ms(at[lane] + length)})
		at[lane] += length
	}
	for l := range 3 {
		add(trace.Fetch, fmt.Sprintf("fetch layer %d", l), 20*l, 6)
		add(trace.Compute, fmt.Sprintf("forward layer %d", l), 6, 20)
		add(trace.Drain, fmt.Sprintf("save-kept layer %d", l), 20*l+26, 4)
		add(trace.Update, fmt.Sprintf("update layer %d", l), 0, 9)
		add(trace.Disk, fmt.Sprintf("save-state layer %d", l), 9*l+9, 8)
	}
	add(trace.Compute, "head-loss head", 0, 15)
	for l := range 3 {
		add(trace.Fetch, fmt.Sprintf("load-kept layer %d", 2-l), 70+30*l, 5)
		add(trace.Compute, fmt.Sprintf("backward layer %d", 2-l), 0, 35)
		add(trace.Drain, fmt.Sprintf("drain layer %d", 2-l), 120+30*l, 7)
	}
	for i := range 20 {
		add(trace.Compute, "collect", 190+3*i, 1)
	}
	add(trace.Update, "scatter embedding", 240, 6)
	return t
}

func TestGoldenPictures(t *testing.T) {
	step, err := Of(pictured(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, theme := range map[string]Theme{"step-light.svg": Light, "step-dark.svg": Dark} {
		got := step.SVG(theme)
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s (-want +got): look at the picture, then run go test ./timeline -update\n%s", file, d)
		}
		checkPicture(t, got)
	}
}

// checkPicture fails if a picture is too long, is not XML, can run or load anything, has small letters, or has text or
// bars outside of its edges.
func checkPicture(t *testing.T, picture []byte) {
	t.Helper()
	if len(picture) > MaxSVGBytes {
		t.Errorf("%d bytes, above %d", len(picture), MaxSVGBytes)
	}
	d := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, picture)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		at := map[string]string{}
		for _, a := range e.Attr {
			at[a.Name.Local] = a.Value
		}
		switch e.Name.Local {
		case "svg", "title", "desc", "style", "line", "g":
		case "rect":
			if x, w := number(t, at["x"]), number(t, at["width"]); x < 0 || x+w > width {
				t.Errorf("a rectangle from %g to %g", x, x+w)
			}
		case "path":
			for _, m := range regexp.MustCompile(`M([\d.]+) 0h([\d.]+)v`).FindAllStringSubmatch(at["d"], -1) {
				if end := number(t, m[1]) + number(t, m[2]); end > right-left+0.2 {
					t.Errorf("a bar ends at %g", end)
				}
			}
		case "text":
			var text string
			if err := d.DecodeElement(&text, &e); err != nil {
				t.Fatal(err)
			}
			// Letters of the title are about 9 pixels wide, others 6.5.
			x, wide := number(t, at["x"]), 6.5*float64(utf8.RuneCountInString(text))
			if at["class"] == "title" {
				wide *= 9 / 6.5
			}
			if at["text-anchor"] == "" && x+wide > width {
				t.Errorf("%q ends at %g", text, x+wide)
			}
		default:
			t.Errorf("a picture has <%s>", e.Name.Local)
		}
	}
	for _, m := range regexp.MustCompile(`(\d+)px`).FindAllSubmatch(picture, -1) {
		if px := number(t, string(m[1])); px < 11 {
			t.Errorf("letters of %g pixels", px)
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat("0"+s, 64)
	if err != nil {
		t.Error(err)
	}
	return x
}

// The width that a lane's bars have together is its busy time, whether they are narrow or wide, few or many.
func TestBarsAreAsWideAsTheirTime(t *testing.T) {
	for _, count := range []int{1, 10, 300, 3_000, 100_000} {
		tr := &trace.Trace{About: trace.About{Model: "m"}}
		length := 60 * time.Second / time.Duration(count)
		names := []string{"forward a", "backward a", "head-loss a"}
		for i := range count {
			start := time.Duration(i) * length
			tr.Spans = append(tr.Spans, trace.Span{Worker: trace.Worker{Lane: trace.Compute}, Name: names[i%3], Step: 1,
				Start: start,
				End:   start + length*2/5})
		}
		tr.Spans = append(tr.Spans, trace.Span{Worker: trace.Worker{Lane: trace.Fetch}, Step: 1, End: time.Minute})
		s, err := Of(tr, 1)
		if err != nil {
			t.Fatal(err)
		}
		picture := s.SVG(Light)
		checkPicture(t, picture)
		sum := 0.0
		// The first group is of the fetch lane.
		group := regexp.MustCompile(`(?s)<g transform="translate\(\d+ \d+\)">.*?</g>`).FindAll(picture, -1)[1]
		for _, m := range regexp.MustCompile(`0h([\d.]+)v`).FindAllSubmatch(group, -1) {
			sum += number(t, string(m[1]))
		}
		if got := sum / (right - left); math.Abs(got-0.4) > 0.02 {
			t.Errorf("%d blocks: %.3f of the lane is drawn, want 0.4", count, got)
		}
	}
}

func TestHostileNames(t *testing.T) {
	long := strings.Repeat("<script>alert(1)</script>]]>&\x00\xff\x1b水", 10_000)
	tr := &trace.Trace{About: trace.About{Model: long, Device: long, Tokens: math.MaxInt64}}
	for _, of := range (trace.Crew{Ranks: 300, Network: true}).Workers() {
		for _, word := range []string{"forward ", "head-loss ", "backward ", "fetch ", "save-kept ", "drain ", "update ",
			"gather ", "read ", "write ", "other "} {
			start := time.Duration(len(tr.Spans)) * time.Hour
			tr.Spans = append(tr.Spans, trace.Span{Worker: of, Name: word + long, Step: 1, Start: start,
				End: start + time.Hour})
		}
	}
	s, err := Of(tr, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, theme := range []Theme{Light, Dark} {
		checkPicture(t, s.SVG(theme))
	}
	tr.Simulated = true
	if s, err = Of(tr, 0); err != nil || !strings.Contains(string(s.SVG(Dark)), "Simulated step") {
		t.Errorf("a simulation looks like a measurement: %v", err)
	}
}

func TestTimeText(t *testing.T) {
	for d, want := range map[time.Duration]string{1: "1 ns", 999: "999 ns", 1500: "1.50 µs", 99_949: "99.9 µs",
		99_951: "100 µs", 9_999_999: "10.0 ms", 123_456_789: "123 ms", 999_600_000: "1.00 s", 8_880_000_000: "8.88 s",
		701 * time.Second: "701 s"} {
		if got := timeText(d); got != want {
			t.Errorf("%d: %q, want %q", d, got, want)
		}
	}
}

// FuzzPicture draws whatever the reader of traces accepts.
func FuzzPicture(f *testing.F) {
	var b bytes.Buffer
	if err := pictured().WriteChrome(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes(), int64(0))
	f.Add([]byte(`{"traceEvents":[{"ph":"M","name":"thread_name","args":{"name":"disk"}},`+
		`{"ph":"X","name":"read","ts":0,"dur":1e14,"args":{"step":1}},{"ph":"X","ts":1e14,"dur":0.001,"args":{"step":1}}],`+
		`"otherData":{"forgotten_of":{"disk":1},"tokens":1}}`), int64(1))
	f.Fuzz(func(t *testing.T, text []byte, number int64) {
		tr, err := trace.ReadChrome(bytes.NewReader(text))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %v", err)
			}
			return
		}
		step, err := Of(tr, number)
		if err != nil {
			return
		}
		checkPicture(t, step.SVG(Dark))
		step.Chart()
	})
}
