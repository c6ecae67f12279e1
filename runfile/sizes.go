package runfile

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/plan"
)

// Bytes is a memory budget in run.yaml: a size such as 20GiB, auto (the zero value), or none.
type Bytes struct {
	N    int64 // 0: not given as a number
	auto bool  // said to be auto, and not only left out
	none bool
}

// byteUnits are in lower case. 8G is 8GB: programs differ in whether it means 8 GiB, and the smaller one is a limit
// that holds for both.
var byteUnits = []struct {
	suffix string
	bytes  float64
}{{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40}, {"ki", 1 << 10}, {"mi", 1 << 20}, {"gi", 1 << 30}, {"ti", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"t", 1e12}, {"b", 1}}

// ParseBytes reads a size with a unit, or auto, or none.
func ParseBytes(s string) (Bytes, error) {
	switch s {
	case "auto", "":
		return Bytes{auto: s != ""}, nil
	case "none":
		return Bytes{none: true}, nil
	}
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(strings.ToLower(s), u.suffix)
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

// IsAuto reports whether it was said to be auto, and not only left out.
func (b Bytes) IsAuto() bool { return b.auto }

// IsNone reports whether it was said to be none.
func (b Bytes) IsNone() bool { return b.none }

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

// Duration is a time in run.yaml, such as 90s or 1h30m.
type Duration time.Duration

// leastDuration and mostDuration bound what can be meant: a wait that is shorter ends runs on busy hosts.
const (
	leastDuration = Duration(time.Minute)
	mostDuration  = Duration(30 * 24 * time.Hour)
)

// UnmarshalYAML reads a number with a unit, or several.
func (d *Duration) UnmarshalYAML(unmarshal func(any) error) error {
	return unmarshalTime(unmarshal, d, leastDuration, mostDuration)
}

// unmarshalTime reads a time within bounds.
func unmarshalTime(unmarshal func(any) error, to *Duration, least, most Duration) error {
	var s string
	if err := unmarshal(&s); err != nil {
		return err
	}
	x, err := time.ParseDuration(strings.ReplaceAll(s, " ", ""))
	if *to = Duration(x); err != nil || *to < least || *to > most {
		return fmt.Errorf("%q: write a time from %v to %v, such as 90s, 10m or 1h", s, least, most)
	}
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// String is the time as a run file has it, without units that count 0.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Wait is the longest wait for an answer of another program, in run.yaml such as 30s.
type Wait Duration

// leastWait and mostWait bound what can be meant.
const (
	leastWait = Duration(100 * time.Millisecond)
	mostWait  = Duration(24 * time.Hour)
)

// UnmarshalYAML reads a number with a unit, or several.
func (w *Wait) UnmarshalYAML(unmarshal func(any) error) error {
	return unmarshalTime(unmarshal, (*Duration)(w), leastWait, mostWait)
}

// MarshalYAML writes what UnmarshalYAML reads.
func (w Wait) MarshalYAML() (any, error) { return Duration(w).String(), nil }

// Names is a name in run.yaml, or a list of names: then with commas between them.
type Names string

// UnmarshalYAML reads a text or a list of texts.
func (n *Names) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if err := unmarshal(&one); err == nil {
		*n = Names(one)
		return nil
	}
	var several []string
	err := unmarshal(&several)
	*n = Names(strings.Join(several, ","))
	return err
}

// MarshalYAML writes what UnmarshalYAML reads.
func (n Names) MarshalYAML() (any, error) {
	if several := strings.Split(string(n), ","); len(several) > 1 {
		return several, nil
	}
	return string(n), nil
}

// Paths names a directory, or several that do one work together: a text, or a list of texts.
type Paths []string

// UnmarshalYAML reads a text or a list of texts.
func (p *Paths) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if err := unmarshal(&one); err == nil {
		if *p = nil; one != "" {
			*p = Paths{one}
		}
		return nil
	}
	var several []string
	if err := unmarshal(&several); err != nil {
		return errors.New("write the path of a directory, or a list of paths")
	}
	*p = several
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (p Paths) MarshalYAML() (any, error) {
	if len(p) == 1 {
		return p[0], nil
	}
	return []string(p), nil
}

// Cuts are the sizes of a configuration as a plan has them.
func (s Sizes) Cuts() plan.Cuts {
	return plan.Cuts{MicroBatch: int(s.MicroBatch), HeadChunk: int(s.HeadChunk), BlockChunk: int(s.BlockChunk)}
}

// Exchange is the type in which sums of groups are added: f32 (the empty text), or bf16.
type Exchange string

// ExchangeBF16 rounds the sum of each group first.
const ExchangeBF16 Exchange = "bf16"

// UnmarshalYAML reads f32 as the empty text. Other texts are left to Config.Check.
func (e *Exchange) UnmarshalYAML(unmarshal func(any) error) error {
	var s string
	if err := unmarshal(&s); err != nil {
		return err
	}
	if s == "f32" {
		s = ""
	}
	*e = Exchange(s)
	return nil
}

// SizesOf are the sizes of a plan of a whole step as a configuration has them, none of them auto.
func SizesOf(n plan.Numerics) Sizes {
	s := Sizes{MicroBatch: Auto(n.MicroBatch), HeadChunk: Auto(n.HeadChunk), BlockChunk: Auto(n.BlockRows()),
		Groups: Auto(n.CohortCount())}
	if n.NarrowSums() {
		s.Exchange = ExchangeBF16
	}
	return s
}

// Or is s, where asked leaves it the choice.
func (s Sizes) Or(asked Sizes) Sizes {
	for _, size := range []struct{ is, asked *Auto }{{&s.MicroBatch, &asked.MicroBatch},
		{&s.HeadChunk, &asked.HeadChunk}, {&s.BlockChunk, &asked.BlockChunk}, {&s.Groups, &asked.Groups}} {
		if *size.asked > 0 || *size.is == 0 {
			*size.is = *size.asked
		}
	}
	s.Exchange = asked.Exchange // a type, which no plan chooses
	return s
}
