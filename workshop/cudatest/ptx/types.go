package ptx

// A kind says what the bits of a value mean.
type kind uint8

const (
	bitsKind kind = iota // untyped: .b8 .. .b64, .pred
	unsigned
	signed
	float // IEEE: .f16, .f32, .f64
	brain // bfloat16 and pairs of it
	tensor
)

// A typ is one of PTX's types. bits is 1 for predicates; lanes is 2 for pairs such as .f16x2.
type typ struct {
	name  string
	kind  kind
	bits  int
	lanes int
}

var types = map[string]typ{
	"pred": {"pred", bitsKind, 1, 1},
	"b8":   {"b8", bitsKind, 8, 1}, "b16": {"b16", bitsKind, 16, 1}, "b32": {"b32", bitsKind, 32, 1},
	"b64": {"b64", bitsKind, 64, 1},
	"u8":  {"u8", unsigned, 8, 1}, "u16": {"u16", unsigned, 16, 1}, "u32": {"u32", unsigned, 32, 1},
	"u64": {"u64", unsigned, 64, 1},
	"s8":  {"s8", signed, 8, 1}, "s16": {"s16", signed, 16, 1}, "s32": {"s32", signed, 32, 1},
	"s64": {"s64", signed, 64, 1},
	"f16": {"f16", float, 16, 1}, "f32": {"f32", float, 32, 1}, "f64": {"f64", float, 64, 1},
	"f16x2": {"f16x2", float, 32, 2},
	"bf16":  {"bf16", brain, 16, 1}, "bf16x2": {"bf16x2", brain, 32, 2}, "tf32": {"tf32", tensor, 32, 1},
}

func (t typ) isInteger() bool { return t.kind == unsigned || t.kind == signed }
func (t typ) isFloat() bool   { return t.kind >= float }
func (t typ) bytes() int      { return t.bits / 8 }

// A file is one of a warp's register files.
type file uint8

const (
	narrow     file = iota // 8, 16 and 32 bits; what is narrower than 32 bits has zeros above it
	wide                   // 64 bits
	predicates             // one bit per lane
)

func (t typ) file() file {
	switch t.bits {
	case 1:
		return predicates
	case 64:
		return wide
	}
	return narrow
}
