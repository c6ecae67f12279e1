package budget

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Bytes of a document for each of its lists and for each comma. A document that a program writes has more for each;
// some of the marks are in texts.
const (
	listBytes  = 8
	commaBytes = 3
	freeValues = 1 << 16 // which every document may have
)

// ObjectBytes is the usual number of bytes for each object of a document.
const ObjectBytes = 16

// CheckJSON refuses a document with more values for its length than one that a program writes, before it is decoded: an
// object of two bytes can take a hundred in memory. objectBytes is the least length for each object.
func CheckJSON(doc []byte, objectBytes int) error {
	for _, v := range []struct {
		mark  byte
		bytes int
	}{{'{', objectBytes}, {'[', listBytes}, {',', commaBytes}} {
		if n := bytes.Count(doc, []byte{v.mark}); n > freeValues+len(doc)/v.bytes {
			return fmt.Errorf("it has about %d values in %d bytes, more than such a file has: get it again", n, len(doc))
		}
	}
	return nil
}

// Unmarshal is json.Unmarshal of a document that CheckJSON passes, with the usual number of objects. Nesting has the
// limit of encoding/json, 10,000 levels.
func Unmarshal(doc []byte, v any) error {
	if err := CheckJSON(doc, ObjectBytes); err != nil {
		return err
	}
	return json.Unmarshal(doc, v)
}
