package plan

import (
	"strings"
	"testing"
)

// The reason that is given for a mixture of experts tells parameters that are updated from frozen ones.
func TestMixtureCountsFrozenParameters(t *testing.T) {
	for shape, want := range map[string][2]string{
		"qwen3-8b": {},
		"qwen3-30b-a3b": {
			", since all 30.5B parameters are moved and updated and a token computes with 3.4B",
			", since all 30.5B parameters are moved, 906.0M of them are updated, and a token computes with 3.4B"},
	} {
		p := &Plan{Model: named(t, shape, "h100-pcie5", Numerics{}).Model}
		if got := p.mixture(); got != want[0] {
			t.Errorf("%s: %q", shape, got)
		}
		m, err := p.Model.Grouped(func(name string) (int, bool) { return 0, strings.Contains(name, "self_attn") })
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Plan{Model: m}).mixture(); got != want[1] {
			t.Errorf("%s, attention alone is trained: %q", shape, got)
		}
	}
}
