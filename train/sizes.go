package train

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/plan"
)

// Bytes is a memory budget in run.yaml: a size such as 20GiB, auto (the zero value), or none.
type Bytes struct {
	N    int64 // 0: not given as a number
	auto bool  // said to be auto, and not only left out
	none bool
}

var byteUnits = []struct {
	suffix string
	bytes  float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}}

// ParseBytes reads a size with a unit, or auto, or none.
func ParseBytes(s string) (Bytes, error) {
	switch s {
	case "auto", "":
		return Bytes{auto: s != ""}, nil
	case "none":
		return Bytes{none: true}, nil
	}
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(x > 0) || x*u.bytes >= math.MaxInt64 || x*u.bytes < 1 {
			break
		}
		return Bytes{N: int64(x * u.bytes)}, nil
	}
	return Bytes{}, fmt.Errorf("size %q: write a number with a unit, such as 20GiB or 500MB, or auto", s)
}

// UnmarshalYAML reads what ParseBytes reads.
func (b *Bytes) UnmarshalYAML(unmarshal func(any) error) error {
	var s string
	if err := unmarshal(&s); err != nil {
		return err
	}
	v, err := ParseBytes(s)
	*b = v
	return err
}

// MarshalYAML writes what UnmarshalYAML reads, to the byte.
func (b Bytes) MarshalYAML() (any, error) {
	switch {
	case b.none:
		return "none", nil
	case b.N == 0:
		return "auto", nil
	}
	return fmt.Sprintf("%dB", b.N), nil
}

// String is the size for people.
func (b Bytes) String() string {
	if b.N == 0 {
		return "auto"
	}
	return plan.FormatBytes(b.N)
}

// Auto is a count in run.yaml, or auto (the zero value).
type Auto int

// UnmarshalYAML reads a positive number or auto.
func (a *Auto) UnmarshalYAML(unmarshal func(any) error) error {
	var s string
	if err := unmarshal(&s); err != nil {
		return err
	}
	if s == "auto" || s == "" {
		*a = 0
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > plan.MaxPositionsPerMicroBatch {
		return fmt.Errorf("%q: write a number from 1 on, or auto", s)
	}
	*a = Auto(n)
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (a Auto) MarshalYAML() (any, error) {
	if a == 0 {
		return "auto", nil
	}
	return int(a), nil
}
