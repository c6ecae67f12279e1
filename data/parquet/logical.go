package parquet

import (
	"fmt"
	"strings"
)

// A column says twice what it has: by the physical type of its values, and by an annotation that gives the bytes a
// meaning. A date is a number of 32 bits, a decimal is a few bytes, and a JSON value is a text. A row gets
// the value that the writer of the file had, since a model may be trained on it. So each pair of annotation and
// physical type has one answer in this file: a text, a number, a truth value, the value that a JSON text holds, or a refusal
// by name. Pairs that are in no table are refused, too.

// meaning says how a column's values are written into a row.
type meaning int

const (
	isRefused meaning = iota
	isBoolean
	isSigned
	isUnsigned
	isReal
	isText
	isJSON
)

// annotation is the logical type of a column (LogicalTypes.md of apache/parquet-format).
type annotation int

// The numbers are those of the fields of the union LogicalType in parquet.thrift.
const (
	annotatedNothing   annotation = 0
	annotatedString    annotation = 1
	annotatedMap       annotation = 2
	annotatedList      annotation = 3
	annotatedEnum      annotation = 4
	annotatedDecimal   annotation = 5
	annotatedDate      annotation = 6
	annotatedTime      annotation = 7
	annotatedTimestamp annotation = 8
	annotatedInteger   annotation = 10
	annotatedNull      annotation = 11 // a column of nulls alone, of which no value is ever asked
	annotatedJSON      annotation = 12
	annotatedBSON      annotation = 13
	annotatedUUID      annotation = 14
	annotatedFloat16   annotation = 15
	annotatedVariant   annotation = 16
	annotatedGeometry  annotation = 17
	annotatedGeography annotation = 18
	// ConvertedType alone has this one.
	annotatedInterval annotation = 100
	// Annotations that are younger than this table.
	annotatedUnknown annotation = 101
)

// logicalType is an annotation; of integers also whether they have no sign.
type logicalType struct {
	annotation annotation
	unsigned   bool
}

// convertedTypes are the annotations of older writers, by their numbers in the enum ConvertedType of parquet.thrift.
var convertedTypes = [...]logicalType{
	0: {annotation: annotatedString}, 1: {annotation: annotatedMap}, 2: {annotation: annotatedMap}, 3: {annotation: annotatedList},
	4: {annotation: annotatedEnum}, 5: {annotation: annotatedDecimal}, 6: {annotation: annotatedDate}, 7: {annotation: annotatedTime},
	8: {annotation: annotatedTime}, 9: {annotation: annotatedTimestamp}, 10: {annotation: annotatedTimestamp},
	11: {annotatedInteger, true}, 12: {annotatedInteger, true}, 13: {annotatedInteger, true}, 14: {annotatedInteger, true},
	15: {annotation: annotatedInteger}, 16: {annotation: annotatedInteger}, 17: {annotation: annotatedInteger}, 18: {annotation: annotatedInteger},
	19: {annotation: annotatedJSON}, 20: {annotation: annotatedBSON}, 21: {annotation: annotatedInterval},
}

// refusals name the columns whose values no row has, and say how to write them.
var refusals = map[annotation]string{
	annotatedDecimal:   "decimal numbers: write them as float64 or as text",
	annotatedDate:      "dates: write them as text",
	annotatedTime:      "times of day: write them as text",
	annotatedTimestamp: "timestamps: write them as text",
	annotatedBSON:      "BSON values: write them as JSON",
	annotatedUUID:      "UUIDs: write them as text",
	annotatedFloat16:   "numbers of 16 bits: write them as float32",
	annotatedVariant:   "variants: write them as JSON",
	annotatedGeometry:  "geometries: write them as text",
	annotatedGeography: "geographies: write them as text",
	annotatedInterval:  "intervals: write them as text",
	annotatedMap:       "maps whose keys are no texts: write a list of objects",
}

// leafMeaning is the answer for a column of values, and for a refused one the reason.
func leafMeaning(kind int, l logicalType) (meaning, string) {
	if why, ok := refusals[l.annotation]; ok {
		return isRefused, why
	}
	switch l.annotation {
	case annotatedNothing:
		switch kind {
		case typeBoolean:
			return isBoolean, ""
		case typeInt32, typeInt64:
			return isSigned, ""
		case typeFloat, typeDouble:
			return isReal, ""
		case typeBytes:
			return isText, ""
		case typeInt96:
			return isRefused, refusals[annotatedTimestamp]
		case typeFixed:
			return isRefused, "bytes of a fixed length: write them as text"
		}
	case annotatedString, annotatedEnum:
		if kind == typeBytes {
			return isText, ""
		}
	case annotatedJSON:
		if kind == typeBytes {
			return isJSON, ""
		}
	case annotatedInteger:
		if kind == typeInt32 || kind == typeInt64 {
			if l.unsigned {
				return isUnsigned, ""
			}
			return isSigned, ""
		}
	}
	return isRefused, "values of a type that this program does not know: write them as text or numbers"
}

// groupMeaning refuses groups whose annotation gives their fields another meaning. Lists, maps and structs have none of that.
func groupMeaning(l logicalType) (meaning, string) {
	switch l.annotation {
	case annotatedVariant, annotatedUnknown:
		return isRefused, refusals[annotatedVariant]
	}
	return isText, ""
}

// openMap tells a map, whose repeated field has a key and a value, by its annotation. Maps from texts are written as objects.
func (n *node) openMap() {
	if n.logical.annotation != annotatedMap {
		return
	}
	if len(n.fields) == 1 && n.fields[0].repetition == repeated && len(n.fields[0].fields) == 2 {
		entries := n.fields[0]
		if key := entries.fields[0]; key.isLeaf() && key.meaning == isText && key.repetition != repeated {
			n.isMap, entries.isEntry, key.isEntry, entries.fields[1].isEntry = true, true, true, true
			return
		}
	}
	n.meaning, n.why = isRefused, refusals[annotatedMap]
}

// logicalType reads the union LogicalType.
func (t *thrift) logicalType(kind byte) (l logicalType) {
	t.asStructure(kind, func(id int, kind byte) {
		l.annotation = annotation(id)
		if l.annotation < annotatedString || l.annotation > annotatedGeography || id == 9 {
			l.annotation = annotatedUnknown
		}
		if l.annotation != annotatedInteger {
			t.skip(kind)
			return
		}
		t.asStructure(kind, func(id int, kind byte) {
			if id == 2 {
				l.unsigned = !t.asBool(kind)
				return
			}
			t.skip(kind)
		})
	})
	return l
}

// convertedType is the annotation of an older writer.
func convertedType(number int) logicalType {
	if number < len(convertedTypes) {
		return convertedTypes[number]
	}
	return logicalType{annotation: annotatedUnknown}
}

// refused is the error of a column that has a value and is not read.
func (f *File) refused(n *node) error {
	return fmt.Errorf("column %.200s has %s", f.root.field(n), n.why)
}

// field is the path of a node below this one as a row has it, such as "messages.content": without the groups that make
// lists and maps.
func (n *node) field(below *node) string {
	var names []string
	for n != below {
		items, item, isList := n.listItem()
		switch {
		case isList && item != nil && items != below:
			n = item
		case isList:
			n = items
		default:
			n = n.above(below.from)
			if !n.isEntry {
				names = append(names, n.name)
			}
		}
	}
	return strings.Join(names, ".")
}
