package template

import (
	"context"
	"strings"
	"testing"
	"time"
)

// mostOfContract bounds the renders that a contract takes.
const mostOfContract = 80

// TestRenders counts what FindTurns renders: it grows with the number of turns, by as much as its documentation says.
func TestRenders(t *testing.T) {
	const plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}" +
		"{{ '<assistant>' if add_generation_prompt }}"
	for _, f := range append(readFamilies(t), family{name: "plain", source: plain}) {
		tmpl, err := Parse("{% if strftime_now('%Y') == '' %}{% endif %}" + f.source)
		if err != nil {
			t.Fatal(err)
		}
		for _, cycle := range []string{"question answer", "answer", "question call result thought",
			"question thoughtCall result call result answer"} {
			in := familyInput(t, strings.Fields(strings.Repeat(cycle+" ", 16)))
			renders := 0
			in.Now = func() time.Time {
				renders++
				return fixedClock()
			}
			contract, err := tmpl.Contract(context.Background(), in)
			if err != nil {
				t.Fatal(err)
			}
			if renders > mostOfContract {
				t.Errorf("%s: the contract took %d renders, want at most %d", f.name, renders, mostOfContract)
			}
			renders = 0
			_, err = contract.FindTurns(context.Background(), in, AllTurns)
			turns := len(assistantMessages(in.Messages))
			each := 31
			if !isAsked(in.Messages) {
				each = 54
			}
			if most := 2 * (each*turns + 22); renders > most {
				t.Errorf("%s\n%s: %d turns took %d renders, want at most %d", f.name, cycle, turns, renders, most)
			}
			if f.name == "plain" && (err != nil || renders != 2*turns+4) {
				t.Errorf("%s: %d turns took %d renders of a plain template, %v", cycle, turns, renders, err)
			}
		}
	}
}
