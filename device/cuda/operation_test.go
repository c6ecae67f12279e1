package cuda

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/tensor"
)

// All kernels are reached by the operation that their names say, the quickest first, and attention by every size of heads.
func TestTabulate(t *testing.T) {
	for _, target := range kernels.Targets {
		set, err := kernels.Load(target)
		if err != nil {
			t.Fatal(err)
		}
		var all []*function
		for _, name := range set.Names() {
			k, _ := set.Find(name)
			all = append(all, &function{Kernel: k})
		}
		table := tabulate(all)
		reached := map[*function]bool{}
		for o, list := range table {
			for i, f := range list {
				reached[f] = true
				if _, rank := variant(f.Name); i > 0 && o.head == 0 {
					if _, before := variant(list[i-1].Name); before >= rank {
						t.Errorf("%v: %s comes before %s", o, list[i-1].Name, f.Name)
					}
				}
			}
		}
		for _, f := range all {
			if !reached[f] {
				t.Errorf("%s is reached by nothing", f.Name)
			}
		}
		check := func(o operation, want ...string) {
			t.Helper()
			var got []string
			for _, f := range table[o] {
				got = append(got, f.Name)
			}
			if len(got) < len(want) {
				t.Errorf("%v: %v, want %v", o, got, want)
				return
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("%v: %v, want %v", o, got, want)
				}
			}
		}
		check(named("lse_init"), "lse_init")
		check(named("rmsnorm_grad", "bf16", "resid"), "rmsnorm_grad.bf16.resid.narrow", "rmsnorm_grad.bf16.resid.c2048",
			"rmsnorm_grad.bf16.resid.c4096", "rmsnorm_grad.bf16.resid.c8192", "rmsnorm_grad.bf16.resid.a16", "rmsnorm_grad.bf16.resid.any")
		check(named("rope", "bf16"), "rope.bf16.a16", "rope.bf16.any")
		check(named("rope", "bf16", "bias"), "rope.bf16.bias.a16", "rope.bf16.bias.any")
		check(named("matmul", "bf16", "f32", "tn"), "matmul.bf16.f32.tn.a16")
		check(named("matmul", "bf16", "f32"), "matmul.bf16.f32.any")
		heads := func(name, dtype string, width int) operation {
			o := named(name, dtype)
			o.head = width
			return o
		}
		check(heads("attention", "bf16", 64), "attention.bf16.h64.a16", "attention.bf16.h64.any", "attention.bf16.h128.any")
		check(heads("attention_dq", "bf16", 65), "attention_dq.bf16.h128.any", "attention_dq.bf16.h256.any")
		check(heads("attention_dkdv", "f32", 64), "attention_dkdv.f32.h64.any")
		capped := func(name, dtype string, width int) operation {
			o := named(name, dtype, "cap")
			o.head = width
			return o
		}
		check(capped("attention", "bf16", 64), "attention.bf16.cap.h64.a16", "attention.bf16.cap.h128.any")
		check(capped("attention", "bf16", 80), "attention.bf16.cap.h128.any", "attention.bf16.cap.h256.any")
		for _, name := range []string{"attention", "attention_dkdv", "attention_dq"} {
			for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
				for _, isCapped := range []bool{false, true} {
					for width := 1; width <= device.GPUMaxHeadDim.Of(dtype, isCapped); width++ {
						o := heads(name, typeName(dtype), width)
						if isCapped {
							o = capped(name, typeName(dtype), width)
						}
						if len(table[o]) == 0 {
							t.Errorf("no kernel of %v", o)
						}
					}
				}
			}
		}
	}
}

// Query heads are split where key heads and rows are few, as far as they and the workspace go.
func TestSplits(t *testing.T) {
	for _, c := range []struct{ rows, heads, kvHeads, headDim, want int }{
		{2048, 16, 2, 128, 8}, {2048, 14, 2, 64, 7}, {2048, 28, 4, 128, 4}, {4096, 28, 4, 128, 2}, {8192, 28, 4, 128, 1}, {1 << 20, 64, 8, 128, 1},
		{100, 12, 12, 64, 1}, {1, 8, 1, 80, 8}, {4096, 8, 1, 256, 4}, {16384, 16, 1, 256, 1},
	} {
		spec := device.AttentionSpec{Heads: c.heads, KVHeads: c.kvHeads, HeadDim: c.headDim}
		if got := splits(c.rows, c.kvHeads*c.headDim, spec); got != c.want {
			t.Errorf("%+v: %d splits", c, got)
		}
	}
}

// The workspace has room for a chunk of as many heads of gated delta nets as devices say.
func TestMostDeltaHeads(t *testing.T) {
	each := 4 * device.DeltaChunk * (2*device.DeltaChunk + 2*device.GPUMaxDeltaDim)
	if got := deltaBytes / each; got != device.GPUMaxDeltaHeads {
		t.Errorf("room for %d heads, and devices say %d", got, device.GPUMaxDeltaHeads)
	}
	set, err := kernels.Load("sm90a")
	if err != nil {
		t.Fatal(err)
	}
	if k, ok := set.Find("delta_solve_terms.bf16"); !ok || k.Constants["EACH"] != deltaTerms {
		t.Errorf("a chunk and head leaves %d numbers where T is in terms, and its kernel %v", deltaTerms, k)
	}
}
