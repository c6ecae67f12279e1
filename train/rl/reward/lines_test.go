package reward

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestParseLine(t *testing.T) {
	many := make([]string, mostMetrics+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"m%d": 1`, i)
	}
	for line, want := range map[string]string{
		`{"id": 17, "reward": 0.5, "metrics": {"format": 1}}`:                   "17 scored 0.5 map[format:1]",
		`{"metrics": null, "reward": true, "id": -3}`:                           "-3 scored 1 map[]",
		`{"id": 17, "reward": false, "why": "so"}`:                              "17 scored 0 map[]",
		`{"id": 17, "reward": null, "metrics": {"a": 2, "b": null}}`:            "17 null NaN map[a:2]",
		`{"id": 17, "reward": -1e12}`:                                           "17 scored -1e+12 map[]",
		`{"id": 17, "reward": 1e13}`:                                            "17 not_finite NaN map[]",
		`{"id": 17, "reward": 1e999}`:                                           "17 not_finite NaN map[]",
		`{"id": 17, "reward": NaN}`:                                             "17 not_finite NaN map[]",
		`{"id": 17, "reward": -Infinity, "metrics": {"a\"NaN": Infinity}}`:      "17 not_finite NaN map[]",
		`{"id": 17, "reward": 1, "metrics": {"a": NaN}}`:                        "17 not_finite NaN map[]",
		`{"id": 17, "reward": "1"}`:                                             "17 malformed NaN map[]",
		`{"id": 17, "reward": [1]}`:                                             "17 malformed NaN map[]",
		`{"id": 17}`:                                                            "17 malformed NaN map[]",
		`{"id": 17, "reward": 1, "metrics": {"": 1}}`:                           "17 malformed NaN map[]",
		`{"id": 17, "reward": 1, "metrics": {"a": "b"}}`:                        "17 malformed NaN map[]",
		`{"id": 17, "reward": 1, "metrics": {` + strings.Join(many, ",") + "}}": "17 malformed NaN map[]",
		`{"id": 17.5, "reward": 1}`:                                             "error",
		`{"id": "17", "reward": 1}`:                                             "error",
		`{"reward": 1}`:                                                         "error",
		`{"id": 17, "reward": 1`:                                                "error",
		`[1]`:                                                                   "error",
		`null`:                                                                  "error",
		`NaN`:                                                                   "error",
		`"NaN`:                                                                  "error",
		`"\`:                                                                    "error",
		`debug: {"id": 17}`:                                                     "error",
	} {
		s, err := parseLine([]byte(line))
		got := fmt.Sprint(s.id, " ", s.verdict.cause, " ", s.verdict.reward, " ", s.verdict.metrics)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%.80s: %s, %v, want %s", line, got, err, want)
		}
		if s.verdict.cause.isFault() != (s.detail != "") {
			t.Errorf("%.80s: %q", line, s.detail)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	for _, line := range []string{`{"id": 17, "reward": 0.5, "metrics": {"format": 1}}`, `{"id": 1, "reward": NaN}`,
		"x\x00"} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		s, err := parseLine(line)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%q", err)
			}
			return
		}
		v := s.verdict
		if !v.isGiven || (v.cause == Scored) == math.IsNaN(v.reward) || math.Abs(v.reward) > mostReward ||
			len(v.metrics) > mostMetrics || v.cause.isFault() != (s.detail != "") || len(s.detail) > 1000 {
			t.Errorf("%q: %+v", line, s)
		}
	})
}
