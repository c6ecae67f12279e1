package model

import (
	"math"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

func ropeOf(t *testing.T, doc string) (nn.RopeFrequencies, error) {
	t.Helper()
	c, err := hf.ParseConfig("m/config.json", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	r := c.Reader()
	p := readRope(r, 64)
	return p, r.Finish()
}

// Both generations of transformers' keys say the same.
func TestReadRope(t *testing.T) {
	const llama3 = `"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ` +
		`"original_max_position_embeddings": 8192`
	stretched := nn.RopeFrequencies{HeadDim: 64, Theta: 5e5, Kind: nn.RopeLlama3, Factor: 8, LowFreqFactor: 1,
		HighFreqFactor: 4, OriginalPositions: 8192}
	plain := func(theta float64) nn.RopeFrequencies { return nn.RopeFrequencies{HeadDim: 64, Theta: theta} }
	for doc, want := range map[string]nn.RopeFrequencies{
		`{}`:                      plain(1e4),
		`{"rope_theta": 1000000}`: plain(1e6),
		`{"rope_theta": 5e5, "rope_scaling": {` + llama3 + `}}`:                          stretched,
		`{"rope_parameters": {"rope_theta": 5e5, ` + llama3 + `}}`:                       stretched,
		`{"rope_theta": 5e5, "rope_parameters": {"rope_theta": 500000, ` + llama3 + `}}`: stretched,
		`{"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2}}`: {HeadDim: 64, Theta: 1e4,
			Kind: nn.RopeLinear, Factor: 2},
		`{"rope_scaling": {"rope_type": "default"}}`: plain(1e4),
		`{"rope_scaling": null, "rope_theta": 7}`:    plain(7),
		// Frequencies would be others beyond max_position_embeddings alone.
		`{"rope_scaling": {"type": "dynamic", "factor": 2}}`: plain(1e4),
	} {
		if got, err := ropeOf(t, doc); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", doc, got, err, want)
		}
	}
}

// Heads of some families are rotated in part, by a factor that either generation's keys may have.
func TestReadPartialRope(t *testing.T) {
	for doc, want := range map[string]struct {
		rotated int
		says    string
	}{
		`{}`:                              {32, ""},
		`{"partial_rotary_factor": 0.25}`: {16, ""},
		`{"partial_rotary_factor": 1}`:    {0, ""},
		`{"rope_theta": 7, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}}`: {48,
			""},
		`{"partial_rotary_factor": 0.3, "rope_parameters": {"rope_theta": 7}}`: {0,
			`"partial_rotary_factor" is 0.3: of heads of width 64 that is 19 columns`},
		`{"partial_rotary_factor": 0.25, "rope_parameters": {"rope_theta": 7, "partial_rotary_factor": 0.25}}`: {16,
			""},
		`{"partial_rotary_factor": 0.25, "rope_parameters": {"rope_theta": 7, "partial_rotary_factor": 0.5}}`: {0,
			`"rope_parameters.partial_rotary_factor" is 0.5: supported is 0.25`},
		`{"partial_rotary_factor": 1.5}`:  {0, `"partial_rotary_factor" is 1.5`},
		`{"partial_rotary_factor": 0.01}`: {0, `"partial_rotary_factor" is 0.01`},
		`{"rope_parameters": {"partial_rotary_factor": -0.5}}`: {0,
			`"rope_parameters.partial_rotary_factor" is -0.5: a positive number`},
		`{"rope_parameters": {"partial_rotary_factor": "half"}}`: {0,
			`"rope_parameters.partial_rotary_factor" is "half"`},
	} {
		c, err := hf.ParseConfig("m/config.json", []byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		r := c.Reader()
		r.Default(allDefaults()["glm4"]) // half of a head
		p := readPartialRope(r, 64)
		switch err := r.Finish(); {
		case want.says == "" && (err != nil || p.Rotated != want.rotated):
			t.Errorf("%s: %d columns, %v; want %d", doc, p.Rotated, err, want.rotated)
		case want.says != "" && (err == nil || !strings.Contains(err.Error(), want.says)):
			t.Errorf("%s: %v, want %s", doc, err, want.says)
		}
	}
}

// The original length of the configuration counts more than that of longrope, as to transformers, and the factor is the
// ratio of the lengths unless it is stated.
func TestReadLongRope(t *testing.T) {
	ones := "[" + strings.Repeat("1, ", 31) + "1.5]"
	text := strings.Repeat("1 ", 31) + "1.5"
	const sqrt = 1.1902380714238083 // of 1 + log(32)/log(4096)
	for doc, want := range map[string]nn.RopeFrequencies{
		`"original_max_position_embeddings": 4096, "rope_scaling": {"original_max_position_embeddings": 3, `: {
			Magnitude: sqrt, Factor: 32, OriginalPositions: 4096},
		`"rope_scaling": {"original_max_position_embeddings": 65536, "factor": 1, `: {
			Magnitude: 1, Factor: 1, OriginalPositions: 65536},
		`"rope_scaling": {"attention_factor": 1.25, `: {Magnitude: 1.25, Factor: 1, OriginalPositions: 131072},
	} {
		want.HeadDim, want.Theta, want.Kind = 64, 1e4, nn.RopeLong
		want.Short, want.Long = nn.Factors(text), nn.Factors(text)
		got, err := ropeOf(t, `{"max_position_embeddings": 131072, `+doc+`"type": "longrope", "short_factor": `+ones+
			`, "long_factor": `+ones+`}}`)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", doc, got, err, want)
		}
	}
}

// Layers with full attention have a stretching of their own, in both generations' keys.
func TestReadRopeByType(t *testing.T) {
	const yarn = `"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192`
	plain := nn.RopeFrequencies{HeadDim: 64, Theta: 5e5}
	stretched := nn.RopeFrequencies{HeadDim: 64, Theta: 5e5, Kind: nn.RopeYaRN, Factor: 8, OriginalPositions: 8192,
		BetaFast: 32, BetaSlow: 1, Whole: true, Magnitude: float64(0.1*math.Log(8)) + 1}
	for doc, want := range map[string][2]nn.RopeFrequencies{
		`{}`: {plain, plain},
		`{"rope_theta": 500000, "rope_scaling": {` + yarn + `}}`: {stretched, plain},
		`{"rope_parameters": {"full_attention": {"rope_theta": 5e5, ` + yarn + `}, ` +
			`"sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}}`: {stretched, plain},
		`{"rope_parameters": {"rope_theta": 5e5, ` + yarn + `}}`: {stretched, plain},
	} {
		c, err := hf.ParseConfig("m/config.json", []byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		r := c.Reader()
		r.Default(allDefaults()["olmo3"]) // a base of 5e5
		full, sliding := readRopeByType(r, 64, "")
		if err := r.Finish(); err != nil || [2]nn.RopeFrequencies{full, sliding} != want {
			t.Errorf("%s: %+v, %+v, %v; want %+v", doc, full, sliding, err, want)
		}
	}
}

func TestReadRopeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		doc   string
		words []string
	}{
		"unknown": {`{"rope_scaling": {"rope_type": "proportional", "factor": 4}}`,
			[]string{`"rope_scaling.rope_type" is "proportional": supported are default, linear, llama3, yarn`}},
		"unknown, old name": {`{"rope_scaling": {"type": "proportional", "factor": 4}}`,
			[]string{`"rope_scaling.type" is "proportional"`}},
		"no list of factors": {`{"max_position_embeddings": 64, "rope_scaling": {"type": "longrope"}}`,
			[]string{`"rope_scaling.short_factor" is missing: 32 numbers are expected`}},
		"few factors": {`{"max_position_embeddings": 64, "rope_scaling": {"type": "su", "short_factor": [1]}}`,
			[]string{`"rope_scaling.short_factor"`, "32 numbers are expected"}},
		"yarn band": {`{"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2}}`,
			[]string{`"rope_scaling.beta_fast" is 1`}},
		"two types":         {`{"rope_scaling": {"type": "default", "rope_type": "linear", "factor": 4}}`, []string{`"rope_scaling.type" is "default"`}},
		"no factor":         {`{"rope_scaling": {"type": "linear"}}`, []string{`"rope_scaling.factor" is missing`}},
		"factor zero":       {`{"rope_scaling": {"type": "linear", "factor": 0}}`, []string{`"rope_scaling.factor" is 0`}},
		"rope key":          {`{"rope_scaling": {"type": "linear", "factor": 2, "mrope_section": [1]}}`, []string{`"rope_scaling.mrope_section"`, "not supported"}},
		"theta":             {`{"rope_theta": -1}`, []string{`"rope_theta" is -1`}},
		"llama3 band":       {`{"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1, "original_max_position_embeddings": 8192}}`, []string{`"rope_parameters.high_freq_factor" is 1`}},
		"partial":           {`{"partial_rotary_factor": 0.5}`, []string{`"partial_rotary_factor" is 0.5`}},
		"both styles":       {`{"rope_scaling": {"type": "default"}, "rope_parameters": {}}`, []string{`"rope_scaling"`, "rope_parameters"}},
		"thetas differ":     {`{"rope_theta": 1, "rope_parameters": {"rope_theta": 2}}`, []string{`"rope_parameters.rope_theta" is 2: supported is 1`}},
		"per kind of layer": {`{"rope_parameters": {"full_attention": {"rope_theta": 2}}}`, []string{`"rope_parameters.full_attention"`}},
	} {
		_, err := ropeOf(t, c.doc)
		for _, word := range append(c.words, "m/config.json") {
			if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want %s", name, err, word)
			}
		}
	}
}
