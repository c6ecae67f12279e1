package kernels

import (
	"fmt"
	"strings"
)

// A grid is written, one dimension each, in this grammar, over a kernel's integer arguments and constants:
//
//	product = factor { "*" factor }
//	factor  = name | "ceil(" name "/" name ")"

// The largest grid that a launch may have.
var gridLimits = [3]uint64{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}

type product []factor

// factor is over, divided by under and rounded up.
type factor struct{ over, under operand }

// operand is an argument, or a constant where arg is negative.
type operand struct {
	arg      int
	constant uint64
}

func parseProduct(text string, k *Kernel) (product, error) {
	var p product
	for part := range strings.SplitSeq(text, "*") {
		over, under, divided := part, "", false
		if inner, ok := strings.CutPrefix(part, "ceil("); ok {
			if inner, ok = strings.CutSuffix(inner, ")"); ok {
				over, under, divided = strings.Cut(inner, "/")
			}
			if !divided {
				return nil, fmt.Errorf("grid %q: %q is not ceil(name/name)", text, part)
			}
		}
		f := factor{under: operand{arg: -1, constant: 1}}
		var err error
		if f.over, err = parseOperand(over, k); err != nil {
			return nil, fmt.Errorf("grid %q: %w", text, err)
		}
		if divided {
			if f.under, err = parseOperand(under, k); err != nil {
				return nil, fmt.Errorf("grid %q: %w", text, err)
			}
		}
		p = append(p, f)
	}
	return p, nil
}

func parseOperand(name string, k *Kernel) (operand, error) {
	if i := k.Arg(name); i >= 0 {
		if t := k.Args[i].Type; t != I32 && t != I64 {
			return operand{}, fmt.Errorf("argument %s is %s, not a number of things", name, t)
		}
		return operand{arg: i}, nil
	}
	if c, ok := k.Constants[name]; ok {
		if c < 1 {
			return operand{}, fmt.Errorf("constant %s is %d", name, c)
		}
		return operand{arg: -1, constant: uint64(c)}, nil
	}
	return operand{}, fmt.Errorf("no argument or constant %q", name)
}

func (o operand) of(values []uint64) uint64 {
	if o.arg < 0 {
		return o.constant
	}
	return values[o.arg]
}

// Programs is the grid of a launch with these values, as [Kernel.Takes] has them. It is an error if a dimension is more than a GPU
// takes. A grid with a dimension of 0 has nothing to do, and is not launched.
func (k *Kernel) Programs(values []uint64) ([3]uint32, error) {
	if len(values) != len(k.Args) {
		panic(fmt.Sprintf("kernels: %s takes %d arguments, not %d", k.Name, len(k.Args), len(values)))
	}
	grid := [3]uint32{1, 1, 1}
	for i, p := range k.grid {
		n := uint64(1)
		for _, f := range p {
			over, under := f.over.of(values), f.under.of(values)
			if int64(over) < 0 || int64(under) < 1 {
				return grid, fmt.Errorf("%s: grid %q of %d and %d", k.Name, k.Grid[i], int64(over), int64(under))
			}
			programs := over / under
			if over%under != 0 {
				programs++
			}
			if programs > gridLimits[i] || n*programs > gridLimits[i] {
				return grid, fmt.Errorf("%s: grid %q is more than %d", k.Name, k.Grid[i], gridLimits[i])
			}
			n *= programs
		}
		grid[i] = uint32(n)
	}
	return grid, nil
}
