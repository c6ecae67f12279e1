// Package tensor says how numbers are in memory: element types, shapes, and the Layout of an extent.
//
// It moves no data and knows no device. Layout is the only author of offsets in the program: every store, device
// buffer and checkpoint takes the place of a tensor from here.
package tensor

import "fmt"

// DType is an element type.
type DType uint8

// The element types. Invalid is the zero value, so that an unset field is noticed.
const (
	Invalid DType = iota
	F32
	F16
	BF16
	F64
	I8
	U8
	I16
	I32
	I64
)

var dtypes = [...]struct {
	name string
	size int64
}{Invalid: {"invalid", 0}, F32: {"f32", 4}, F16: {"f16", 2}, BF16: {"bf16", 2}, F64: {"f64", 8},
	I8: {"i8", 1}, U8: {"u8", 1}, I16: {"i16", 2}, I32: {"i32", 4}, I64: {"i64", 8}}

// Bytes is the size of one element.
func (d DType) Bytes() int64 { return dtypes[d].size }

// String is the lower-case name that configs and messages use ("bf16").
func (d DType) String() string {
	if int(d) >= len(dtypes) {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// MarshalText writes as String does.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what String writes.
func (d *DType) UnmarshalText(name []byte) (err error) {
	*d, err = ParseDType(string(name))
	return err
}

// ParseDType reads what String writes.
func ParseDType(s string) (DType, error) {
	for i, t := range dtypes {
		if i > 0 && t.name == s {
			return DType(i), nil
		}
	}
	return Invalid, fmt.Errorf("unknown dtype %q", s)
}
