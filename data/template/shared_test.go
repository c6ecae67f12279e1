package template

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/fault"
)

// Renders that run at the same time have one budget: of hostile ones, each of which would take all that a render may,
// one works at a time. All of them end, and none has taken more than the budget at any time.
func TestRendersShareABudget(t *testing.T) {
	budget.Set(budget.MinBytes)
	defer budget.Set(0)
	shared := budget.Shared()
	const grows = `{% set ns = namespace(a='x' * 1000) %}{% for i in range(100) %}{% set ns.a = ns.a + 'y' * 1000 %}{% endfor %}`
	for name, source := range map[string]string{
		"a long text":        `{% set a = 'ab' * 1200000 %}{{ a | upper | length }}`,
		"a list":             `{% set a = 'a,' * 150000 %}{{ a.split(',') | length }}`,
		"texts that grow":    grows + `{{ ns.a | length }}`,
		"more than there is": `{{ ('a' * 30000000) | length }}`,
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Add(1)
			fault.Go(func() {
				defer all.Done()
				_, err := tmpl.Render(context.Background(), Input{})
				if isTooMuch := name == "more than there is"; isTooMuch != errors.Is(err, ErrLimit) || !isTooMuch && err != nil {
					t.Errorf("%s: error %v", name, err)
				}
				if err != nil && (!strings.Contains(err.Error(), "memory.host") || strings.Contains(err.Error(), "\n")) {
					t.Errorf("%s: the error does not say in a line what to do: %v", name, err)
				}
			})
		}
		all.Wait()
	}
	if shared.Peak() > shared.Bytes() || shared.Peak() <= budget.SmallBytes {
		t.Errorf("%d bytes were taken at once, of %d", shared.Peak(), shared.Bytes())
	}
}

// A render that waits for the budget ends with its context.
func TestRenderWaitsForTheBudget(t *testing.T) {
	budget.Set(budget.MinBytes)
	defer budget.Set(0)
	other := budget.Shared().Begin()
	if err := other.Take(t.Context(), 2*budget.SmallBytes); err != nil {
		t.Fatal(err)
	}
	defer other.End()
	small, err := Parse(`{{ 'a' * 1000 }}`)
	if err != nil {
		t.Fatal(err)
	}
	large, err := Parse(`{{ 'a' * 8000000 }}`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := small.Render(ctx, Input{}); err != nil {
		t.Error(err)
	}
	cancel()
	if _, err := large.Render(ctx, Input{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Parsing takes no more memory than it was charged for, whatever the source is made of.
func TestParseIsCharged(t *testing.T) {
	for _, unit := range []string{"{{a}}", "{{[[a]]}}", "{{-a}}", "{%if a%}{%endif%}", "{#a#}", "{{a.b.c}}", "{{a|b}}", "{%set a=b%}", "{{'a'}}",
		"{{a(b,c)}}", "{{a,b}}", "{{{'a':1}}}", "\n", "a", "{{a+b}}", "{{a[1:2]}}"} {
		const size = 1 << 16
		source := strings.Repeat(unit, size/len(unit))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(source)
		runtime.ReadMemStats(&after)
		if made := after.TotalAlloc - before.TotalAlloc; made > size*parseBytes {
			t.Errorf("%q: %d bytes for one of the source, %d were charged (error %v)", unit, made/size, parseBytes, err)
		} else if testing.Verbose() {
			t.Logf("%q: %d bytes for one of the source (error %v)", unit, made/size, err)
		}
	}
	long := "{{" + strings.Repeat("a+", 1<<15) + "a}}"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Parse(long)
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > uint64(len(long)*parseBytes) {
		t.Errorf("a long expression: %d bytes for one of the source (error %v)", made/uint64(len(long)), err)
	}
}

// Renders with one context share their steps: many that are long end it together.
func TestRendersShareSteps(t *testing.T) {
	tmpl, err := Parse(`{% for i in range(90000) %}{% for j in range(20) %}{% endfor %}{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	ctx := ShareSteps(context.Background())
	left := ctx.Value(stepsKey{}).(*int64)
	if _, err := tmpl.Render(ctx, Input{}); err != nil {
		t.Fatal(err)
	}
	one := sharedRenders*DefaultLimits.Steps - *left
	if one < 90000*20 || one > DefaultLimits.Steps {
		t.Errorf("a render takes %d steps", one)
	}
	*left = one + one/2
	if _, err := tmpl.Render(ctx, Input{}); err != nil {
		t.Error(err)
	}
	if _, err := tmpl.Render(ctx, Input{}); !errors.Is(err, ErrLimit) || *left > 0 {
		t.Errorf("error %v, %d steps are left", err, *left)
	}
}
