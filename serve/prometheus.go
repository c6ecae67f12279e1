package serve

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// metrics answers in the text format of Prometheus: the numbers of the newest record of each run, and its latest
// evaluations. Source: https://prometheus.io/docs/instrumenting/exposition_formats/
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	type value struct {
		run string
		x   float64
	}
	values := map[string][]value{}
	for _, r := range s.all() {
		r.mu.Lock()
		seen := map[string]bool{}
		add := func(name string, x float64) {
			if name = metricName(name); name != "" && !seen[name] {
				seen[name] = true
				values[name] = append(values[name], value{r.name, x})
			}
		}
		r.records.reader.Each = func(name []byte, x float64) { add(string(name), x) }
		if len(r.records.newest) > 0 {
			m, _ := r.records.reader.Read(r.records.newest) // it was read before
			add("step", float64(m.Step))
		}
		t := r.shown()
		for _, name := range t.names {
			if c := t.columns[name]; c.isEval && len(c.few) > 0 {
				add(name, float64(c.few[len(c.few)-1].value))
			}
		}
		up := 0.0
		if r.state == "running" {
			up = 1
		}
		add("running", up)
		if p, _ := r.plannedNow(); p.Wear != nil && p.Wear.Steps > 0 {
			add("planned_steps", float64(p.Wear.Steps))
		}
		r.mu.Unlock()
	}
	var doc []byte
	for _, name := range slices.Sorted(maps.Keys(values)) {
		doc = append(append(append(doc, "# TYPE "...), name...), " gauge\n"...)
		for _, v := range values[name] {
			doc = append(append(doc, name...), `{run="`...)
			doc = append(append(doc, labelEscapes.Replace(v.run)...), `"} `...)
			doc = append(strconv.AppendFloat(doc, v.x, 'g', -1, 64), '\n')
		}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(doc) // a reader that is gone needs no answer
}

var labelEscapes = strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`)

// metricName is the name of a number for Prometheus; empty for an element of a list, and for a number of a layer.
func metricName(name string) string {
	for part := range strings.SplitSeq(name, "/") {
		if strings.Trim(part, "0123456789") == "" || part == "layers" || len(name) > 100 {
			return ""
		}
	}
	return "millrace_" + strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, name)
}
