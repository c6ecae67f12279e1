package template

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

func longConversation(turns int) Input {
	var messages []Value
	for i := range turns {
		d := NewDict(2)
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		d.Set("role", String(role))
		d.Set("content", String(fmt.Sprintf("%d: %s", i, strings.Repeat("some words of a turn, ", 20))))
		messages = append(messages, d)
	}
	return Input{Messages: messages, BOSToken: "<s>", EOSToken: "</s>", Now: fixedClock}
}

// BenchmarkRender renders 20 turns of 450 bytes.
func BenchmarkRender(b *testing.B) {
	for _, name := range []string{"chatml.jinja", "thinking.jinja", "inst.jinja", "generation.jinja"} {
		b.Run(name, func(b *testing.B) { benchmarkRender(b, readTemplate(b, name)) })
	}
}

// BenchmarkPublic is BenchmarkRender with the templates of golden.py --public.
func BenchmarkPublic(b *testing.B) {
	path := os.Getenv("TEMPLATE_PUBLIC")
	if path == "" {
		b.Skip("TEMPLATE_PUBLIC names no file")
	}
	templates := get[*Dict](b, readGolden(b, path), "templates")
	for i, name := range templates.Keys() {
		b.Run(string(name.(String)), func(b *testing.B) {
			tmpl, err := Parse(string(templates.At(i).(String)))
			if err != nil {
				b.Fatal(err)
			}
			benchmarkRender(b, tmpl)
		})
	}
}

func benchmarkRender(b *testing.B, tmpl *Template) {
	in := longConversation(20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tmpl.Render(context.Background(), in); err != nil {
			b.Skip(err)
		}
	}
}

func BenchmarkFindTurns(b *testing.B) {
	for _, name := range []string{"chatml.jinja", "thinking.jinja", "generation.jinja"} {
		b.Run(name, func(b *testing.B) {
			tmpl, in := readTemplate(b, name), longConversation(20)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tmpl.FindTurns(context.Background(), in, AllTurns); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	source, err := os.ReadFile("testdata/thinking.jinja")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Parse(string(source)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRendersShareATemplateAndValues is for the race detector.
func TestRendersShareATemplateAndValues(t *testing.T) {
	tmpl, in := readTemplate(t, "thinking.jinja"), longConversation(10)
	want, err := tmpl.Render(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if got, err := tmpl.Render(context.Background(), in); err != nil || got.Text != want.Text {
					t.Errorf("got %q, %v", got.Text, err)
				}
			}
		})
	}
	wg.Wait()
}
