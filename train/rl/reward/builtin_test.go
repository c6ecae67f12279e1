package reward

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/millrace/millrace/runfile"
)

// Final numbers of texts as GSM8K and MATH have them, and as models write them.
func TestFinalNumber(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"no number":              "",
		"72":                     "72",
		"The answer is 72.":      "72",
		"She pays $5.50.":        "11/2",
		"It costs -$3":           "-3",
		"It costs $-3.":          "-3",
		"It is −4 degrees":       "-4",
		"10-5":                   "5",
		"10 - 5":                 "5",
		"x = -5":                 "-5",
		"(-5)":                   "-5",
		"from 3 to 4":            "4",
		"pages 3-4":              "4",
		"1,234,567 people":       "1234567",
		"1, 2, 3":                "3",
		"12,34":                  "34",
		"1/2 of it":              "1/2",
		"-1/2":                   "-1/2",
		"3 / 0":                  "",
		".5":                     "1/2",
		"5.":                     "5",
		"0.250":                  "1/4",
		"50%":                    "50",
		"1e3":                    "1000",
		"1.5e-1":                 "3/20",
		"1e999999999":            "",
		"the area is 12 cm^2":    "12",
		"the area is 12 cm^{2}.": "12",
		"x_1 is 8, as is x_2":    "8",
		"H2O":                    "",
		"5h later":               "5",
		strings.Repeat("9", 65):  "",
		"Natalia sold 48/2 = <<48/2=24>>24 clips.\nIn all 48+24 = <<48+24=72>>72.\n#### 72": "72",
		"#### 1,000":                            "1000",
		"#### -7\n\nThe next line has 8":        "-7",
		"#### 5 of 9":                           "5",
		"#### none\n3":                          "",
		"#### 3\nWait, no.\n#### 4":             "4",
		`The answer is $\boxed{42}$.`:           "42",
		`\boxed{1} and then \boxed{2}, so 3`:    "2",
		`\boxed{\frac{1}{2}}`:                   "1/2",
		`\boxed{-\dfrac{1}{2}}`:                 "-1/2",
		`\boxed{\frac{-1}{2}}`:                  "-1/2",
		`\boxed{\frac12}`:                       "1/2",
		`\boxed{\tfrac 3 4}`:                    "3/4",
		`\boxed{3\frac{1}{2}}`:                  "7/2",
		`\boxed{1{,}234}`:                       "1234",
		`\boxed{1\,234}`:                        "1234",
		`\boxed{12\text{ cm}^2}`:                "12",
		`\boxed{12 \mathrm{~cm}}`:               "12",
		`\boxed{30^\circ}`:                      "30",
		`\boxed{30^{\circ}}`:                    "30",
		`\boxed{50\%}`:                          "50",
		`\boxed{\$18.90}`:                       "189/10",
		`\boxed{x=5}`:                           "5",
		`\boxed{x = \frac{2}{3}}`:               "2/3",
		`\boxed{\left(3\right)}`:                "3",
		`\boxed{(1,2)}`:                         "",
		`\boxed{\sqrt{3}}`:                      "",
		`\boxed{2\sqrt{3}}`:                     "",
		`\boxed{2\pi}`:                          "",
		`\boxed{3x}`:                            "",
		`\boxed{x^2}`:                           "",
		`\boxed{\frac{\sqrt{3}}{2}}`:            "",
		`\boxed{\text{even}}`:                   "",
		`\boxed{5 apples}`:                      "5",
		`\boxed{7`:                              "7",
		`\boxed{1} or \boxed{2`:                 "1",
		`\boxed {9}`:                            "9",
		`\frac{1}{2}`:                           "1/2",
		`so it is $\frac{10}{4}$.`:              "5/2",
		`3 \times 4`:                            "4",
		`\frac{1}{0}`:                           "",
		`\boxed{` + strings.Repeat("{", 10_000): "",
		strings.Repeat(`\boxed{`, 1<<17):        "", // each may end at the end: a scan for each takes minutes
		`\boxed{\boxed{5}}`:                     "5",
		`} \boxed{6} {`:                         "6",
	} {
		got := ""
		if n := finalNumber(text); n != nil {
			got = n.RatString()
		}
		if got != want {
			t.Errorf("%.60q: %q, want %q", text, got, want)
		}
	}
}

// builtinOf scores one answer by a built-in reward.
func builtinOf(t *testing.T, s runfile.Reward, o Options, completion, row string) string {
	t.Helper()
	s.Name = "a"
	p, err := Open(t.Context(), []runfile.Reward{s}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	a := Answer{Completion: completion, CompletionIDs: make([]int32, len(completion))}
	if row != "" {
		a.Row = json.RawMessage(row)
	}
	other := Answer{ID: 1, Completion: "1", Row: json.RawMessage(`{"answer": "1", "c": {"d": ["1"]}}`)}
	for _, a := range []Answer{a, other} {
		if err := p.Judge(a); err != nil {
			t.Fatal(err)
		}
	}
	r, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(r.Scores[0].Rewards[0])
}

func TestBuiltins(t *testing.T) {
	exact, number := runfile.Reward{Type: runfile.RewardExact}, runfile.Reward{Type: runfile.RewardNumber}
	nested := runfile.Reward{Type: runfile.RewardNumber, Column: "c.d"}
	tags := runfile.Reward{Type: runfile.RewardRegex, Pattern: `(?s)<a>(.*?)</a>`}
	compared := tags
	compared.Column = "answer"
	length := runfile.Reward{Type: runfile.RewardLength, Max: 10, Cache: 4}
	for _, c := range []struct {
		s                     runfile.Reward
		completion, row, want string
	}{
		{exact, " yes\n", `{"answer": "yes"}`, "1"},
		{exact, "Yes", `{"answer": "yes"}`, "0"},
		{exact, "no", `{"answer": ["yes", "no"]}`, "1"},
		{exact, "7", `{"answer": 7}`, "1"},
		{exact, "true", `{"answer": true}`, "1"},
		{exact, "", `{"answer": ""}`, "1"},
		{exact, "x", `{"answer": null}`, "NaN"},
		{exact, "x", `{"answer": {"x": 1}}`, "NaN"},
		{exact, "x", ``, "NaN"},
		{number, "so 4 apples", `{"answer": 4.0}`, "1"},
		{number, "so 4 apples", `{"answer": "3+1\n#### 4"}`, "1"},
		{number, "so few", `{"answer": 4}`, "0"},
		{number, "0.5", `{"answer": "\\boxed{\\frac{1}{2}}"}`, "1"},
		{number, "0.5", `{"answer": "\\boxed{\\pi}"}`, "NaN"},
		{number, "12345678901234567890", `{"answer": 12345678901234567891}`, "0"},
		{nested, "3", `{"c": {"d": ["2", 3]}}`, "1"},
		{nested, "3", `{"c.d": 3, "c": {"d": 4}}`, "1"},
		{nested, "3", `{"c": 3}`, "NaN"},
		{tags, "<a>\n</a>", ``, "1"},
		{tags, "<a>", ``, "0"},
		{compared, "<a>x</a><a> y </a>", `{"answer": "y"}`, "1"},
		{compared, "<a>x</a><a>y</a>", `{"answer": "x"}`, "0"},
		{compared, "x", `{"answer": "x"}`, "0"},
		{compared, "<a>x</a>", ``, "NaN"},
		{length, "123456", ``, "0"},
		{length, "1234567", ``, "-0.25"},
		{length, "1234567890", ``, "-1"},
		{length, "12345678901", ``, "-1"},
	} {
		if got := builtinOf(t, c.s, Options{}, c.completion, c.row); got != c.want {
			t.Errorf("%+v, %q, %s: %s, want %s", c.s, c.completion, c.row, got, c.want)
		}
	}
	length.Max, length.Cache = 0, 0
	if got := builtinOf(t, length, Options{MaxTokens: 10}, "123456789", ""); got != "-0.5" {
		t.Error(got)
	}
	if finalNumber("3").Cmp(big.NewRat(3, 1)) != 0 {
		t.Error("3 is not 3")
	}
}

// A column that no row has is a slip in the run file.
func TestLackingColumn(t *testing.T) {
	misspelled := []runfile.Reward{{Name: "math", Type: runfile.RewardNumber, Column: "anwser"}}
	_, err := judged(t, misspelled, Options{}, "1", "2")
	if err == nil || !strings.Contains(err.Error(), `reward math: the rows of all 2 answers of the step have no `+
		`number at `+
		`"anwser": name the key`) {
		t.Error(err)
	}
}

func FuzzFinalNumber(f *testing.F) {
	for _, text := range []string{`\boxed{\frac{1}{2}}`, "#### 1,234.5", "-1/2e3 cm^2", `3\frac12`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n := finalNumber(text); n != nil && finalNumber(n.RatString()).Cmp(n) != 0 && len(n.RatString()) < mostDigits {
			t.Errorf("%q: %s is read as %v", text, n.RatString(), finalNumber(n.RatString()))
		}
	})
}
